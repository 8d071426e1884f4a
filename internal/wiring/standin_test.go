package wiring_test

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestStandIn: a guest that knows no classless routes gets the address beside its own as its router, at the MAC of the
// gateway. It gets none if the gateway is in its network, if the MAC is not known, or if another station has the
// address.
func TestStandIn(t *testing.T) {
	const gateway, standIn = "169.254.1.1", "10.244.1.6"
	known := learned(gateway, mac(9))
	with := func(edit func(*netstate.Snapshot)) netstate.Snapshot {
		s := calico4(gateway, known)
		edit(&s)
		return s
	}
	second := known // of another NIC
	second.Link = 3
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
		want  string    // empty: none
		mac   cache.MAC // zero: not a neighbour of the record's
	}{
		{"learned", calico4(gateway, second, known), bridge(), standIn, mac(9)},
		{"permanent", calico4(gateway, permanent(gateway, mac(9))), redirect(), standIn, mac(9)},
		{"an odd address beside", with(func(s *netstate.Snapshot) { s.Addresses[0] = address("10.244.1.4/32") }), bridge(), "10.244.1.5", mac(9)},
		{"not known", calico4(gateway), bridge(), "", cache.MAC{}},
		{"of another NIC", calico4(gateway, second), bridge(), "", cache.MAC{}},
		{"in the network", lan4With(func(s *netstate.Snapshot) { s.Neighbours = []netstate.Neighbour{learned("10.244.1.1", mac(9))} }), bridge(), "", cache.MAC{}},
		{"no gateway", with(func(s *netstate.Snapshot) { s.Routes = s.Routes[1:] }), bridge(), "", cache.MAC{}},
		{"the gateway is beside", calico4(standIn, learned(standIn, mac(9))), bridge(), standIn, cache.MAC{}},
		{"a station beside", with(func(s *netstate.Snapshot) { s.Neighbours = append(s.Neighbours, permanent(standIn, mac(8))) }), bridge(), "", cache.MAC{}},
		{"a network on the link beside", with(func(s *netstate.Snapshot) { s.Routes = append(s.Routes, onLink("10.244.1.0/29")) }), bridge(), "", cache.MAC{}},
		{"without ARP", with(func(s *netstate.Snapshot) { s.Links[1].NoARP = true }), redirect(), standIn, veth().MAC},
		{"halves", halves(calico4(gateway, known)), bridge(), standIn, mac(9)},
		{"one half", with(func(s *netstate.Snapshot) { s.Routes[0] = via("128.0.0.0/1", gateway) }), bridge(), "", cache.MAC{}},
		{"masquerade", calico4(gateway, known), masquerade(), "", cache.MAC{}},
		{"no responder", calico4(gateway, known), withSpec(bridge(), func(s *asked) { s.Options.NoResponder = true }), "", cache.MAC{}},
		{"no default route", calico4(gateway, known), withSpec(bridge(), func(s *asked) { s.Options.NoDefaultRoute = true }), "", cache.MAC{}},
	} {
		r := newPlan(t, c.found, c.spec).Record
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var have netip.Addr
		if r.IPv4 != nil {
			have = r.IPv4.StandIn
		}
		if want := c.want; have.IsValid() != (want != "") || have.IsValid() && have != ip(want) {
			t.Errorf("%s: stand-in %v, want %q", c.name, have, want)
		}
		at := cache.MAC{}
		for _, n := range r.Neighbours {
			if n.Address == have {
				at = n.MAC
			}
		}
		if at != c.mac {
			t.Errorf("%s: the stand-in is at %v, want %v", c.name, at, c.mac)
		}
	}
}
