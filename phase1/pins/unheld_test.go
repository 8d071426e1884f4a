package pins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// proxied is a pod whose NIC is wired with names.
type proxied struct {
	nstest.Network
	nic  phase1.NIC
	spec infra.Spec
	dir  string
	out  lines
}

func newProxied(t *testing.T) *proxied {
	nstest.NeedRoot(t, "the proxy is another user")
	p := &proxied{Network: nstest.NewNetwork(t)}
	p.dir = nstest.Dir(t) + "/journals"
	p.nic = phase1.NIC{NetNS: p.Pod.File, Name: "eth0", Dir: p.dir}
	p.spec = infra.Spec{Binding: infra.Masquerade{}, Owner: nstest.Owner(), State: p.State,
		Egress: []infra.Egress{{Refuse: true, To: "all"}}, Names: namesOf("a.example 443")}
	p.setup(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.out.String())
		}
	})
	return p
}

func (p *proxied) setup(t *testing.T) {
	t.Helper()
	if _, err := p.nic.Setup(t.Context(), p.spec); err != nil {
		t.Fatal(err)
	}
}

// node runs a proxy that does nothing.
func (p *proxied) node() Node {
	return Node{Dir: p.dir, Owner: nstest.Owner(), Log: slog.New(slog.NewTextHandler(&p.out, nil)), Command: func(phase1.Wiring) (*exec.Cmd, error) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), proxyOf+"=waits")
		return cmd, nil
	}}
}

// proxies are the processes of the pod that are proxies.
func (p *proxied) proxies() (pids []string) {
	text, _ := exec.Command("ip", "netns", "pids", p.Pod.Name).Output()
	for _, pid := range strings.Fields(string(text)) {
		if environ, err := os.ReadFile("/proc/" + pid + "/environ"); err == nil && strings.Contains(string(environ), proxyOf+"=waits") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// becomes waits until the number of proxies is as wanted, and none is the old one.
func (p *proxied) becomes(t *testing.T, want int, old ...string) (pids []string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		if pids = p.proxies(); len(pids) != want || want > 0 && strings.Join(pids, " ") == strings.Join(old, " ") {
			return fmt.Errorf("proxies %v, want %d, not %v", pids, want, old)
		}
		return nil
	})
	return pids
}

// run runs a Node until stop.
func (p *proxied) run(t *testing.T, n Node) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestTwoNodes: a wired NIC with names has a proxy, which follows Setup, Teardown and the Node. Of two Nodes one runs
// it, and the other one takes over.
func TestTwoNodes(t *testing.T) {
	p := newProxied(t)
	stop := p.run(t, p.node())
	first := p.becomes(t, 1)
	stop()
	p.becomes(t, 0)

	stop = p.run(t, p.node())
	second := p.becomes(t, 1, first...)
	p.run(t, p.node())
	p.spec.Names = namesOf("a.example 443", "b.example 443")
	p.setup(t)
	third := p.becomes(t, 1, second...)
	stop()
	fourth := p.becomes(t, 1, third...)

	if err := exec.Command("kill", "-9", fourth[0]).Run(); err != nil {
		t.Fatal(err)
	}
	p.becomes(t, 1, fourth...)
	if err := p.nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
		t.Fatal(err)
	}
	p.becomes(t, 0)
	p.spec.Names = nil
	p.setup(t)
	p.spec.Names = namesOf("a.example 443")
	p.becomes(t, 0)
	p.setup(t)
	p.becomes(t, 1)
}

// TestUnheld: a namespace to which nothing but its proxy leads ends, as after a container that was killed: Forget
// works.
func TestUnheld(t *testing.T) {
	p := newProxied(t)
	n := p.node()
	n.unheldEvery = time.Millisecond
	p.run(t, n)
	p.becomes(t, 1)
	p.Pod.Gone()
	wirings, err := phase1.List(t.Context(), p.dir)
	if err != nil || len(wirings) != 1 || len(wirings[0].FoundAt) > 0 {
		t.Fatalf("%+v, %v", wirings, err)
	}
	if err := phase1.Forget(t.Context(), phase1.Gone{Dir: p.dir, State: p.State, NIC: "eth0"}); err != nil {
		t.Error(err)
	}
}

// TestHeld: the proxy stays while a mount, a process or an open file leads to its namespace. If its end does not end
// the namespace, it starts again, and is not ended for that a second time.
func TestHeld(t *testing.T) {
	p := newProxied(t)
	tap := nstest.OpenTap(t, p.Pod.File, nstest.Record(t, p.State, "eth0").Tap)
	defer tap.Close()
	n := p.node()
	running, kept := map[place]*proxy{}, map[place]bool{}
	defer func() {
		for _, p := range running {
			p.end()
		}
	}()
	follow := func() {
		t.Helper()
		wirings, err := n.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n.follow(t.Context(), running, wirings)
		nstest.Eventually(t, func() error {
			for _, p := range running {
				if p.pid.Load() == 0 {
					return errors.New("no proxy has started")
				}
			}
			return nil
		})
	}
	holds := func(what string) {
		t.Helper()
		if n.endUnheld(t.Context(), running, kept) || len(running) != 1 {
			t.Errorf("%s does not hold the namespace", what)
		}
	}
	follow()
	holds("a mount")
	inside := p.Pod.Start(nstest.LauncherUID, "sleep", "600")
	nstest.Eventually(t, func() error { // beside the proxy
		if pids := strings.Fields(nstest.Run(t, "ip", "netns", "pids", p.Pod.Name)); len(pids) < 2 {
			return fmt.Errorf("in the namespace are %v", pids)
		}
		return nil
	})
	file := exec.Command("sleep", "600")
	file.ExtraFiles = []*os.File{p.Pod.File}
	if err := file.Start(); err != nil {
		t.Fatal(err)
	}
	defer file.Process.Kill()
	p.Pod.End()
	holds("a process with a file")
	file.Process.Kill()
	file.Wait()
	holds("a process")
	inside.Kill(t)
	nstest.Eventually(t, func() error {
		if !n.endUnheld(t.Context(), running, kept) {
			return errors.New("the proxy does not end")
		}
		return nil
	})
	if len(running) != 0 || len(kept) != 1 {
		t.Fatalf("%v, %v", running, kept)
	}
	follow() // where the kernel reports that the tap keeps the namespace, the proxy starts again
	if again := len(running); n.endUnheld(t.Context(), running, kept) || len(running) != again {
		t.Error("the proxy ends again")
	}
}
