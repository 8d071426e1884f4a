package guests_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/holders"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// underLauncher begins a command line with which the launcher runs QEMU, in the pod's namespace and as a user.
func underLauncher(t *testing.T, uid, gid int, n nstest.Network, flags ...string) []string {
	t.Helper()
	line := []string{
		nstest.Program(t, "examples/guestwire-agent"), "exec", "-netns", n.Pod.Path(), "-uid", strconv.Itoa(uid), "-gid", strconv.Itoa(gid), "--",
		nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", n.State,
	}
	return append(append(line, flags...), "--")
}

// wire sets the pod up for the launcher.
func wire(t *testing.T, n nstest.Network, b infra.Binding, change func(*infra.Spec)) {
	t.Helper()
	wireNIC(t, n, "eth0", b, change)
}

func wireNIC(t *testing.T, n nstest.Network, nic string, b infra.Binding, change func(*infra.Spec)) {
	t.Helper()
	spec := infra.Spec{Binding: b, State: n.State, Owner: nstest.Owner(), DNS: &cache.DNS{}}
	if change != nil {
		change(&spec)
	}
	if _, err := (phase1.NIC{NetNS: n.Pod.File, Name: nic}).Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// TestLauncher boots Linux under the launcher, and the launcher under the agent: several queues by descriptors, a
// routed pod, a macvtap by its device, and passt, which the launcher starts, by a socket and by shared memory. The
// guest's end is the launcher's, and then the pod gets its network back.
func TestLauncher(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	for _, test := range []struct {
		binding infra.Binding
		create  func(testing.TB) nstest.Network
		queues  int
		newer   bool // QEMU and passt
	}{
		{infra.Bridge{}, nstest.NewNetwork, 2, false},
		{infra.Routed{}, nstest.NewNetwork, 0, false},
		{infra.Passt{Ports: []infra.Ports{{First: 80, Guest: vm.AnswerPort}}}, nstest.NewNetwork, 0, false},
		{infra.Passt{Ports: []infra.Ports{{First: 80, Guest: vm.AnswerPort}}}, nstest.NewNetwork, 0, true},
		{infra.Passt{Ports: []infra.Ports{{First: 80, Guest: vm.AnswerPort}}, VhostUser: true}, nstest.NewNetwork, 0, true},
		{infra.Macvtap{}, nstest.NewMacvtap, 2, false},
	} {
		passt, _ := test.binding.(infra.Passt)
		t.Run(fmt.Sprintf("%s, vhost-user %t, newer %t", test.binding.Kind(), passt.VhostUser, test.newer), func(t *testing.T) {
			t.Parallel()
			n := test.create(t)
			before := n.Pod.Settled()
			ctx := bootTime(t)
			wire(t, n, test.binding, func(s *infra.Spec) {
				s.Owner, s.Queues = infra.Owner{UID: uint32(uid), GID: uint32(gid)}, test.queues
				if _, bridge := test.binding.(infra.Bridge); !bridge {
					s.DNS = nil
				}
			})
			temp := nstest.Dir(t)
			if err := os.Chown(temp, uid, gid); err != nil {
				t.Fatal(err)
			}
			g, err := vm.BootQEMU(ctx, vm.Config{
				NetNS: n.Pod.File, UID: uid, GID: gid, CPUs: max(1, test.queues), VhostUser: passt.VhostUser, Backport: test.newer,
				Launcher: append([]string{"env", "TMPDIR=" + temp}, underLauncher(t, uid, gid, n)...),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Destroy()
			ways := []struct{ pod, beyond netip.Addr }{{nstest.Pod4, nstest.Beyond4}, {nstest.Pod6, nstest.Beyond6}}
			port, ask := uint16(vm.AnswerPort), ask
			if test.binding.Kind() == cache.BindingPasst {
				port, ask = 80, askFirst
			}
			answers := func() {
				for _, way := range ways {
					if err := g.Ping(ctx, way.beyond); err != nil {
						t.Error(err)
					}
					nstest.Eventually(t, func() error {
						answer, err := ask(n.World, netip.AddrPortFrom(way.pod, port))
						if err == nil && (answer.Guest != "guest" || answer.Peer.Addr() != nstest.Gateway(way.pod)) {
							err = fmt.Errorf("%+v, want guest to answer and to see %v", answer, nstest.Gateway(way.pod))
						}
						return err
					})
				}
			}
			switch test.binding.(type) {
			case infra.Macvtap: // there is no DHCP server
				configure := fmt.Sprintf("killall udhcpc; while pidof udhcpc udhcpc-script; do sleep 0.1; done; ip addr add %v/24 dev eth0", nstest.Pod4)
				if _, err := g.Until(ctx, configure); err != nil {
					t.Fatal(err)
				}
				if err := g.Ping(ctx, nstest.Gateway4); err != nil {
					t.Error(err)
				}
			default:
				lease, err := g.Lease4(ctx, "eth0")
				if err != nil || lease["ip"] != nstest.Pod4.String() || lease["mtu"] != "1450" {
					t.Errorf("lease %v, %v; want %v and MTU 1450", lease, err, nstest.Pod4)
				}
				if lease, err := g.Lease6(ctx, "eth0"); err != nil || lease["ip6_address"] != nstest.Pod6.String() {
					t.Errorf("lease %v, %v; want %v", lease, err, nstest.Pod6)
				}
				answers()
			}
			command := "cat /sys/class/net/eth0/mtu; ls -d /sys/class/net/eth0/queues/rx-* | wc -l"
			if out, err := g.Run(ctx, command); err != nil || out != fmt.Sprintf("1450\n%d\n", max(1, test.queues)) {
				t.Errorf("MTU and queues %q, %v", out, err)
			}
			status, said := 0, `status="exit status 0"`
			if test.binding.Kind() == cache.BindingPasst {
				killPasst(t, n, "eth0")
				if test.newer || !vm.Debian12() {
					answers()
				} else {
					status, said = 1, "start the VM again" // QEMU 7.2
				}
			}
			if status == 0 { // the command's answer may get lost
				stop, done := context.WithTimeout(ctx, time.Second)
				_, _ = g.Run(stop, "echo o >/proc/sysrq-trigger")
				done()
			}
			got, log, err := g.Ended(ctx)
			if err != nil || got != status || !strings.Contains(log, said) {
				t.Errorf("status %d, %v:\n%s\nwant %d and %s", got, err, log, status, said)
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Teardown(ctx, phase1.TeardownOptions{}); err != nil {
				t.Error(err)
			}
			// The macvtap was never up before, so its qdisc is another one after.
			if err := nstest.Difference(before, n.Pod.Settled()); err != nil && test.binding.Kind() != cache.BindingMacvtap {
				t.Errorf("the pod is not as it was: %v", err)
			}
		})
	}
}

// killPasst kills the passt of the NIC as its seccomp filter would.
func killPasst(t *testing.T, n nstest.Network, nic string) {
	t.Helper()
	var found []holders.Process
	err := netns.Do(n.Pod.File, func() (err error) {
		found, err = holders.Passt(t.Context(), nic)
		return err
	})
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v; want the passt of %s", found, err, nic)
	}
	if err := syscall.Kill(found[0].PID, syscall.SIGSYS); err != nil {
		t.Fatal(err)
	}
}

// TestLauncherPlug: with -plug the launcher plugs the NIC of a new record into the guest, and unplugs the NIC when the
// record is removed. Until then Teardown refuses. The last NIC is one of passt by shared memory, so QEMU is that of
// Debian's backports.
func TestLauncherPlug(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	owner := infra.Owner{UID: uint32(uid), GID: uint32(gid)}
	wire(t, n, infra.Redirect{}, func(s *infra.Spec) { s.Owner = owner })
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("addr add 10.7.0.1/24 dev pod2")
	n.World.IP("link set pod2 up")
	n.Pod.IP("addr add 10.7.0.2/24 dev net1")
	n.Pod.IP("link set net1 up")
	ctx := bootTime(t)
	temp := nstest.Dir(t)
	if err := os.Chown(temp, uid, gid); err != nil {
		t.Fatal(err)
	}
	g, err := vm.BootQEMU(ctx, vm.Config{
		NetNS: n.Pod.File, UID: uid, GID: gid, CPUs: 2, VhostUser: true,
		Launcher: append([]string{"env", "TMPDIR=" + temp}, underLauncher(t, uid, gid, n, "-plug", vm.PlugBus)...),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy()
	if _, err := g.Lease4(ctx, "eth0"); err != nil {
		t.Fatal(err)
	}
	// The first NIC comes and goes by the commands of docs/how-to/plug.md.
	typed := func(heading string) string {
		commands := strings.NewReplacer("/run/netns/pod", n.Pod.Path(), "/run/guestwire/vm1", n.State, "guestwire-agent ", nstest.Program(t, "examples/guestwire-agent")+" ",
			"-uid 107", fmt.Sprintf("-uid %d -gid %d", uid, gid)).Replace(nstest.Commands(t, "../../../docs/how-to/plug.md", heading))
		return "cd " + temp + "\n" + commands
	}
	for i, c := range []struct {
		binding infra.Binding
		queues  int
		address string
		ping    netip.Addr
	}{
		{infra.Redirect{}, 2, "10.7.0.2", netip.MustParseAddr("10.7.0.1")},
		{infra.Masquerade{}, 1, "10.0.2.2", netip.MustParseAddr("10.0.2.1")},
		{infra.Passt{VhostUser: true}, 1, "10.7.0.2", netip.MustParseAddr("10.7.0.1")},
	} {
		config := configOf(n, "net1", c.binding, uid, gid)
		passt := c.binding.Kind() == cache.BindingPasst
		config.Queues, config.Options.NoDefaultRoute = c.queues, !passt
		if passt {
			n.Pod.IP("route add default via 10.7.0.1 dev net1 metric 200") // without one, passt has no lease
		}
		if i == 0 {
			nstest.Run(t, "bash", "-ec", typed("Plug"))
		} else if _, err := config.Setup(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Until(ctx, "test -e /sys/class/net/eth1"); err != nil {
			t.Fatal(err)
		}
		const client = "rm -f /run/lease4.eth1; udhcpc -q -n -i eth1 -s /bin/udhcpc-script -t 20 -T 1 -O staticroutes -O mtu >/run/udhcpc.eth1 2>&1"
		if _, err := g.Run(ctx, client); err != nil {
			t.Fatal(err)
		}
		if lease, err := g.Lease4(ctx, "eth1"); err != nil || lease["ip"] != c.address {
			t.Errorf("%s: lease %v, %v; want %s", c.binding.Kind(), lease, err, c.address)
		}
		reaches := func() {
			for _, to := range []netip.Addr{c.ping, nstest.Beyond4} {
				if err := g.Ping(ctx, to); err != nil {
					t.Errorf("%s: %v", c.binding.Kind(), err)
				}
			}
		}
		reaches()
		if passt {
			killPasst(t, n, "net1")
			reaches()
		}
		if out, err := g.Run(ctx, "ls -d /sys/class/net/eth1/queues/rx-* | wc -l"); err != nil || out != strconv.Itoa(c.queues)+"\n" {
			t.Errorf("%s: queues %q, %v; want %d", c.binding.Kind(), out, err, c.queues)
		}
		if !passt { // which has no tap that is in use
			if err := config.Teardown(ctx); !errors.Is(err, phase1.ErrInUse) {
				t.Errorf("%s: Teardown under the NIC: %v, want ErrInUse", c.binding.Kind(), err)
			}
		}
		if i == 0 {
			nstest.Run(t, "bash", "-ec", typed("Unplug"))
		} else if err := os.Remove(filepath.Join(n.State, "net1.json")); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, func() error { return config.Teardown(ctx) })
		if _, err := g.Until(ctx, "! test -e /sys/class/net/eth1"); err != nil {
			t.Error(err)
		}
	}
}

// TestLauncherPlugKept: a guest that does not give a device up, as a machine without an operating system, keeps only
// this device from being unplugged. A NIC that is set up meanwhile is plugged, and the launcher says what it waits for.
func TestLauncherPlugKept(t *testing.T) {
	t.Parallel()
	vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Redirect{}, nil)
	for i := range 2 {
		nic := fmt.Sprintf("net%d", i+1)
		n.Pod.IP("link add " + nic + " type veth peer name peer" + nic)
		n.Pod.IP(fmt.Sprintf("addr add 10.7.%d.2/24 dev %s", i, nic))
		n.Pod.IP("link set " + nic + " up")
	}
	launch := underLauncher(t, nstest.LauncherUID, nstest.LauncherUID, n, "-events", "-plug", "rp1,rp2")
	launcher := exec.Command(launch[0], append(launch[1:], "qemu-system-x86_64", "-M", "q35", "-display", "none", "-nodefaults",
		"-device", "pcie-root-port,id=rp1,chassis=1", "-device", "pcie-root-port,id=rp2,chassis=2")...)
	var log nstest.Output
	launcher.Stdout, launcher.Stderr = &log, &log
	launcher.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	defer launcher.Wait()
	defer launcher.Process.Signal(syscall.SIGTERM)
	says := func(text string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), text); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the launcher does not say %s:\n%s", text, log.String())
			}
		}
	}
	says("QEMU runs")
	wireNIC(t, n, "net1", infra.Redirect{}, nil)
	says("msg=plugged nic=net1 bus=rp1")
	if err := os.Remove(filepath.Join(n.State, "net1.json")); err != nil {
		t.Fatal(err)
	}
	says(`event=record-removed nic=net1`)
	wireNIC(t, n, "net2", infra.Redirect{}, nil)
	says("msg=plugged nic=net2 bus=rp2")
	says(`the guest keeps the device of the removed record so far: QEMU asks the guest again" nic=net1`)
}
