package guests_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// execute sends the commands of Plug and Unplug to QEMU.
func execute(ctx context.Context, q *vm.QMP) func(string, qemu.Object) error {
	return func(command string, arguments qemu.Object) error { return q.Execute(ctx, command, arguments) }
}

// deletedIn waits for QEMU's event that the guest has given the device up. QEMU reports the parts of the device, too.
func deletedIn(ctx context.Context, q *vm.QMP, nic *qemu.NIC) func() (bool, error) {
	return func() (bool, error) {
		for {
			data, err := q.Await(ctx, "DEVICE_DELETED")
			if err != nil {
				return false, err
			}
			var event struct{ Device string }
			if err := json.Unmarshal(data, &event); err != nil || event.Device == nic.Device["id"] {
				return err == nil, err
			}
		}
	}
}

// secondNIC gives the pod a NIC called net1, which leads to the world as well. The pod has no default route by it.
func secondNIC(n nstest.Network) {
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	for _, line := range []string{"addr add 10.7.0.1/24 dev pod2", "addr add fd00:7::1/64 dev pod2 nodad", "link set pod2 up"} {
		n.World.IP(line)
	}
	for _, line := range []string{"addr add 10.7.0.2/24 dev net1", "addr add fd00:7::2/64 dev net1 nodad", "link set net1 up"} {
		n.Pod.IP(line)
	}
	n.Pod.Settle("net1")
}

// leaseSecond starts DHCP clients at the guest's eth1, and returns the leases.
func leaseSecond(ctx context.Context, t *testing.T, g *vm.Guest) (lease4, lease6 map[string]string) {
	t.Helper()
	const clients = "if test -e /run/dhclient.eth1.pid; then kill $(cat /run/dhclient.eth1.pid); fi; rm -f /run/*.eth1 /run/*.eth1.pid; ip link set eth1 up; " +
		"dhclient6 eth1 >/run/dhclient.eth1 2>&1 & udhcpc -q -n -i eth1 -s /bin/udhcpc-script -t 20 -T 1 -O staticroutes -O mtu >/run/udhcpc.eth1 2>&1"
	_, err := g.Run(ctx, clients)
	if err == nil {
		lease4, err = g.Lease4(ctx, "eth1")
	}
	if err == nil {
		lease6, err = g.Lease6(ctx, "eth1")
	}
	if err != nil {
		t.Fatal(err)
	}
	return lease4, lease6
}

// defaults are the guest's default routes, without what time changes.
func defaults(ctx context.Context, t *testing.T, g *vm.Guest) string {
	t.Helper()
	out, err := g.Run(ctx, "ip route show default; ip -6 route show default | sed 's/ expires.*//'")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mustLease is leaseSecond, and compares with the record. The first NIC keeps the guest's default routes.
func mustLease(ctx context.Context, t *testing.T, g *vm.Guest, r cache.Record, first string) {
	t.Helper()
	lease4, lease6 := leaseSecond(ctx, t, g)
	if lease4["ip"] != r.IPv4.Address.Addr().String() || lease6["ip6_address"] != r.IPv6.Address.String() {
		t.Errorf("leases %v and %v, want %v and %v", lease4, lease6, r.IPv4.Address, r.IPv6.Address)
	}
	if out, err := g.Run(ctx, "cat /sys/class/net/eth1/address"); err != nil || out != r.MAC.String()+"\n" {
		t.Errorf("the device's MAC is %q, %v, want %v", out, err, r.MAC)
	}
	if now := defaults(ctx, t, g); now != first {
		t.Errorf("the default routes were\n%sand are\n%s", first, now)
	}
	neighbour := r.IPv4.Server // the gateway of a masquerade
	if r.Binding == cache.BindingBridge {
		neighbour = netip.MustParseAddr("10.7.0.1")
	}
	for _, to := range []netip.Addr{neighbour, nstest.Beyond4, nstest.Beyond6} {
		if err := g.Ping(ctx, to); err != nil {
			t.Errorf("guest to %v: %v", to, err)
		}
	}
}

// inUse wants Teardown to refuse, as the VM has the NIC.
func inUse(ctx context.Context, t *testing.T, c wired.NIC) {
	t.Helper()
	if err := c.Teardown(ctx); !errors.Is(err, phase1.ErrInUse) {
		t.Errorf("Teardown under a plugged NIC: %v, want ErrInUse", err)
	}
}

// TestPlugSecond plugs a second NIC into a guest that runs, beside its first. The second NIC does not take the first
// one's traffic. The network of the second NIC is swapped: the guest sees the same device, with the same MAC, on
// another network. The NIC is plugged with its link down.
func TestPlugSecond(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	secondNIC(n)
	ctx := bootTime(t)
	first := configOf(n, "eth0", infra.Bridge{}, uid, gid)
	r0, err := first.Setup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n.Serve(t, uid)
	g := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1"}, newNIC(t, r0, qemu.Options{}))
	q, err := g.QMP(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := g.Lease4(ctx, "eth0"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Until(ctx, "ip -6 route | grep ^default"); err != nil {
		t.Fatal(err)
	}
	routes := defaults(ctx, t, g)
	inUse(ctx, t, first)

	var mac cache.MAC
	for _, network := range []struct {
		binding func() infra.Binding
		times   int // with 2, the NIC is plugged again after it was unplugged, and the wiring stayed
	}{
		{func() infra.Binding { return infra.Masquerade{} }, 2},
		{func() infra.Binding { return infra.Bridge{MAC: mac} }, 1},
		{func() infra.Binding { return infra.Masquerade{MAC: mac} }, 1},
	} {
		c := configOf(n, "net1", network.binding(), uid, gid)
		c.Options.NoDefaultRoute = true
		r, err := c.Setup(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if mac = r.MAC; mac.IsZero() {
			t.Fatal("the record has no MAC")
		}
		r.Device.LinkState = "down"
		nic := newNIC(t, r, qemu.Options{Bus: vm.PlugBus})
		for range network.times {
			if err := nic.Plug(execute(ctx, q)); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Until(ctx, "ip link set eth1 up && test $(cat /sys/class/net/eth1/carrier) = 0"); err != nil {
				t.Fatalf("a NIC whose link is down: %v", err)
			}
			if err := q.Execute(ctx, "set_link", nic.Link(true)); err != nil {
				t.Fatal(err)
			}
			mustLease(ctx, t, g, r, routes)
			inUse(ctx, t, c)
			for _, up := range []bool{false, true} {
				if err := q.Execute(ctx, "set_link", nic.Link(up)); err != nil {
					t.Fatal(err)
				}
				carrier := map[bool]string{false: "0", true: "1"}[up]
				if _, err := g.Until(ctx, "test $(cat /sys/class/net/eth1/carrier) = "+carrier); err != nil {
					t.Errorf("link up %t: %v", up, err)
				}
				inUse(ctx, t, c)
			}
			if err := nic.Unplug(execute(ctx, q), deletedIn(ctx, q, nic)); err != nil {
				t.Fatal(err)
			}
			if out, err := g.Run(ctx, "ls /sys/class/net"); err != nil || strings.Contains(out, "eth1") {
				t.Errorf("the guest's links are %q, %v", out, err)
			}
		}
		if err := c.Teardown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Ping(ctx, nstest.Beyond4); err != nil {
		t.Error(err)
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
	if err := first.Teardown(ctx); err != nil {
		t.Error(err)
	}
}

// TestLibvirtPlug attaches a second NIC to a libvirt guest that runs, by the element that package domain makes of the
// record; takes its link down and up; and detaches it by the same element, which frees the tap.
func TestLibvirtPlug(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	secondNIC(n)
	ctx := bootTime(t)
	element := func(c wired.NIC) (cache.Record, string) {
		t.Helper()
		r, err := c.Setup(ctx)
		if err != nil {
			t.Fatal(err)
		}
		nic, err := domain.Interface(&r)
		if err != nil {
			t.Fatal(err)
		}
		xml, err := nic.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return r, xml
	}
	_, xml := element(configOf(n, "eth0", infra.Redirect{}, uid, gid))
	n.Serve(t, uid)
	g, err := vm.BootLibvirt(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", PlugPorts: 1}, xml)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := g.Lease4(ctx, "eth0"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Until(ctx, "ip -6 route | grep ^default"); err != nil {
		t.Fatal(err)
	}
	routes := defaults(ctx, t, g)
	virsh := func(args ...string) {
		t.Helper()
		if _, err := g.Virsh(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Bridge{}} {
		c := configOf(n, "net1", b, uid, gid)
		c.Queues, c.Options.NoDefaultRoute = 2, true
		r, xml := element(c)
		file := filepath.Join(nstest.Dir(t), "net1.xml")
		if err := os.WriteFile(file, []byte(xml), 0o644); err != nil {
			t.Fatal(err)
		}
		virsh("attach-device", "guest1", file, "--live")
		if _, err := g.Until(ctx, "test -e /sys/class/net/eth1"); err != nil {
			t.Fatal(err)
		}
		mustLease(ctx, t, g, r, routes)
		for _, link := range [][2]string{{"down", "0"}, {"up", "1"}} {
			virsh("domif-setlink", "guest1", r.Tap, link[0])
			if _, err := g.Until(ctx, "test $(cat /sys/class/net/eth1/carrier) = "+link[1]); err != nil {
				t.Errorf("link %s: %v", link[0], err)
			}
		}
		inUse(ctx, t, c)
		virsh("detach-device", "guest1", file, "--live")
		if _, err := g.Until(ctx, "! test -e /sys/class/net/eth1"); err != nil {
			t.Error(err)
		}
		nstest.Eventually(t, func() error { return c.Teardown(ctx) })
	}
}
