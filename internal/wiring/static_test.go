package wiring_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestStatic: the record has the NIC as it was found, and says what of the namespace it cannot hold.
func TestStatic(t *testing.T) {
	other := netstate.Link{Index: 7, Name: "net1", Kind: "veth", MAC: mac(7), MTU: 1500, Up: true, Ethernet: true}
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		want  string // lines of static
	}{
		{"flannel", flannel(), `
address 10.244.1.7/24 brd 10.244.1.255
address fd00:244:1::7/64
address fe80::858:aff:fef4:107/64 scope 253
route 0.0.0.0/0 table 254 via 10.244.1.1
route 10.244.0.0/16 table 254 via 10.244.1.1
route ::/0 table 254 via fd00:244:1::1`},
		{"sbr: the rule of another address is not the guest's", sourceRouted(), `
address 10.244.1.7/24 brd 10.244.1.255 noprefixroute
address fd00:244:1::7/64 noprefixroute
address fe80::858:aff:fef4:107/64 scope 253
route 10.244.1.0/24 table 100 src 10.244.1.7 scope 253
route fd00:244:1::/64 table 100 metric 256
route fe80::/64 table 100 metric 256
route 0.0.0.0/0 table 100 via 10.244.1.1
route 10.244.0.0/16 table 100 via 10.244.1.1
route ::/0 table 100 via fd00:244:1::1
rule 1000 from 10.244.1.7/32 table 100
rule 1000 from fd00:244:1::7/128 table 100`},
		{"another NIC, and what the kernel keeps for itself", lan4With(func(s *netstate.Snapshot) {
			s.Links = append(s.Links, other)
			a := address("10.9.0.7/24")
			a.Link = 7
			s.Addresses = append(s.Addresses, a)
			s.Routes = append(s.Routes, withRoute(via("10.8.0.0/16", "10.9.0.1"), func(r *netstate.Route) { r.Link = 7 }),
				netstate.Route{Link: nic, Table: netstate.TableLocal, Destination: pfx("ff00::/8"), Type: netstate.RouteMulticast, Protocol: netstate.ProtocolKernel},
				netstate.Route{Link: 1, Table: netstate.TableMain, Destination: pfx("::/0"), Type: 7, Protocol: netstate.ProtocolKernel, Metric: 1<<32 - 1})
			s.Neighbours = append(s.Neighbours, netstate.Neighbour{Link: 7, Address: ip("10.9.0.1"), MAC: mac(1), Permanent: true})
		}), `
address 10.244.1.7/24
address fe80::858:aff:fef4:107/64 scope 253
route 0.0.0.0/0 table 254 via 10.244.1.1`},
		{"a rule that matches more, no rule for the table main, a route that refuses", lan4With(func(s *netstate.Snapshot) {
			s.Rules = []netstate.Rule{{Priority: 9, Table: 100, Other: true}, {Priority: 10, Table: 100}}
			s.NoMain = versions{6}
			s.Routes = append(s.Routes, withRoute(onLink("10.7.0.0/16"), func(r *netstate.Route) { r.Table = 100 }),
				netstate.Route{Table: 100, Destination: pfx("10.6.0.0/16"), Type: 6, Protocol: 3})
		}), `
address 10.244.1.7/24
address fe80::858:aff:fef4:107/64 scope 253
route 10.7.0.0/16 table 100 scope 253
route 10.6.0.0/16 blackhole table 100
route 0.0.0.0/0 table 254 via 10.244.1.1
rule 10 table 100
! 1 policy rules of the namespace are left out: they match more than the source, or do not look up a table
! the namespace has no IPv6 rule for the table main, and the guest has one`},
		{"permanent neighbours, a gateway on the link, several next hops, a metric of the connected route", lan4With(func(s *netstate.Snapshot) {
			s.Links = append(s.Links, other)
			s.Addresses[0].Metric = 77
			s.Routes[1].Metric = 77
			s.Routes[0].OnLink = true
			s.Routes = append(s.Routes, multipath("10.5.0.0/16", "10.244.1.1", "10.244.1.2"), withRoute(multipath("10.4.0.0/16", "10.244.1.1", "10.9.0.1"), func(r *netstate.Route) {
				r.Hops[1].Link, r.Hops[0].Weight, r.Hops[0].OnLink = 7, 4, true
			}))
			s.Neighbours = []netstate.Neighbour{permanent("10.244.1.1", mac(1)), learned("10.244.1.2", mac(2))}
		}), `
address 10.244.1.7/24 noprefixroute
address fe80::858:aff:fef4:107/64 scope 253
route 10.244.1.0/24 table 254 src 10.244.1.7 metric 77 scope 253
route 0.0.0.0/0 table 254 via 10.244.1.1 onlink
route 10.5.0.0/16 table 254 via 10.244.1.1 weight 1 via 10.244.1.2 weight 1
route 10.4.0.0/16 table 254 via 10.244.1.1 onlink weight 5
neighbour 10.244.1.1 02:00:00:00:00:01
! the route to 10.4.0.0/16 of table 254 has a next hop through another link: the guest gets it without that one`},
		{"a peer, a deprecated address, attributes that a record cannot hold", lan4With(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, withAddress(address("10.1.1.7/32"), func(a *netstate.Address) { a.Peer = pfx("10.1.1.8/31") }),
				withAddress(address("fd00::7/64"), func(a *netstate.Address) { a.PreferredSeconds = 0 }))
			s.Routes = append(s.Routes, withRoute(connected("10.1.1.7/32"), func(r *netstate.Route) { r.Destination = pfx("10.1.1.8/31") }), connected6("fd00::/64"),
				withRoute(via("10.3.0.0/16", "10.244.1.1"), func(r *netstate.Route) { r.TOS = 4 }),
				withRoute(via("10.2.0.0/16", "10.244.1.1"), func(r *netstate.Route) {
					r.MTU, r.Other = 1300, []netstate.Attribute{{Type: 8, Data: []byte{8, 0, 2, 0, 0x14, 5, 0, 0}}}
				}),
				withRoute(via("10.0.0.0/16", "10.244.1.1"), func(r *netstate.Route) { r.Other = []netstate.Attribute{{Type: 22, Data: []byte{1, 0}}} }))
		}), `
address 10.244.1.7/24
address fe80::858:aff:fef4:107/64 scope 253
address 10.1.1.7/32 peer 10.1.1.8/31
address fd00::7/64 deprecated
route 0.0.0.0/0 table 254 via 10.244.1.1
route 10.3.0.0/16 table 254 via 10.244.1.1
route 10.2.0.0/16 table 254 via 10.244.1.1 mtu 1300
route 10.0.0.0/16 table 254 via 10.244.1.1
! the route to 10.3.0.0/16 of table 254 has attributes other than those of the record: the guest gets it without them
! the route to 10.0.0.0/16 of table 254 has attributes other than those of the record: the guest gets it without them`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, spec := range []asked{bridge(), redirect()} {
				plan := newPlan(t, c.found, spec)
				if have := staticText(plan.Record.Static); have != strings.TrimPrefix(c.want, "\n") {
					t.Errorf("%s: have\n%s\nwant%s", spec.Binding.Kind(), have, c.want)
				}
			}
		})
	}
}

// TestNoStatic: masquerade's guest is configured as its lease says. A NIC without an address or ARP is no model.
func TestNoStatic(t *testing.T) {
	for name, plan := range map[string]*cache.Static{
		"masquerade": newPlan(t, flannel(), masquerade()).Record.Static,
		"no address": newPlan(t, lan4With(func(s *netstate.Snapshot) { s.Addresses, s.Routes = nil, nil }), bridge()).Record.Static,
		"no ARP":     newPlan(t, lan4With(func(s *netstate.Snapshot) { s.Links[1].NoARP = true }), redirect()).Record.Static,
	} {
		if plan != nil {
			text, _ := json.Marshal(plan)
			t.Errorf("%s: %s", name, text)
		}
	}
}

// staticText is the configuration line by line. The metric of IPv6 routes is left out where it is the kernel's.
func staticText(s *cache.Static) string {
	if s == nil {
		return "none"
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	when := func(given bool, format string, args ...any) string {
		if !given {
			return ""
		}
		return fmt.Sprintf(" "+format, args...)
	}
	for _, a := range s.Addresses {
		add("address %v%s%s%s%s%s", a.Address, when(a.Peer.IsValid(), "peer %v", a.Peer), when(a.Broadcast.IsValid(), "brd %v", a.Broadcast), when(a.Scope != 0, "scope %d", a.Scope),
			when(a.NoPrefixRoute, "noprefixroute"), when(a.Deprecated, "deprecated"))
	}
	for _, r := range s.Routes {
		hops := ""
		for _, h := range r.Hops {
			hops += fmt.Sprintf(" via %v%s weight %d", h.Gateway, when(h.OnLink, "onlink"), h.Weight)
		}
		add("route %v%s table %d%s%s%s%s%s%s%s", r.Destination, when(r.Type != "", "%s", r.Type), r.Table, when(r.Gateway.IsValid(), "via %v", r.Gateway), when(r.OnLink, "onlink"), hops,
			when(r.Source.IsValid(), "src %v", r.Source), when(r.Metric != 0 && r.Metric != 1024, "metric %d", r.Metric), when(r.MTU != 0, "mtu %d", r.MTU), when(r.Scope != 0, "scope %d", r.Scope))
	}
	for _, r := range s.Rules {
		add("rule %d%s table %d", r.Priority, when(r.Source.IsValid(), "from %v", r.Source), r.Table)
	}
	for _, n := range s.Neighbours {
		add("neighbour %v %v", n.Address, n.MAC)
	}
	for _, w := range s.Warnings {
		add("! %s", w)
	}
	return strings.Join(lines, "\n")
}
