package guests_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

func newNIC(t *testing.T, r cache.Record, o qemu.Options) *qemu.NIC {
	t.Helper()
	nic, err := qemu.NewNIC(&r, o)
	if err != nil {
		t.Fatal(err)
	}
	return nic
}

// openQueues opens the tap of the record, and closes it with the test.
func openQueues(t *testing.T, n nstest.Network, r cache.Record) (files []*os.File) {
	t.Helper()
	err := netns.Do(n.Pod.File, func() (err error) {
		files, err = phase2.OpenTap(r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	return files
}

// inherited are the descriptors of files in QEMU.
func inherited(files []*os.File) []string {
	var fds []string
	for i := range files {
		fds = append(fds, fmt.Sprint(3+i))
	}
	return fds
}

// bootQEMU boots a guest, which ends with the test.
func bootQEMU(ctx context.Context, t *testing.T, cfg vm.Config, nics ...*qemu.NIC) *vm.Guest {
	t.Helper()
	g, err := vm.BootQEMU(ctx, cfg, nics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// checkDevice checks the MTU and the queues in the guest, and the queues of the tap.
func checkDevice(ctx context.Context, t *testing.T, g *vm.Guest, n nstest.Network, r cache.Record) {
	t.Helper()
	want := fmt.Sprintf("%v\n%d\n%d\n", r.MAC, r.MTU, r.Queues)
	if out, err := g.Run(ctx, "cd /sys/class/net/eth0; cat address mtu; ls -d queues/rx-* | wc -l"); err != nil || out != want {
		t.Errorf("MAC, MTU and queues in the guest are %q, %v, want %q", out, err, want)
	}
	if queues := strings.Fields(n.Pod.Exec("sh", "-c", "ls -d /sys/class/net/"+r.Tap+"/queues/rx-*")); len(queues) != r.Queues {
		t.Errorf("QEMU uses the tap's queues %v, want %d", queues, r.Queues)
	}
}

// checkTraffic checks that the world reaches the guest by TCP, and that the guest reaches the world.
func checkTraffic(ctx context.Context, t *testing.T, g *vm.Guest, n nstest.Network) {
	t.Helper()
	for _, to := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
		nstest.Eventually(t, func() error { // the guest's IPv6 address may be tentative yet
			answer, err := ask(n.World, netip.AddrPortFrom(to, vm.AnswerPort))
			if err == nil && (answer.Guest != "guest1" || answer.Peer.Addr() != nstest.Gateway(to)) {
				err = fmt.Errorf("%+v", answer)
			}
			if err != nil {
				return fmt.Errorf("world to %v: %w; want guest1 to answer and to see %v", to, err, nstest.Gateway(to))
			}
			return nil
		})
	}
	for _, to := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		if err := g.Ping(ctx, to); err != nil {
			t.Errorf("guest to %v: %v", to, err)
		}
	}
}

// TestQEMU gives a pod's network to a Linux guest under QEMU alone, which has no privileges. Each way to the tap is tried
// once; TestPlug has two queues by getfd. The launcher's tests boot the same QEMU on a bridge, on a macvtap and with passt.
func TestQEMU(t *testing.T) {
	uid, gid := needGuest(t)
	for _, c := range []struct {
		binding infra.Binding
		queues  int
		byName  bool
	}{
		{infra.Redirect{}, 2, true},
		{infra.Masquerade{}, 4, false},
	} {
		t.Run(fmt.Sprintf("%s, queues %d, by name %t", c.binding.Kind(), c.queues, c.byName), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			config := phase1.Config{NetNS: n.Pod.File, Spec: infra.Spec{
				NIC: "eth0", Binding: c.binding, State: n.State, Queues: c.queues, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)},
			}}
			r, err := phase1.Setup(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			launcher := n.Serve(t, uid)
			cfg := vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", CPUs: c.queues}
			if !c.byName {
				cfg.Files = openQueues(t, n, r)
			}
			g := bootQEMU(ctx, t, cfg, newNIC(t, r, qemu.Options{FDs: inherited(cfg.Files)}))
			lease4, err4 := g.Lease4(ctx, "eth0")
			lease6, err6 := g.Lease6(ctx, "eth0")
			if err := errors.Join(err4, err6); err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			if lease4["ip"] != r.IPv4.Address.Addr().String() || lease6["ip6_address"] != r.IPv6.Address.String() {
				t.Errorf("leases %v and %v, want %v and %v", lease4, lease6, r.IPv4.Address, r.IPv6.Address)
			}
			checkDevice(ctx, t, g, n, r)
			checkTraffic(ctx, t, g, n)
			if err := phase1.Check(ctx, config); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPlug plugs a NIC into a running guest by QMP, with descriptors that QEMU gets by getfd, and unplugs it. Afterwards
// the tap is free, and can be plugged again.
func TestPlug(t *testing.T) {
	uid, gid := needGuest(t)
	n := nstest.NewNetwork(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := phase1.Setup(ctx, phase1.Config{NetNS: n.Pod.File, Spec: infra.Spec{
		NIC: "eth0", Binding: infra.Redirect{}, State: n.State, Queues: 2, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	launcher := n.Serve(t, uid)
	g := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", CPUs: 2})
	q, err := g.QMP(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := g.Run(ctx, "load /modules/virtio"); err != nil { // the boot found no device for them
		t.Fatal(err)
	}
	r.Device.LinkState = "down"
	nic := newNIC(t, r, qemu.Options{Bus: vm.PlugBus, FDs: []string{"eth0-0", "eth0-1"}})
	plug := func() {
		t.Helper()
		var err error
		for i, f := range openQueues(t, n, r) {
			err = errors.Join(err, q.Execute(ctx, "getfd", map[string]string{"fdname": fmt.Sprintf("eth0-%d", i)}, f), f.Close())
		}
		if err := errors.Join(err, nic.Plug(execute(ctx, q))); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Until(ctx, "ip link set eth0 up && test $(cat /sys/class/net/eth0/carrier) = 0"); err != nil {
			t.Fatalf("a NIC whose link is down: %v", err)
		}
	}
	unplug := func() {
		t.Helper()
		if err := nic.Unplug(execute(ctx, q), deletedIn(ctx, q, nic)); err != nil {
			t.Fatal(err)
		}
		if out, err := g.Run(ctx, "ls /sys/class/net"); err != nil || out != "lo\n" {
			t.Errorf("the guest's links are %q, %v, want lo", out, err)
		}
	}
	plug()
	if err := q.Execute(ctx, "set_link", nic.Link(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Run(ctx, "dhclient6 eth0 >/run/dhclient.eth0 2>&1 & udhcpc -q -n -i eth0 -s /bin/udhcpc-script -t 20 -T 1 -O staticroutes -O mtu >/run/udhcpc.eth0 2>&1"); err != nil {
		t.Fatalf("%v\n%s", err, launcher.Output.String())
	}
	if _, err := g.Lease6(ctx, "eth0"); err != nil {
		t.Fatalf("%v\n%s", err, launcher.Output.String())
	}
	checkDevice(ctx, t, g, n, r)
	checkTraffic(ctx, t, g, n)
	unplug()
	plug()
	unplug()
}
