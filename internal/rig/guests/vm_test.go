package guests_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// bootTime is the context of a test that boots guests, which are emulated beside others.
func bootTime(t *testing.T) context.Context {
	patience := 6 * time.Minute
	if nstest.Emulated { // a guest is emulated by an emulated machine
		patience *= 4
	}
	leak.Allow(patience)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// configOf is the configuration of a NIC for a guest whose VMM runs as the user.
func configOf(n nstest.Network, nic string, b infra.Binding, uid, gid int) wired.NIC {
	return wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: nic}, Spec: infra.Spec{
		Binding: b, State: n.State, Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)},
	}}
}

// bootLibvirt boots a guest under libvirt by the element of the only record, and ends it with the test.
func bootLibvirt(ctx context.Context, t *testing.T, cfg vm.Config, network *phase2.VM) *vm.Guest {
	t.Helper()
	elements, err := network.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	xml, err := elements[0].Marshal()
	if err != nil {
		t.Fatal(err)
	}
	g, err := vm.BootLibvirt(ctx, cfg, xml)
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

// TestLibvirt gives a pod's network to a Linux guest under an unprivileged libvirt. The launcher serves the
// guest. The test checks who answers whom.
func TestLibvirt(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		if b.Kind() != cache.BindingBridge && *clients != "all" {
			continue // TestLibvirtPlug and TestLauncher have these
		}
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			ctx := bootTime(t)
			c := configOf(n, "eth0", b, uid, gid)
			network, r := setupAndOpen(ctx, t, c)
			launcher := n.Serve(t, uid)
			g := bootLibvirt(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1"}, network)
			lease4, err := g.Lease4(ctx, "eth0")
			if err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			lease6, err := g.Lease6(ctx, "eth0")
			if err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			if lease4["ip"] != r.IPv4.Address.Addr().String() || lease4["mask"] != fmt.Sprint(r.IPv4.Address.Bits()) || lease4["mtu"] != "1450" {
				t.Errorf("DHCPv4 lease %v, want %v", lease4, r.IPv4.Address)
			}
			if a, err := netip.ParseAddr(lease6["ip6_address"]); err != nil || a != r.IPv6.Address {
				t.Errorf("DHCPv6 lease %v, want %v", lease6, r.IPv6.Address)
			}
			routes, err := g.Until(ctx, "ip -6 route | grep ^default")
			if err != nil || !strings.Contains(routes, "via "+r.IPv6.Router.Address.String()) {
				t.Errorf("IPv6 default route %q, %v; want one via %v", routes, err, r.IPv6.Router.Address)
			}
			for _, to := range []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6} {
				if err := g.Ping(ctx, to); err != nil {
					t.Errorf("guest to %v: %v", to, err)
				}
			}
			for _, to := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
				answer, err := ask(n.World, netip.AddrPortFrom(to, vm.AnswerPort))
				if err != nil || answer.Guest != "guest1" || answer.Peer.Addr() != nstest.Gateway(to) {
					t.Errorf("world to %v: %+v, %v; want guest1 to answer and to see %v", to, answer, err, nstest.Gateway(to))
				}
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", launcher.Process.Pid))
			if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
				t.Errorf("the launcher has capabilities, %v:\n%s", err, status)
			}
			if err := c.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// ask connects from the namespace and returns the guest's answer.
func ask(from *nstest.Namespace, to netip.AddrPort) (answer vm.Answer, err error) {
	var conn net.Conn
	err = netns.Do(from.File, func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return vm.Answer{}, err
	}
	defer conn.Close()
	return vm.ReadAnswer(conn)
}
