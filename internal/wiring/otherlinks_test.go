package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// wg0 is a VPN's link, to which the policy rules lead everything but the VPN's own packets, as wg-quick(8) does.
func wg0(s *netstate.Snapshot) {
	s.Links = append(s.Links, netstate.Link{Index: 4, Name: "wg0", Kind: "wireguard", MTU: 1420, Up: true, NoARP: true})
	s.Routes = append(s.Routes, netstate.Route{Link: 4, Table: 51820, Destination: pfx("0.0.0.0/0"), Type: netstate.RouteUnicast, Protocol: netstate.ProtocolBoot})
	s.Rules = append(s.Rules, netstate.Rule{Priority: 32764, Table: netstate.TableMain, Suppress: 1}, netstate.Rule{Priority: 32765, Table: 51820, Other: true})
}

// TestOtherLinkLosses: what the namespace reaches by a link that no guest has is a loss, unless the namespace is the
// guest's router and the link forwards. Shorter prefixes are named first.
func TestOtherLinkLosses(t *testing.T) {
	byNet1 := func(routes ...netstate.Route) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			addNet1(s)
			for _, r := range routes {
				r.Link = 3
				s.Routes = append(s.Routes, r)
			}
		}
	}
	edits := func(list ...func(*netstate.Snapshot)) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) {
			for _, edit := range list {
				edit(s)
			}
		})
	}
	forwards := func(s *netstate.Snapshot) { s.Links[2].Forwarding4 = true }
	forwards6 := func(s *netstate.Snapshot) { s.Links[2].Forwarding6 = true }
	all6 := func(s *netstate.Snapshot) { s.Sysctls[forwarding6] = "1" }
	tap := func(alias string) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 5, Name: "net1-tap", Kind: "tun", MAC: mac(4), MTU: 1500, Up: true, Ethernet: true, Alias: alias})
		}
	}
	wgForwards := func(s *netstate.Snapshot) { s.Links[len(s.Links)-1].Forwarding4 = true }
	allToWG := func(s *netstate.Snapshot) { s.Rules = []netstate.Rule{{Priority: 100, Table: 51820}} }
	// at gives the last link an address. It comes first, as that of a loopback would.
	at := func(prefix string, edit func(*netstate.Address)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			a := withAddress(address(prefix), edit)
			a.Link, a.Label = s.Links[len(s.Links)-1].Index, ""
			s.Addresses = slices.Insert(s.Addresses, 0, a)
		}
	}
	as := func(*netstate.Address) {}
	last := func(edit func(*netstate.Route)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) { edit(&s.Routes[len(s.Routes)-1]) }
	}
	far6 := func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes, netstate.Route{Link: 4, Table: netstate.TableMain, Destination: pfx("2001:db8:9::/64"), Type: netstate.RouteUnicast})
	}
	wgForwards6 := func(s *netstate.Snapshot) { s.Links[len(s.Links)-1].Forwarding6 = true }
	from := func(own, guest string) string {
		return "the namespace sends there from " + own + ", and the guest from " + guest + ", to which no answers come"
	}
	legacy := withSpec(masquerade(), func(s *asked) {
		s.Binding, s.Guard.Off = infra.Masquerade{Firewall: cache.FirewallIPTablesLegacy}, true
	})
	both := byNet1(via("0.0.0.0/0", "10.50.0.1"), via("fd00:50::/64", "fe80::9"), connected6("fe80::/64"))
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		specs []asked
		want  []string // WHAT: a part of the reason
	}{
		{"no other link", flannel(), []asked{bridge(), redirect(), masquerade(), routed()}, nil},
		{"a link without routes", edits(func(s *netstate.Snapshot) { s.Links = append(s.Links, net1()) }), []asked{bridge(), masquerade()}, nil},
		{"a network", edits(byNet1()), []asked{bridge(), redirect()}, []string{"net1: 10.50.0.0/24|the guest sends by eth0 alone"}},
		{"a network", edits(byNet1()), []asked{masquerade(), routed()}, []string{"net1: 10.50.0.0/24|so the guest gets a refusal: set net.ipv4.conf.net1.forwarding=1 before Setup"}},
		{"without nf_tables", edits(byNet1(), func(s *netstate.Snapshot) { s.NoNFTables = true }), []asked{legacy}, []string{"net1: 10.50.0.0/24|without nf_tables the guest gets no refusal"}},
		{"both families", edits(both), []asked{bridge()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|alone", "net1: fd00:50::/64|alone"}},
		{"one forwards", edits(both, forwards), []asked{masquerade()}, []string{"net1: fd00:50::/64|net.ipv6.conf.all.forwarding=1"}},
		{"one forwards", edits(both, forwards), []asked{routed()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|" + from("10.50.0.7", "10.244.1.7"), "net1: fd00:50::/64|net.ipv6.conf.all.forwarding=1 before Setup if net1 routes"}},
		{"the other forwards", edits(both, forwards6), []asked{masquerade(), routed()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|net.ipv4"}},
		{"both forward", edits(both, forwards, forwards6), []asked{masquerade()}, nil},
		{"both forward", edits(both, forwards, forwards6), []asked{routed()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|" + from("10.50.0.7", "10.244.1.7")}}, // net1 has no IPv6 address
		{"IPv6 forwards everywhere", edits(both, forwards, all6), []asked{masquerade()}, nil},
		{"IPv6 forwards everywhere", edits(both, all6), []asked{routed()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|net1 routes, and choose masquerade, as the namespace sends there from 10.50.0.7"}},
		{"both forward", edits(both, forwards, all6), []asked{bridge(), redirect()}, []string{"net1: 0.0.0.0/0, 10.50.0.0/24|", "net1: fd00:50::/64|"}},
		{"of another guest", edits(both, tap(netstate.Mark("net1"))), []asked{bridge(), redirect(), masquerade(), routed()}, nil},
		{"of another NIC's guest", edits(byNet1(), tap(netstate.Mark("net2"))), []asked{bridge()}, []string{"net1: 10.50.0.0/24|"}},
		{"a VPN", edits(wg0), []asked{bridge(), redirect()}, []string{"wg0: 0.0.0.0/0|a policy rule leads to table 51820 and out by wg0, and the guest's packets pass it by: they leave by eth0"}},
		{"a VPN", edits(wg0), []asked{masquerade(), routed()}, []string{"wg0: 0.0.0.0/0|net.ipv4.conf.wg0.forwarding=1"}},
		{"a VPN that forwards", edits(wg0, wgForwards), []asked{masquerade(), routed()}, nil},
		{"a VPN with an address", edits(wg0, at("10.66.0.2/32", as), wgForwards), []asked{routed()}, []string{"wg0: 0.0.0.0/0|" + from("10.66.0.2", "10.244.1.7")}},
		{"a VPN with an address", edits(wg0, at("10.66.0.2/32", as), wgForwards), []asked{masquerade()}, nil},
		{"a VPN with the guest's network", edits(wg0, at("10.244.0.9/16", as), wgForwards), []asked{routed()}, nil},
		{"a second NIC on the guest's network", edits(byNet1(), at("10.244.0.9/16", as), forwards), []asked{routed()}, []string{"net1: 10.50.0.0/24|" + from("10.50.0.7", "10.244.1.7")}},
		{"a route from the guest's address", edits(wg0, at("10.66.0.2/32", as), wgForwards, last(func(r *netstate.Route) { r.PrefSrc = ip("10.244.1.7") })), []asked{routed()}, nil},
		{"a route from another one", edits(wg0, wgForwards, last(func(r *netstate.Route) { r.PrefSrc = ip("10.99.0.1") })), []asked{routed()}, []string{"wg0: 0.0.0.0/0|" + from("10.99.0.1", "10.244.1.7")}},
		{"an address of the loopback", edits(wg0, at("10.66.0.2/32", func(a *netstate.Address) { a.Scope = netstate.ScopeLink }), wgForwards, func(s *netstate.Snapshot) { s.Addresses[0].Link = 1 }), []asked{routed()}, nil},
		{"an address of the loopback", edits(wg0, at("10.66.0.2/32", as), wgForwards, func(s *netstate.Snapshot) { s.Addresses[0].Link = 1 }), []asked{routed()}, []string{"wg0: 0.0.0.0/0|" + from("10.66.0.2", "10.244.1.7")}},
		{"IPv6", edits(wg0, wgForwards, far6, at("fd66::2/128", as), wgForwards6), []asked{routed()}, []string{"wg0: 2001:db8:9::/64|" + from("fd66::2", "fd00:244:1::7")}},
		{"IPv6, deprecated", edits(wg0, wgForwards, far6, at("fd66::2/128", func(a *netstate.Address) { a.PreferredSeconds = 0 }), wgForwards6), []asked{routed()}, nil},
		{"IPv6", edits(wg0, wgForwards, far6, at("fd66::2/128", as), wgForwards6), []asked{masquerade()}, nil},
		{"a VPN for all packets", edits(wg0, allToWG), []asked{bridge(), redirect()}, []string{"wg0: 0.0.0.0/0|out by wg0 before eth0: the guest gets no default route"}},
		{"a VPN for all packets", edits(wg0, allToWG, wgForwards), []asked{routed()}, nil},
		{"a table without a rule", edits(wg0, func(s *netstate.Snapshot) { s.Rules = nil }), []asked{bridge(), masquerade()}, nil},
		{"no rule for main", edits(byNet1(), func(s *netstate.Snapshot) {
			s.NoMain, s.Rules = versions{4}, []netstate.Rule{{Priority: 100, Table: 77}}
			s.Routes = append(s.Routes, withRoute(via("0.0.0.0/0", "10.244.1.1"), func(r *netstate.Route) { r.Table = 77 }))
		}), []asked{bridge(), redirect(), routed()}, nil},
		{"half of everything each", edits(byNet1(via("128.0.0.0/1", "10.50.0.1"), via("0.0.0.0/1", "10.50.0.1"))), []asked{bridge()}, []string{"net1: 128.0.0.0/1, 0.0.0.0/1, 10.50.0.0/24|"}},
	} {
		for _, spec := range c.specs {
			plan, err := tryPlan(c.found, spec)
			if err != nil {
				t.Errorf("%s, %s: %v", c.name, spec.Binding.Kind(), err)
				continue
			}
			losses := slices.DeleteFunc(plan.Record.Losses, func(l cache.Finding) bool { return l.Kind != "other-link" })
			ok := slices.EqualFunc(losses, c.want, func(l cache.Finding, want string) bool {
				what, why, _ := strings.Cut(want, "|")
				return l.What == what && strings.Contains(l.Why, why)
			})
			if !ok {
				t.Errorf("%s, %s: losses %q, want %q", c.name, spec.Binding.Kind(), losses, c.want)
			}
		}
	}
	plan := newPlan(t, edits(byNet1(), forwards), bridge())
	if l := plan.Record.Losses; len(l) != 1 || l[0].Way != "masquerade keeps it" {
		t.Errorf("a link that forwards: %v, want that masquerade keeps it", l)
	}
}

// TestSharedRoute: of a route by the NIC and another link, a routed guest loses the other link's part, for the true
// reason.
func TestSharedRoute(t *testing.T) {
	for forwards, want := range map[bool]string{false: "no answers come back, so the guest gets a refusal", true: "the namespace sends from 10.50.0.7, and no answers come to the guest's address"} {
		found := flannelWith(func(s *netstate.Snapshot) {
			addNet1(s)
			s.Links[2].Forwarding4 = forwards
			s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("10.96.0.0/12"),
				Hops: []netstate.Hop{{Link: 2, Gateway: ip("10.244.1.1")}, {Link: 3, Gateway: ip("10.50.0.1")}}})
		})
		is := func(l cache.Finding) bool { return l.Kind == "next-hop" && strings.Contains(l.Why, want) }
		if losses := newPlan(t, found, routed()).Record.Losses; !slices.ContainsFunc(losses, is) {
			t.Errorf("net1 forwards %t: %v, want a next hop: %s", forwards, losses, want)
		}
	}
}

// TestForwarders: each Setup reads anew by which other links the guest may leave. A link that is gone, or that another
// guest has, changes nothing. The journal keeps what the last Setup has read.
func TestForwarders(t *testing.T) {
	link := func(edit func(*netstate.Link)) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) {
			addNet1(s)
			if edit == nil {
				s.Links = slices.Delete(s.Links, 2, 3)
				return
			}
			edit(&s.Links[2])
		})
	}
	routes := func(yes bool, s netstate.Snapshot) netstate.Snapshot {
		six := onLink("fd00:50::/64")
		six.Link = 3
		s.Routes = append(s.Routes, six)
		if !yes {
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Link == 3 })
		}
		return s
	}
	none := func(*netstate.Link) {}
	on := func(l *netstate.Link) { l.Forwarding4, l.Forwarding6 = true, true }
	wired := func(l *netstate.Link) { on(l); l.Group = netstate.GroupOfNICs }
	for _, spec := range []asked{masquerade(), routed(), bridge()} {
		for _, c := range []struct {
			name       string
			found, now func(*netstate.Link)
			without    bool   // now, routes
			want       string // the difference
		}{
			{"nothing changes", none, none, false, ""},
			{"nothing changes", on, on, false, ""},
			{"it forwards", none, on, false, "net1 forwards IPv4, net1 forwards IPv6"},
			{"it appears and forwards", nil, on, false, "net1 forwards IPv4, net1 forwards IPv6"},
			{"it appears", nil, none, false, ""},
			{"it forwards no more", on, none, false, "net1 does not forward IPv4 any more, net1 does not forward IPv6 any more"},
			{"it forwards, and no route leads there", none, on, true, ""},
			{"it loses its routes", on, on, true, ""},
			{"it goes", on, nil, false, ""},
			{"a guest gets it", none, wired, false, ""},
			{"a guest gets it", on, wired, false, ""},
			{"a guest loses it", wired, none, false, ""},
		} {
			plan := newPlan(t, routes(true, link(c.found)), spec)
			want := c.want
			if spec.Binding.Kind() == cache.BindingBridge {
				want = ""
			}
			now := routes(!c.without, link(c.now))
			present, _, difference, err := plan.Present(now)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			if len(difference) > 0 {
				text = difference[0].What
			}
			if text != want || len(difference) > 0 && difference[0].Kind != "forwarding" {
				t.Errorf("%s, %s: the difference is %v, want %q", spec.Binding.Kind(), c.name, difference, want)
			}
			again, err := present.Journal().Plan()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, difference, err := again.Present(now); difference != nil || err != nil {
				t.Errorf("%s, %s: the journal's plan differs by %v, %v", spec.Binding.Kind(), c.name, difference, err)
			}
			if names := strings.Contains(again.String(), `oifname "net1" return`); names != (spec.Binding.Kind() != cache.BindingBridge && allows(c.found, c.now, c.without)) {
				t.Errorf("%s, %s: the rules name net1: %t", spec.Binding.Kind(), c.name, names)
			}
		}
	}
}

// allows reports whether the guest may leave by a link that was found and is now as these say.
func allows(found, now func(*netstate.Link), without bool) bool {
	forwards := func(edit func(*netstate.Link)) (l netstate.Link) {
		if edit != nil {
			edit(&l)
		}
		return l
	}
	was, is := forwards(found), forwards(now)
	byName := func(l netstate.Link) bool { return l.Forwarding4 && l.Group == 0 }
	return byName(is) && (!without || byName(was)) || byName(was) && (now == nil || is.Group != 0)
}
