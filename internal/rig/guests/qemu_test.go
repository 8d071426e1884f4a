package guests_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func newNIC(t *testing.T, r cache.Record, o qemu.Options) *qemu.NIC {
	t.Helper()
	nic, err := qemu.NewNIC(&r, o)
	if err != nil {
		t.Fatal(err)
	}
	return nic
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

// TestQEMU gives a pod's network to a Linux guest under QEMU alone, which has no privileges and opens four queues of the
// tap by its name. The launcher's tests boot the same QEMU on a bridge, on a macvtap and with passt, and pass it descriptors of
// two queues.
func TestQEMU(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	ctx := bootTime(t)
	config := configOf(n, "eth0", infra.Redirect{}, uid, gid)
	config.Queues = 4
	r, err := phase1.Setup(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	launcher := n.Serve(t, uid)
	g := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", CPUs: 4}, newNIC(t, r, qemu.Options{}))
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
}
