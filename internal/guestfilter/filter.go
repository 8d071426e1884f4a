// Package guestfilter makes the tables around a guest from a description of it: what the guest may send, what may reach
// the guest, and what the namespace itself may not send in the guest's place. It is pure.
package guestfilter

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Tables returns the tables around the guest: the guest filter, unless the guard is off; what forwards frames, and
// keeps the namespace's own packets from the NIC; the guest's limits. At most one table a family.
func (described Guest) Tables() []firewall.Table {
	g := newGuest(described)
	t := &tables{name: g.Names.Table}
	switch {
	case g.Routed:
		g.addFilter(t)
		if len(g.Announced) > 0 {
			g.addAnnounced(t.table(firewall.NetDev))
		}
	case g.Bridged:
		g.addBridged(t)
		g.addFilter(t)
		if g.Served {
			at := t.table(firewall.NetDev)
			at.Chains = append(at.Chains, g.toLeaseOwner())
		}
	default:
		g.addFilter(t)
		g.addForwarding(t)
		t.add(g.muteNamespace(g.Names.NIC, g.renewal6()...))
	}
	g.addBounds(t)
	return t.list
}

// addFilter adds the guest filter, unless the guard is off.
func (g guest) addFilter(t *tables) {
	if !g.Guard.Off {
		t.add(g.filter())
	}
}

// addAnnounced adds what the guest sends and receives of the NIC's ARP.
func (g guest) addAnnounced(at *firewall.Table) {
	at.Chains = append(at.Chains, g.asked())
	if g.Guard.Off {
		at.Chains = append(at.Chains, firewall.Chain{Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Tap, Priority: firewall.Filter,
			Rules: g.answers(etherType(netstate.EthernetARP))})
	}
}

// filter is the table at the ingress of the guest's tap. The chains are short on the way of TCP and UDP from the
// guest's first address, and compare bytes there, because a field's name would make the kernel check the protocol once
// more. Chains are entered by goto, and each ends with a rule that lets all packets pass, or a drop with a reason; only
// the chains options and link-layer are entered by jump, and return. Rules that only choose the reason are at the end,
// where no packet comes that passes. Packets for the responder do not get here, as tc takes them before, except for
// those with a priority tag.
func (g guest) filter() firewall.Table {
	t := firewall.Table{Family: firewall.NetDev, Name: g.Names.Table, Sets: append(g.local.sets(), g.askers()...)}
	add := func(name string, rules ...firewall.Rule) {
		t.Chains = append(t.Chains, firewall.Chain{Name: name, Rules: rules})
	}
	frames := append(g.frequent(4), g.frequent(6)...)
	// The destinations that bridges do not forward (802.1D table 7-10) begin so.
	frames = append(frames, rule(drop(firewall.BridgeControl), firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0x01, 0x80, 0xc2, 0x00}}))
	for _, m := range g.macs {
		for _, to := range []struct {
			kind  uint16
			chain string
		}{{netstate.EthernetIPv4, "from-ip"}, {netstate.EthernetIPv6, "from-ip6"}, {netstate.EthernetARP, "from-arp"}} {
			frames = append(frames, rule(firewall.Goto{Chain: to.chain}, from(m, to.kind)))
		}
	}
	for _, m := range g.macs {
		frames = append(frames, rule(firewall.Goto{Chain: "other-type"}, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:]}))
	}
	frames = append(frames, rule(drop(firewall.MACSpoof)))
	t.Chains = append(t.Chains, firewall.Chain{
		Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Tap, Priority: firewall.Filter, Drops: true, Rules: frames,
	})
	untagged := map[uint16]firewall.Verdict{
		netstate.EthernetIPv4: firewall.Goto{Chain: "from-ip"},
		netstate.EthernetIPv6: firewall.Goto{Chain: "from-ip6"},
		netstate.EthernetARP:  firewall.Goto{Chain: "from-arp"},
	}
	add("other-type", slices.Concat(
		g.passVLANs(g.pass, firewall.VLANTag),
		g.priorityToResponder(),
		g.passPriority(g.pass, func(kind uint16) []firewall.Rule { return []firewall.Rule{rule(untagged[kind])} }),
		g.passTypes(g.pass),
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "from-rarp"}, etherType(netstate.EthernetRARP)),
			rule(drop(firewall.VLANTag), etherType(tag8021Q)),
			rule(drop(firewall.VLANTag), etherType(tag8021ad)),
			rule(drop(firewall.EtherTypeOther)),
		})...)
	g.filterARP(add)
	g.filterRARP(add)
	g.filter4(add)
	g.filter6(add)
	return t
}

// frequent lets pass most TCP and UDP packets of the IP version, each by one rule. These are unicast packets from the
// guest's first MAC and first address, without extension headers and fragments, to addresses that no later rule drops.
// The ports of UDP are not near DHCP's. A port can only be read in a packet whose headers the kernel has found.
//
// The matches are those that the kernel evaluates without a call of a function, before the others: one, two or four
// octets of the network or transport header, with a mask of four (nft_do_chain in net/netfilter/nf_tables_core.c).
func (g guest) frequent(v ip.Version) []firewall.Rule {
	at := slices.IndexFunc(g.primary, func(a netip.Addr) bool { return ip.Of(a) == v })
	if at < 0 {
		return nil
	}
	kind, protocol, source, destination := uint16(netstate.EthernetIPv4), 9, 12, loopback4Octets
	dhcp, mask := uint16(server4), uint16(nearDHCP4)
	if v == 6 {
		kind, protocol, source, destination = netstate.EthernetIPv6, 6, 8, loopback6Octets
		dhcp, mask = server6, nearDHCP6
	}
	destination.Inverted = true
	frame := []firewall.Match{
		firewall.Multicast{Inverted: true}, // and so no address of bridges
		from(g.macs[0], kind),
	}
	own := firewall.Bytes{Header: firewall.Network, Offset: source, Value: g.primary[at].AsSlice()}
	if v == 4 {
		frame = append([]firewall.Match{own}, frame...)
	} else {
		frame = append(frame, own) // longer than four octets
	}
	passes := func(number byte, ports ...firewall.Match) firewall.Rule {
		carries := firewall.Bytes{Header: firewall.Network, Offset: protocol, Value: []byte{number}}
		return rule(g.pass, slices.Concat([]firewall.Match{carries, destination}, ports, frame)...)
	}
	// far matches ports if one differs from a port of DHCP's in the bits of mask.
	far := func(shift int) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Inverted: true,
			Value: binary.BigEndian.AppendUint32(nil, uint32(dhcp&mask)<<shift), Mask: binary.BigEndian.AppendUint32(nil, uint32(mask)<<shift)}
	}
	return []firewall.Rule{
		passes(firewall.ProtocolTCP, firewall.Bytes{Header: firewall.Transport, Value: []byte{0, 0}, Inverted: true}),
		passes(firewall.ProtocolUDP, far(16), far(0)), // the source port, and the destination port after it
	}
}

// dropInput drops what the namespace itself would receive from the bridge's ports. The namespace still has the guest's
// address. So it would answer ARP for it, and take it for a duplicate of its own. It would also take routes from a
// router advertisement of the guest. These drops have no reason: what arrives here is the namespace's copy of a
// broadcast or a multicast, and the frame itself has gone on to the other port.
func dropInput(links ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, l := range links {
		rules = append(rules, rule(firewall.Drop{}, firewall.InInterface{Name: l}))
	}
	return rules
}
