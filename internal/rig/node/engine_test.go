package node

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// files lists the plugin's and Phase1's files of a pod, and which sandbox the pod's name leads to.
func (x *engine) files(p *Pod) string {
	x.t.Helper()
	target, err := os.Readlink(x.Node.Path(filepath.Join(x.state, "pods", p.UID)))
	x.must(err)
	return target + "\n" + x.Node.MustRun(x.t, "sh", "-c", `ls -lA --full-time "$@"`, "ls",
		filepath.Join(x.state, p.ID), filepath.Join(journals, x.record(p, "eth0").Namespace))
}

// TestEngineRestart: the engine ends and starts under a running guest, and then removes the pod. Sandboxes of the same
// name that the plugin has refused do not keep it from starting. The plugin gets the calls that docs/reference/cni.md
// says of the engine.
func TestEngineRestart(t *testing.T) { eachRuntime(t, testEngineRestart) }

func testEngineRestart(t *testing.T, r *Runtime) {
	pods, c := list("pods", 0, entry), EngineConfig{Runtime: r}
	calls := map[string][]string{"pod": {"ADD"}, "start": nil, "end": {"DEL"}}
	if r == CRIO {
		pods = strings.Replace(pods, "1.0.0", "1.1.0", 1) // with GC and STATUS, which Debian's plugins do not have
		if _, err := os.Stat(unpacked.Path("cni-plugins")); err != nil {
			nstest.Skip(t, "no "+unpacked.Path("cni-plugins")+": make install")
		}
		c.Plugins = unpacked.Path("cni-plugins")
		calls = map[string][]string{"pod": {"ADD", "CHECK"}, "start": {"CHECK", "GC", "STATUS", "VERSION"}, "end": {"DEL"}}
	}
	x := newEngine(t, Config{}, c, map[string]string{"10-pods.conflist": pods})
	gate := x.Node.NewGate(t, "guestwire")
	called := func(t *testing.T, when string) {
		t.Helper()
		had := map[string]bool{}
		nstest.Eventually(t, func() error { // CRI-O calls GC and STATUS soon after it answers
			for _, command := range gate.Calls(t) {
				had[command] = true
			}
			for _, command := range calls[when] {
				if !had[command] {
					return fmt.Errorf("%s: calls %v, want %v", when, slices.Sorted(maps.Keys(had)), calls[when])
				}
			}
			return nil
		})
	}
	for name, end := range map[string]func() error{"SIGTERM": x.Stop, "SIGKILL": x.Kill} {
		t.Run(name, func(t *testing.T) {
			x := x.as(t)
			for range 2 {
				if _, err := x.RunPod(PodConfig{Name: "restart", UID: "uid-of-restart", Annotations: map[string]string{"guestwire/nic.eth0": "redirekt"}}); err == nil {
					t.Fatal("no error")
				}
			}
			gate.Calls(t)
			p := x.pod(PodConfig{Name: "restart", Annotations: redirect})
			called(t, "pod")
			x.launcher(p, 0)
			g := x.guest(p, "eth0")
			s := x.dial(p.Name, p.Addresses[0])
			before := x.dump(p)
			x.must(end())
			x.echo(s)
			x.leases(g)
			gate.Calls(t)
			x.must(x.Start())
			called(t, "start")
			x.echo(s)
			x.leases(g)
			if err := nstest.Difference(before, x.dump(p)); err != nil {
				t.Error(err)
			}
			addresses := p.Addresses
			if x.must(p.inspect()); !slices.Equal(p.Addresses, addresses) {
				t.Errorf("the engine reports the addresses %v, and has reported %v", p.Addresses, addresses)
			}
			g.Close()
			gate.Calls(t)
			x.must(p.End())
			called(t, "end")
			x.nothingLeft()
		})
	}
}

// TestEngineEndsInADD: the engine ends while its call of ADD runs, or gives the call up. It may know nothing of the
// sandbox afterwards, whose namespace is there. After SIGKILL the call goes on without the engine, and may end when the
// next engine has made another sandbox for the pod. A GC, or the engine itself, takes the rest of the wiring down.
func TestEngineEndsInADD(t *testing.T) {
	x := newEngine(t, Config{}, EngineConfig{}, map[string]string{"10-pods.conflist": list("pods", 0, entry)})
	gate := x.Node.NewGate(t, "guestwire")
	type call string
	const (
		killed   call = "the engine kills the call"
		goesOn   call = "the call ends before the next engine starts"
		endsLate call = "the call ends when the pod runs again"
	)
	for _, c := range []struct {
		end  string
		call call
	}{{"given up", killed}, {"SIGTERM", killed}, {"SIGKILL", goesOn}, {"SIGKILL", endsLate}} {
		t.Run(fmt.Sprintf("%s, %s", c.end, c.call), func(t *testing.T) {
			x := x.as(t)
			pod := PodConfig{Name: "interrupted", UID: "uid-of-interrupted", Annotations: redirect}
			limit := runTime - time.Second
			if c.end == "given up" {
				limit = 2 * time.Second
			}
			gate.Close(t)
			ended := make(chan error, 1)
			go func() { ended <- x.callCRI(limit, "RunPodSandbox", map[string]any{"config": pod.sandbox()}, nil) }()
			held := gate.Reached(t)
			switch c.end {
			case "SIGTERM":
				x.must(x.Stop())
			case "SIGKILL":
				x.must(x.Kill())
			}
			if err := <-ended; err == nil {
				t.Fatal("RunPodSandbox succeeded")
			}
			switch c.call {
			case killed:
				held.Ended(t)
				held.Open(t)
			case goesOn:
				held.Open(t)
				held.Ended(t)
				if text := x.settled(held.NetNS); !strings.Contains(text, "guestwire") {
					t.Errorf("the call of ADD has not wired its sandbox:\n%s", text)
				}
			}
			if c.end != "given up" {
				x.must(x.Start())
			}
			pod.Attempt = 1
			p := x.pod(pod)
			x.launcher(p, 0)
			g := x.guest(p, "eth0")
			s := x.dial(p.Name, p.Addresses[0])
			if c.call == endsLate {
				held.Open(t)
				held.Ended(t)
			}
			x.gc(x.attachment(p, "pods", "eth0"), p)
			for _, line := range x.leftovers() {
				if strings.Contains(line, held.ID) && strings.HasPrefix(line, "file: ") {
					t.Error(line)
				}
			}
			if text := x.settled(held.NetNS); strings.Contains(text, "guestwire") {
				t.Errorf("left in the namespace:\n%s", text)
			}
			held.NetNS.Close()
			x.removeOthers(p)
			x.echo(s)
			x.leases(g)
			g.Close()
			x.must(p.End())
			x.nothingLeft()
		})
	}
}

// TestNodeCrash: the node ends with pods on it.
func TestNodeCrash(t *testing.T) {
	for name, c := range map[string]struct {
		lost  string // what the next node does not find, in Config.Dir
		state string // the plugin's directory; empty: the default
		gc    bool   // the engine does not know the sandboxes any more
	}{
		"rebooted":        {lost: "run"},
		"records on disk": {lost: "run", state: "/var/lib/guestwire"},
		"all kept":        {},
		"engine set anew": {lost: "var/lib/containerd", gc: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := Dir(t)
			entry := entry
			if c.state != "" {
				entry = strings.TrimSuffix(entry, "}") + fmt.Sprintf(`, "state": %q}`, c.state)
			}
			start := func() *engine {
				x := newEngine(t, Config{Dir: dir}, EngineConfig{}, map[string]string{"10-pods.conflist": list("pods", 0, entry)})
				x.state = cmp.Or(c.state, x.state)
				return x
			}
			x := start()
			p := x.pod(PodConfig{Name: "crashed", Annotations: redirect})
			x.launcher(p, 0)
			x.guest(p, "eth0").Close()
			a := x.attachment(p, "pods", "eth0")
			x.must(x.Node.Kill())
			if c.lost != "" {
				x.must(os.RemoveAll(filepath.Join(dir, c.lost)))
			}

			x = start()
			// A kubelet runs the pod anew at once, and removes the dead sandbox some time.
			next := x.pod(PodConfig{Name: "crashed", Attempt: 1, Annotations: redirect})
			x.launcher(next, 1)
			g := x.guest(next, "eth0")
			s := x.dial(next.Name, next.Addresses[0])
			x.removeOthers(next)
			if c.gc {
				x.gc(a, next)
			}
			if _, err := os.Lstat(x.Node.Path(filepath.Join(x.state, p.ID))); err == nil {
				t.Errorf("left: %s", filepath.Join(x.state, p.ID))
			}
			x.echo(s)
			x.leases(g)
			g.Close()
			x.must(next.End())
			for _, line := range x.leftovers() {
				// Without its own knowledge the engine calls no DEL for the other plugins.
				if file, ok := strings.CutPrefix(line, "file: "); ok || !c.gc {
					t.Errorf("left: %s", file)
				}
			}
		})
	}
}

// removeOthers removes all sandboxes that the engine knows, but one.
func (x *engine) removeOthers(p *Pod) {
	x.t.Helper()
	ids, err := x.Pods()
	x.must(err)
	for _, id := range ids {
		if id != p.ID {
			x.must((&Pod{ID: id, engine: x.Engine}).End())
		}
	}
}
