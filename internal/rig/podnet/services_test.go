package podnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// service is a cluster's service, whose backend is the peer of Terway's row.
var service, backend = netip.MustParseAddrPort("172.21.0.10:80"), netip.AddrPortFrom(addr("10.22.0.21"), stationPort)

// TestSocketServices: services that a BPF program translates in connect(2), as Cilium and Terway do (kube-proxy
// replacement, socket-level load balancing), are for processes alone. A guest of a tap makes no system call in the pod,
// and needs rules on the node. Under passt and slirp a process of the pod connects for the guest.
func TestSocketServices(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "iptables")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "bpf(2) needs capabilities of the machine's root")
	nstest.SkipUndecided(t)
	cgroup := translatingCgroup(t)
	l := eni(t, terwayVeth)
	l.listen()
	l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
	want := "peer sees " + l.IPv4.String()
	if got, err := askIn(t, cgroup, l.Pod, service); got != want {
		t.Fatalf("a process asks the service: %q, %v; want %q", got, err, want)
	}
	node := l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == "node" })].Namespace
	l.underEach(t, bindings, func(t *testing.T, g *guest.Guest) {
		if got, err := answerAt(t, g.DialTCP, backend, patience); got != want {
			t.Errorf("the guest asks the backend: %q, %v; want %q", got, err, want)
		}
		if got, err := answerAt(t, g.DialTCP, service, impatience); err == nil {
			t.Errorf("the guest asks the service: %q; want no answer, as the program does not see the guest's connection", got)
		}
		remove := addServiceRule(node)
		if got, err := answerAt(t, g.DialTCP, service, patience); got != want {
			t.Errorf("the guest asks the service, with a rule on the node: %q, %v; want %q", got, err, want)
		}
		remove()
	})
	for _, b := range []infra.Binding{infra.Passt{}, infra.Slirp{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			g := l.bootDirect(t, b)
			ask := func(to netip.AddrPort) (string, error) {
				// nc does not read to the end of its input; passt may not deliver the other side's FIN.
				out, err := g.Run(t.Context(), fmt.Sprintf("sleep 1 | nc %v %d & sleep 2; kill $!; wait", to.Addr(), to.Port()))
				if err != nil {
					return "", err
				}
				line, _, _ := strings.Cut(out, "\n")
				return withoutPort(line)
			}
			if got, err := ask(service); err == nil {
				t.Errorf("the guest asks the service while its VMM is in another cgroup: %q; want no answer", got)
			}
			l.moveInto(t, cgroup)
			for _, to := range []netip.AddrPort{backend, service} {
				nstest.Eventually(t, func() error {
					got, err := ask(to)
					if err == nil && got != want {
						err = fmt.Errorf("%q, want %q", got, want)
					}
					return err
				})
			}
		})
	}
}

// bootDirect boots Linux under the launcher, with a binding that has no tap.
func (l *Instance) bootDirect(t *testing.T, b infra.Binding) *vm.Guest {
	t.Helper()
	uid, gid := vm.NeedGuest(t)
	c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}, Spec: infra.Spec{
		Binding: b, State: nstest.Dir(t), Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)}, AcceptLosses: true,
	}}
	if _, err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Teardown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	g, err := vm.BootQEMU(t.Context(), vm.Config{NetNS: l.Pod.File, UID: uid, GID: gid,
		Launcher: []string{nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", c.State, "--"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Destroy() })
	if _, err := g.Lease4(t.Context(), "eth0"); err != nil {
		t.Fatal(err)
	}
	return g
}

// moveInto moves the pod's processes into the cgroup, as an engine starts them there.
func (l *Instance) moveInto(t *testing.T, cgroup *os.File) {
	t.Helper()
	pod, err := l.Pod.File.Stat()
	if err != nil {
		t.Fatal(err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range processes {
		if ns, err := os.Stat(path); err != nil || !os.SameFile(ns, pod) { // an error: it has ended
			continue
		}
		pid := strings.Split(path, "/")[2]
		if err := os.WriteFile(filepath.Join(cgroup.Name(), "cgroup.procs"), []byte(pid), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// addServiceRule adds a rule on a node that translates the service, as kube-proxy does. The caller removes the rule.
func addServiceRule(node *nstest.Namespace) (remove func()) {
	rule := fmt.Sprintf("PREROUTING -d %v -p tcp --dport %d -j DNAT --to-destination %v", service.Addr(), service.Port(), backend)
	iptables(node, "iptables", "-t nat -A "+rule)
	return func() { iptables(node, "iptables", "-t nat -D "+rule) }
}

// TestServices: a service that is translated in packets, be it in the pod's NIC, on the node or in a switch, is the
// guest's as well.
func TestServices(t *testing.T) {
	nstest.Need(t, "iptables")
	nstest.NeedTaps(t)
	for _, test := range []struct {
		name     string
		create   func(t *testing.T) *Instance
		sees     string // the peer
		bindings []infra.Binding
	}{
		{"rules on the node", func(t *testing.T) *Instance {
			l := eni(t, terwayVeth)
			addServiceRule(l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == "node" })].Namespace)
			return l
		}, "10.22.0.20", bindings},
		{"BPF programs at the pod's NIC", func(t *testing.T) *Instance {
			nstest.NeedRoot(t, "bpf(2) needs capabilities of the machine's root")
			l := eni(t, terwayVeth)
			translateAtNIC(t, l.Pod, l.NIC, service, backend)
			return l
		}, "10.22.0.20", bindings},
		// Terway has Cilium's programs there.
		{"BPF programs at the pod's ipvlan", func(t *testing.T) *Instance {
			nstest.NeedRoot(t, "bpf(2) needs capabilities of the machine's root")
			nstest.KernelDecides(t, "not every kernel has these links")
			if !hasKind(t, "ipvlan") {
				nstest.LeaveOut(t, "this machine has no links of the kind ipvlan")
			}
			l := eni(t, terwayIPvlan)
			translateAtNIC(t, l.Pod, l.NIC, service, backend)
			return l
		}, "10.22.0.20", bindings[1:]}, // without bridge: an ipvlan can be no port of one
		// As Kube-OVN, on the switch of each subnet.
		{"a load balancer of OVN", func(t *testing.T) *Instance {
			l, v := createKubeOVN(t, true)
			v.nodes[0].nbctl(fmt.Sprintf("lb-add web %v %s:%d tcp", service, ovnDefault.IPv4(8), stationPort), "ls-lb-add ovn-default web")
			v.nodes[0].nbctl("--wait=hv sync")
			return l
		}, "10.16.0.7", bindings},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := test.create(t)
			l.listen()
			want := "peer sees " + test.sees
			if got, err := answerAt(t, Station{Namespace: l.Pod, IPv4: l.IPv4}.dial, service, patience); got != want {
				t.Fatalf("a process asks the service: %q, %v; want %q", got, err, want)
			}
			l.underEach(t, test.bindings, func(t *testing.T, g *guest.Guest) {
				if got, err := answerAt(t, g.DialTCP, service, patience); got != want {
					t.Errorf("the guest asks the service: %q, %v; want %q", got, err, want)
				}
			})
		})
	}
}

// underEach gives the pod's network to a guest with IPv4, by one binding after the other.
func (l *Instance) underEach(t *testing.T, bindings []infra.Binding, ask func(t *testing.T, g *guest.Guest)) {
	for _, b := range bindings {
		t.Run(string(b.Kind()), func(t *testing.T) {
			w := l.mustSetup(t.Context(), t, b)
			ask(t, w.boot(t.Context(), t))
			w.end(t.Context(), t)
		})
	}
}

// Times to wait for an answer: one that has to come, and one that must not.
var patience, impatience = 20 * time.Second, time.Second

// answerAt asks until an answer comes, or the time is over.
func answerAt(t *testing.T, dial dialer, to netip.AddrPort, limit time.Duration) (answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		answer, err = converseTCP(ctx, dial, to, 20000)
		if err == nil || ctx.Err() != nil {
			return answer, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// askIn asks by a process in the pod and in a cgroup.
func askIn(t *testing.T, cgroup *os.File, pod *nstest.Namespace, to netip.AddrPort) (string, error) {
	t.Helper()
	ask := fmt.Sprintf("exec 3<>/dev/tcp/%v/%d && head -n1 <&3", to.Addr(), to.Port())
	cmd := exec.Command("timeout", fmt.Sprint(patience.Seconds()), "bash", "-c", ask)
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	var line []byte
	err := netns.Do(pod.File, func() (err error) {
		line, err = cmd.Output()
		return err
	})
	if err != nil {
		return "", err
	}
	return withoutPort(string(line))
}

// translatingCgroup makes a cgroup with a program that translates the service, for as long as the test.
func translatingCgroup(t *testing.T) *os.File {
	t.Helper()
	program := loadProgram(t, bpfCgroupSockAddr, bpfInet4Connect, connect4(service, backend))
	defer unix.Close(program)
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		nstest.LeaveOut(t, "no cgroups of version 2 on this machine: "+err.Error())
	}
	t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
	dir := filepath.Join(root, fmt.Sprintf("guestwire-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The kernel may still be taking the last process out of the cgroup.
	t.Cleanup(func() { nstest.Eventually(t, func() error { return os.Remove(dir) }) })
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cgroup.Close() })
	if err := attachConnect4(cgroup, program); err != nil {
		t.Fatal(err)
	}
	return cgroup
}
