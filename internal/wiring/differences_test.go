package wiring_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestDifferences: whatever another program changes of a wiring, Check names it, once and with the wanted state,
// and the steps repair it. TestRepair of package phase1 does the same with a kernel.
func TestDifferences(t *testing.T) {
	link := func(name string, edit func(*netstate.Link)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			i := slices.IndexFunc(s.Links, func(l netstate.Link) bool { return l.Name == name })
			edit(&s.Links[i])
		}
	}
	index := func(s *netstate.Snapshot, name string) int {
		l, ok := s.Named(name)
		if !ok {
			t.Fatalf("no link %s", name)
		}
		return l.Index
	}
	lost := func(name string) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			at := index(s, name)
			s.Links = slices.DeleteFunc(s.Links, func(l netstate.Link) bool { return l.Index == at })
			s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Link == at })
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Link == at })
			s.Neighbours = slices.DeleteFunc(s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == at })
			s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool { return f.Link == at })
			s.Ingress = slices.DeleteFunc(s.Ingress, func(i int) bool { return i == at })
			s.Clsact = slices.DeleteFunc(s.Clsact, func(i int) bool { return i == at })
			for i := range s.Links {
				if s.Links[i].Master == at {
					s.Links[i].Master, s.Links[i].BridgePort = 0, nil
				}
			}
		}
	}
	noFilter := func(s *netstate.Snapshot, f netstate.Filter) {
		s.Filters = slices.DeleteFunc(s.Filters, func(o netstate.Filter) bool { return o.Link == f.Link && o.Priority == f.Priority })
	}
	ofTap := func(s *netstate.Snapshot) netstate.Filter {
		return netstate.FiltersOf(s.Filters, index(s, "eth0-tap"))[0]
	}
	inBridge := func(port string) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 90, Name: "br90", Kind: "bridge", MTU: 1450})
			link(port, func(l *netstate.Link) { l.Master = 90 })(s)
		}
	}
	documented, kinds := documentedKinds(t, "infra/step.go", "Difference"), map[string]bool{}
	bridged, hidden, redirected, shaped := bridge(), masquerade(), redirect(), withSpec(bridge(), limited)
	for _, c := range []struct {
		name   string
		spec   asked
		damage func(*netstate.Snapshot)
		want   string // the differences, a line each
	}{
		{"nothing", bridged, func(*netstate.Snapshot) {}, ""},
		{"tap gone", bridged, lost("eth0-tap"), "tap eth0-tap is gone"},
		{"bridge gone", bridged, lost("eth0-br"), "bridge eth0-br is gone\neth0-nic is no port of eth0-br\neth0-tap is no port of eth0-br"},
		{"holder gone", bridged, lost("eth0"), "dummy eth0 is gone"},
		{"no tap", bridged, link("eth0-tap", func(l *netstate.Link) { l.Tap, l.Kind = nil, "veth" }), "eth0-tap is not the tap of the wiring\nfilter 1 of eth0-dhcp is another\nfilter 5 of eth0-dhcp is another"},
		{"another owner", bridged, link("eth0-tap", func(l *netstate.Link) { l.Tap = &netstate.Tap{Owner: infra.Owner{UID: 5, GID: 6}} }), "tap eth0-tap is of user 5, group 6, not of 107, 0\nfilter 1 of eth0-dhcp is another\nfilter 5 of eth0-dhcp is another"},
		{"more queues", bridged, link("eth0-tap", func(l *netstate.Link) { l.Tap = &netstate.Tap{Owner: launcher, MultiQueue: true} }), "multi_queue of tap eth0-tap is on, not off\nfilter 1 of eth0-dhcp is another\nfilter 5 of eth0-dhcp is another"},
		{"offloads", bridged, link("eth0-tap", func(l *netstate.Link) { l.Offloads = true }), "tap eth0-tap leaves checksums and segments to a VMM that has ended"},
		{"MTU", bridged, link("eth0-tap", func(l *netstate.Link) { l.MTU = 1300 }), "MTU of eth0-tap is 1300, not 1450"},
		{"MAC", bridged, link("eth0-br", func(l *netstate.Link) { l.MAC = mac(9) }), "MAC of eth0-br is 02:00:00:00:00:09, not 56:2e:d0:09:a5:0a"},
		{"queue", hidden, link("eth0-dhcp", func(l *netstate.Link) { l.QueueLength = 1000 }), "txqueuelen of eth0-dhcp is 1000, not 16"},
		{"group", hidden, link("eth0-tap", func(l *netstate.Link) { l.Group = 7 }), "group of eth0-tap is 7, not 1735852034"},
		{"alias", bridged, link("eth0-tap", func(l *netstate.Link) { l.Alias = "other" }), `alias of eth0-tap is "other", not "guestwire eth0"`},
		{"ARP", hidden, link("eth0-tap", func(l *netstate.Link) { l.NoARP = true }), "ARP of eth0-tap is off, not on"},
		{"holder's ARP", bridged, link("eth0", func(l *netstate.Link) { l.NoARP = false }), "ARP of eth0 is on, not off"},
		{"NIC's MTU", bridged, link("eth0-nic", func(l *netstate.Link) { l.MTU = 1300 }), "MTU of eth0-nic is 1300, not 1450"},
		{"NIC's ARP", redirected, link("eth0", func(l *netstate.Link) { l.NoARP = true }), "ARP of eth0 is off, not on"},
		{"what is another program's at the NIC", redirected, link("eth0", func(l *netstate.Link) {
			l.Group, l.Alias, l.AllMulticast, l.AcceptLocal, l.ProxyARP, l.RouteLocalnet = 7, "other", true, true, true, true
		}), ""},
		{"NIC that has lost IPv6", bridged, link("eth0-nic", func(l *netstate.Link) { l.AddrGen = netstate.AddrGenNoIPv6 }), ""},
		{"tap that has lost IPv6", hidden, link("eth0-tap", func(l *netstate.Link) { l.AddrGen = netstate.AddrGenNoIPv6 }), ""},
		{"any queue of the guest's tap", hidden, link("eth0-tap", func(l *netstate.Link) { l.QueueLength = 1000 }), ""},
		{"tap in a bridge of others", hidden, inBridge("eth0-tap"), "eth0-tap is a port of br90"},
		{"NIC in a bridge of others", bridged, inBridge("eth0-nic"), "eth0-nic is a port of br90, not of eth0-br"},
		{"all multicast at the tap", hidden, link("eth0-tap", func(l *netstate.Link) { l.AllMulticast = true }), ""},
		{"IPv4 settings of the tap", hidden, link("eth0-tap", func(l *netstate.Link) {
			l.Forwarding4, l.AcceptLocal, l.NoSourceRoutes, l.IgnoresARP, l.ProxyARP, l.RouteLocalnet = false, !l.AcceptLocal, false, true, !l.ProxyARP, !l.RouteLocalnet
		}), strings.Join([]string{
			"IPv4 forwarding of eth0-tap is off, not on", "IPv4 accept_local of eth0-tap is on, not off", "IPv4 accept_source_route of eth0-tap is on, not off",
			"IPv4 arp_ignore of eth0-tap is on, not off", "IPv4 proxy_arp of eth0-tap is on, not off", "IPv4 route_localnet of eth0-tap is on, not off",
		}, "\n")},
		{"IPv4 settings of the NIC", hidden, link("eth0", func(l *netstate.Link) {
			l.Forwarding4, l.AcceptLocal, l.NoSourceRoutes, l.IgnoresARP, l.ProxyARP, l.RouteLocalnet = false, true, false, true, true, true
		}), "IPv4 forwarding of eth0 is off, not on"},
		{"addrgenmode", hidden, link("eth0-tap", func(l *netstate.Link) { l.AddrGen = 0 }), "addrgenmode of eth0-tap is eui64, not none"},
		{"tap down", bridged, link("eth0-tap", func(l *netstate.Link) { l.Up = false }), "eth0-tap is down"},
		{"tap down, with its routes, which come back with it", hidden, func(s *netstate.Snapshot) {
			link("eth0-tap", func(l *netstate.Link) { l.Up = false })(s)
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Link == index(s, "eth0-tap") })
		}, "eth0-tap is down"},
		{"holder up", bridged, link("eth0", func(l *netstate.Link) { l.Up = true }), "eth0 is up"},
		{"NIC renamed while it is up", redirected, link("eth0", func(l *netstate.Link) { l.Name = "other" }), "eth0 is called other"},
		{"NIC renamed, and its table dormant", redirected, func(s *netstate.Snapshot) {
			link("eth0", func(l *netstate.Link) { l.Name = "other" })(s)
			for i := range s.Tables {
				s.Tables[i] = s.Tables[i].WithTexts()
				s.Tables[i].Flags = 1
			}
		}, "eth0 is called other\nnftables table netdev guestwire-eth0: the table is dormant\nnftables table inet guestwire-eth0: the table is dormant"},
		{"holder of another kind", bridged, link("eth0", func(l *netstate.Link) { l.Kind = "bridge" }), "eth0 is not the dummy of the wiring"},
		{"bridge's setting", bridged, link("eth0-br", func(l *netstate.Link) { l.Bridge = l.Bridge.With(netstate.Settings{"stp_state": 1}) }), "bridge eth0-br: stp_state is 1, not 0"},
		{"port's settings", bridged, link("eth0-tap", func(l *netstate.Link) {
			l.BridgePort = l.BridgePort.With(netstate.Settings{"isolated": 1, "flood": 0})
		}), "port eth0-tap: flood is 0, not 1\nport eth0-tap: isolated is 1, not 0"},
		{"IPv6 forwarding", hidden, func(s *netstate.Snapshot) { s.Sysctls[forwarding6] = "0" }, "sysctl net/ipv6/conf/all/forwarding is 0, not 1"},
		{"tap without IPv6", redirected, link("eth0-tap", func(l *netstate.Link) { l.NoIPv6 = true }), ""}, // which needs none
		{"NIC without IPv6, for a guest without IPv6", redirected, func(s *netstate.Snapshot) { link("lo", func(l *netstate.Link) { l.NoIPv6 = true })(s) }, ""},
		{"gateway's address gone", hidden, func(s *netstate.Snapshot) {
			s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix.Addr() == ip("10.0.2.1") })
		}, "address 10.0.2.1/24 of eth0-tap is gone"},
		{"address of others at the tap", hidden, func(s *netstate.Snapshot) {
			a := address("10.0.2.9/24")
			a.Link, a.Label = index(s, "eth0-tap"), "eth0-tap"
			s.Addresses = append(s.Addresses, a)
		}, "address 10.0.2.9/24 of eth0-tap is not of the wiring"},
		{"address with another flag", hidden, func(s *netstate.Snapshot) {
			for i := range s.Addresses {
				if s.Addresses[i].Prefix.Addr() == ip("10.0.2.1") {
					s.Addresses[i].Scope = netstate.ScopeLink
				}
			}
		}, "address 10.0.2.1/24 of eth0-tap is not in its place, or another"},
		{"gateway's route gone", hidden, func(s *netstate.Snapshot) {
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Destination == pfx("10.0.2.0/24") })
		}, "route 10.0.2.0/24 dev eth0-tap scope link proto 2 src 10.0.2.1 is gone"},
		{"route of others", hidden, func(s *netstate.Snapshot) {
			r := onLink("192.0.2.0/24")
			r.Link = index(s, "eth0-tap")
			s.Routes = append(s.Routes, r)
		}, "route 192.0.2.0/24 dev eth0-tap scope link is not of the wiring"},
		{"guest unknown", hidden, func(s *netstate.Snapshot) {
			s.Neighbours = slices.DeleteFunc(s.Neighbours, func(n netstate.Neighbour) bool { return n.Address == ip("10.0.2.2") })
		}, "neighbour 10.0.2.2 of eth0-tap is gone"},
		{"neighbour of others", hidden, func(s *netstate.Snapshot) {
			n := permanent("10.0.2.9", mac(9))
			n.Link = index(s, "eth0-tap")
			s.Neighbours = append(s.Neighbours, n)
		}, "neighbour 10.0.2.9 of eth0-tap is not of the wiring"},
		{"neighbour that was learned", hidden, func(s *netstate.Snapshot) {
			n := learned("10.0.2.9", mac(9))
			n.Link = index(s, "eth0-tap")
			s.Neighbours = append(s.Neighbours, n)
		}, ""},
		{"forwarding entry gone", bridged, func(s *netstate.Snapshot) {
			s.Neighbours = slices.DeleteFunc(s.Neighbours, func(n netstate.Neighbour) bool { return !n.Address.IsValid() })
		}, "forwarding entry 0a:58:0a:f4:01:07 of eth0-tap is gone"},
		{"forwarding entry of others", bridged, func(s *netstate.Snapshot) {
			s.Neighbours = append(s.Neighbours, netstate.Neighbour{Link: index(s, "eth0-tap"), MAC: mac(9), Permanent: true})
		}, "forwarding entry 02:00:00:00:00:09 of eth0-tap is not of the wiring"},
		{"filter gone", bridged, func(s *netstate.Snapshot) { noFilter(s, ofTap(s)) }, "filter 1 of eth0-tap is gone"},
		{"a filter twice", bridged, func(s *netstate.Snapshot) {
			f := ofTap(s)
			f.Keys = nil
			s.Filters = append(s.Filters, f, f)
		}, "filter 1 of eth0-tap is another"},
		{"filter of others", bridged, func(s *netstate.Snapshot) {
			s.Filters = append(s.Filters, netstate.Filter{Link: index(s, "eth0-tap"), Foreign: "bpf"})
		}, "ingress of eth0-tap has a filter of another program: bpf"},
		{"ingress gone", bridged, func(s *netstate.Snapshot) {
			at := index(s, "eth0-dhcp")
			s.Ingress = slices.DeleteFunc(s.Ingress, func(i int) bool { return i == at })
			s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool { return f.Link == at })
		}, "ingress qdisc of eth0-dhcp is gone"},
		{"another qdisc", bridged, func(s *netstate.Snapshot) {
			at := index(s, "eth0-tap")
			s.Ingress, s.Clsact = append(s.Ingress, at), nil
			s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool { return f.Link == at })
		}, "eth0-tap has a qdisc of another kind: ingress"},
		{"shape of others", shaped, link("eth0-tap", func(l *netstate.Link) { l.Shape = netstate.Shape{Other: "htb"} }), "root qdisc of eth0-tap is htb, not tbf rate 1000000000bit burst 1250000 limit 4194304"},
		{"shape gone", shaped, link("eth0-tap", func(l *netstate.Link) { l.Shape = netstate.Shape{} }), "root qdisc tbf rate 1000000000bit burst 1250000 limit 4194304 of eth0-tap is gone"},
		{"another rate", shaped, link("eth0-tap", func(l *netstate.Link) { l.Shape.Rate-- }), "root qdisc of eth0-tap is tbf rate 999999992bit burst 1250000 limit 4194304, not tbf rate 1000000000bit burst 1250000 limit 4194304"},
		{"another burst", shaped, link("eth0-tap", func(l *netstate.Link) { l.Shape.Burst += 1000 }), "root qdisc of eth0-tap is tbf rate 1000000000bit burst 1251000 limit 4194304, not tbf rate 1000000000bit burst 1250000 limit 4194304"},
		{"a rounded burst", shaped, link("eth0-tap", func(l *netstate.Link) { l.Shape.Burst -= 7 }), ""},
		{"shape without a limit", hidden, link("eth0-tap", func(l *netstate.Link) { l.Shape = netstate.Shape{Rate: 1000, Burst: 2000, Limit: 3000} }), "root qdisc of eth0-tap is tbf rate 8000bit burst 2000 limit 3000, which is not of the wiring"},
		{"shape of others without a limit", hidden, link("eth0-tap", func(l *netstate.Link) { l.Shape = netstate.Shape{Other: "htb"} }), ""},
		{"table gone", hidden, func(s *netstate.Snapshot) {
			s.Tables = slices.DeleteFunc(s.Tables, func(i firewall.Image) bool { return i.Family == firewall.Inet })
		}, "nftables table inet guestwire-eth0 is gone"},
		{"dormant", hidden, func(s *netstate.Snapshot) {
			for i := range s.Tables {
				s.Tables[i] = s.Tables[i].WithTexts()
				s.Tables[i].Flags = 1
			}
		}, "nftables table inet guestwire-eth0: the table is dormant\nnftables table netdev guestwire-eth0: the table is dormant"},
		{"table of ours that is not wanted", hidden, func(s *netstate.Snapshot) {
			s.Tables = append(s.Tables, firewall.Image{Family: firewall.Bridge, Name: "guestwire-eth0"})
		}, "nftables table bridge guestwire-eth0 is there and not of the wiring"},
		{"link of ours that is not wanted", redirected, func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 90, Name: "eth0-br", Kind: "bridge", Alias: netstate.Mark("eth0"), MTU: 1450})
		}, "eth0-br is there and not of the wiring"},
	} {
		plan := newPlan(t, flannel(), c.spec)
		k := wire(t, plan, flannel())
		c.damage(&k.s)
		have, steps, err := plan.Differences(k.snapshot())
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, d := range have {
			said = append(said, d.Text)
			kinds[d.Kind] = true
			if !slices.Contains(documented, d.Kind) {
				t.Errorf("%q is of the kind %q, which infra.Difference does not list", d, d.Kind)
			}
			if d.Link != "" && !strings.Contains(d.Text, d.Link) {
				t.Errorf("%q is on the link %s, which it does not name", d, d.Link)
			}
		}
		if strings.Join(said, "\n") != c.want {
			t.Errorf("%s, %s: have\n%s\nwant\n%s", c.spec.Binding.Kind(), c.name, strings.Join(said, "\n"), c.want)
		}
		if (len(steps) > 0) != (c.want != "") {
			t.Errorf("%s, %s: says %q and has %d steps", c.spec.Binding.Kind(), c.name, have, len(steps))
		}
		for range rounds { // repair goes in rounds, too
			k.applyAll(mustSteps(t, plan, k))
		}
		if left, _, err := plan.Differences(k.snapshot()); err != nil || len(left) > 0 {
			t.Errorf("%s, %s: repaired, and yet %q, %v", c.spec.Binding.Kind(), c.name, left, err)
		}
	}
	for _, kind := range documented {
		// The gateway, the record, the resolver and what came later are phase1's, networks are TestEgressNetworks',
		// forwarding is TestForwarders'; the fake kernel's NICs are veths, which allmulticast is not for.
		if elsewhere := []string{"allmulticast", "forwarding", "gateway", "later", "networks", "record", "resolver", "step"}; !kinds[kind] && !slices.Contains(elsewhere, kind) {
			t.Errorf("no difference of the kind %s, which infra.Difference lists", kind)
		}
	}
}

// TestTableReplaced: a table that another program has changed is deleted before it is set, as setting alone would add
// to it, and one that is missing is set alone. Frames are forwarded to links of the wiring, by their indices.
func TestTableReplaced(t *testing.T) {
	plan := newPlan(t, flannel(), redirect())
	for _, gone := range []bool{false, true} {
		k := wire(t, plan, flannel())
		for i := range k.s.Tables {
			k.s.Tables[i] = k.s.Tables[i].WithTexts()
			k.s.Tables[i].Flags = 1
		}
		if gone {
			k.s.Tables = nil
		}
		deleted := map[firewall.Family]bool{}
		forwarded := map[string]int{}
		set := 0
		for _, op := range mustSteps(t, plan, k) {
			switch o := op.(type) {
			case netstate.TableDel:
				deleted[o.Family] = true
			case netstate.TableSet:
				set++
				if deleted[o.Table.Family] == gone {
					t.Errorf("gone %t: table %s is set, and was deleted before: %t", gone, o.Table.Family, deleted[o.Table.Family])
				}
				for _, c := range o.Table.Chains {
					for _, r := range c.Rules {
						if to, is := r.Verdict.(firewall.Fwd); is {
							forwarded[to.Device] = to.Index
						}
					}
				}
			}
		}
		tap, _ := k.s.Named("eth0-tap")
		if set != 2 || len(forwarded) != 2 || forwarded["eth0"] != nic || forwarded["eth0-tap"] != tap.Index {
			t.Errorf("gone %t: %d tables, frames go to %v", gone, set, forwarded)
		}
	}
}

// TestFoundDown: Setup leaves a NIC down that was down. If another program brings it up, it stays up.
func TestFoundDown(t *testing.T) {
	found := flannelWith(func(s *netstate.Snapshot) { s.Links[1].Up = false })
	for _, spec := range []asked{redirect(), masquerade()} {
		plan := newPlan(t, found, spec)
		if lost := plan.Record.Losses; len(lost) != 2 || lost[1].Kind != "route" || lost[0].String() != "frames all: eth0 is down, and Setup leaves it down: the guest has no network until it is up (ip link set eth0 up); bridge keeps it" {
			t.Errorf("%s loses %v", spec.Binding.Kind(), lost)
		}
		k := wire(t, plan, found)
		for i := range k.s.Links {
			if k.s.Links[i].Index == nic {
				if k.s.Links[i].Up {
					t.Errorf("%s: Setup has brought the NIC up", spec.Binding.Kind())
				}
				k.s.Links[i].Up = true
			}
		}
		for _, op := range mustSteps(t, plan, k) {
			if set, is := op.(netstate.LinkSet); is && set.Want.Index == nic && set.Have.Up != set.Want.Up {
				t.Errorf("%s: %v", spec.Binding.Kind(), op)
			}
		}
	}
}

// TestIPTablesDifferences: chains of iptables are called by the program that shows them.
func TestIPTablesDifferences(t *testing.T) {
	spec := withSpec(masquerade(), func(s *asked) {
		s.Binding, s.Guard.Off = infra.Masquerade{Firewall: cache.FirewallIPTablesLegacy}, true
	})
	plan := newPlan(t, lan4(), spec)
	k := wire(t, plan, lan4())
	k.s.Tables = slices.DeleteFunc(k.s.Tables, func(i firewall.Image) bool { return i.Family == firewall.IPTablesLegacy })
	have, _, err := plan.Differences(k.snapshot())
	if want := []infra.Difference{{Kind: "table-missing", Text: "gw-eth0 of iptables-legacy is gone"}}; err != nil || !slices.Equal(have, want) {
		t.Errorf("have %q, %v; want %q", have, err, want)
	}
}

// TestLaterMany: of many things that came after Setup the first ones are named, and the rest is counted.
func TestLaterMany(t *testing.T) {
	for _, c := range []struct {
		many int
		tos  uint8 // lost
		want string
	}{
		{1, 0, "route 12.0.0.0 via 10.244.1.9 dev eth0 came after Setup: the guest gets it after a Teardown and another Setup"},
		{20, 0, " and 12 more came after Setup: the guest gets what it lacks of them after a Teardown and another Setup"},
		{100, 4, " and 92 more came after Setup: after a Teardown and another Setup with redirect this is lost: " +
			"route tos 0x4 12.0.0.0/32: a lease has no routes for some packets to a destination; routed keeps it; and 99 more"},
	} {
		found := flannelWith(func(*netstate.Snapshot) {})
		plan := newPlan(t, found, redirect())
		k := wire(t, plan, found)
		for i := range c.many {
			r := via(fmt.Sprintf("12.0.%d.%d/32", i/256, i%256), "10.244.1.9")
			r.TOS = c.tos
			k.s.Routes = append(k.s.Routes, r)
		}
		later, err := plan.Later(t.Context(), k.snapshot())
		if err != nil || len(later) != 1 || !strings.HasPrefix(later[0].Text, "route ") || !strings.HasSuffix(later[0].Text, c.want) {
			t.Errorf("%d with the TOS %d: %+v, want %q", c.many, c.tos, later, c.want)
		}
	}
}

// TestLaterOlder: a journal that says less of a rule than the kernel does now, and that calls it Other, has the rule.
func TestLaterOlder(t *testing.T) {
	source := netip.MustParsePrefix("10.244.0.0/16")
	found := flannelWith(func(s *netstate.Snapshot) {
		s.Rules = []netstate.Rule{{Priority: 99, Table: 100, Other: true}, {Priority: 100, Table: 100, Source: source, Other: true}}
		s.Routes = append(s.Routes, withRoute(via("12.0.0.0/8", "10.244.1.9"), func(r *netstate.Route) { r.Table = 100 }))
	})
	plan := newPlan(t, found, redirect())
	k := wire(t, plan, found)
	k.s.Rules = []netstate.Rule{{Priority: 99, Table: 100, Destination: netip.MustParsePrefix("12.0.0.0/8")}, {Priority: 100, Table: 100, Other: true}}
	if later, err := plan.Later(t.Context(), k.snapshot()); err != nil || len(later) > 0 {
		t.Errorf("%+v, %v, want none", later, err)
	}
	k.s.Rules = append(k.s.Rules, netstate.Rule{Priority: 99, Table: 100, Destination: netip.MustParsePrefix("12.1.0.0/16")})
	if later, err := plan.Later(t.Context(), k.snapshot()); err != nil || len(later) != 1 || !strings.HasPrefix(later[0].Text, "policy rule 99 of IPv4, table 100, came after Setup") {
		t.Errorf("%+v, %v, want one rule", later, err)
	}
}

// TestLaterRefused: what came is said as well of a NIC that a newer version refuses.
func TestLaterRefused(t *testing.T) {
	found := lan4()
	for i := range found.Addresses {
		found.Addresses[i].Scope = netstate.ScopeLink // the guest has no IPv4 by masquerade
	}
	j := wiring.Journal{NIC: "eth0", Found: found, Spec: masquerade().Spec}
	if _, err := j.First(); err == nil {
		t.Fatal("the NIC is not refused")
	}
	plan, err := j.Plan()
	if err != nil {
		t.Fatal(err)
	}
	k := wire(t, plan, found)
	k.s.Addresses = append(k.s.Addresses, address("fd00:244:1::7/64"))
	const want = "address fd00:244:1::7/64 of eth0 came after Setup: the guest gets IPv6 after a Teardown and another Setup"
	if later, err := plan.Later(t.Context(), k.snapshot()); err != nil || len(later) != 1 || later[0].Text != want {
		t.Errorf("%+v, %v, want %q", later, err, want)
	}
}

// TestTapMadeAnew: a launcher can give its tap to another user, so it is made anew; its filter, which
// goes with it in older kernels, comes before it is up.
func TestTapMadeAnew(t *testing.T) {
	for _, spec := range []asked{bridge(), masquerade()} {
		plan := newPlan(t, flannel(), spec)
		k := wire(t, plan, flannel())
		for i, l := range k.s.Links {
			if l.Name == "eth0-tap" {
				k.s.Links[i].Tap = &netstate.Tap{Owner: infra.Owner{UID: 4711}}
			}
		}
		ops := mustSteps(t, plan, k)
		set := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.TableSet)
			return is && o.Table.Family == firewall.NetDev
		})
		made := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.TapAdd)
			return is && o.Link == "eth0-tap"
		})
		up := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.LinkSet)
			return is && o.Want.Name == "eth0-tap" && !o.Have.Up && o.Want.Up
		})
		if made < 0 || set < made || up < set {
			t.Errorf("%s: the tap is made by step %d, its filter by %d, and it is up by %d:\n%s", spec.Binding.Kind(), made, set, up, netstate.Text(ops))
		}
		settle(t, k, mustSteps, plan)
	}
}
