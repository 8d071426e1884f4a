package wiring_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// halvesBeside has the two halves of each default route beside it, as a VPN leaves them.
func halvesBeside(s netstate.Snapshot) netstate.Snapshot {
	routes := s.Routes
	s = halves(s)
	s.Routes = append(s.Routes, routes[0], routes[len(routes)-1])
	return s
}

func noDefaultRoute(s *asked) { s.Options.NoDefaultRoute = true }

// TestNoDefaultRoute: with the option the record differs by its default routes alone, and still has a router where
// other routes and prefixes come from.
func TestNoDefaultRoute(t *testing.T) {
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
	}{
		{"bridge", flannel(), bridge()},
		{"redirect", flannel(), redirect()},
		{"redirect, with source routing", sourceRouted(), redirect()},
		{"masquerade", flannel(), masquerade()},
		{"bridge, halves", halves(flannel()), bridge()},
		{"redirect, halves and a whole one", halvesBeside(flannel()), redirect()},
		{"routed, halves", halves(flannel()), routed()},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := newPlan(t, c.found, c.spec).Record
			without := newPlan(t, c.found, withSpec(c.spec, noDefaultRoute)).Record
			if !slices.ContainsFunc(with.IPv4.Routes, cache.Route.Default) || !with.IPv6.Router.Default {
				t.Fatalf("without the option there is no default route either: %+v, %+v", with.IPv4, with.IPv6.Router)
			}
			for _, r := range without.IPv4.Routes {
				if r.Destination.Bits() < 2 {
					t.Errorf("the guest gets %v", r)
				}
			}
			if without.IPv6.Router == nil || without.IPv6.Router.Default {
				t.Errorf("the router is %+v", without.IPv6.Router)
			}
			if without.Static != nil {
				for _, r := range without.Static.Routes {
					if r.Destination.Bits() < 2 && r.Table == netstate.TableMain {
						t.Errorf("static has %+v", r)
					}
				}
			}
			with.IPv4.Routes = slices.DeleteFunc(with.IPv4.Routes, cache.Route.Default)
			if standIn := with.IPv4.StandIn; standIn.IsValid() {
				with.IPv4.StandIn = netip.Addr{}
				with.Neighbours = slices.DeleteFunc(with.Neighbours, func(n cache.Neighbour) bool { return n.Address == standIn })
			}
			with.IPv6.Router.Default = false
			with.IPv6.Router.Routes = slices.DeleteFunc(with.IPv6.Router.Routes, func(p netip.Prefix) bool { return p.Bits() < 2 })
			with.Options.NoDefaultRoute = true
			with.Static, without.Static = nil, nil
			if !reflect.DeepEqual(with, without) {
				t.Errorf("more differs:\n%+v\n%+v", with, without)
			}
		})
	}
}
