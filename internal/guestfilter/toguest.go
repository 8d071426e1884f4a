package guestfilter

import (
	"encoding/binary"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// addBridged adds the tables of a bridge between NIC and tap: the namespace neither receives nor sends there.
//
// What drops packets that the namespace sends by the bridge does not end at postrouting: where another program lets
// frames of bridges pass iptables (bridge-nf-call-iptables), the guest's frames come there, too. A rule at output
// leaves no neighbour entries. The rules of the family bridge are for all else: forwarded packets, and other protocols
// than IP.
func (g guest) addBridged(t *tables) {
	n := g.Names
	ofBridge, inet := firewall.Table{Family: firewall.Bridge, Name: n.Table}, g.muteNamespace(n.Moved)
	ofBridge.Chains = append(ofBridge.Chains, firewall.Chain{Name: "input", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: dropInput(n.Moved, n.Tap)},
		mute("from-namespace", firewall.Output, n.Moved, n.Tap))
	inet.Chains = append(inet.Chains, mute("to-bridge", firewall.Output, n.Bridge))
	t.add(g.addBetween(ofBridge))
	t.add(inet)
}

// addBetween adds the chains for what passes from one port of the bridge to the other. The guest filter lies in
// another table, which does not see what the network sends. So the link-local addresses of other stations are noted
// here, and defended.
func (g guest) addBetween(t firewall.Table) firewall.Table {
	n := g.Names
	if g.Guard.Off || !g.Served && !g.local.learns && len(g.Guard.VLANs) == 0 {
		return t
	}
	toNetwork := []firewall.Match{firewall.OutInterface{Name: n.Tap, Inverted: true}}
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
	to := len(t.Chains) - 1
	if g.local.learns {
		t.Chains = append(t.Chains, firewall.Chain{Name: "note-used", Rules: used()})
	}
	return g.addToGuest(t, to, firewall.Accept{}, nil, func(kind uint16) firewall.Match { return firewall.EtherType{Number: kind} })
}

// toLeaseOwner is the chain that takes DHCP of the network from the bridge and leaves it to the namespace, where a DHCP
// client may have leased the guest's address before Setup: CNI's dhcp daemon, dhclient, systemd-networkd. Such a client
// has a packet socket on the NIC, which receives nothing of what a bridge takes from its port.
func (g guest) toLeaseOwner() firewall.Chain {
	return firewall.Chain{Name: "to-lease-owner", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Moved, Link: g.NIC, Priority: firewall.Filter,
		Rules: append([]firewall.Rule{
			rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolUDP, Inverted: true}), // most packets
		}, toDHCPClients(firewall.Up{Port: true, Reason: firewall.NetworkDHCP}, untagged)...)}
}

// addForwarding adds the chain that forwards from the NIC to the tap what may reach the guest. The guest filter
// forwards the other way; without it, a chain does. What is for DHCP clients goes on to the namespace, see
// toLeaseOwner: packet sockets see a frame after the hook ingress.
func (g guest) addForwarding(to *tables) {
	n, t := g.Names, to.table(firewall.NetDev)
	toTap, toNamespace := firewall.Fwd{Device: n.Tap}, firewall.Up{Reason: firewall.NetworkDHCP}
	in := firewall.Chain{Name: "to-guest", Type: "filter", Hook: firewall.Ingress, Device: n.NIC, Priority: firewall.Filter}
	if g.Guard.Off {
		in.Rules = []firewall.Rule{rule(toTap)}
		if g.Served {
			in.Rules = append(toDHCPClients(toNamespace, untagged, ofProtocol(firewall.ProtocolUDP)), in.Rules...)
		}
		t.Chains = append(t.Chains, in, firewall.Chain{
			Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: n.Tap, Priority: firewall.Filter,
			Rules: []firewall.Rule{rule(g.pass)},
		})
		return
	}
	t.Chains = append(t.Chains, in)
	*t = g.addToGuest(*t, len(t.Chains)-1, toTap, toDHCPClients(toNamespace, untagged), func(kind uint16) firewall.Match {
		return firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: binary.BigEndian.AppendUint16(nil, kind)}
	})
}

// toDHCPClients are the rules for what the network sends to DHCP clients, in a chain of UDP. Of is how the rules match
// an IP version, also are more matches of each.
func toDHCPClients(v firewall.Verdict, of func(version ip.Version) firewall.Match, also ...firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, version := range ip.Both {
		port := ip.Pick[uint16](version, firewall.DHCPClient4, firewall.DHCPClient6)
		rules = append(rules, rule(v, append([]firewall.Match{of(version), firewall.DestinationPort{First: port, Last: port}}, also...)...))
	}
	return rules
}

// carries matches an IP version, also after a VLAN tag; untagged does not match a frame with a tag.
func carries(version ip.Version) firewall.Match { return firewall.Carries{Version: version} }

func untagged(version ip.Version) firewall.Match {
	return etherType(ip.Pick[uint16](version, netstate.EthernetIPv4, netstate.EthernetIPv6))
}

// addToGuest fills the chain with the number to: what the network may send to the guest. A guest with a responder
// receives nothing from the network's DHCP servers and routers. So a message passes only if its type can be read, or if
// it is a later fragment of such a message. DHCP are rules before those that drop DHCP, of is how the table's family
// matches an EtherType.
func (g guest) addToGuest(t firewall.Table, to int, pass firewall.Verdict, dhcp []firewall.Rule, of func(kind uint16) firewall.Match) firewall.Table {
	add := func(name string, rules ...firewall.Rule) {
		t.Chains = append(t.Chains, firewall.Chain{Name: name, Rules: rules})
	}
	var others []firewall.Rule
	if g.local.learns {
		others = []firewall.Rule{rule(firewall.Jump{Chain: "note-others"}, ofProtocol(firewall.ProtocolICMPv6), carries(6))}
		add("note-others", g.local.noteOthers()...)
	}
	if !g.Served {
		t.Chains[to].Rules = slices.Concat(others, g.onlyVLANs(pass), []firewall.Rule{rule(pass)})
		return t
	}
	ip4, ip6 := of(netstate.EthernetIPv4), of(netstate.EthernetIPv6)
	// Most packets, decided first: UDP to ports that are not near a DHCP client's.
	frequent := func(kind firewall.Match, near, mask uint16) firewall.Rule {
		return rule(pass, ofProtocol(firewall.ProtocolUDP), kind, farFrom(2, near, mask))
	}
	t.Chains[to].Rules = slices.Concat(
		[]firewall.Rule{
			rule(pass, ofProtocol(firewall.ProtocolTCP), ip4),
			rule(pass, ofProtocol(firewall.ProtocolTCP), ip6),
			frequent(ip4, firewall.DHCPClient4, nearDHCP4),
			frequent(ip6, firewall.DHCPClient6, nearDHCP6),
		},
		g.passVLANs(pass, firewall.NetworkFrame),
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "to-udp"}, ofProtocol(firewall.ProtocolUDP)),
			rule(firewall.Goto{Chain: "to-icmp"}, ofProtocol(firewall.ProtocolICMP)),
		},
		others,
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "to-icmp6"}, ofProtocol(firewall.ProtocolICMPv6)),
			rule(firewall.Goto{Chain: "to-any"}),
		})

	v4, v6 := firewall.Carries{Version: 4}, firewall.Carries{Version: 6}
	next, later, hidden := firewall.Goto{Chain: "to-any"}, firewall.Goto{Chain: "to-later"}, rule(drop(firewall.NetworkFrame))
	add("to-udp", slices.Concat(dhcp, toDHCPClients(drop(firewall.NetworkDHCP), carries),
		[]firewall.Rule{rule(next, firewall.DestinationPort{Inverted: true}), rule(later)})...)
	ofRouter := func(v firewall.Match, kind byte) firewall.Rule {
		return rule(drop(firewall.NetworkRouter), v, messageType(kind))
	}
	add("to-icmp", ofRouter(v4, icmpRedirect), ofRouter(v4, icmpAdvertisement), rule(next, typeReadable), rule(later))
	add("to-icmp6", slices.Concat([]firewall.Rule{ofRouter(v6, icmp6RouterAdvertisement), ofRouter(v6, icmp6Redirect)},
		g.dropOwnDetections(v6), []firewall.Rule{rule(next, typeReadable), rule(later)})...)
	add("to-later", rule(next, v4, laterFragment4), rule(next, v6, firewall.Fragment{}), hidden)
	// Frames of other kinds are dropped: the guest could not answer them, but could read an advertisement
	// in them, after tags of VLAN 0, in LLC and SNAP (CVE-2021-27853, -27861), in an incomplete first
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
		},
		g.dropOwnReplies(of(netstate.EthernetARP)),
		[]firewall.Rule{rule(pass, of(netstate.EthernetARP))},
		g.passPriority(pass, known),
		g.passTypes(pass),
		[]firewall.Rule{hidden})...)
	return t
}

// dropOwnDetections drops the guest's own duplicate address detection that comes back from the network, as by a port in
// hairpin mode. A guest that sends no nonce (RFC 7527) takes it for another station's.
func (g guest) dropOwnDetections(v6 firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, m := range g.macs {
		rules = append(rules, rule(drop(firewall.NetworkFrame), v6, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:]}, fromUnspecified, messageType(firewall.ICMP6Solicitation)))
	}
	return rules
}

// dropOwnReplies drops ARP replies that give the guest's own MAC for its address. A bridge that answers ARP for its
// ports (ebtables' arpreply on Azure's nodes) sends such a reply to the guest's own probe. Guests that look at the
// address alone take it for a duplicate (RFC 5227 section 2.1.1).
func (g guest) dropOwnReplies(isARP firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range g.prefixesOf(4) {
		for _, m := range g.macs {
			if a.IsSingleIP() {
				rules = append(rules, rule(drop(firewall.NetworkFrame), isARP,
					firewall.Bytes{Header: firewall.Network, Offset: 6, Value: slices.Concat([]byte{0, 2}, m[:], a.Addr().AsSlice())}))
			}
		}
	}
	return rules
}
