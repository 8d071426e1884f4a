package podnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// service is a cluster's service, whose backend is the peer of Terway's row.
var service, backend = netip.MustParseAddrPort("172.21.0.10:80"), netip.AddrPortFrom(addr("10.22.0.21"), stationPort)

// inCgroup is set in the process that runs in the cgroup with the program.
const inCgroup = "GUESTWIRE_TEST_CGROUP"

// TestSocketServices: services that a BPF program translates in connect(2), as Cilium and Terway do (kube-proxy
// replacement, socket-level load balancing), are for processes alone. A guest's connections make no system call in
// the pod, though its VMM, which is this test, runs in the pod's cgroup. Rules on the node serve the guest as well.
//
// The test runs again in a cgroup of its own, to which the program is attached.
func TestSocketServices(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "iptables")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "bpf(2) needs capabilities of the machine's root")
	nstest.SkipUndecided(t)
	if os.Getenv(inCgroup) == "" {
		runInCgroup(t)
		return
	}
	l := eni(t, terwayVeth)
	l.listen()
	l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
	want := "peer sees " + l.IPv4.String()
	fromProcess := Station{Namespace: l.Pod, IPv4: l.IPv4, IPv6: l.IPv6}.dial
	if got, err := answerAt(t, fromProcess, service, patience); got != want {
		t.Fatalf("a process asks the service: %q, %v; want %q", got, err, want)
	}
	node := l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == "node" })].Namespace
	root := cgroups(t)
	l.underEachBinding(t, func(t *testing.T, g *guest.Guest) {
		if got, err := askOutside(t, root, g, backend, patience); got != want {
			t.Errorf("the guest asks the backend: %q, %v; want %q", got, err, want)
		}
		if got, err := askOutside(t, root, g, service, impatience); err == nil {
			t.Errorf("the guest asks the service: %q; want no answer, as the program does not see the guest's connection", got)
		}
		remove := addServiceRule(node)
		if got, err := askOutside(t, root, g, service, patience); got != want {
			t.Errorf("the guest asks the service, with a rule on the node: %q, %v; want %q", got, err, want)
		}
		remove()
	})
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
		name string
		lay  func(t *testing.T) *Laid
		sees string // the peer
	}{
		{"rules on the node", func(t *testing.T) *Laid {
			l := eni(t, terwayVeth)
			addServiceRule(l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == "node" })].Namespace)
			return l
		}, "10.22.0.20"},
		// Cilium's programs, which Terway has at an ipvlan in the pod.
		{"BPF programs at the pod's NIC", func(t *testing.T) *Laid {
			nstest.NeedRoot(t, "bpf(2) needs capabilities of the machine's root")
			l := eni(t, terwayVeth)
			translateAtNIC(t, l.Pod, l.NIC, service, backend)
			return l
		}, "10.22.0.20"},
		// As Kube-OVN, on the switch of each subnet.
		{"a load balancer of OVN", func(t *testing.T) *Laid {
			l, v := layKubeOVN(t, true)
			v.nodes[0].nbctl(fmt.Sprintf("lb-add web %v %s:%d tcp", service, ovnDefault.IPv4(8), stationPort), "ls-lb-add ovn-default web")
			v.nodes[0].nbctl("--wait=hv sync")
			return l
		}, "10.16.0.7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := test.lay(t)
			l.listen()
			want := "peer sees " + test.sees
			if got, err := answerAt(t, Station{Namespace: l.Pod, IPv4: l.IPv4}.dial, service, patience); got != want {
				t.Fatalf("a process asks the service: %q, %v; want %q", got, err, want)
			}
			l.underEachBinding(t, func(t *testing.T, g *guest.Guest) {
				if got, err := answerAt(t, g.DialTCP, service, patience); got != want {
					t.Errorf("the guest asks the service: %q, %v; want %q", got, err, want)
				}
			})
		})
	}
}

// underEachBinding gives the pod's network to a guest with IPv4, by one binding after the other.
func (l *Laid) underEachBinding(t *testing.T, ask func(t *testing.T, g *guest.Guest)) {
	for _, b := range bindings {
		t.Run(b.Kind(), func(t *testing.T) {
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

// askOutside is answerAt for a guest's process, which is in the machine's cgroup: a VM's kernel is no part of the pod's.
func askOutside(t *testing.T, root *os.File, g *guest.Guest, to netip.AddrPort, limit time.Duration) (answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%v/%d && head -n1 <&3", to.Addr(), to.Port()))
		cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(root.Fd())}
		var line []byte
		err = g.Do(func() (err error) {
			line, err = cmd.Output()
			return err
		})
		if err == nil {
			return withoutPort(string(line))
		}
		if ctx.Err() != nil {
			return "", err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cgroups mounts the machine's cgroups for the test, and returns the directory.
func cgroups(t *testing.T) *os.File {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		nstest.LeaveOut(t, "no cgroups of version 2 on this machine: "+err.Error())
	}
	t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// runInCgroup runs the calling test in a process of its own, in a new cgroup with the program.
func runInCgroup(t *testing.T) {
	t.Helper()
	program := loadProgram(t, bpfCgroupSockAddr, bpfInet4Connect, connect4(service, backend))
	defer unix.Close(program)
	dir := filepath.Join(cgroups(t).Name(), fmt.Sprintf("guestwire-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		// The kernel may still be taking the last process out of the cgroup.
		nstest.Eventually(t, func() error { return os.Remove(dir) })
	}()
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	if err := attachConnect4(cgroup, program); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestSocketServices$", "-test.v", "-test.timeout=5m")
	// It makes a sandbox of its own.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GUESTWIRE_SANDBOX=") }), inCgroup+"=1")
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd()), Pdeathsig: unix.SIGTERM}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n--- PASS: TestSocketServices") {
		t.Errorf("in the cgroup: %v\n%s", err, out)
	}
}
