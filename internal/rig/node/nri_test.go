package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// daemon starts guestwire-node in the node, and waits until it is ready. The node's CNI list has no guestwire before.
func (x *engine) daemon(flags ...string) *Process {
	x.t.Helper()
	bin := filepath.Join(x.Node.Dir, "image")
	for _, program := range []string{"examples/guestwire", "examples/guestwire-node", "examples/guestwire-agent"} {
		nstest.Run(x.t, "install", "-D", "-t", bin, nstest.Program(x.t, program))
	}
	p, err := x.Node.Start("guestwire-node", append([]string{filepath.Join(bin, "guestwire-node"), "run", "-ready", "/run/node-is-ready"}, flags...)...)
	x.must(err)
	x.ready(true)
	return p
}

// ready waits until guestwire-node is ready, or is not.
func (x *engine) ready(want bool) {
	x.t.Helper()
	nstest.Eventually(x.t, func() error {
		if _, err := x.Node.Run("test", "-e", "/run/node-is-ready"); (err == nil) != want {
			return fmt.Errorf("guestwire-node is ready: %v", !want)
		}
		return nil
	})
}

// wires waits until new pods are wired, or are not: an engine reads a list soon after it has changed.
func (x *engine) wires(want bool) {
	x.t.Helper()
	nstest.Eventually(x.t, func() error {
		p := x.pod(PodConfig{Name: "probe", Annotations: redirect})
		wired := strings.Contains(x.dump(p), "guestwire")
		x.must(p.End())
		if wired != want {
			return fmt.Errorf("a new pod is wired: %v", wired)
		}
		return nil
	})
}

// annotated is a launcher for which its pod asks by annotations alone.
func annotated(p *Pod) ContainerConfig {
	c := p.Launcher(state)
	c.Mounts, c.Devices = nil, nil
	return c
}

// TestNRI: guestwire-node gives launchers of annotated pods what they need, under an engine that has NRI, whichever of
// both starts again. Pods without an annotation and other containers get nothing.
func TestNRI(t *testing.T) {
	if newer == "" {
		nstest.LeaveOut(t, "Debian's containerd has no NRI; the engines of make kubernetes have")
	}
	eachRuntime(t, testNRI)
}

func testNRI(t *testing.T, r *Runtime) {
	x := newEngine(t, Config{}, EngineConfig{Runtime: r}, map[string]string{"10-pods.conflist": list("pods", 0)})
	daemon := x.daemon("-devices", "")
	x.wires(true)
	run := func(name string, f func(*engine)) {
		passed := t.Run(name, func(t *testing.T) {
			x := x.as(t)
			f(x)
			x.nothingLeft()
		})
		if !passed {
			t.FailNow() // a pod that is left fails the others, too
		}
	}
	run("launcher", func(x *engine) { testAnnotated(x, 0) })
	run("user namespace", func(x *engine) { testAnnotated(x, 200000) })
	run("others", func(x *engine) {
		p := x.pod(PodConfig{Name: "plain"})
		c, err := p.StartContainer(ContainerConfig{Name: "plain", Image: BusyboxImage, Command: []string{"/bin/sh", "-c", "trap exit TERM; sleep 600 & wait"}})
		x.must(err)
		if out, err := x.Node.Run("ls", fmt.Sprintf("/proc/%d/root/dev/net", c.Pid)); err == nil {
			x.t.Errorf("a container of another pod has /dev/net: %s", out)
		}
		x.must(p.End())
	})
	run("refused", func(x *engine) {
		for want, annotations := range map[string]map[string]string{
			"guestwire: container launcher of pod default/refused: annotation guestwire/nic.eth7: NIC eth7 is not wired: is guestwire in the node's CNI list": {"guestwire/nic.eth7": "redirect"},
			"device kvm: not allowed on this node (-devices of guestwire-node has tun)":                                                                       {"guestwire/nic.eth0": "redirect", "guestwire/devices": "kvm"},
		} {
			p := x.pod(PodConfig{Name: "refused", Annotations: annotations})
			if _, err := p.StartContainer(annotated(p)); err == nil || !strings.Contains(err.Error(), want) {
				x.t.Errorf("%v, want %q", err, want)
			}
			x.must(p.End())
		}
	})
	for name, restart := range map[string]func(x *engine) error{
		"engine restart": func(x *engine) error { return errors.Join(x.Stop(), x.Start()) },
		"engine crash":   func(x *engine) error { return errors.Join(x.Kill(), x.Start()) },
		"daemon restart": func(x *engine) error {
			err := daemon.Stop()
			daemon = x.daemon("-devices", "")
			return err
		},
		"daemon crash": func(x *engine) error {
			err := daemon.Kill()
			daemon = x.daemon("-devices", "")
			return err
		},
		// The engine waits two seconds for a plugin's answer, and then leaves the plugin out.
		"daemon slow": func(x *engine) error {
			err := daemon.Signal(syscall.SIGSTOP)
			p := x.pod(PodConfig{Name: "meanwhile", Annotations: redirect})
			_, _ = p.StartContainer(annotated(p)) // without records, as if no daemon ran
			return errors.Join(err, daemon.Signal(syscall.SIGCONT), p.End())
		},
	} {
		run(name, func(x *engine) {
			p := x.pod(PodConfig{Name: "before", Annotations: redirect})
			_, err := p.StartContainer(annotated(p))
			x.must(err)
			g := x.guest(p, "eth0")
			s := x.dial(p.Name, p.Addresses[0])
			x.must(restart(x))
			x.echo(s)
			// The engine asks again soon after the daemon has found it. Until then a launcher finds no record.
			nstest.Eventually(x.t, func() error {
				after := x.pod(PodConfig{Name: "after", Annotations: redirect})
				c, err := after.StartContainer(annotated(after))
				if err == nil {
					_, err = x.Node.Run("ls", fmt.Sprintf("/proc/%d/root/run/guestwire/eth0.json", c.Pid))
				}
				x.must(after.End())
				return err
			})
			x.ready(true)
			x.echo(s)
			g.Close()
			x.must(p.End())
		})
	}
	run("uninstall", func(x *engine) {
		x.must(daemon.Stop())
		p := x.pod(PodConfig{Name: "last", Annotations: redirect})
		program := filepath.Join(x.Node.Dir, "image/guestwire-node")
		if out, err := x.Node.Run(program, "uninstall"); err == nil || !strings.Contains(fmt.Sprint(out, err), "1 sandboxes are wired") {
			x.t.Errorf("uninstall with a wired pod: %s, %v", out, err)
		}
		x.wires(false)
		x.must(p.End())
		x.Node.MustRun(x.t, program, "uninstall")
		out := x.Node.MustRun(x.t, "ls", CNIConf, CNIBin)
		if strings.Contains(out, "guestwire") || !strings.Contains(out, "10-pods.conflist") {
			x.t.Errorf("after uninstall: %s", out)
		}
	})
}

// testAnnotated: a launcher without privileges serves its guest, and sees its records and its device, but cannot write
// them.
func testAnnotated(x *engine, userNamespace uint32) {
	p := x.pod(PodConfig{Name: "annotated", Annotations: redirect, UserNamespace: userNamespace})
	c, err := p.StartContainer(annotated(p))
	x.must(err)
	g := x.guest(p, "eth0")
	x.echo(x.dial(p.Name, p.Addresses[0]))
	x.leases(g)
	mounts := x.Node.MustRun(x.t, "cat", fmt.Sprintf("/proc/%d/mounts", c.Pid))
	i := strings.Index(mounts, " /run/guestwire ")
	if i < 0 || !strings.Contains(strings.SplitN(mounts[i:], "\n", 2)[0], " ro,nosuid,nodev,noexec") {
		x.t.Errorf("the records are not mounted read only:\n%s", mounts)
	}
	if have := strings.TrimSpace(x.Node.MustRun(x.t, "stat", "--format=%F %t:%T %a", fmt.Sprintf("/proc/%d/root/dev/net/tun", c.Pid))); have != "character special file a:c8 666" {
		x.t.Errorf("/dev/net/tun is a %s", have)
	}
	g.Close()
	x.must(p.End())
}
