package frames

import (
	"net/netip"
	"slices"
)

// Legitimate returns what a guest may send on the link, for the address families that the guest has.
func Legitimate(l Link) []Kind {
	b := newBuilder(l)
	b.addRARP()
	b.addStation()
	return b.kinds
}

// addStation adds what every station may send to another one.
func (b *builder) addStation() {
	if b.IPv4.IsValid() {
		b.addNeighbours4()
		b.addTraffic4()
	}
	if b.IPv6.IsValid() {
		b.addNeighbours6()
		b.addTraffic6()
	}
}

// addRARP adds how a hypervisor announces the guest's MAC after a move (announce_self of QEMU).
func (b *builder) addRARP() {
	frame := b.rarp(func(*arp) {})
	b.add(0, "RARP request", "so that switches learn where the guest is", frame)
	b.add(0, "RARP request with padding", "as QEMU sends it, with 60 octets", append(frame, make([]byte, 60-len(frame))...))
}

func (b *builder) addNeighbours4() {
	b.add(4, "ARP request", "to find the gateway", b.arp(func(a *arp) { a.targetIP = b.Gateway4 }))
	b.add(4, "ARP request by unicast", "to see whether a neighbour is still there (RFC 1122 section 2.3.2.1)", b.arp(func(a *arp) {
		a.targetIP, a.destination = b.Gateway4, b.Gateway
	}))
	b.add(4, "ARP reply", "to be found", b.arp(func(a *arp) {
		a.operation, a.target, a.targetIP, a.destination = 2, b.Gateway, b.Gateway4, b.Gateway
	}))
	b.add(4, "ARP probe", "to see whether its address is free (RFC 5227 section 2.1.1)", b.arp(func(a *arp) {
		a.senderIP, a.targetIP = unspecified4, b.own4
	}))
	b.add(4, "ARP probe by unicast", "to see whether a station with this MAC has its address", b.arp(func(a *arp) {
		a.senderIP, a.targetIP, a.destination = unspecified4, b.own4, b.Gateway
	}))
	b.add(4, "ARP announcement", "to announce that its address has moved (RFC 5227 section 2.3)", b.arp(func(a *arp) { a.targetIP = b.own4 }))
	b.add(4, "ARP announcement with its MAC as target", "an announcement, as some systems send it", b.arp(func(a *arp) { a.target, a.targetIP = b.MAC, b.own4 }))
	b.add(4, "gratuitous ARP reply", "an announcement, as some systems send it", b.arp(func(a *arp) {
		a.operation, a.targetIP, a.target = 2, b.own4, broadcast
	}))
	b.add(4, "gratuitous ARP reply with its MAC as target", "an announcement, as some systems send it", b.arp(func(a *arp) {
		a.operation, a.targetIP, a.target = 2, b.own4, b.MAC
	}))
	for _, s := range probeShapes[1:] {
		b.add(4, "ARP probe"+s.name, "as some systems send it", s.frame(b, func(a *arp) { a.senderIP, a.targetIP = unspecified4, b.own4 }))
		b.add(4, "ARP announcement"+s.name, "as some systems send it", s.frame(b, func(a *arp) { a.targetIP = b.own4 }))
	}
	b.add(4, "ARP request with padding", "as a card sends it, with at least 60 octets",
		append(b.arp(func(a *arp) { a.targetIP = b.Gateway4 }), make([]byte, 18)...))
}

func (b *builder) addTraffic4() {
	beyond := func(name, why string, frames ...[]byte) { b.add(4, name, why, frames...).Forwarded = true }
	here := func(name, why string, frames ...[]byte) { b.add(4, name, why, frames...) }

	beyond("IPv4 UDP", "a datagram", b.v4(ip4{}))
	beyond("IPv4 UDP to port 53", "to ask a name server", b.v4(ip4{body: udp(5010, 53, b.data(0))}))
	beyond("IPv4 UDP without a checksum", "RFC 768 allows it", b.v4(ip4{sealed: true, body: udp(5011, 5001, b.data(0))}))
	beyond("IPv4 TCP SYN", "to open a connection", b.v4(ip4{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}))
	beyond("IPv4 TCP ACK", "in a connection from before Setup", b.v4(ip4{protocol: protoTCP, body: tcp(5001, 80, ack, b.data(0))}))
	beyond("IPv4 SCTP INIT", "to open an association", b.v4(ip4{protocol: protoSCTP, body: sctpInit(b.data(20))}))
	beyond("IPv4 echo request", "to ping a host", b.v4(ip4{protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	here("IPv4 echo reply", "to answer a ping", b.v4(ip4{protocol: protoICMP, body: icmp(0, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	inner := b.v4(ip4{from: b.Far4, to: b.own4})[14:]
	here("IPv4 port unreachable", "to say that no process listens", b.v4(ip4{protocol: protoICMP, body: icmp(3, 3, make([]byte, 4), inner)}))
	here("IPv4 fragmentation needed", "for path MTU discovery (RFC 1191)", b.v4(ip4{protocol: protoICMP, body: icmp(3, 4, []byte{0, 0, 5, 0x14}, inner)}))
	here("IPv4 time exceeded", "to be a hop of a traceroute", b.v4(ip4{protocol: protoICMP, body: icmp(11, 0, make([]byte, 4), inner)}))
	here("IPv4 parameter problem", "to say which octet is wrong", b.v4(ip4{protocol: protoICMP, body: icmp(12, 0, make([]byte, 4), inner)}))
	beyond("IPv4 timestamp request", "to ask for a host's time", b.v4(ip4{protocol: protoICMP, body: icmp(13, 0, []byte{0, 3, 0, 1}, make([]byte, 12), b.data(0))}))
	here("IPv4 timestamp reply", "to report its time", b.v4(ip4{protocol: protoICMP, body: icmp(14, 0, []byte{0, 3, 0, 1}, make([]byte, 12), b.data(0))}))
	here("IPv4 extended echo request", "to ask for the state of a host's interface (RFC 8335)", b.v4(ip4{protocol: protoICMP, body: icmp(42, 0, []byte{0, 4, 1, 1}, interfaceObject)}))
	here("IPv4 extended echo reply", "to report the state of its interface", b.v4(ip4{protocol: protoICMP, body: icmp(43, 0, []byte{0, 4, 1, 0x42})}))
	beyond("IPv4 echo request after options", "RFC 791 allows them", b.v4(ip4{options: []byte{1, 1, 1, 0}, protocol: protoICMP, body: icmp(8, 0, []byte{0, 5, 0, 1}, b.data(0))}))
	here("IPv4 port unreachable after options", "RFC 791 allows them", b.v4(ip4{options: make([]byte, 40), protocol: protoICMP, body: icmp(3, 3, make([]byte, 4), inner)}))
	beyond("IPv4 do not fragment", "for path MTU discovery", b.v4(ip4{flags: 0x4000}))
	beyond("IPv4 DSCP and ECN", "for a class of service", b.v4(ip4{tos: 0xb9}))
	beyond("IPv4 with options", "RFC 791 allows them", b.v4(ip4{options: []byte{1, 1, 1, 0}}))
	beyond("IPv4 fragments", "a datagram larger than the MTU", b.fragments4(ip4{body: udp(5000, 5001, b.data(3000))}, 1416, 1416)...)
	beyond("IPv4 TCP fragments", "a segment larger than a path's MTU", b.fragments4(ip4{protocol: protoTCP, body: tcp(5002, 80, ack, b.data(2000))}, 1000, 1000)...)
	beyond("IPv4 ICMP fragments", "an echo request larger than the MTU",
		b.fragments4(ip4{protocol: protoICMP, body: icmp(8, 0, []byte{0, 2, 0, 1}, b.data(3000))}, 1416, 1416)...)
	beyond("IPv4 ICMP fragments, the last one first", "an echo request larger than the MTU, on a path that changes the order",
		reversed(b.fragments4(ip4{protocol: protoICMP, body: icmp(8, 0, []byte{0, 6, 0, 1}, b.data(3000))}, 1416, 1416))...)
	beyond("IPv4 ICMP fragments after options", "an echo request larger than the MTU",
		b.fragments4(ip4{options: []byte{1, 1, 1, 0}, protocol: protoICMP, body: icmp(8, 0, []byte{0, 7, 0, 1}, b.data(3000))}, 1416, 1416)...)
	beyond("IPv4 echo request of the MTU", "to measure a path", b.v4(ip4{flags: 0x4000, protocol: protoICMP, body: icmp(8, 0, []byte{0, 8, 0, 1}, b.data(fullMTU-20-8))}))
	beyond("IPv4 ESP of the MTU", "a tunnel", b.v4(ip4{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 2}, b.data(fullMTU-20-8)...)}))
	beyond("IPv4 UDP of the MTU", "a full datagram", b.v4(ip4{flags: 0x4000, body: udp(5012, 5001, b.data(fullMTU-20-8))}))
	beyond("IPv4 GRE", "a tunnel", b.v4(ip4{protocol: protoGRE, body: append([]byte{0, 0, 8, 0}, b.v4(ip4{})[14:]...)}))
	beyond("IPv4 ESP", "a tunnel", b.v4(ip4{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 1}, b.data(64)...)}))
	beyond("IPv4 in IPv4", "a tunnel", b.v4(ip4{protocol: protoIPIP, body: b.v4(ip4{})[14:]}))
	beyond("IPv6 in IPv4", "a tunnel", b.v4(ip4{protocol: 41, body: b.v6(ip6{})[14:]}))
	beyond("DHCPv4 message of a relay", "the guest relays for stations that it serves", b.v4(ip4{body: udp(67, 67, append(relayed(b.own4), b.marker()...))}))
	beyond("DHCPv4 message of a relay from another port", "RFC 8357", b.v4(ip4{body: udp(5013, 67, append(relayed(b.own4), b.marker()...))}))
	here("IPv4 broadcast", "to find a server", b.v4(ip4{to: all4}))
	here("IPv4 multicast DNS", "to find a service", b.v4(ip4{to: netip.MustParseAddr("224.0.0.251"), body: udp(5353, 5353, b.data(0))}))
	for _, kind := range []struct {
		name string
		body []byte
		to   string
	}{
		{"IGMPv1 report", []byte{0x12, 0, 0, 0, 239, 1, 2, 3}, "239.1.2.3"},
		{"IGMPv2 report", []byte{0x16, 0, 0, 0, 239, 1, 2, 3}, "239.1.2.3"},
		{"IGMP leave", []byte{0x17, 0, 0, 0, 239, 1, 2, 3}, "224.0.0.2"},
		{"IGMPv3 report", []byte{0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3}, "224.0.0.22"},
	} {
		here(kind.name, "to get a group's datagrams", b.v4(ip4{to: netip.MustParseAddr(kind.to), protocol: protoIGMP, options: []byte{0x94, 4, 0, 0}, body: kind.body}))
	}
	if !b.Served {
		discover := append(append([]byte{1, 1, 6, 0}, make([]byte, 232)...), 99, 130, 83, 99, 53, 1, 1, 255)
		here("DHCPv4 discover", "the guest has no responder", b.v4(ip4{from: unspecified4, to: all4, body: udp(68, 67, discover)}))
		here("DHCPv4 renewal", "the guest has no responder", b.v4(ip4{body: udp(68, 67, discover)}))
	}
}

// fullMTU is the MTU of the NICs in tests.
const fullMTU = 1450

// interfaceObject identifies an interface by its index (RFC 8335 section 2.1).
var interfaceObject = []byte{0x20, 0, 0, 0, 0, 8, 3, 2, 0, 0, 0, 1}

func reversed(frames [][]byte) [][]byte {
	slices.Reverse(frames)
	return frames
}

func (b *builder) addNeighbours6() {
	own, lla := b.own6, linkLayer(1, b.MAC)
	for _, a := range []struct {
		name    string
		address netip.Addr
	}{{"its address", own}, {"its link-local address", b.local6}} {
		b.add(6, "duplicate address detection of "+a.name, "before it uses the address (RFC 4862 section 5.4.2)", b.solicitation(unspecified6, solicited(a.address), a.address))
		b.add(6, "duplicate address detection with a nonce of "+a.name, "so that it recognises its own probe (RFC 7527)", b.solicitation(unspecified6, solicited(a.address), a.address, []byte{14, 1, 1, 2, 3, 4, 5, 6}))
		b.add(6, "neighbour advertisement of "+a.name, "to be found", b.advertisement(a.address, b.Gateway6, a.address, 0x60, linkLayer(2, b.MAC)))
		b.add(6, "neighbour advertisement without an option of "+a.name, "to a solicitation by unicast", b.advertisement(a.address, b.Gateway6, a.address, 0x40))
		b.add(6, "neighbour advertisement to all nodes of "+a.name, "to announce that its address has moved", b.advertisement(a.address, nodes, a.address, 0x20, linkLayer(2, b.MAC)))
		b.add(6, "neighbour solicitation from "+a.name, "to find the gateway", b.solicitation(a.address, solicited(b.Gateway6), b.Gateway6, lla))
		b.add(6, "neighbour solicitation by unicast from "+a.name, "to see whether a neighbour is still there", b.solicitation(a.address, b.Gateway6, b.Gateway6))
	}
	const skipped = "receivers skip options that they do not know (RFC 4861 section 4.6)"
	for _, m := range b.discovery(own) {
		var before, after [][]byte
		for _, o := range [][]byte{unknown(14, 1), unknown(14, 2), unknown(31, 2), unknown(32, 1), unknown(33, 2), unknown(38, 2), unknown(253, 1), unknown(254, 3)} {
			if m.bare {
				before = append(before, m.frame(o))
				after = append(after, m.frame(unknown(253, 2), o))
				continue
			}
			before = append(before, m.frame(o, linkLayer(m.option, b.MAC)))
			after = append(after, m.frame(linkLayer(m.option, b.MAC), o))
		}
		if m.bare {
			b.add(6, m.name+" with an unknown option", skipped, before...)
			b.add(6, m.name+" with two unknown options", skipped, after...)
			b.add(6, m.name+" with many unknown options", skipped, m.frame(slices.Repeat([][]byte{unknown(254, 1)}, 6)...), m.frame(unknown(253, 6)))
			continue
		}
		b.add(6, m.name+" with an unknown option before its MAC", skipped, before...)
		b.add(6, m.name+" with an unknown option after its MAC", skipped, after...)
		b.add(6, m.name+" with unknown options before and after its MAC", skipped, m.frame(unknown(33, 2), linkLayer(m.option, b.MAC), unknown(253, 3)))
		b.add(6, m.name+" with an unknown option alone", skipped, m.frame(unknown(253, 2)))
		units := byte((72 - m.fixed) / 8) // in the longest payload below 80 octets
		b.add(6, m.name+" with many unknown options", skipped,
			m.frame(append(slices.Repeat([][]byte{unknown(254, 1)}, int(units)-1), linkLayer(m.option, b.MAC))...),
			m.frame(linkLayer(m.option, b.MAC), unknown(253, units-1)), m.frame(unknown(253, units-1), linkLayer(m.option, b.MAC)))
	}
	report := icmp(143, 0, []byte{0, 0, 0, 1, 4, 0, 0, 0}, solicited(own).AsSlice())
	b.add(6, "MLDv2 report", "to get a group's datagrams", b.v6(ip6{from: b.local6, to: mldv2, hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6, body: report}))
	b.add(6, "MLDv2 report from ::", "before it has an address (RFC 3590)", b.v6(ip6{from: unspecified6, to: mldv2, hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6, body: report}))
	b.add(6, "MLDv1 report", "to get a group's datagrams", b.v6(ip6{from: b.local6, to: solicited(own), hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6,
		body: icmp(131, 0, make([]byte, 4), solicited(own).AsSlice())}))
	b.add(6, "MLD done", "to leave the group", b.v6(ip6{from: b.local6, to: routers, hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6,
		body: icmp(132, 0, make([]byte, 4), solicited(own).AsSlice())}))
}

func (b *builder) addTraffic6() {
	beyond := func(name, why string, frames ...[]byte) { b.add(6, name, why, frames...).Forwarded = true }
	here := func(name, why string, frames ...[]byte) { b.add(6, name, why, frames...) }

	beyond("IPv6 UDP", "a datagram", b.v6(ip6{}))
	beyond("IPv6 UDP to port 53", "to ask a name server", b.v6(ip6{body: udp(5010, 53, b.data(0))}))
	beyond("IPv6 TCP SYN", "to open a connection", b.v6(ip6{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}))
	beyond("IPv6 TCP ACK", "in a connection from before Setup", b.v6(ip6{protocol: protoTCP, body: tcp(5001, 80, ack, b.data(0))}))
	beyond("IPv6 SCTP INIT", "to open an association", b.v6(ip6{protocol: protoSCTP, body: sctpInit(b.data(20))}))
	beyond("IPv6 echo request", "to ping a host", b.v6(ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	here("IPv6 echo reply", "to answer a ping", b.v6(ip6{protocol: protoICMPv6, body: icmp(129, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	inner := b.v6(ip6{from: b.Far6, to: b.own6})[14:]
	for i, name := range []string{"destination unreachable", "packet too big", "time exceeded", "parameter problem"} {
		here("IPv6 "+name, "an error (RFC 4443 section 3)", b.v6(ip6{protocol: protoICMPv6, body: icmp(uint8(i+1), 0, []byte{0, 0, 5, 0}, inner)}))
	}
	here("IPv6 extended echo request", "to ask for the state of a host's interface (RFC 8335)", b.v6(ip6{protocol: protoICMPv6, body: icmp(160, 0, []byte{0, 4, 1, 1}, interfaceObject)}))
	here("IPv6 extended echo reply", "to report the state of its interface", b.v6(ip6{protocol: protoICMPv6, body: icmp(161, 0, []byte{0, 4, 1, 0x42})}))
	beyond("IPv6 echo request after options", "RFC 8200 allows them", b.v6(ip6{before: []extension{options}, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 5, 0, 1}, b.data(0))}))
	beyond("IPv6 ICMP fragments, the last one first", "an echo request larger than the MTU, on a path that changes the order",
		reversed(b.fragments6(ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 6, 0, 1}, b.data(3000))}, 1400, 1400))...)
	beyond("IPv6 echo request of the MTU", "to measure a path", b.v6(ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 8, 0, 1}, b.data(fullMTU-40-8))}))
	beyond("IPv6 ESP of the MTU", "a tunnel", b.v6(ip6{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 2}, b.data(fullMTU-40-8)...)}))
	beyond("IPv6 UDP of the MTU", "a full datagram", b.v6(ip6{body: udp(5012, 5001, b.data(fullMTU-40-8))}))
	beyond("IPv6 traffic class", "for a class of service", b.v6(ip6{class: 0xb8}))
	beyond("IPv6 fragments", "a datagram larger than the MTU", b.fragments6(ip6{body: udp(5000, 5001, b.data(3000))}, 1400, 1400)...)
	beyond("IPv6 ICMP fragments", "an echo request larger than the MTU",
		b.fragments6(ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 2, 0, 1}, b.data(3000))}, 1400, 1400)...)
	beyond("IPv6 atomic fragment", "a host must accept it (RFC 6946)", b.v6(ip6{before: []extension{atomic}}))
	beyond("IPv6 destination options", "RFC 8200 allows them", b.v6(ip6{before: []extension{options}}))
	beyond("IPv6 hop-by-hop options", "RFC 8200 allows them", b.v6(ip6{before: []extension{hop}}))
	beyond("IPv6 AH", "an authenticated datagram", b.v6(ip6{before: []extension{authentic}}))
	beyond("IPv6 ESP", "a tunnel", b.v6(ip6{protocol: protoESP, body: append([]byte{0, 0, 1, 0, 0, 0, 0, 1}, b.data(64)...)}))
	beyond("IPv6 in IPv6", "a tunnel", b.v6(ip6{protocol: 41, body: b.v6(ip6{})[14:]}))
	beyond("IPv6 GRE", "a tunnel", b.v6(ip6{protocol: protoGRE, body: append([]byte{0, 0, 0x86, 0xdd}, b.v6(ip6{})[14:]...)}))
	beyond("DHCPv6 message of a relay", "the guest relays for stations that it serves", b.v6(ip6{body: udp(547, 547, append([]byte{12}, b.data(40)...))}))
	here("IPv6 multicast DNS", "to find a service", b.v6(ip6{from: b.local6, to: netip.MustParseAddr("ff02::fb"), body: udp(5353, 5353, b.data(0))}))
	here("IPv6 echo request to all nodes", "to ping a host", b.v6(ip6{from: b.local6, to: nodes, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 3, 0, 1}, b.data(0))}))
	if !b.Served {
		solicit := []byte{1, 0, 0, 1, 0, 8, 0, 2, 0, 0}
		here("DHCPv6 solicit", "the guest has no responder", b.v6(ip6{from: b.local6, to: dhcp6Servers, body: udp(546, 547, solicit)}))
		here("router solicitation", "the guest has no responder", b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), linkLayer(1, b.MAC))))
		here("router solicitation from ::", "the guest has no responder", b.neighbour(unspecified6, routers, icmp(133, 0, make([]byte, 4))))
	}
}
