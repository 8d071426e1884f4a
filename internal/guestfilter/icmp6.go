package guestfilter

import (
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// filterICMP6 lets pass what a host sends (RFC 4861, 2710, 3810). Neighbour discovery passes without extension
// headers. A link-layer address in an option is the guest's; a receiver ignores options that it does not know, so the
// filter does as well.
func (g guest) filterICMP6(add chainAdder) {
	source, listener := firewall.Goto{Chain: "ip6-source"}, firewall.Goto{Chain: "listener"}
	direct := firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{firewall.ProtocolICMPv6}}
	rules := []firewall.Rule{
		rule(source, messageType(1, 4)),                      // errors
		rule(source, messageTypes(firewall.ICMP6Echo, 0xde)), // also the reply 129, and 160 and 161 of RFC 8335
		rule(listener, messageType(icmp6Report, icmp6Done)),
		rule(listener, messageType(icmp6Report2)),
		rule(firewall.Goto{Chain: "solicitation"}, direct, messageType(firewall.ICMP6Solicitation)),
		rule(firewall.Goto{Chain: "advertisement"}, direct, messageType(firewall.ICMP6Advertisement)),
	}
	if !g.Served {
		rules = append(rules, rule(firewall.Goto{Chain: "router"}, direct, messageType(icmp6RouterSolicitation)))
	}
	solicitation := firewall.ExtensionHeader
	if g.Served {
		solicitation = firewall.RouterSolicitation
	}
	if g.Served && !g.has(ip.V6) {
		solicitation = firewall.NoFamily
	}
	add("from-icmp6", append(rules,
		rule(source, firewall.Fragment{}),
		rule(drop(firewall.RouterAdvertisement), messageType(icmp6RouterAdvertisement)),
		rule(drop(firewall.ICMPRedirect), messageType(icmp6Redirect)),
		rule(drop(firewall.MulticastRouter), messageType(icmp6Query)),
		rule(drop(solicitation), messageType(icmp6RouterSolicitation)),
		rule(drop(firewall.ExtensionHeader), messageType(firewall.ICMP6Solicitation, firewall.ICMP6Advertisement)),
		rule(drop(firewall.ICMPType), typeReadable),
		rule(unreadable6))...)
	add("listener", rule(g.pass, fromUnspecified), rule(source))

	const options = 24 // where the options of solicitations and advertisements begin
	checked := firewall.Jump{Chain: "options"}
	add("options", append(firstOption(options),
		rule(drop(firewall.NeighbourSpoof), length6(0, options-1, false)), // cut in its target
		rule(firewall.Jump{Chain: "link-layer"}))...)
	add("link-layer", g.foreignMACs(options)...)

	// about continues with a message about an address of the guest's, and drops the others after the rules of more.
	spoof := rule(drop(firewall.NeighbourSpoof))
	about := func(v firewall.Verdict, more []firewall.Rule) []firewall.Rule {
		if g.anyAddress {
			return []firewall.Rule{rule(v)}
		}
		var list []firewall.Rule
		for _, p := range g.prefixesOf(6) {
			list = append(list, rule(v, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
		}
		return append(append(list, more...), spoof)
	}
	asks := []firewall.Rule{
		rule(checked),
		rule(firewall.Goto{Chain: "detection"}, fromUnspecified),
	}
	for _, p := range g.prefixesOf(6) {
		if g.Routed && HasMany(p) {
			asks = append(asks, g.limitSenders(source, p, firewall.RawSource6,
				firewall.Bytes{Header: firewall.Network, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)})...)
		}
	}
	add("solicitation", append(asks, rule(source))...)
	// A solicitation from nowhere has no link-layer address (RFC 4861 section 7.1.1).
	add("detection", append([]firewall.Rule{rule(spoof.Verdict, optionType(options, 1))}, about(g.pass, g.local.detected())...)...)
	if g.local.learns {
		add("new-local", append(g.local.learn(g.pass), spoof)...)
	}
	if g.local.seesNetwork {
		add("note-used", used()...)
	}
	add("advertisement", append([]firewall.Rule{rule(checked)}, about(source, g.local.advertised(source))...)...)
	if !g.Served {
		router := append(firstOption(8), g.foreignMAC(8)...)
		router = append(router, g.foreignMAC(16)...)
		add("router", append(router,
			rule(firewall.Jump{Chain: "link-layer"}),
			rule(g.pass, fromUnspecified),
			rule(source))...)
	}
}

// longestDiscovery is the IPv6 payload of the longest message of neighbour discovery that passes, in octets: after the
// target there are six options of 8 octets at most. A host sends two, its link-layer address and a nonce (RFC 7527).
// Signatures (RFC 3971) are longer than what rules could look through.
const longestDiscovery = 79

// firstOption drops a message whose first option has no length, or is a link-layer address of a wrong length.
func firstOption(offset int) []firewall.Rule {
	length := func(not bool, n byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Offset: offset + 1, Value: []byte{n}, Inverted: not}
	}
	return []firewall.Rule{
		rule(drop(firewall.NeighbourSpoof), length(false, 0)),
		rule(drop(firewall.NeighbourSpoof), optionType(offset, 1, 2), length(true, 1)),
	}
}

// foreignMACs drops a message of neighbour discovery with a link-layer address that is not the guest's, in any option
// from an offset on. Options have 8 octets or a multiple (RFC 4861 section 4.6), so a link-layer address can only be at
// such offsets. What lies inside of another option is not distinguished: of 32768 values one looks like an address. A
// message that is too long to be looked at whole is dropped.
func (g guest) foreignMACs(from int) []firewall.Rule {
	rules := []firewall.Rule{rule(drop(firewall.NeighbourSpoof), length6(0, longestDiscovery, true))}
	for offset := from; offset+8 <= longestDiscovery; offset += 8 {
		rules = append(rules, g.foreignMAC(offset)...)
	}
	return rules
}

// foreignMAC drops a message with a link-layer address that is not the guest's in the option at the offset: type 1 or
// 2, length 1. By the mask, the types 0 and 3 are dropped as well: 0 does not exist, and 3 is longer.
func (g guest) foreignMAC(offset int) []firewall.Rule {
	m := []firewall.Match{firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: []byte{0, 1}, Mask: []byte{0xfc, 0xff}}}
	for _, own := range g.macs {
		m = append(m, firewall.Bytes{Header: firewall.Transport, Offset: offset + 2, Value: own[:], Inverted: true})
	}
	return []firewall.Rule{rule(drop(firewall.NeighbourSpoof), m...)}
}
