package wiring

import (
	"encoding/binary"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// bridgeTable is the table of the family bridge. By the rules in toNamespace the namespace does not hear the
// frames of the bridge.
func bridgeTable(n netstate.Names, toNamespace ...firewall.Rule) firewall.Table {
	return firewall.Table{Family: firewall.Bridge, Name: n.Table, Chains: []firewall.Chain{
		{Name: "input", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: toNamespace},
	}}
}

// addBetween adds the chains for what passes from one port of the bridge to the other. The guest filter lies in
// another table, which does not see what the network sends. So the link-local addresses of other stations are noted
// here, and defended.
func (g guest) addBetween(t firewall.Table, n netstate.Names, guard infra.Guard) firewall.Table {
	if guard.Off || !g.served && !g.local.learns {
		return t
	}
	toNetwork := []firewall.Match{firewall.OutInterface{Name: n.Tap, Not: true}}
	if g.local.learns {
		t.Sets = append(t.Sets, usageSets...)
		toNetwork = append(toNetwork, needsNoDefence()...)
	}
	between := []firewall.Rule{
		rule(firewall.Accept{}, toNetwork...), // decided first, as it costs each frame of the guest
		rule(firewall.Goto{Chain: "to-guest"}, firewall.OutInterface{Name: n.Tap}),
	}
	if g.local.learns {
		between = append(between, g.local.defend()...)
	}
	t.Chains = append(t.Chains, firewall.Chain{Name: "between", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: between},
		firewall.Chain{Name: "to-guest"})
	return g.addToGuest(t, len(t.Chains)-1, firewall.Accept{}, func(kind uint16) firewall.Match { return firewall.EtherType{Number: kind} })
}

// addForwarding adds the chain that forwards from the NIC to the tap what may reach the guest. The guest filter
// forwards the other way; without it, a chain does.
func (g guest) addForwarding(tables []firewall.Table, n netstate.Names, guard infra.Guard) []firewall.Table {
	if len(tables) == 0 {
		tables = []firewall.Table{{Family: firewall.NetDev, Name: n.Table}}
	}
	t := &tables[0]
	toTap := firewall.Fwd{Device: n.Tap}
	in := firewall.Chain{Name: "to-guest", Type: "filter", Hook: firewall.Ingress, Device: n.NIC, Priority: firewall.Filter}
	if guard.Off {
		in.Rules = []firewall.Rule{rule(toTap)}
		t.Chains = append(t.Chains, in, firewall.Chain{
			Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: n.Tap, Priority: firewall.Filter,
			Rules: []firewall.Rule{rule(g.pass)},
		})
		return tables
	}
	t.Chains = append(t.Chains, in)
	*t = g.addToGuest(*t, len(t.Chains)-1, toTap, func(kind uint16) firewall.Match {
		return firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: binary.BigEndian.AppendUint16(nil, kind)}
	})
	return tables
}

// addToGuest fills the chain with the number to: what the network may send to the guest. A guest with a responder does
// not hear the network's DHCP servers and routers: a message passes only if the octets that tell can be read, or in a
// fragment behind such a one. Of is how the table's family matches an EtherType.
func (g guest) addToGuest(t firewall.Table, to int, pass firewall.Verdict, of func(kind uint16) firewall.Match) firewall.Table {
	add := func(name string, rules ...firewall.Rule) {
		t.Chains = append(t.Chains, firewall.Chain{Name: name, Rules: rules})
	}
	var heard []firewall.Rule
	if g.local.learns {
		heard = []firewall.Rule{rule(firewall.Jump{Chain: "heard"}, is(firewall.ProtocolICMPv6))}
		add("heard", g.local.hear()...)
	}
	if !g.served {
		t.Chains[to].Rules = append(heard, rule(pass))
		return t
	}
	ip4, ip6 := of(netstate.EthernetIPv4), of(netstate.EthernetIPv6)
	// Most packets, decided first: UDP to ports that are not near a DHCP client's.
	frequent := func(kind firewall.Match, near, mask uint16) firewall.Rule {
		return rule(pass, is(firewall.ProtocolUDP), kind, notNear(2, near, mask))
	}
	t.Chains[to].Rules = slices.Concat(
		[]firewall.Rule{
			rule(pass, is(firewall.ProtocolTCP), ip4),
			rule(pass, is(firewall.ProtocolTCP), ip6),
			frequent(ip4, client4, nearDHCP4),
			frequent(ip6, client6, nearDHCP6),
		},
		g.passVLANs(pass, firewall.NetworkFrame),
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "to-udp"}, is(firewall.ProtocolUDP)),
			rule(firewall.Goto{Chain: "to-icmp"}, is(firewall.ProtocolICMP)),
		},
		heard,
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "to-icmp6"}, is(firewall.ProtocolICMPv6)),
			rule(firewall.Goto{Chain: "to-any"}),
		})

	v4, v6 := firewall.Carries{Version: 4}, firewall.Carries{Version: 6}
	next, hidden := firewall.Goto{Chain: "to-any"}, rule(drop(firewall.NetworkFrame))
	later := []firewall.Rule{rule(next, v4, laterFragment4), rule(next, v6, firewall.Fragment{})}
	client := func(v firewall.Match, port uint16) firewall.Rule {
		return rule(drop(firewall.NetworkDHCP), v, is(firewall.ProtocolUDP), firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: port, Last: port})
	}
	add("to-udp", append([]firewall.Rule{
		client(v4, client4),
		client(v6, client6),
		rule(next, firewall.DestinationPort{Not: true}),
	}, append(later, hidden)...)...)
	var router, router6 []firewall.Rule
	for _, n := range []uint8{icmpRedirect, icmpAdvertisement} {
		router = append(router, rule(drop(firewall.NetworkRouter), v4, is(firewall.ProtocolICMP), firewall.ICMP{Version: 4, Type: n}))
	}
	for _, n := range []uint8{icmp6RouterAdvertisement, icmp6Redirect} {
		router6 = append(router6, rule(drop(firewall.NetworkRouter), v6, is(firewall.ProtocolICMPv6), firewall.ICMP{Version: 6, Type: n}))
	}
	readable := append([]firewall.Rule{rule(next, typeReadable)}, append(later, hidden)...)
	add("to-icmp", append(router, readable...)...)
	add("to-icmp6", append(router6, readable...)...)
	// Frames of other kinds are dropped: the guest could not answer them, but could read an advertisement
	// in them, behind tags of VLAN 0, in LLC and SNAP (CVE-2021-27853, -27861), in an incomplete first
	// fragment.
	known := func(kind uint16) []firewall.Rule {
		if kind == netstate.EthernetARP {
			return []firewall.Rule{rule(pass)}
		}
		return []firewall.Rule{rule(pass, wellFormed)}
	}
	add("to-any", slices.Concat(
		[]firewall.Rule{
			rule(pass, ip4, wellFormed),
			rule(pass, ip6, wellFormed),
			rule(pass, of(netstate.EthernetARP)),
		},
		g.passPriority(pass, known),
		g.passTypes(pass),
		[]firewall.Rule{hidden})...)
	return t
}
