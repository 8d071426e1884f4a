package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestPods: pods with the plugin after Debian's bridge plugin. Each subtest ends with nothing left.
func TestPods(t *testing.T) { eachRuntime(t, testPods) }

func testPods(t *testing.T, r *Runtime) {
	x := newEngine(t, Config{}, EngineConfig{Runtime: r}, map[string]string{"10-pods.conflist": list("pods", 0, entry)})
	run := func(name string, f func(*engine)) {
		t.Run(name, func(t *testing.T) {
			x := x.as(t)
			f(x)
			x.nothingLeft()
		})
	}
	for _, binding := range []string{"bridge", "redirect", "masquerade"} {
		run(binding, func(x *engine) { testBinding(x, binding) })
	}
	run("nothing wanted", testNothingWanted)
	run("error", testError)
	run("launcher killed", testLauncherKilled)
	run("late DEL", testLateDel)
	if r == CRIO {
		return // its sandboxes have no process to kill, and some of many pods are under bridge: see testBinding
	}
	run("sandbox killed", testSandboxKilled)
	run("namespace gone", testNamespaceGone)
	run("many", testMany)
}

// testBinding: a pod from its start to its end, as a kubelet has it.
func testBinding(x *engine, binding string) {
	config := PodConfig{Name: binding, UID: "uid-of-" + binding, Annotations: map[string]string{"guestwire/nic.eth0": binding}}
	if binding == "bridge" && x.config.Runtime == CRIO {
		// CRI-O calls CHECK of the whole list after ADD.
		if _, err := x.RunPod(config); err == nil || !strings.Contains(err.Error(), "eth0 not of type veth") {
			x.t.Errorf("%v, want the error of the plugin that made the veth", err)
		}
		return
	}
	p := x.pod(config)
	x.launcher(p, 0)
	g := x.guest(p, "eth0")
	x.echo(x.dial(p.Name, p.Addresses[0]))

	a := x.attachment(p, "pods", "eth0")
	x.must(x.plugins("CHECK", a, "guestwire", nil))
	// Under bridge, eth0 is a dummy, and the plugin that made the veth misses it.
	if err := x.plugins("CHECK", a, "", nil); (err != nil) != (binding == "bridge") {
		x.t.Errorf("CHECK of the whole list: %v", err)
	}
	g.Close()
	x.must(p.Stop())
	x.nothingLeft() // the sandbox is there, and has no network any more
	x.must(p.Remove())
}

// testNothingWanted: a pod without an annotation is as it would be without the plugin.
func testNothingWanted(x *engine) {
	p := x.pod(PodConfig{Name: "plain", Annotations: map[string]string{"example.org/nic.eth0": "redirect"}})
	defer func() { x.must(p.End()) }()
	dump := x.dump(p)
	if strings.Contains(dump, "guestwire") || strings.Contains(dump, "tap") {
		x.t.Errorf("the pod is wired:\n%s", dump)
	}
	for _, line := range x.leftovers() {
		if strings.HasPrefix(line, "file: ") {
			x.t.Error(line)
		}
	}
	// Each call of the plugin alone leaves the namespace as it is.
	a := x.attachment(p, "pods", "eth0")
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		x.must(x.plugins(command, a, "guestwire", nil))
	}
	if err := nstest.Difference(dump, x.dump(p)); err != nil {
		x.t.Error(err)
	}
}

// testError: what is wrong with a pod is in the engine's error, whole: that is what the pod's events show.
func testError(x *engine) {
	for annotation, want := range map[string][]string{
		"guestwire/nic.eth0=redirekt": {"annotation guestwire/nic.eth0", "redirekt", "masquerade"},
		"guestwire/nik.eth0=redirect": {"annotation guestwire/nik.eth0", "guestwire/nic.NIC", "guestwire/devices", "guestwire/container"},
		`guestwire/nic.eth0={"binding": {"redirect": {}}, "guard": {"off": true}}`: {"guard", "trustPods"},
		"guestwire/nic.eth0=macvtap": {"eth0", "macvtap"},
	} {
		key, value, _ := strings.Cut(annotation, "=")
		_, err := x.RunPod(PodConfig{Name: "wrong", UID: "uid-of-wrong", Annotations: map[string]string{key: value}})
		if err == nil {
			x.t.Fatalf("%s: no error", annotation)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				x.t.Errorf("%s: %v, want %q in it", annotation, err, part)
			}
		}
	}
}

// TestListMistakes: a list that the plugin cannot use fails ADD, and its DEL too has nothing to work with. The engine
// then ends what the plugins before it have made: no address is left.
func TestListMistakes(t *testing.T) {
	handlers, lists := map[string]string{}, map[string]string{"10-pods.conflist": list("pods", 0)}
	for name, m := range listMistakes {
		handlers[name] = "/etc/cni/" + name + ".d"
		lists["../"+name+".d/10-pods.conflist"] = list("pods", 0, strings.TrimSuffix(entry, "}")+", "+m.members+"}")
	}
	x := newEngine(t, Config{}, EngineConfig{Handlers: handlers}, lists)
	x.Node.MustRun(t, "sh", "-ec", "touch /run/file && mkdir /run/read-only && mount -t tmpfs -o ro none /run/read-only")
	for name, m := range listMistakes {
		t.Run(name, func(t *testing.T) {
			x := x.as(t)
			_, err := x.RunPod(PodConfig{Name: name, UID: "uid-of-" + name, Handler: name, Annotations: redirect})
			if err == nil || !strings.Contains(err.Error(), m.want) {
				t.Errorf("%v, want %q", err, m.want)
			}
			if left := x.leftovers(); len(left) > 0 {
				t.Fatalf("left:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// listMistakes are members of an entry that are wrong, and a part of the error.
var listMistakes = map[string]struct{ members, want string }{
	"owner":     {`"spec": {"owner": "vm"}`, "owner"},
	"binding":   {`"spec": {"binding": {"redirekt": {}}}`, "redirekt"},
	"type":      {`"trustPods": "yes"`, "trustPods"},
	"relative":  {`"state": "guestwire"`, "guestwire"},
	"state":     {`"state": "/run/file/state"`, "/run/file"},
	"read-only": {`"state": "/run/read-only/guestwire"`, "read-only file system"},
	"journals":  {`"dir": "/run/file/journals"`, "/run/file"},
	"beside":    {`"binding": {"redirect": {}}`, "binding"},
}

// testLauncherKilled: another launcher serves the same guest.
func testLauncherKilled(x *engine) {
	p := x.pod(PodConfig{Name: "killed", Annotations: redirect})
	c := x.launcher(p, 0)
	g := x.guest(p, "eth0")
	s := x.dial(p.Name, p.Addresses[0])
	x.kill(c.Pid)
	x.awaitExited(c)
	x.echo(s) // traffic needs no launcher
	x.launcher(p, 1)
	x.leases(g)
	x.echo(s)
	g.Close()
	x.must(p.End())
}

// testSandboxKilled: the engine makes another sandbox for the same pod, and removes the old one when it likes.
func testSandboxKilled(x *engine) {
	for _, late := range []string{"stopped and removed late", "removed late", "removed first"} {
		uid := "uid-of-restarted"
		old := x.pod(PodConfig{Name: "restarted", UID: uid, Annotations: redirect})
		x.launcher(old, 0)
		x.guest(old, "eth0").Close()
		a := x.attachment(old, "pods", "eth0")
		x.kill(old.Pid)
		x.awaitNotReady(old)
		switch late {
		case "removed late":
			x.must(old.Stop())
		case "removed first":
			x.must(old.End())
		}
		p := x.pod(PodConfig{Name: "restarted", UID: uid, Attempt: 1, Annotations: redirect})
		x.launcher(p, 1)
		g := x.guest(p, "eth0")
		s := x.dial(p.Name, p.Addresses[0])
		dump, files := x.dump(p), x.files(p)
		if late != "removed first" {
			x.must(old.End())
		}
		// Engines call DEL again, with and without the path of the namespace.
		x.must(x.plugins("DEL", a, "guestwire", nil))
		a.netns = ""
		x.must(x.plugins("DEL", a, "guestwire", nil))
		if err := nstest.Difference(dump, x.dump(p)); err != nil {
			x.t.Errorf("%s: %v", late, err)
		}
		if err := nstest.Difference(files, x.files(p)); err != nil {
			x.t.Errorf("%s: %v", late, err)
		}
		x.echo(s)
		x.leases(g)
		g.Close()
		x.must(p.End())
	}
}

// testLateDel: DEL comes twice and more, in the wrong order, and for NICs that never existed.
func testLateDel(x *engine) {
	p := x.pod(PodConfig{Name: "late", Annotations: redirect})
	x.launcher(p, 0)
	x.guest(p, "eth0").Close()
	a := x.attachment(p, "pods", "eth0")
	x.must(x.plugins("DEL", a, "guestwire", nil)) // before the engine's own
	x.must(x.plugins("DEL", a, "guestwire", nil))
	x.must(p.End())
	for _, netns := range []string{p.NetNS, "", "/run/netns/never"} {
		a.netns = netns
		x.must(x.plugins("DEL", a, "guestwire", nil))
		a.Result = nil // an engine has none after an ADD that failed
	}
	a.ContainerID = strings.Repeat("0", 64)
	x.must(x.plugins("DEL", a, "guestwire", nil))
}

// testNamespaceGone: the namespace ends before the engine calls DEL.
func testNamespaceGone(x *engine) {
	p := x.pod(PodConfig{Name: "gone", Annotations: redirect})
	c := x.launcher(p, 0)
	x.guest(p, "eth0").Close()
	x.kill(c.Pid) // it is in the namespace, too
	x.kill(p.Pid)
	x.awaitExited(c)
	x.awaitNotReady(p)
	x.Node.MustRun(x.t, "sh", "-c", `umount "$0" && rm "$0"`, p.NetNS)
	x.must(p.End())
}

// testMany: 20 pods at once.
func testMany(x *engine) {
	const count = 20
	pods := make([]*Pod, count)
	errs := make([]error, count)
	each := func(f func(i int) error) {
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() { errs[i] = f(i) })
		}
		all.Wait()
		x.must(errors.Join(errs...))
	}
	each(func(i int) (err error) {
		name := fmt.Sprintf("many-%d", i)
		binding := []string{"bridge", "redirect", "masquerade"}[i%3]
		pods[i], err = x.RunPod(PodConfig{Name: name, UID: "uid-of-" + name, Annotations: map[string]string{"guestwire/nic.eth0": binding}})
		return err
	})
	for _, p := range pods {
		if r := x.record(p, "eth0"); r.Name != "eth0" {
			x.t.Errorf("%s: %+v", p.Name, r)
		}
	}
	// One guest at the end of the crowd, to see that it is served.
	x.launcher(pods[count-1], 0)
	g := x.guest(pods[count-1], "eth0")
	x.echo(x.dial(pods[count-1].Name, pods[count-1].Addresses[0]))
	g.Close()
	each(func(i int) error { return pods[i].End() })
}

// TestTwoNetworks: a NIC of each CNI list of the node, with a chained entry each. One launcher serves both.
func TestTwoNetworks(t *testing.T) {
	x := newEngine(t, Config{}, EngineConfig{MaxConf: 2}, map[string]string{
		"10-first.conflist":  list("first", 1, entry),
		"20-second.conflist": list("second", 2, entry),
	})
	p := x.pod(PodConfig{Name: "two", Annotations: map[string]string{"guestwire/nic.eth0": "redirect", "guestwire/nic.eth1": "masquerade"}})
	x.launcher(p, 0)
	for nic, network := range map[string]string{"eth0": "first", "eth1": "second"} {
		x.guest(p, nic)
		a := x.attachment(p, network, nic)
		x.must(x.plugins("CHECK", a, "", nil))
		x.echo(x.dial(p.Name, a.address(t)))
	}
	one := x.pod(PodConfig{Name: "one", Annotations: map[string]string{"guestwire/nic.eth1": "redirect"}})
	if _, err := os.Stat(x.Node.Path(filepath.Join(x.state, one.ID, "eth0.json"))); err == nil {
		t.Error("eth0 of the second pod is wired")
	}
	x.record(one, "eth1")
	x.must(one.End())
	x.must(p.End())
	x.nothingLeft()
}

// TestHandler: pods of a RuntimeClass have the plugin in a CNI list of their own; all other pods are left alone.
func TestHandler(t *testing.T) {
	x := newEngine(t, Config{}, EngineConfig{Handlers: map[string]string{"guestwire": "/etc/cni/guestwire.d"}}, map[string]string{
		"10-pods.conflist":                     list("pods", 0),
		"../guestwire.d/00-guestwire.conflist": list("pods", 0, entry),
	})
	other := x.pod(PodConfig{Name: "other", Annotations: redirect})
	if dump := x.dump(other); strings.Contains(dump, "guestwire") {
		t.Errorf("the other pod is wired:\n%s", dump)
	}
	p := x.pod(PodConfig{Name: "vm", Handler: "guestwire", Annotations: redirect})
	if p.Addresses[0] == other.Addresses[0] {
		t.Errorf("both pods have %v", p.Addresses[0])
	}
	x.launcher(p, 0)
	g := x.guest(p, "eth0")
	x.echo(x.dial(p.Name, p.Addresses[0]))
	g.Close()
	x.must(p.End())
	x.must(other.End())
	x.nothingLeft()
}

// TestUserNamespace: a pod with hostUsers: false. The launcher is user 107 of the pod's own users, and owns the tap.
func TestUserNamespace(t *testing.T) {
	if newer == "" {
		nstest.LeaveOut(t, "Debian's containerd makes no pods with a user namespace; the engines of make kubernetes do")
	}
	eachRuntime(t, testUserNamespace)
}

func testUserNamespace(t *testing.T, r *Runtime) {
	x := newEngine(t, Config{}, EngineConfig{Runtime: r}, map[string]string{"10-pods.conflist": list("pods", 0, entry)})
	for _, binding := range []string{"bridge", "redirect", "masquerade"} {
		if binding == "bridge" && r == CRIO {
			continue // see testBinding
		}
		p := x.pod(PodConfig{Name: binding, Annotations: map[string]string{"guestwire/nic.eth0": binding}, UserNamespace: 200000})
		x.launcher(p, 0)
		g := x.guest(p, "eth0")
		s := x.dial(p.Name, p.Addresses[0])
		x.echo(s)
		addresses := p.Addresses
		x.must(errors.Join(x.Kill(), x.Start(), p.inspect()))
		if !slices.Equal(p.Addresses, addresses) {
			t.Errorf("after a restart the engine reports the addresses %v, and has reported %v", p.Addresses, addresses)
		}
		x.echo(s)
		x.leases(g)
		g.Close()
		x.must(p.End())
		x.nothingLeft()
	}
}
