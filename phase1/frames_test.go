package phase1_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestHostileFrames sends everything that a guest could send from its tap: nothing hostile comes out anywhere
// and changes anything, and nothing legitimate is lost.
func TestHostileFrames(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name    string
		v4, v6  bool
		options cache.Options
	}{
		{name: "IPv4 and IPv6", v4: true, v6: true},
		{name: "IPv4", v4: true},
		{name: "IPv6", v6: true},
		{name: "not served", v4: true, v6: true, options: cache.Options{NoResponder: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				if c.name == "IPv4 and IPv6" && b.Kind() == "bridge" {
					nstest.KernelDecides(t, "the guest filter as that kernel evaluates it")
				}
				n := nstest.NewNetwork(t)
				if !c.v4 {
					n.Pod.IP("-4 addr flush dev eth0")
				}
				if !c.v6 {
					n.Pod.IP("-6 route flush dev eth0")
					n.Pod.IP("-6 addr flush dev eth0")
				}
				config := config(n, b)
				config.Options = c.options
				setup(t, config)
				guestIsItself(t, attach(t, n, c.v4, c.v6))
				check(t, config) // after counters have counted
			})
		})
	}
}

// TestGuardLoosened gives the guest another MAC and more addresses: the guest can send with these too, and with no
// others.
func TestGuardLoosened(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		second := frames.Link{MAC: cache.MAC{2, 0, 0, 0, 0, 9}, IPv4: netip.MustParseAddr("192.0.2.15"), IPv6: netip.MustParseAddr("2001:db8:5::7")}
		c.Guard.MACs = []cache.MAC{second.MAC}
		c.Guard.Prefixes = []netip.Prefix{netip.PrefixFrom(second.IPv4, 31).Masked(), netip.PrefixFrom(second.IPv6, 127).Masked(), netip.PrefixFrom(eui64.LinkLocal(second.MAC), 128)}
		setup(t, c)
		w := attach(t, n, true, true)
		guestIsItself(t, w)

		second.Gateway, second.Gateway4, second.Gateway6 = w.link.Gateway, netip.MustParseAddr("192.0.2.1"), w.link.Gateway6
		second.Far4, second.Far6, second.Served = netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:9::10"), true
		for _, far := range []netip.Addr{second.Far4, second.Far6} {
			n.World.IP("addr add " + far.String() + " dev lo")
		}
		const router = "eth0-tap"
		if w.masquerade {
			for _, own := range []netip.Addr{second.IPv4, second.IPv6} {
				n.Pod.IP("neigh add " + own.String() + " lladdr " + second.MAC.String() + " dev " + router)
			}
		}
		if w.masquerade || w.routed {
			n.Pod.IP("neigh flush dev " + router) // nobody answers the kernel's probes of the first guest any more
		}
		w.link = second
		guestIsItself(t, w)
		if w.masquerade {
			n.Pod.IP("neigh del " + second.IPv4.String() + " dev " + router)
			n.Pod.IP("neigh del " + second.IPv6.String() + " dev " + router)
		}
		check(t, c)
		if w.masquerade { // a second Setup keeps the routes to the prefixes
			n.Pod.IP("route flush proto static dev " + router)
			setup(t, c)
		}
		w.port.Close()
		teardown(t, n, c, before)
	})
}

// TestGuardWithAllAddresses: a guest that may have any address is no DHCP client of other servers all the same, though
// the 0.0.0.0 that a client writes for a relay's address is of 0.0.0.0/0.
func TestGuardWithAllAddresses(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			c := config(n, b)
			c.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
			setup(t, c)
			w := attach(t, n, true, true)
			names := []string{"DHCPv4 discover of a relay without an address", "DHCPv4 discover to another server"}
			chosen := slices.DeleteFunc(frames.Hostile(w.link), func(k frames.Kind) bool { return !slices.Contains(names, k.Name) })
			if len(chosen) != len(names) {
				t.Fatalf("%d kinds, want %q", len(chosen), names)
			}
			for _, name := range w.hostile(chosen) {
				t.Errorf("leaked: %s", name)
			}
		})
	}
}

// guestIsItself sends everything.
func guestIsItself(t *testing.T, w *wire) {
	t.Helper()
	hostile, legitimate := frames.Hostile(w.link), frames.Legitimate(w.link)
	before := w.settledState()
	leaked := w.hostile(hostile)
	for _, name := range leaked {
		t.Errorf("leaked: %s", name)
	}
	if err := difference(before, w.state()); err != nil {
		t.Errorf("the namespace's state: %v", err)
	}
	lost := w.legitimate(legitimate)
	t.Logf("%d of %d hostile kinds leaked, %d of %d legitimate ones lost", len(leaked), len(hostile), len(lost), len(legitimate))
}

// TestGuardOff: without the filter what is hostile comes out, and the other tests would see it. The kernel's bridge
// keeps some of it (frames of no station, to bridges, larger than the MTU), and the responder. What a guest that is the
// pod cannot send leaves by the responder's tap as well, so TestResponderAsGuest would see it.
func TestGuardOff(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		c.Guard.Off = true
		setup(t, c)
		w := attach(t, n, true, true)
		w.unguarded = true
		w.legitimate(frames.Legitimate(w.link))
		all := frames.Hostile(w.link)
		leaked := w.hostile(all)
		least := len(all) * 9 / 10
		if w.masquerade {
			least = len(all) / 12 // the namespace keeps what it does not forward
		}
		if len(leaked) < least {
			t.Errorf("%d of %d hostile kinds leak, want %d", len(leaked), len(all), least)
		}
		if w.masquerade {
			return
		}
		guest := w.port // the guest's tap has a carrier as long as it is open
		w.port = openPort(t, n, "eth0-dhcp")
		defer func() { w.port = guest }()
		w.send()
		spoofed := slices.DeleteFunc(all, func(k frames.Kind) bool { return k.Reason != firewall.ARPSpoof })
		if leaked := w.hostile(spoofed); len(leaked) == 0 || len(leaked) < len(spoofed)*9/10 {
			t.Errorf("by the responder's tap %d of %d kinds left: %q", len(leaked), len(spoofed), leaked)
		}
	})
}
