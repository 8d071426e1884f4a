package guestfilter

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// tooLong drops a frame that is longer than the NIC's MTU. TCP and UDP do not come here: they can be longer until the
// kernel cuts them (GSO), and no match distinguishes such a frame from one that the kernel does not cut.
func (g guest) tooLong() []firewall.Rule {
	if g.Longest == 0 {
		return nil
	}
	return []firewall.Rule{rule(drop(firewall.TooLong), firewall.Longer{Octets: uint32(g.Longest)})}
}

// udp drops what a DHCP server sends, and with a responder also what is for a server, but for what is relayed. After
// these rules are the packets whose ports cannot be read, except later fragments.
func (g guest) udp(v ip.Version, server, client uint16, relayed [][]firewall.Match, later firewall.Match, next firewall.Goto) []firewall.Rule {
	var rules []firewall.Rule
	for _, m := range relayed {
		rules = append(rules, rule(next, append([]firewall.Match{firewall.DestinationPort{First: server, Last: server}}, m...)...))
	}
	rules = append(rules,
		rule(drop(firewall.DHCPServer), firewall.SourcePort{First: server, Last: server}),
		rule(drop(firewall.DHCPServer), firewall.DestinationPort{First: client, Last: client}))
	if g.Served {
		reason := firewall.DHCPRequest
		if !g.has(v) {
			reason = firewall.NoFamily
		}
		rules = append(rules, rule(drop(reason), firewall.DestinationPort{First: server, Last: server}))
	}
	return append(rules,
		rule(next, firewall.DestinationPort{Inverted: true}),
		rule(next, later))
}

// relayed4 are DHCPv4 messages to one server from a relay in the guest, for stations that the guest serves itself: a
// request (op 1) whose giaddr, to which the server answers, is the guest's. A message of a client has none (RFC 2131
// section 2), and a server's is a reply (op 2).
func (g guest) relayed4() (list [][]firewall.Match) {
	const op, giaddr = 8, 8 + 24 // from the UDP header
	for _, p := range g.prefixesOf(4) {
		list = append(list, []firewall.Match{
			firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0}, Mask: []byte{1}},                                // to one station
			firewall.Bytes{Header: firewall.Network, Offset: 16, Value: []byte{224}, Mask: []byte{224}, Inverted: true}, // nor by IP a group or broadcast
			firewall.Bytes{Header: firewall.Transport, Offset: op, Value: []byte{1}},
			firewall.Bytes{Header: firewall.Transport, Offset: giaddr, Value: make([]byte, 4), Inverted: true}, // a prefix may be 0.0.0.0/0
			firewall.Bytes{Header: firewall.Transport, Offset: giaddr, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)},
		})
	}
	return list
}

// relayed6 are DHCPv6 messages to one server from a relay in the guest (RELAY-FORW). The server answers to the source,
// which is the guest's, by RELAY-REPL.
func relayed6() [][]firewall.Match {
	const relayForward = 12
	return [][]firewall.Match{{
		firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0}, Mask: []byte{1}}, // to one station
		firewall.Bytes{Header: firewall.Network, Offset: 24, Value: []byte{0xff}, Inverted: true},
		firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: []byte{relayForward}},
	}}
}

func (g guest) filter4(add chainAdder) {
	next := firewall.Goto{Chain: "ip-source"}
	rules := []firewall.Rule{
		rule(drop(firewall.LoopbackAddress), loopback4Octets),
		rule(next, ofProtocol(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp"}, ofProtocol(firewall.ProtocolUDP)),
	}
	rules = append(rules, g.tooLong()...)
	add("from-ip", append(rules,
		rule(firewall.Goto{Chain: "from-icmp"}, ofProtocol(firewall.ProtocolICMP)),
		rule(firewall.Goto{Chain: "from-igmp"}, ofProtocol(firewall.ProtocolIGMP)),
		rule(next, wellFormed),
		rule(drop(firewall.Malformed)))...)
	add("from-udp", append(g.udp(ip.V4, server4, firewall.DHCPClient4, g.relayed4(), laterFragment4, next), rule(drop(firewall.Malformed)))...)
	// Other types are obsolete (RFC 6633, RFC 6918), or for routers. An address mask reply, for example, changes the
	// network of a host that believes it.
	add("from-icmp",
		rule(next, messageTypes(icmpEchoReply, 0xff^firewall.ICMPEcho)), // and the request
		rule(next, messageType(firewall.ICMPUnreachable)),
		rule(next, messageType(icmpTimeExceeded, icmpTimestampBack)),
		rule(next, messageType(icmpExtendedEcho, icmpExtendedBack)),
		rule(next, laterFragment4),
		rule(drop(firewall.ICMPRedirect), messageType(icmpRedirect)),
		rule(drop(firewall.RouterAdvertisement), messageType(icmpAdvertisement)),
		rule(drop(firewall.ICMPType), typeReadable),
		rule(drop(firewall.Malformed)))
	add("from-igmp",
		rule(next, messageType(igmpReport1)),
		rule(next, messageType(igmpReport2, igmpLeave)),
		rule(next, messageType(igmpReport3)),
		rule(drop(firewall.MulticastRouter)))
	v4 := firewall.Carries{Version: 4}
	from := func(p netip.Prefix) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: 12, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
	}
	rules = nil
	for _, p := range g.prefixesOf(4) {
		rules = append(rules, rule(g.pass, from(p)))
	}
	if !g.Served { // a DHCP client without a lease
		rules = append(rules, rule(g.pass, v4, firewall.Source{Prefix: firewall.HostPrefix(netip.IPv4Unspecified())}, ofProtocol(firewall.ProtocolUDP),
			firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: firewall.DHCPClient4, Last: firewall.DHCPClient4},
			firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: server4, Last: server4}))
	}
	if g.anyAddress {
		rules = append(rules, g.anySourceBut(v4, "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")...)
	}
	if !g.has(ip.V4) {
		rules = append(rules, rule(drop(firewall.NoFamily), from(linkLocal4)),
			rule(drop(firewall.NoFamily), from(firewall.HostPrefix(netip.IPv4Unspecified())), ofProtocol(firewall.ProtocolIGMP))) // who has no address reports so
	}
	add("ip-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}

// anySourceBut lets all sources pass except the listed prefixes, which no station has.
func (g guest) anySourceBut(v firewall.Match, but ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range but {
		rules = append(rules, rule(drop(firewall.IPSpoof), v, firewall.Source{Prefix: netip.MustParsePrefix(p)}))
	}
	return append(rules, rule(g.pass, v))
}

// unreadable6 is for IPv6 whose headers cannot be read.
var unreadable6 = firewall.Goto{Chain: "unreadable6"}

func (g guest) filter6(add chainAdder) {
	next := firewall.Goto{Chain: "ip6-source"}
	rules := []firewall.Rule{
		rule(drop(firewall.LoopbackAddress), loopback6Octets),
		rule(next, ofProtocol(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp6"}, ofProtocol(firewall.ProtocolUDP)),
	}
	rules = append(rules, g.tooLong()...)
	rules = append(rules, rule(firewall.Goto{Chain: "from-icmp6"}, ofProtocol(firewall.ProtocolICMPv6)))
	// The transport header is an extension header: the packet is a fragment whose header chain goes on in the
	// next fragment, which hides the real transport header from a filter.
	for _, n := range []uint8{0, 43, 44, 60} {
		rules = append(rules, rule(drop(firewall.HiddenFragment), ofProtocol(n)))
	}
	add("from-ip6", append(rules,
		rule(next, wellFormed),
		rule(unreadable6))...)
	add("from-udp6", append(g.udp(ip.V6, server6, firewall.DHCPClient6, relayed6(), firewall.Fragment{}, next), rule(unreadable6))...)
	add("unreadable6",
		rule(drop(firewall.HiddenFragment), firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{44}}),
		rule(drop(firewall.Malformed)))
	g.filterICMP6(add)

	rules = nil
	for _, p := range g.prefixesOf(6) {
		rules = append(rules, rule(g.pass, firewall.Bytes{Header: firewall.Network, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	rules = append(rules, g.local.source(g.pass)...)
	if g.anyAddress {
		rules = append(rules, g.anySourceBut(firewall.Carries{Version: 6}, "::/96", "::ffff:0:0/96", "ff00::/8")...)
	}
	add("ip6-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}
