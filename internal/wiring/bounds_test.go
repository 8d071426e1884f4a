package wiring_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/statements"
	"github.com/guestwire/guestwire/internal/wiring"
)

// sized add objects of a kind to a namespace, as many as who has CAP_NET_ADMIN there wants.
var sized = map[string]func(s *netstate.Snapshot, n int){
	"rules": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: 100, Other: true})
		}
	},
	"rules to tables": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: uint32(1000 + i), Source: pfx("10.244.1.7/32")})
			s.Routes = append(s.Routes, withRoute(via(fmt.Sprintf("100.%d.%d.0/24", i>>8, i&255), "10.244.1.1"), func(r *netstate.Route) { r.Table = uint32(1000 + i) }))
		}
	},
	"rules to one table": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: 100, Source: pfx("10.244.1.7/32")})
			s.Routes = append(s.Routes, withRoute(via(fmt.Sprintf("100.%d.%d.0/24", i>>8, i&255), "10.244.1.1"), func(r *netstate.Route) { r.Table = 100 }))
		}
	},
	"rules to one table, each within the next one": func(s *netstate.Snapshot, n int) {
		for i := range n {
			to := netip.PrefixFrom(numbered6(0), 118-i/4%118).Masked()
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: 100, IPv6: true, Destination: to, Suppress: 4 - i%4})
			s.Routes = append(s.Routes, withRoute(via(netip.PrefixFrom(numbered6(i), 128).String(), "fd00:244:1::1"), func(r *netstate.Route) { r.Table = 100 }))
		}
	},
	"rules of sources": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: 100, Source: netip.PrefixFrom(numbered(10, i), 32)})
			s.Addresses = append(s.Addresses, withAddress(address("10.0.0.1/32"), func(a *netstate.Address) { a.Prefix = netip.PrefixFrom(numbered(10, i), 32) }))
		}
	},
	"rules to a table of another link": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Rules = append(s.Rules, netstate.Rule{Priority: uint32(1000 + i), Table: 100, Other: true})
			s.Routes = append(s.Routes, netstate.Route{Link: 1, Table: 100, Destination: netip.PrefixFrom(numbered(100, i), 32), Type: netstate.RouteLocal, Protocol: 3})
		}
	},
	"routes": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, via(netip.PrefixFrom(numbered(100, i), 32).String(), hop(i).String()))
		}
	},
	"routes of IPv6": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, via(fmt.Sprintf("2001:db8:%x::/48", i), fmt.Sprintf("fd00:244:1::1:%x", i)))
		}
	},
	"routes on the link": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, onLink(netip.PrefixFrom(numbered(100, i), 32).String()), onLink(fmt.Sprintf("2001:db8:%x::/48", i)))
		}
	},
	"routes of metrics": func(s *netstate.Snapshot, n int) {
		for i := range n {
			metric := func(r *netstate.Route) { r.Metric = uint32(2000 + i) }
			s.Routes = append(s.Routes, withRoute(via("198.51.100.0/24", "10.244.1.1"), metric), withRoute(via("2001:db8:1::/48", "fd00:244:1::1"), metric))
		}
	},
	"routes from sources": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, withRoute(via(fmt.Sprintf("2001:db8:%x::/48", i), "fd00:244:1::1"), func(r *netstate.Route) { r.Source = pfx("fd00:244:1::7/128") }))
			s.Addresses = append(s.Addresses, withAddress(address("fd00:244:1::7/64"), func(a *netstate.Address) { a.Prefix = netip.PrefixFrom(numbered6(i), 64) }))
		}
	},
	"routes that drop": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Destination: netip.PrefixFrom(numbered(100, i), 32), Type: 6, Protocol: 3})
		}
	},
	"routes of the table local": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, netstate.Route{Link: nic, Table: netstate.TableLocal, Destination: netip.PrefixFrom(numbered(100, i), 32), Type: netstate.RouteLocal, Protocol: 3},
				via(netip.PrefixFrom(numbered(101, i), 32).String(), hop(i).String()))
		}
	},
	"routes by two links": func(s *netstate.Snapshot, n int) {
		addNet1(s)
		for i := range n {
			r := multipath(netip.PrefixFrom(numbered(100, i), 32).String(), "10.244.1.1")
			r.Hops = append(r.Hops, netstate.Hop{Link: 3, Gateway: ip("10.50.0.1")})
			s.Routes = append(s.Routes, r)
		}
	},
	"next hops": func(s *netstate.Snapshot, n int) {
		v4, v6 := multipath("198.51.100.0/24"), multipath("2001:db8:1::/48")
		v6.Metric, v6.Other = 1024, medium
		for i := range n {
			v4.Hops = append(v4.Hops, netstate.Hop{Link: nic, Gateway: hop(i)})
			v6.Hops = append(v6.Hops, netstate.Hop{Link: nic, Gateway: ip(fmt.Sprintf("fd00:244:1::1:%x", i))})
		}
		if n > 0 {
			s.Routes = append(s.Routes, v4, v6)
		}
	},
	"nexthop objects": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Routes = append(s.Routes, withRoute(via(netip.PrefixFrom(numbered(100, i), 32).String(), "10.244.1.1"), func(r *netstate.Route) {
				r.Other = []netstate.Attribute{{Type: 30, Data: []byte{1, 0, 0, byte(i)}}}
			}))
		}
	},
	"addresses of lo": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Addresses = append(s.Addresses, withAddress(address("10.0.0.1/32"), func(a *netstate.Address) { a.Link, a.Label, a.Prefix = 1, "lo", netip.PrefixFrom(numbered(11, i), 32) }))
		}
	},
	"addresses": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Addresses = append(s.Addresses, withAddress(address("10.244.1.8/24"), func(a *netstate.Address) { a.Prefix = netip.PrefixFrom(numbered(12, i), 8) }))
		}
	},
	"addresses of IPv6": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Addresses = append(s.Addresses, withAddress(address("fd00:244:1::7/64"), func(a *netstate.Address) { a.Prefix = netip.PrefixFrom(numbered6(i), 64) }))
		}
	},
	"addresses of networks": func(s *netstate.Snapshot, n int) {
		for i := range n {
			cidr := netip.AddrFrom4([4]byte{13, byte(i >> 8), byte(i), 1}).String() + "/24"
			s.Addresses, s.Routes = append(s.Addresses, address(cidr)), append(s.Routes, connected(cidr))
		}
	},
	"addresses of lo and of the NIC": func(s *netstate.Snapshot, n int) {
		for i := range n {
			onLo := withAddress(address("10.0.0.1/32"), func(a *netstate.Address) { a.Link, a.Label, a.Prefix = 1, "lo", netip.PrefixFrom(numbered(11, i), 32) })
			onNIC := withAddress(address("10.0.0.1/32"), func(a *netstate.Address) { a.Prefix = netip.PrefixFrom(numbered(12, i), 32) })
			s.Addresses = append(s.Addresses, onLo, onNIC)
		}
	},
	"links": func(s *netstate.Snapshot, n int) {
		for i := range n {
			a, r := address("10.50.0.7/24"), connected("10.50.0.7/24")
			l := netstate.Link{Index: 100 + i, Name: fmt.Sprint("net", i), Kind: "veth", MAC: mac(byte(i)), MTU: 1500, Up: true, Ethernet: true, Forwarding4: i%2 == 0}
			a.Link, a.Label, r.Link = l.Index, l.Name, l.Index
			r.Destination = netip.PrefixFrom(numbered(14, i<<8), 24)
			a.Prefix, r.PrefSrc = netip.PrefixFrom(numbered(14, i<<8|7), 24), numbered(14, i<<8|7)
			s.Links, s.Addresses, s.Routes = append(s.Links, l), append(s.Addresses, a), append(s.Routes, r)
		}
	},
	"dummies": func(s *netstate.Snapshot, n int) {
		for i := range n {
			a := address("10.50.0.7/32")
			l := netstate.Link{Index: 100 + i, Name: fmt.Sprint("dummy", i), Kind: "dummy", MAC: mac(byte(i)), MTU: 1500, Up: true, Ethernet: true, NoARP: true}
			a.Link, a.Label, a.Prefix = l.Index, l.Name, netip.PrefixFrom(numbered(14, i), 32)
			s.Links, s.Addresses = append(s.Links, l), append(s.Addresses, a)
		}
	},
	"VRFs": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Links = append(s.Links, netstate.Link{Index: 100 + i, Name: fmt.Sprint("vrf", i), Kind: "vrf", VRF: uint32(1000 + i), MTU: 1500, Up: true, Loopback: true})
			s.Routes = append(s.Routes, netstate.Route{Link: 100 + i, Table: uint32(1000 + i), Destination: pfx("10.50.0.0/24"), Type: netstate.RouteUnicast, Protocol: 3})
		}
	},
	"links with the marks of others": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Links = append(s.Links, netstate.Link{Index: 100 + i, Name: fmt.Sprint("tap", i), Kind: "tun", MTU: 1500, Alias: netstate.Mark(fmt.Sprint("net", i)), Ethernet: true})
		}
	},
	"neighbours": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Neighbours = append(s.Neighbours, learned(numbered(10, i).String(), mac(byte(i))))
		}
	},
	"permanent neighbours": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Neighbours = append(s.Neighbours, permanent(numbered(10, i).String(), mac(byte(i))), permanent(numbered6(i).String(), mac(byte(i))))
		}
	},
	"sockets": func(s *netstate.Snapshot, n int) {
		for i := range n {
			s.Listeners = append(s.Listeners, netstate.Listener{Protocol: "tcp", Address: ip("10.244.1.7"), Port: uint16(1024 + i)})
			s.Connections = append(s.Connections, netstate.LocalPort{Protocol: "udp", Port: uint16(1024 + 3*i)})
		}
	},
}

// hop is one of 250 next hops in the NIC's network.
func hop(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, byte(2 + i%250)}) }

// numbered is the address with the number in the network FIRST.0.0.0/8, numbered6 that in a network of IPv6.
func numbered(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(1 + i>>16), byte(i >> 8), byte(i)})
}

func numbered6(i int) netip.Addr { return ip(fmt.Sprintf("fd00:244:1:1::%x", 1+i)) }

// TestBounds: the work on a namespace does not grow with the square of anything that it holds. Package slices is not
// counted, as the fake kernel of these tests calls it too: of its searches only the functions that they call count.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
	t.Parallel()
	const of = "github.com/guestwire/guestwire/"
	statements.Bound(t, "TestBoundsWork", slices.Sorted(maps.Keys(sized)), 200, of+"cache", of+"infra", of+"internal/...")
}

// TestBoundsWork is what TestBounds counts: with each binding a Setup, its Check, and its Teardown, of a namespace that
// has the objects before Setup, or gets them afterwards, or loses them.
func TestBoundsWork(t *testing.T) {
	kind, objects := statements.Asked(t, "rules")
	few, many := flannel(), flannelWith(func(s *netstate.Snapshot) { sized[kind](s, objects) })
	for _, spec := range []asked{
		bridge(), redirect(), masquerade(), routed(), eth0(infra.Spec{Binding: infra.Auto{}, Owner: launcher}),
		withSpec(routed(), func(s *asked) {
			s.Egress, s.Guard.Prefixes = egressOf("allow nic-networks", "refuse all"), []netip.Prefix{pfx("10.9.0.0/28")}
		}),
	} {
		for i, found := range []netstate.Snapshot{few, many} {
			p, err := tryPlan(found, spec)
			if err != nil {
				continue // a refusal, after the same work
			}
			for j, came := range []netstate.Snapshot{few, many} {
				if i+j > 0 {
					work(t, p, found, came, objects)
				}
			}
		}
	}
}

// work does what the verbs do with a wired NIC in a namespace that was found so, if the namespace then got what came.
func work(t *testing.T, p *wiring.Plan, found, came netstate.Snapshot, objects int) {
	ops, err := p.Steps(found)
	if err != nil {
		t.Fatal(err)
	}
	k := boot(found)
	k.applyAll(ops)
	wired := k.snapshot()
	changed := wired
	changed.Rules = came.Rules
	changed.Links = append(slices.Clone(changed.Links), came.Links[len(flannel().Links):]...)
	changed.Addresses = append(slices.Clone(changed.Addresses), came.Addresses[len(flannel().Addresses):]...)
	changed.Routes = append(slices.Clone(changed.Routes), came.Routes[len(flannel().Routes):]...)
	changed.Neighbours = append(slices.Clone(changed.Neighbours), came.Neighbours[len(flannel().Neighbours):]...)
	changed.Filters, changed.Tables = slices.Clone(changed.Filters), slices.Clone(changed.Tables)
	if tap, there := wired.Named(p.Record.Tap); there {
		for j := range objects {
			changed.Filters = append(changed.Filters, netstate.Filter{Link: tap.Index, Priority: uint16(1000 + j), Protocol: netstate.EthernetIPv4, Target: 1})
		}
	}
	for i, table := range changed.Tables {
		rules := firewall.ChainImage{Name: "rules"}
		if len(table.Chains) > 0 {
			rules = table.Chains[0]
		}
		rules.Rules = slices.Clone(rules.Rules)
		chains := slices.Clone(table.Chains[min(1, len(table.Chains)):])
		for j := range objects {
			rules.Rules = append(rules.Rules, fmt.Sprint("unknown ", j))
			chains = append(chains, firewall.ChainImage{Name: fmt.Sprint("chain", j)})
		}
		changed.Tables[i].Chains = append(chains, rules)
	}
	for _, now := range []netstate.Snapshot{wired, changed, came} {
		again, err := p.Journal().Plan()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := again.Differences(now); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := again.Present(now); err != nil {
			t.Fatal(err)
		}
		again.Hindrances(now)
		if _, err := again.Later(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		again.Gateways()
		sets := again.EgressSets()
		for j := range objects {
			for i := range sets {
				sets[i].Boxes = append(sets[i].Boxes, firewall.Box{First: ip("198.51.100.1"), Last: ip("198.51.100.1"), FirstProtocol: 6, LastProtocol: 6, FirstPort: uint16(j), LastPort: uint16(j)})
			}
		}
		refused := again.Judge(now, sets)
		for j := range objects {
			refused(wiring.Tracked{From: ip("10.9.0.1"), To: netip.AddrPortFrom(ip("198.51.100.1"), uint16(j)), Protocol: 6})
		}
		if _, err := undoOf(again, now); err != nil {
			t.Fatal(err)
		}
		if _, err := again.WithGateway(wiring.Gateway{Link: nic, Address: ip("10.244.1.1"), MAC: cache.MAC{2, 0, 0, 0, 0, 77}}); err != nil {
			t.Fatal(err)
		}
	}
}
