package frames

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
)

// addICMP4 adds ICMP messages of types that hosts do not send. RFC 6918 and RFC 6633 made most of them obsolete.
func (b *builder) addICMP4() {
	message := func(kind uint8) ip4 {
		return ip4{to: b.Gateway4, protocol: protoICMP, body: icmp(kind, 0, []byte{0, 1, 0, 1}, b.data(32))}
	}
	known := map[uint8]bool{ // by this filter, with a reason of its own or as legitimate
		5: true, 9: true,
		0: true, 3: true, 8: true, 11: true, 12: true, 13: true, 14: true, 42: true, 43: true,
		255: true,
	}
	for _, m := range []struct {
		kind      uint8
		name, why string
	}{
		{4, "source quench", "connections of others become slow (RFC 6633)"},
		{6, "alternate host address", "hosts send to another address"},
		{10, "router solicitation", "routers answer it past the responder (RFC 1256)"},
		{15, "information request", "a server of addresses answers it"},
		{16, "information reply", "it hands out a network number"},
		{17, "address mask request", "hosts report their networks (RFC 950)"},
		{18, "address mask reply", "hosts take a wrong network mask"},
		{30, "traceroute", "only routers send it (RFC 1393)"},
		{31, "datagram conversion error", "no host uses it"},
		{32, "mobile host redirect", "hosts send to another address"},
		{33, "IPv6 where-are-you", "no host uses it"},
		{34, "IPv6 I-am-here", "it claims any address"},
		{35, "mobile registration request", "no host uses it"},
		{36, "mobile registration reply", "no host uses it"},
		{37, "domain name request", "hosts report their names (RFC 1788)"},
		{38, "domain name reply", "it claims any name"},
		{39, "SKIP", "no host uses it"},
		{40, "Photuris", "no host uses it"},
		{41, "experimental mobility", "no host uses it (RFC 4065)"},
	} {
		known[m.kind] = true
		b.drop(firewall.ICMPType, 4, "ICMP "+m.name, m.why, b.v4(message(m.kind)))
		for _, o := range []struct {
			name   string
			octets []byte
		}{{"options", []byte{1, 1, 1, 0}}, {"all options", make([]byte, 40)}} {
			p := message(m.kind)
			p.options = o.octets
			b.drop(firewall.ICMPType, 4, "ICMP "+m.name+" after "+o.name, m.why+": the type has another offset", b.v4(p))
			b.drop(firewall.ICMPType, 4, "ICMP "+m.name+" in fragments after "+o.name, m.why+": the type has another offset", b.fragments4(p, 8, 64)[0])
		}
		b.drop(firewall.ICMPType, 4, "ICMP "+m.name+" in fragments", m.why, b.fragments4(message(m.kind), 8, 64)[0])
		b.drop(firewall.ICMPType, 4, "ICMP "+m.name+" to all", m.why, b.v4(ip4{to: all4, protocol: protoICMP, body: message(m.kind).body}))
	}
	var others, pieces [][]byte
	for kind := range 256 {
		if !known[uint8(kind)] {
			others = append(others, b.v4(message(uint8(kind))))
			pieces = append(pieces, b.fragments4(message(uint8(kind)), 8, 64)[0])
		}
	}
	b.drop(firewall.ICMPType, 4, "ICMP of all other types", "no standard defines them", others...)
	b.drop(firewall.ICMPType, 4, "ICMP of all other types, in fragments", "no standard defines them", pieces...)
	b.drop(firewall.Malformed, 4, "ICMP type 255", "the number is reserved", b.v4(message(255)))
	const untyped = "a filter cannot see what it is"
	for _, o := range []struct {
		name   string
		octets []byte
	}{{"", nil}, {" after options", []byte{1, 1, 1, 0}}, {" after all options", make([]byte, 40)}} {
		p := ip4{to: b.Gateway4, options: o.octets, protocol: protoICMP, sealed: true, body: []byte{}}
		b.drop(firewall.Malformed, 4, "ICMP without a type"+o.name, untyped, b.v4(p))
		p.flags = 0x2000
		b.drop(firewall.Malformed, 4, "ICMP first fragment without a type"+o.name, untyped, b.v4(p))
	}
}

// addLong adds frames that are longer than the NIC's MTU. TCP and UDP may be longer: the NIC cuts them (GSO).
func (b *builder) addLong() {
	const why = "switches and peers drop it, or crash over it"
	for _, size := range []int{b.MTU + 1, 3000, 8900} {
		add := func(version int, name string, frame []byte) {
			b.drop(firewall.TooLong, version, fmt.Sprintf("%s of %d octets", name, size), why, frame)
		}
		p := ip4{protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, b.data(size-20-8))}
		if b.IPv4.IsValid() {
			add(4, "IPv4 echo request", b.v4(p))
			p.options, p.body = []byte{1, 1, 1, 0}, icmp(8, 0, []byte{0, 1, 0, 1}, b.data(size-24-8))
			add(4, "IPv4 echo request after options", b.v4(p))
			add(4, "IPv4 first fragment of an echo request", b.v4(ip4{protocol: protoICMP, flags: 0x2000, body: icmp(8, 0, []byte{0, 1, 0, 1}, b.data(size-20-8))}))
			add(4, "IPv4 ESP", b.v4(ip4{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 1}, b.data(size-20-8)...)}))
			add(4, "IPv4 GRE", b.v4(ip4{protocol: protoGRE, body: append([]byte{0, 0, 8, 0}, b.data(size-20-4)...)}))
			add(4, "IPv4 SCTP", b.v4(ip4{protocol: protoSCTP, body: sctpInit(b.data(size - 20 - 36))}))
			request := b.arp(func(a *arp) { a.targetIP = b.Gateway4 })
			add(4, "ARP request", append(request, make([]byte, 14+size-len(request))...))
		}
		if b.IPv6.IsValid() {
			add(6, "IPv6 echo request", b.v6(ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(size-40-8))}))
			add(6, "IPv6 echo request after options", b.v6(ip6{before: []extension{options}, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(size-48-8))}))
			add(6, "IPv6 ESP", b.v6(ip6{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 1}, b.data(size-40-8)...)}))
			add(6, "IPv6 GRE", b.v6(ip6{protocol: protoGRE, body: append([]byte{0, 0, 0x86, 0xdd}, b.data(size-40-4)...)}))
			add(6, "IPv6 AH", b.v6(ip6{before: []extension{authentic}, body: udp(5000, 5001, b.data(size-40-24-8))}))
			add(6, "IPv6 without a next header", b.v6(ip6{protocol: noNext, body: b.data(size - 40)}))
		}
	}
}

func (b *builder) addForeignSources4() {
	const spoof = "the answers, or the blame, go to another station"
	neighbour := b.Gateway4.Next()
	for neighbour == b.own4 {
		neighbour = neighbour.Next()
	}
	for _, s := range []struct{ name, address string }{
		{"a foreign source", foreign4.String()},
		{"another's source", neighbour.String()},
		{"the gateway's source", b.Gateway4.String()},
		{"source 0.0.0.0", "0.0.0.0"},
		{"source 0.0.0.1", "0.0.0.1"},
		{"the broadcast source", "255.255.255.255"},
		{"source 127.0.0.1", "127.0.0.1"},
		{"source 127.8.8.8", "127.8.8.8"},
		{"a group's source", "224.0.0.1"},
		{"a source of class E", "240.0.0.1"},
		{"a link-local source", "169.254.9.9"},
	} {
		from, reason := netip.MustParseAddr(s.address), firewall.IPSpoof
		if from.IsLinkLocalUnicast() { // of a host that has got no lease
			reason = b.asks(b.IPv4, reason)
		}
		b.drop(reason, 4, "IPv4 from "+s.name, spoof, b.v4(ip4{from: from}))
	}
	sources := func(name string, p ip4) {
		p.from = foreign4
		b.drop(firewall.IPSpoof, 4, name+" from a foreign source", spoof, b.v4(p))
	}
	sources("IPv4 TCP SYN", ip4{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})
	sources("IPv4 TCP without a flag", ip4{protocol: protoTCP, body: tcp(5000, 80, 0, b.data(0))})
	sources("IPv4 echo request", ip4{protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, b.data(0))})
	sources("IPv4 port unreachable", ip4{protocol: protoICMP, body: icmp(3, 3, make([]byte, 4), b.v4(ip4{})[14:])})
	sources("IPv4 SCTP", ip4{protocol: protoSCTP, body: sctpInit(b.data(20))})
	sources("IPv4 ESP", ip4{protocol: protoESP, body: b.data(64)})
	sources("IPv4 GRE", ip4{protocol: protoGRE, body: append([]byte{0, 0, 8, 0}, b.v4(ip4{})[14:]...)})
	sources("IPv4 in IPv4", ip4{protocol: protoIPIP, body: b.v4(ip4{})[14:]})
	sources("IGMP report", ip4{to: netip.MustParseAddr("239.1.2.3"), protocol: protoIGMP, body: []byte{0x16, 0, 0, 0, 239, 1, 2, 3}})
	b.drop(firewall.Malformed, 4, "IPv4 protocol 255 from a foreign source", spoof, b.v4(ip4{from: foreign4, protocol: 255, body: b.data(64)}))
	sources("IPv4 broadcast", ip4{to: all4})
	sources("IPv4 multicast", ip4{to: netip.MustParseAddr("224.0.0.251")})
	sources("IPv4 with options", ip4{options: []byte{1, 1, 1, 0}})
	sources("IPv4 with a source route", ip4{options: append([]byte{131, 7, 4}, append(b.own4.AsSlice(), 0)...)})
	sources("IPv4 with all options", ip4{options: make([]byte, 40)})
	sources("IPv4 DHCP of a client", ip4{to: all4, body: udp(68, 6700, b.data(0))})

	big := ip4{from: foreign4, body: udp(5000, 5001, b.data(2000))}
	pieces := b.fragments4(big, 1000, 1000)
	b.drop(firewall.IPSpoof, 4, "first fragment from a foreign source", spoof, pieces[0])
	b.drop(firewall.IPSpoof, 4, "later fragment from a foreign source", "a filter that needs ports lets it pass", pieces[1])
	b.drop(firewall.IPSpoof, 4, "fragments from a foreign source", spoof, pieces...)
	b.drop(firewall.IPSpoof, 4, "fragments from a foreign source, the last one first", spoof, pieces[2], pieces[1], pieces[0])
	tiny := b.fragments4(ip4{from: foreign4, protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}, 8, 16)
	b.drop(firewall.IPSpoof, 4, "tiny fragments from a foreign source", "the first fragment has no TCP flags (RFC 1858)", tiny...)
	b.drop(firewall.IPSpoof, 4, "overlapping fragments from a foreign source", "the second replaces a part of the first (RFC 1858)",
		b.fragments4(ip4{from: foreign4, protocol: protoTCP, body: tcp(5000, 80, ack, b.data(0))}, 16, 16)[0], b.v4(ip4{from: foreign4, protocol: protoTCP, sealed: true, flags: 1, body: tcp(5000, 80, syn, b.data(0))[8:]}))

	const loop = "a forwarding namespace delivers it to its own services"
	for _, to := range []string{"127.0.0.1", "127.0.0.53", "127.255.255.255"} {
		b.drop(firewall.LoopbackAddress, 4, "IPv4 UDP to "+to, loop, b.v4(ip4{to: netip.MustParseAddr(to)}))
	}
	b.drop(firewall.LoopbackAddress, 4, "IPv4 TCP to 127.0.0.1", loop, b.v4(ip4{to: netip.MustParseAddr("127.0.0.1"), protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 4, "IPv4 echo request to 127.0.0.1", loop, b.v4(ip4{to: netip.MustParseAddr("127.0.0.1"), protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 4, "IPv4 fragment to 127.0.0.1", loop, b.fragments4(ip4{to: netip.MustParseAddr("127.0.0.1"), body: udp(5000, 5001, b.data(2000))}, 1000, 1000)...)

	const ill = "a filter that misreads the header finds other addresses"
	good := b.v4(ip4{})
	for _, first := range []byte{0x05, 0x35, 0x55, 0x65, 0xf5} {
		b.drop(firewall.Malformed, 4, fmt.Sprintf("IPv4 of version %d", first>>4), ill, withOctets(good, 14, first))
	}
	for _, words := range []byte{0, 1, 4, 15} {
		b.drop(firewall.Malformed, 4, fmt.Sprintf("IPv4 with a header of %d words", words), ill, withOctets(good, 14, 0x40|words))
	}
	b.drop(firewall.Malformed, 4, "IPv4 longer than the frame", ill, withOctets(good, 16, 0x20, 0))
	b.drop(firewall.Malformed, 4, "IPv4 shorter than its header", ill, withOctets(good, 16, 0, 19))
	b.drop(firewall.Malformed, 4, "IPv4 of length 0", ill, withOctets(good, 16, 0, 0))
	b.drop(firewall.Malformed, 4, "IPv4 cut before its source", ill, good[:14+12])
	b.drop(firewall.Malformed, 4, "IPv4 cut in its header", ill, good[:14+19])
	b.drop(firewall.Malformed, 4, "IPv4 without options that it announces", ill, withOctets(good[:14+20], 14, 0x46, 0, 0, 20))
}

// relayed is a DHCPv4 message of a client, through a relay with an address (giaddr).
func relayed(by netip.Addr) []byte {
	b := append(append([]byte{1, 1, 6, 0}, make([]byte, 232)...), 99, 130, 83, 99, 53, 1, 1, 255)
	copy(b[24:], by.AsSlice())
	return b
}

// addServers4 adds messages of DHCP servers, routers and multicast routers.
func (b *builder) addServers4() {
	const server = "the guest hands out addresses and routes (CVE-2016-5362)"
	offer := append(append([]byte{2, 1, 6, 0}, make([]byte, 232)...), 99, 130, 83, 99, 53, 1, 2, 255)
	mark := func() []byte { return append(slices.Clone(offer), b.marker()...) }
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer", server, b.v4(ip4{to: all4, body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer by unicast", server, b.v4(ip4{body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer from another port", server+": clients check the destination port only", b.v4(ip4{to: all4, body: udp(6700, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer to another port", server+": through a relay", b.v4(ip4{body: udp(67, 6800, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer without a checksum", server, b.v4(ip4{to: all4, sealed: true, body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer after options", server+": the ports have another offset", b.v4(ip4{to: all4, options: []byte{1, 1, 1, 0}, body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer after all options", server+": the ports have another offset", b.v4(ip4{to: all4, options: make([]byte, 40), body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer in fragments", server, b.fragments4(ip4{to: all4, body: udp(67, 68, mark())}, 80, 2000)[0])
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer in tiny fragments", server, b.fragments4(ip4{to: all4, body: udp(67, 68, mark())}, 8, 2000)[0])
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer as the gateway", server, b.v4(ip4{from: b.Gateway4, to: all4, body: udp(67, 68, mark())}))
	b.drop(firewall.DHCPServer, 4, "UDP datagram without ports", "a filter cannot see whether a server sent it", b.v4(ip4{sealed: true, body: []byte{0, 67}}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer with UDP length 0", server, b.v4(ip4{to: all4, sealed: true, body: withOctets(udp(67, 68, mark()), 4, 0, 0)}))
	const through = "a relay would send it to the clients of its network"
	b.drop(firewall.DHCPServer, 4, "DHCPv4 offer to a relay", through, b.v4(ip4{body: udp(67, 67, mark())}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 discover of a relay elsewhere", "the answer goes to another host", b.v4(ip4{body: udp(67, 67, append(relayed(foreign4), b.marker()...))}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 discover of a relay to broadcast", "who listens for clients would answer",
		b.v4(ip4{to: all4, options: []byte{1, 1, 1, 0}, body: udp(67, 67, append(relayed(b.own4), b.marker()...))}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 discover of a relay without an address", "a client's message, which no relay sends", b.v4(ip4{body: udp(67, 67, append(relayed(unspecified4), b.marker()...))}))
	b.drop(firewall.DHCPServer, 4, "DHCPv4 discover of a relay to broadcast in a frame to one station", "who listens for clients would answer",
		withDestination(b.Gateway, b.v4(ip4{to: all4, options: []byte{1, 1, 1, 0}, body: udp(67, 67, append(relayed(b.own4), b.marker()...))})))
	if b.Served {
		const around = "a client's message that avoids the responder and reaches other servers"
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover to another server", around, b.v4(ip4{body: udp(68, 67, append(relayed(unspecified4), b.marker()...))}))
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover from another port with another relay's address", around, b.v4(ip4{body: udp(6700, 67, append(relayed(foreign4), b.marker()...))}))
		ask := func(p ip4) [][]byte {
			p.to = all4
			p.body = udp(68, 67, append(append([]byte{1, 1, 6, 0}, make([]byte, 232)...), append([]byte{99, 130, 83, 99, 53, 1, 1, 255}, b.marker()...)...))
			if p.flags == 0 {
				return [][]byte{b.v4(p)}
			}
			p.flags = 0
			return b.fragments4(p, 8, 2000)
		}
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover from its address after options", around, ask(ip4{options: []byte{1, 1, 1, 0}})...)
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover from 0.0.0.0 after options", around, ask(ip4{from: unspecified4, options: []byte{1, 1, 1, 0}})...)
		b.drop(b.taken(b.IPv4, b.asks(b.IPv4, firewall.DHCPRequest)), 4, "DHCPv4 discover in fragments", around, ask(ip4{flags: 0x2000})[0])
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover in fragments after options", around, ask(ip4{flags: 0x2000, options: []byte{1, 1, 1, 0}})[0])
		b.drop(firewall.VLANTag, 4, "DHCPv4 discover with a tag", around, tagged(ask(ip4{from: unspecified4})[0], []byte{0x81, 0, 0, 0}))
		b.drop(b.asks(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover from another port", around, b.v4(ip4{options: []byte{1, 1, 1, 0}, body: udp(6800, 67, b.data(240))}))
	}

	const redirect = "a host takes the guest for its next hop"
	inner := b.v4(ip4{from: b.Gateway4, to: b.Far4})[14:]
	message := icmp(5, 1, b.own4.AsSlice(), inner)
	b.drop(firewall.ICMPRedirect, 4, "ICMP redirect", redirect, b.v4(ip4{to: b.Gateway4, protocol: protoICMP, body: message}))
	b.drop(firewall.ICMPRedirect, 4, "ICMP redirect as the gateway", redirect, b.v4(ip4{from: b.Gateway4, to: b.Gateway4, protocol: protoICMP, body: message}))
	b.drop(firewall.ICMPRedirect, 4, "ICMP redirect after options", redirect, b.v4(ip4{to: b.Gateway4, options: make([]byte, 8), protocol: protoICMP, body: message}))
	b.drop(firewall.ICMPRedirect, 4, "ICMP redirect in fragments", redirect, b.fragments4(ip4{to: b.Gateway4, protocol: protoICMP, body: message}, 8, 64)[0])
	b.drop(firewall.RouterAdvertisement, 4, "ICMP router advertisement", "a host takes the guest for its router (RFC 1256)",
		b.v4(ip4{to: netip.MustParseAddr("224.0.0.1"), protocol: protoICMP, body: icmp(9, 0, []byte{1, 2, 7, 8}, b.own4.AsSlice(), make([]byte, 4))}))

	const snoop = "switches take the guest for the multicast router and send it all groups"
	hosts := netip.MustParseAddr("224.0.0.1")
	alert := []byte{0x94, 4, 0, 0}
	igmp := func(name, why string, to netip.Addr, options []byte, message ...byte) {
		b.drop(firewall.MulticastRouter, 4, name, why, b.v4(ip4{to: to, options: options, protocol: protoIGMP, body: message}))
	}
	igmp("IGMPv1 query", snoop, hosts, nil, 0x11, 0, 0, 0, 0, 0, 0, 0)
	igmp("IGMPv2 query", snoop, hosts, alert, 0x11, 100, 0, 0, 0, 0, 0, 0)
	igmp("IGMPv2 query of a group", snoop, netip.MustParseAddr("239.1.2.3"), alert, 0x11, 100, 0, 0, 239, 1, 2, 3)
	igmp("IGMPv3 query", snoop, hosts, alert, 0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0)
	igmp("IGMP multicast router advertisement", snoop, netip.MustParseAddr("224.0.0.106"), alert, 0x30, 20, 0, 0, 0, 125, 0, 2)
	igmp("IGMP multicast router solicitation", "a host has no use for the answers (RFC 4286)", netip.MustParseAddr("224.0.0.2"), alert, 0x31, 0, 0, 0)
	igmp("IGMP multicast router termination", "switches forget the multicast router", netip.MustParseAddr("224.0.0.106"), alert, 0x32, 0, 0, 0)
	igmp("DVMRP probe", snoop, netip.MustParseAddr("224.0.0.4"), nil, 0x13, 1, 0, 0, 0, 0, 0xff, 3)
	igmp("PIMv1 query", snoop, netip.MustParseAddr("224.0.0.2"), nil, 0x14, 0, 0, 0, 0x10, 0, 0, 0)
	b.drop(firewall.MulticastRouter, 4, "IGMP query from 0.0.0.0", snoop+" (RFC 4541: proxies use this source)", b.v4(ip4{from: unspecified4, to: hosts, options: alert, protocol: protoIGMP, body: []byte{0x11, 100, 0, 0, 0, 0, 0, 0}}))
	b.drop(firewall.MulticastRouter, 4, "IGMP without a type", "a filter cannot see whether it is a query", b.v4(ip4{to: hosts, protocol: protoIGMP, sealed: true, body: []byte{}}))
}
