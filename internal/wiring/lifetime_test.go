package wiring_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestLifetimes: what Undo adds lives for as long as it would have without a wiring, by the time that has passed since
// the namespace was found. What has ended stays gone, and what is there lives for as long as the kernel says.
func TestLifetimes(t *testing.T) {
	ending := func(seconds, preferred uint32) func(*netstate.Address) {
		return func(a *netstate.Address) { a.ValidSeconds, a.PreferredSeconds = seconds, preferred }
	}
	snapshot := flannelWith(func(s *netstate.Snapshot) {
		s.UptimeMS = 100_000
		s.Addresses = append(s.Addresses, withAddress(address("fd00:9::9/64"), ending(60, 30)), withAddress(address("10.9.0.9/24"), ending(60, 60)))
		s.Routes = append(s.Routes,
			withRoute(via("2001:db8:1::/64", "fe80::1"), func(r *netstate.Route) { r.ExpiresSeconds = 60 }),
			withRoute(via("2001:db8:2::/64", "fe80::1"), func(r *netstate.Route) { r.PrefSrc = netip.MustParseAddr("fd00:9::9") }),
			withRoute(via("203.0.113.0/24", "10.244.1.1"), func(r *netstate.Route) { r.PrefSrc = netip.MustParseAddr("10.9.0.9") }))
	})
	for _, b := range []struct {
		name string
		spec asked
	}{{"bridge", bridge()}, {"redirect", redirect()}} {
		for _, c := range []struct {
			passed    time.Duration
			valid     uint32 // 0: gone
			preferred uint32
		}{
			{0, 60, 30},
			{time.Millisecond, 59, 29},
			{29 * time.Second, 31, 1},
			{40 * time.Second, 20, 0},
			{59*time.Second + time.Millisecond, 0, 0},
			{time.Hour, 0, 0},
			{-time.Second, 60, 30}, // by another clock
		} {
			t.Run(fmt.Sprintf("%s after %v", b.name, c.passed), func(t *testing.T) {
				p, err := tryPlan(snapshot, b.spec)
				if err != nil {
					t.Fatal(err)
				}
				now := snapshot // with nothing of all that
				now.UptimeMS += c.passed.Milliseconds()
				now.Addresses, now.Routes = nil, nil
				ops, err := undoOf(p, now)
				if err != nil {
					t.Fatal(err)
				}
				var addresses []netstate.Address
				routes := map[string]netstate.Route{}
				for _, op := range ops {
					switch o := op.(type) {
					case netstate.AddressAdd:
						if a := o.Address; a.ValidSeconds != netstate.Forever && a.Flags&netstate.AddrNoDAD == 0 {
							addresses = append(addresses, a)
						}
					case netstate.RouteAdd:
						routes[o.Route.Destination.String()] = o.Route
					}
				}
				ended := c.valid == 0
				if ended != (len(addresses) == 0) {
					t.Errorf("addresses %+v", addresses)
				}
				for _, a := range addresses {
					if a.ValidSeconds != c.valid || a.Prefix.Addr().Is6() && a.PreferredSeconds != c.preferred {
						t.Errorf("%v is valid for %d s and preferred for %d s, want %d and %d", a.Prefix, a.ValidSeconds, a.PreferredSeconds, c.valid, c.preferred)
					}
				}
				if have := routes["2001:db8:1::/64"].ExpiresSeconds; have != c.valid {
					t.Errorf("the route expires in %d s, want %d", have, c.valid)
				}
				if r, is := routes["2001:db8:2::/64"]; !is || r.PrefSrc.IsValid() == ended {
					t.Errorf("IPv6 route from the address: %+v", r)
				}
				if _, is := routes["203.0.113.0/24"]; is == ended {
					t.Errorf("IPv4 route from the address: %v", is)
				}
			})
		}
	}
	t.Run("ended, and still at the holder", func(t *testing.T) { // the kernel removes IPv4 addresses up to a second late
		p, err := tryPlan(snapshot, bridge())
		if err != nil {
			t.Fatal(err)
		}
		holder := netstate.Link{Index: 77, Name: "eth0", Kind: "dummy", Alias: netstate.Mark("eth0")}
		now := snapshot
		now.UptimeMS += time.Minute.Milliseconds()
		now.Links = slices.Clone(snapshot.Links)
		now.Links[1].Name = "eth0-nic"
		now.Links = append(now.Links, holder)
		now.Routes = nil
		now.Addresses = []netstate.Address{withAddress(address("10.9.0.9/24"), func(a *netstate.Address) { a.Link, a.ValidSeconds = holder.Index, 0 })}
		ops, err := undoOf(p, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range ops {
			if r, is := op.(netstate.RouteAdd); is && r.Route.PrefSrc == netip.MustParseAddr("10.9.0.9") {
				t.Errorf("a route without its source: %v", r.Route)
			}
		}
	})
	t.Run("renewed", func(t *testing.T) {
		p, err := tryPlan(snapshot, redirect())
		if err != nil {
			t.Fatal(err)
		}
		now := snapshot
		now.UptimeMS += time.Hour.Milliseconds()
		now.Addresses = slices.Clone(now.Addresses)
		for i := range now.Addresses {
			if a := &now.Addresses[i]; a.ValidSeconds != netstate.Forever {
				a.ValidSeconds, a.PreferredSeconds = 600, 300
			}
		}
		ops, err := undoOf(p, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range ops {
			switch op.(type) {
			case netstate.AddressAdd, netstate.AddressDel:
				t.Errorf("the kernel has renewed the address, and Undo does %v", op)
			}
		}
	})
}

// TestRouterChangesEnd: a router gives a route an end that it had not, or takes it, while the NIC is wired. Undo leaves
// the route.
func TestRouterChangesEnd(t *testing.T) {
	for _, ends := range [][2]uint32{{600, 0}, {0, 600}} {
		with := func(seconds uint32) netstate.Snapshot {
			return flannelWith(func(s *netstate.Snapshot) {
				s.Routes = append(s.Routes, withRoute(via("fd99:77::/48", "fe80::77"), func(r *netstate.Route) { r.Protocol, r.ExpiresSeconds = netstate.ProtocolRA, seconds }))
			})
		}
		p, err := tryPlan(with(ends[0]), redirect())
		if err != nil {
			t.Fatal(err)
		}
		ops, err := undoOf(p, with(ends[1]))
		if err != nil || len(ops) > 0 {
			t.Errorf("%d, then %d seconds: Undo does %v, %v", ends[0], ends[1], ops, err)
		}
	}
}

// TestLearnedSince: what router advertisements have brought to the NIC since it is the namespace's again is the
// kernel's, so that a router that never stops keeps no Teardown from its end.
func TestLearnedSince(t *testing.T) {
	p, err := tryPlan(flannelWith(func(*netstate.Snapshot) {}), bridge())
	if err != nil {
		t.Fatal(err)
	}
	now := flannelWith(func(s *netstate.Snapshot) {
		s.Addresses = append(s.Addresses, withAddress(address("2001:db8:7::7/64"), func(a *netstate.Address) { a.ValidSeconds, a.PreferredSeconds = 3600, 3600 }))
		s.Routes = append(s.Routes,
			withRoute(connected6("2001:db8:7::/64"), func(r *netstate.Route) { r.ExpiresSeconds = 3600 }),
			withRoute(via("::/0", "fe80::bad"), func(r *netstate.Route) { r.Protocol, r.ExpiresSeconds = netstate.ProtocolRA, 1800 }))
	})
	ops, err := undoOf(p, now)
	if err != nil || len(ops) > 0 {
		t.Errorf("Undo does %v, %v", ops, err)
	}
}
