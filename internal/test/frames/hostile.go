package frames

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Hostile returns the kinds that the guest filter must drop.
func Hostile(l Link) []Kind {
	b := newBuilder(l)
	b.addForeignMACs()
	b.addLayer2()
	b.addHostileARP()
	b.addHostileRARP()
	b.addForeignSources4()
	b.addServers4()
	b.addICMP4()
	b.addForeignSources6()
	b.addRouters6()
	b.addDiscovery6()
	b.addDiscoveryOptions6()
	b.addServers6()
	if b.MTU > 0 {
		b.addLong()
	}
	return b.kinds
}

// addForeignMACs adds frames with a source MAC that is not the guest's.
func (b *builder) addForeignMACs() {
	const why = "a switch then sends the MAC owner's frames to the guest"
	for _, s := range []struct {
		name string
		mac  cache.MAC
	}{
		{"another's MAC", otherMAC},
		{"the gateway's MAC", b.Gateway},
		{"a neighbouring MAC", cache.MAC{b.MAC[0], b.MAC[1], b.MAC[2], b.MAC[3], b.MAC[4], b.MAC[5] ^ 1}},
		{"its MAC as a group's", cache.MAC{b.MAC[0] | 1, b.MAC[1], b.MAC[2], b.MAC[3], b.MAC[4], b.MAC[5]}},
		{"the broadcast MAC", broadcast},
		{"no MAC", cache.MAC{}},
	} {
		b.drop(firewall.MACSpoof, 4, "IPv4 from "+s.name, why, withSource(s.mac, b.v4(ip4{})))
		b.drop(firewall.MACSpoof, 6, "IPv6 from "+s.name, why, withSource(s.mac, b.v6(ip6{})))
		b.drop(firewall.MACSpoof, 4, "ARP from "+s.name, why, b.arp(func(a *arp) { a.station = s.mac }))
	}
	b.drop(firewall.MACSpoof, 6, "neighbour solicitation from another's MAC", why, withSource(otherMAC, b.solicitation(b.local6, solicited(b.Gateway6), b.Gateway6)))
}

// addLayer2 adds frames that are neither IP nor ARP, or whose EtherType is wrong.
func (b *builder) addLayer2() {
	add := func(reason firewall.Reason, name, why string, frame []byte) { b.drop(reason, 0, name, why, frame) }
	vlan := func(kind uint16, id byte) []byte { return []byte{byte(kind >> 8), byte(kind), 0, id} }
	const hop = "the frame enters another VLAN, which has no filter for this guest"
	add(firewall.VLANTag, "802.1Q tag", hop, tagged(b.v4(ip4{}), vlan(0x8100, 5)))
	add(firewall.VLANTag, "802.1Q tag, IPv6", hop, tagged(b.v6(ip6{}), vlan(0x8100, 5)))
	add(firewall.VLANTag, "802.1Q tag, ARP", hop, tagged(b.arp(func(*arp) {}), vlan(0x8100, 5)))
	add(firewall.VLANTag, "802.1Q priority tag", "a tag hides the packet from a filter of EtherTypes", tagged(b.v4(ip4{from: foreign4}), vlan(0x8100, 0)))
	add(firewall.VLANTag, "802.1ad tag", hop, tagged(b.v4(ip4{}), vlan(0x88a8, 5)))
	add(firewall.VLANTag, "802.1ad and 802.1Q tags", hop, tagged(b.v4(ip4{}), vlan(0x88a8, 5), vlan(0x8100, 6)))
	add(firewall.VLANTag, "two 802.1Q tags", "the first switch removes one tag (VLAN hopping)", tagged(b.v4(ip4{}), vlan(0x8100, 1), vlan(0x8100, 6)))
	add(firewall.EtherTypeOther, "QinQ tag 0x9100", hop, tagged(b.v4(ip4{}), vlan(0x9100, 5)))
	add(firewall.VLANTag, "802.1Q tag, router advertisement", hop, tagged(b.neighbour(b.local6, nodes, advertisement(b.MAC)), vlan(0x8100, 0)))

	logical := func(to cache.MAC, llc ...byte) []byte { return ethernet(to, b.MAC, uint16(len(llc)), llc) }
	stp := []byte{0x42, 0x42, 3, 0, 0, 0, 0, 0, 0x10, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x10, 0, 2, 0, 0, 0, 0, 1, 0x80, 1, 0, 0, 20, 0, 2, 0, 15, 0}
	add(firewall.BridgeControl, "spanning tree", "the guest becomes the root bridge", logical(cache.MAC{1, 0x80, 0xc2, 0, 0, 0}, stp...))
	add(firewall.EtherTypeOther, "spanning tree to a station", "the guest becomes the root bridge, past a filter of destinations", logical(b.Gateway, stp...))
	add(firewall.EtherTypeOther, "spanning tree of another vendor", "the guest becomes the root bridge (PVST+)", logical(cache.MAC{1, 0, 0x0c, 0xcc, 0xcc, 0xcd}, append([]byte{0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b}, stp[3:]...)...))
	add(firewall.EtherTypeOther, "CDP", "the guest is a switch or a telephone", logical(cache.MAC{1, 0, 0x0c, 0xcc, 0xcc, 0xcc}, 0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0, 2, 180, 0, 0))
	add(firewall.EtherTypeOther, "NetBIOS over LLC", "a protocol that no filter knows", logical(broadcast, 0xf0, 0xf0, 3, 0x2c, 0, 0xff, 0xef, 8))
	add(firewall.EtherTypeOther, "SNAP with IPv4", "RFC 1042: IPv4 without IPv4's EtherType",
		logical(b.Gateway, append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, b.v4(ip4{from: foreign4})[14:]...)...))
	for _, kind := range []struct {
		name   string
		number uint16
		why    string
	}{
		{"LLDP", 0x88cc, "the guest is a switch"},
		{"EAPOL", 0x888e, "it logs in or out for the port (802.1X)"},
		{"PPPoE discovery", 0x8863, "it offers an access concentrator"},
		{"PPPoE session", 0x8864, "IP without IP's EtherType"},
		{"MPLS", 0x8847, "IP without IP's EtherType"},
		{"MPLS multicast", 0x8848, "IP without IP's EtherType"},
		{"slow protocols", 0x8809, "it negotiates a link aggregation (LACP)"},
		{"pause", 0x8808, "it stops the switch's port (802.3x)"},
		{"MACsec", 0x88e5, "encrypted, so that no filter can read it"},
		{"TRILL", 0x22f3, "it takes part in the fabric's routing"},
		{"PTP", 0x88f7, "it becomes the clock"},
		{"FCoE", 0x8906, "it speaks to the storage"},
		{"RoCE", 0x8915, "it speaks to the storage"},
		{"AoE", 0x88a2, "it speaks to the storage"},
		{"IPX", 0x8137, "a protocol that no filter knows"},
		{"Wake-on-LAN", 0x0842, "it switches machines on"},
		{"loopback", 0x9000, "a switch that sees its own frame takes its port down"},
		{"batman-adv", 0x4305, "it takes part in the mesh's routing"},
		{"an experiment's EtherType", 0x88b5, "a protocol that no filter knows"},
		{"EtherType 0xffff", 0xffff, "a protocol that no filter knows"},
		{"EtherType 0x0600", 0x0600, "a protocol that no filter knows"},
	} {
		add(firewall.EtherTypeOther, kind.name, kind.why, ethernet(broadcast, b.MAC, kind.number, b.data(46)))
	}
	for _, last := range []byte{0x00, 0x01, 0x02, 0x03, 0x0e, 0x0f, 0x20, 0x21, 0x2f} {
		add(firewall.BridgeControl, fmt.Sprintf("IPv4 to 01:80:c2:00:00:%02x", last), "a bridge handles it as a control frame (802.1D section 7.12.6, 802.1Q)",
			withDestination(cache.MAC{1, 0x80, 0xc2, 0, 0, last}, b.v4(ip4{})))
	}
	for _, k := range []struct {
		name  string
		frame []byte
	}{
		{"IPv4 TCP", b.v4(ip4{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})},
		{"IPv6 TCP", b.v6(ip6{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})},
		{"IPv6 UDP", b.v6(ip6{})},
	} {
		add(firewall.BridgeControl, k.name+" to a bridge", "a bridge handles it as a control frame", withDestination(cache.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, k.frame))
	}
	add(firewall.BridgeControl, "LLDP to a bridge", "the guest is a switch", ethernet(cache.MAC{1, 0x80, 0xc2, 0, 0, 0x0e}, b.MAC, 0x88cc, []byte{2, 7, 4}, b.MAC[:], []byte{4, 2, 7, 'x', 6, 2, 0, 120, 0, 0}))
	add(firewall.BridgeControl, "LACP to a bridge", "it negotiates a link aggregation", ethernet(cache.MAC{1, 0x80, 0xc2, 0, 0, 2}, b.MAC, 0x8809, []byte{1, 1, 1, 20}, make([]byte, 106)))
	add(firewall.Malformed, "an Ethernet header alone", "no payload for a filter to read", ethernet(broadcast, b.MAC, typeIPv4))
	add(firewall.Malformed, "an Ethernet header alone, ARP", "no payload for a filter to read", ethernet(broadcast, b.MAC, typeARP))
	add(firewall.Malformed, "an Ethernet header alone, IPv6", "no payload for a filter to read", ethernet(broadcast, b.MAC, typeIPv6))
	add(firewall.Malformed, "IPv6 that says it is IPv4", "a filter of IPv4 reads the address from other octets", withOctets(b.v6(ip6{}), 12, 8, 0))
	add(firewall.Malformed, "IPv4 that says it is IPv6", "a filter of IPv6 reads the address from other octets", withOctets(b.v4(ip4{}), 12, 0x86, 0xdd))
	add(firewall.Malformed, "IPv4 that says it is ARP", "a filter of ARP reads the address from other octets", withOctets(b.v4(ip4{}), 12, 8, 6))
	add(firewall.Malformed, "ARP that says it is IPv4", "a filter of IPv4 reads the address from other octets", withOctets(b.arp(func(*arp) {}), 12, 8, 0))
	add(firewall.EtherTypeOther, "a jumbo frame of nothing", "larger than the link's MTU", ethernet(b.Gateway, b.MAC, 0x88b6, make([]byte, 9000)))
	add(firewall.IPSpoof, "a jumbo frame from a foreign source", "larger than the link's MTU", b.v4(ip4{from: foreign4, body: udp(5000, 5001, b.data(9000))}))
}

func (b *builder) addHostileARP() {
	const poison = "neighbours then send another station's packets to the guest"
	add := func(reason firewall.Reason, name, why string, change func(*arp)) {
		b.drop(reason, 4, name, why, b.arp(change))
	}
	neighbour := b.Gateway4.Next()
	for neighbour == b.own4 {
		neighbour = neighbour.Next()
	}
	add(firewall.ARPSpoof, "ARP request in another's name", poison, func(a *arp) { a.senderIP = neighbour })
	add(firewall.ARPSpoof, "ARP request in the gateway's name", poison, func(a *arp) { a.senderIP = b.Gateway4 })
	add(firewall.ARPSpoof, "ARP reply in another's name", poison, func(a *arp) { a.operation, a.senderIP, a.target, a.destination = 2, neighbour, b.Gateway, b.Gateway })
	add(firewall.ARPSpoof, "ARP reply in the gateway's name", poison, func(a *arp) { a.operation, a.senderIP = 2, b.Gateway4 })
	add(firewall.ARPSpoof, "ARP reply of a foreign address", poison, func(a *arp) { a.operation, a.senderIP = 2, foreign4 })
	add(firewall.ARPSpoof, "gratuitous ARP request in another's name", poison, func(a *arp) { a.senderIP, a.targetIP = neighbour, neighbour })
	add(firewall.ARPSpoof, "gratuitous ARP request in the gateway's name", poison, func(a *arp) { a.senderIP, a.targetIP = b.Gateway4, b.Gateway4 })
	add(firewall.ARPSpoof, "gratuitous ARP reply in another's name", poison, func(a *arp) { a.operation, a.senderIP, a.targetIP, a.target = 2, neighbour, neighbour, broadcast })
	add(firewall.ARPSpoof, "gratuitous ARP reply in the gateway's name", poison, func(a *arp) { a.operation, a.senderIP, a.targetIP, a.target = 2, b.Gateway4, b.Gateway4, broadcast })
	add(firewall.ARPSpoof, "ARP request with another's MAC inside", "its own address moves to another station", func(a *arp) { a.sender = otherMAC })
	add(firewall.ARPSpoof, "ARP reply with another's MAC inside", "its own address moves to another station", func(a *arp) { a.operation, a.sender = 2, otherMAC })
	add(firewall.ARPSpoof, "ARP request with the gateway's MAC inside", "its own address moves to another station", func(a *arp) { a.sender = b.Gateway })
	add(firewall.ARPSpoof, "ARP reply with no MAC inside", "its own address becomes unreachable", func(a *arp) { a.operation, a.sender = 2, cache.MAC{} })
	add(firewall.ARPSpoof, "ARP reply with the broadcast MAC inside", "its own address is sent to all", func(a *arp) { a.operation, a.sender = 2, broadcast })
	add(firewall.ARPSpoof, "ARP reply with a group's MAC inside", "its own address is sent to many", func(a *arp) { a.operation, a.sender = 2, cache.MAC{1, 0, 0x5e, 0, 0, 1} })
	add(firewall.ARPSpoof, "ARP probe with another's MAC inside", "another station seems to want the address", func(a *arp) { a.sender, a.senderIP = otherMAC, unspecified4 })
	add(firewall.ARPSpoof, "ARP reply from 0.0.0.0", "only a probe has this sender", func(a *arp) { a.operation, a.senderIP = 2, unspecified4 })
	add(firewall.ARPSpoof, "ARP from 127.0.0.1", "an address that no station on a link has", func(a *arp) { a.senderIP = netip.MustParseAddr("127.0.0.1") })
	add(firewall.ARPSpoof, "ARP from the broadcast address", "an address that no station has", func(a *arp) { a.senderIP = all4 })
	add(firewall.ARPSpoof, "ARP from a group", "an address that no station has", func(a *arp) { a.senderIP = netip.MustParseAddr("224.0.0.1") })
	add(firewall.Malformed, "ARP for another kind of hardware", "the fields have other offsets", func(a *arp) { a.hardware = 6 })
	add(firewall.Malformed, "ARP for no kind of hardware", "the fields have other offsets", func(a *arp) { a.hardware = 0 })
	add(firewall.Malformed, "ARP for IPv6", "the fields have other offsets", func(a *arp) { a.protocol = typeIPv6 })
	add(firewall.Malformed, "ARP for trailers", "the fields have other offsets (RFC 893)", func(a *arp) { a.protocol = 0x1001 })
	add(firewall.Malformed, "ARP with short hardware addresses", "the addresses have other offsets", func(a *arp) { a.lengths[0] = 4 })
	add(firewall.Malformed, "ARP with no hardware addresses", "the addresses have other offsets", func(a *arp) { a.lengths[0] = 0 })
	add(firewall.Malformed, "ARP with long addresses", "the addresses have other offsets", func(a *arp) { a.lengths[1] = 16 })
	add(firewall.Malformed, "ARP with no addresses", "the addresses have other offsets", func(a *arp) { a.lengths[1] = 0 })
	for _, operation := range []uint16{0, 3, 4, 8, 9, 10, 25, 0x100, 0x102, 0xffff} {
		add(firewall.Malformed, fmt.Sprintf("ARP operation %d", operation), "neither a request nor a reply", func(a *arp) { a.operation = operation })
	}
	const deny = "a station that detects conflicts gives the address up (RFC 5227 section 2.1.1)"
	for _, target := range []struct {
		name    string
		address netip.Addr
	}{
		{"a neighbour's address", neighbour},
		{"the gateway's address", b.Gateway4},
		{"the address after its own", b.own4.Next()},
		{"an address near its own", b.own4.Prev().Prev()},
		{"a foreign address", foreign4},
		{"a link-local address", netip.MustParseAddr("169.254.9.9")},
		{"no address", unspecified4},
		{"the broadcast address", all4},
	} {
		for _, s := range probeShapes {
			b.drop(firewall.ARPSpoof, 4, "ARP probe for "+target.name+s.name, deny, s.frame(b, func(a *arp) { a.senderIP, a.targetIP = unspecified4, target.address }))
		}
		b.drop(firewall.ARPSpoof, 4, "ARP probe for "+target.name+" by unicast", deny, b.arp(func(a *arp) {
			a.senderIP, a.targetIP, a.destination = unspecified4, target.address, b.Gateway
		}))
	}
	if !b.IPv4.IsValid() {
		add(firewall.ARPSpoof, "ARP probe without an address of its own", deny, func(a *arp) { a.senderIP, a.targetIP = unspecified4, b.own4 })
	}
	whole := b.arp(func(a *arp) { a.senderIP, a.targetIP = unspecified4, b.own4 })
	for _, n := range []int{14 + 18, 14 + 24, 14 + 27} {
		b.drop(firewall.ARPSpoof, 4, fmt.Sprintf("ARP probe cut to %d octets", n), "its target is missing", whole[:n])
	}
	whole = b.arp(func(*arp) {})
	for _, n := range []int{14 + 8, 14 + 14, 14 + 17} {
		b.drop(firewall.ARPSpoof, 4, fmt.Sprintf("ARP cut to %d octets", n), "its sender is missing", whole[:n])
	}
}

// addHostileRARP adds what a hypervisor does not send for its guest after a move.
func (b *builder) addHostileRARP() {
	const switches = "a switch then sends the MAC owner's frames to the guest"
	add := func(reason firewall.Reason, name, why string, change func(*arp)) {
		b.drop(reason, 0, name, why, b.rarp(change))
	}
	add(firewall.MACSpoof, "RARP request from another's MAC", switches, func(a *arp) { a.station = otherMAC })
	add(firewall.MACSpoof, "RARP request of another's, from another's MAC", switches, func(a *arp) { a.station, a.sender, a.target = otherMAC, otherMAC, otherMAC })
	add(firewall.ARPSpoof, "RARP request of another's", "a server gives the address to the guest (RFC 903)", func(a *arp) { a.sender, a.target = otherMAC, otherMAC })
	add(firewall.ARPSpoof, "RARP request in another's name", switches, func(a *arp) { a.sender = otherMAC })
	add(firewall.ARPSpoof, "RARP request for another's address", "a server answers with it", func(a *arp) { a.target = otherMAC })
	add(firewall.ARPSpoof, "RARP request with an address", "a station may take the sender for a neighbour", func(a *arp) { a.senderIP = b.Gateway4 })
	add(firewall.ARPSpoof, "RARP request with its own address", "a station may take the sender for a neighbour", func(a *arp) { a.senderIP = b.own4 })
	add(firewall.ARPSpoof, "RARP request with a target's address", "a station may take the target for a neighbour", func(a *arp) { a.targetIP = b.Gateway4 })
	for _, operation := range []uint16{0, 1, 2, 4, 8, 9, 0x103, 0x300, 0xffff} {
		add(firewall.Malformed, fmt.Sprintf("RARP operation %d", operation), "it can hand out addresses (RFC 903)", func(a *arp) { a.operation = operation })
	}
	add(firewall.Malformed, "RARP for another kind of hardware", "the fields have other offsets", func(a *arp) { a.hardware = 6 })
	add(firewall.Malformed, "RARP for IPv6", "the fields have other offsets", func(a *arp) { a.protocol = typeIPv6 })
	add(firewall.Malformed, "RARP with long addresses", "the addresses have other offsets", func(a *arp) { a.lengths[1] = 16 })
	b.drop(firewall.Malformed, 0, "RARP of no fields", "a protocol that no filter reads", ethernet(broadcast, b.MAC, typeRARP, b.data(46)))
	whole := b.rarp(func(*arp) {})
	b.drop(firewall.Malformed, 0, "RARP cut in its head", "its operation is missing", whole[:14+7])
	for _, n := range []int{14 + 8, 14 + 14, 14 + 27} {
		b.drop(firewall.ARPSpoof, 0, fmt.Sprintf("RARP cut to %d octets", n), "its target is missing", whole[:n])
	}
	tag := []byte{0x81, 0, 0, 5}
	b.drop(firewall.VLANTag, 0, "802.1Q tag, RARP", "the frame enters another VLAN, which has no filter for this guest", tagged(whole, tag))
}

// shape is a form in which clients send ARP probes and announcements.
type shape struct {
	name   string // empty, or begins with a space
	target cache.MAC
	padded bool
}

var probeShapes = []shape{
	{name: ""},                            // dhcpcd, systemd-networkd, NetworkManager
	{name: " with padding", padded: true}, // udhcpc, and Windows by a card
	{name: " with the broadcast MAC as target", target: broadcast}, // arping
	{name: " with the broadcast MAC as target and padding", target: broadcast, padded: true},
}

func (s shape) frame(b *builder, change func(*arp)) []byte {
	frame := b.arp(func(a *arp) {
		a.target = s.target
		change(a)
	})
	if s.padded {
		frame = append(frame, make([]byte, 60-len(frame))...)
	}
	return frame
}

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
		b.drop(firewall.IPSpoof, 4, "IPv4 from "+s.name, spoof, b.v4(ip4{from: netip.MustParseAddr(s.address)}))
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
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover to another server", around, b.v4(ip4{body: udp(68, 67, append(relayed(unspecified4), b.marker()...))}))
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover from another port with another relay's address", around, b.v4(ip4{body: udp(6700, 67, append(relayed(foreign4), b.marker()...))}))
		ask := func(p ip4) [][]byte {
			p.to = all4
			p.body = udp(68, 67, append(append([]byte{1, 1, 6, 0}, make([]byte, 232)...), append([]byte{99, 130, 83, 99, 53, 1, 1, 255}, b.marker()...)...))
			if p.flags == 0 {
				return [][]byte{b.v4(p)}
			}
			p.flags = 0
			return b.fragments4(p, 8, 2000)
		}
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover from its address after options", around, ask(ip4{options: []byte{1, 1, 1, 0}})...)
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover from 0.0.0.0 after options", around, ask(ip4{from: unspecified4, options: []byte{1, 1, 1, 0}})...)
		b.drop(b.taken(b.IPv4, firewall.DHCPRequest), 4, "DHCPv4 discover in fragments", around, ask(ip4{flags: 0x2000})[0])
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover in fragments after options", around, ask(ip4{flags: 0x2000, options: []byte{1, 1, 1, 0}})[0])
		b.drop(firewall.VLANTag, 4, "DHCPv4 discover with a tag", around, tagged(ask(ip4{from: unspecified4})[0], []byte{0x81, 0, 0, 0}))
		b.drop(firewall.DHCPRequest, 4, "DHCPv4 discover from another port", around, b.v4(ip4{options: []byte{1, 1, 1, 0}, body: udp(6800, 67, b.data(240))}))
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

func (b *builder) addForeignSources6() {
	const spoof = "the answers, or the blame, go to another station"
	for _, s := range []struct{ name, address string }{
		{"a foreign source", foreign6.String()},
		{"another's source", b.own6.Next().Next().String()},
		{"the gateway's source", b.Gateway6.String()},
		{"a foreign link-local source", foreign6l.String()},
		{"the gateway's link-local source", eui64.LinkLocal(b.Gateway).String()},
		{"source ::1", "::1"},
		{"source ::", "::"},
		{"source ::ffff:127.0.0.1", "::ffff:127.0.0.1"},
		{"source ::ffff:203.0.113.66", "::ffff:203.0.113.66"},
		{"source ::203.0.113.66", "::203.0.113.66"},
		{"a group's source", "ff02::1"},
		{"a site-local source", "fec0::66"},
		{"a source of 6to4", "2002:cb00:7142::1"},
		{"a source of NAT64", "64:ff9b::203.0.113.66"},
	} {
		b.drop(firewall.IPSpoof, 6, "IPv6 from "+s.name, spoof, b.v6(ip6{from: netip.MustParseAddr(s.address)}))
	}
	sources := func(name string, p ip6) {
		p.from = foreign6
		b.drop(firewall.IPSpoof, 6, name+" from a foreign source", spoof, b.v6(p))
	}
	sources("IPv6 TCP SYN", ip6{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})
	sources("IPv6 echo request", ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(0))})
	sources("IPv6 packet too big", ip6{protocol: protoICMPv6, body: icmp(2, 0, []byte{0, 0, 5, 0}, b.v6(ip6{})[14:])})
	sources("IPv6 SCTP", ip6{protocol: protoSCTP, body: sctpInit(b.data(20))})
	sources("IPv6 ESP", ip6{protocol: protoESP, body: b.data(64)})
	sources("IPv6 in IPv6", ip6{protocol: 41, body: b.v6(ip6{})[14:]})
	sources("IPv6 without a next header", ip6{protocol: noNext, body: b.data(16)})
	b.drop(firewall.Malformed, 6, "IPv6 protocol 255 from a foreign source", spoof, b.v6(ip6{from: foreign6, protocol: 255, body: b.data(64)}))
	sources("IPv6 multicast", ip6{to: netip.MustParseAddr("ff02::fb")})
	for _, e := range extensions {
		sources("IPv6 UDP after "+e.name, ip6{before: e.headers})
		sources("IPv6 TCP after "+e.name, ip6{before: e.headers, protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})
	}
	sources("IPv6 after an authentication header", ip6{before: []extension{authentic}})
	pieces := b.fragments6(ip6{from: foreign6, body: udp(5000, 5001, b.data(2000))}, 1000, 1000)
	b.drop(firewall.IPSpoof, 6, "first IPv6 fragment from a foreign source", spoof, pieces[0])
	b.drop(firewall.IPSpoof, 6, "later IPv6 fragment from a foreign source", "a filter that needs ports lets it pass", pieces[1])
	b.drop(firewall.IPSpoof, 6, "IPv6 fragments from a foreign source", spoof, pieces...)
	b.drop(firewall.IPSpoof, 6, "tiny IPv6 fragments from a foreign source", spoof, b.fragments6(ip6{from: foreign6, protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}, 8, 16)...)

	const loop = "a forwarding namespace delivers it to its own services"
	b.drop(firewall.LoopbackAddress, 6, "IPv6 UDP to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback()}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 TCP to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback(), protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 echo request to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback(), protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 fragments to ::1", loop, b.fragments6(ip6{to: netip.IPv6Loopback(), body: udp(5000, 5001, b.data(2000))}, 1000, 1000)...)
	b.drop(firewall.LoopbackAddress, 6, "IPv6 to ::ffff:127.0.0.1", loop, b.v6(ip6{to: netip.MustParseAddr("::ffff:127.0.0.1")}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 to ::ffff:198.51.100.9", "an IPv4 address that an IPv6 filter does not look for", b.v6(ip6{to: netip.MustParseAddr("::ffff:198.51.100.9")}))

	const ill = "a filter that misreads the header finds other addresses"
	good := b.v6(ip6{})
	for _, version := range []byte{0, 4, 5, 7, 15} {
		b.drop(firewall.Malformed, 6, fmt.Sprintf("IPv6 of version %d", version), ill, withOctets(good, 14, version<<4))
	}
	b.drop(firewall.Malformed, 6, "IPv6 longer than the frame", ill, withOctets(good, 18, 0x20, 0))
	b.drop(firewall.Malformed, 6, "IPv6 cut before its source", ill, good[:14+8])
	b.drop(firewall.Malformed, 6, "IPv6 cut in its header", ill, good[:14+39])
	b.drop(firewall.Malformed, 6, "IPv6 with a chain that does not end", "a filter that gives up lets it pass", b.raw6(ip6{}, destination, []byte{destination, 200, 1, 4, 0, 0, 0, 0}))
	b.drop(firewall.Malformed, 6, "IPv6 with a chain of nothing", "a filter that gives up lets it pass", b.raw6(ip6{}, hopByHop, nil))
}

// extensions are header chains that hide a message from a simple filter.
var extensions = []struct {
	name    string
	headers []extension
}{
	{"hop-by-hop options", []extension{hop}},
	{"destination options", []extension{options}},
	{"a routing header", []extension{route}},
	{"an atomic fragment header", []extension{atomic}},
	{"two fragment headers", []extension{atomic, atomic}},
	{"all of them", []extension{hop, options, route, atomic, options}},
	{"many destination options", slices.Repeat([]extension{options}, 40)},
}

// advertisement returns a router advertisement with a prefix.
func advertisement(mac cache.MAC) []byte {
	return icmp(134, 0, []byte{64, 0xc0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, linkLayer(1, mac),
		[]byte{3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
}

// addRouters6 adds messages that only routers may send, plain and after extension headers.
func (b *builder) addRouters6() {
	const hidden = ", hidden from a filter that reads only the first headers"
	for _, m := range []struct {
		reason    firewall.Reason
		name, why string
		to        netip.Addr
		message   []byte
	}{
		{firewall.RouterAdvertisement, "router advertisement", "every host takes the guest for its router (CVE-2020-10749)", nodes, advertisement(b.MAC)},
		{firewall.ICMPRedirect, "redirect", "a host takes the guest for its next hop", b.Gateway6, icmp(137, 0, make([]byte, 4), b.local6.AsSlice(), b.Far6.AsSlice())},
		{firewall.MulticastRouter, "MLD query", "switches take the guest for the multicast router", nodes, icmp(130, 0, []byte{0, 100, 0, 0}, unspecified6.AsSlice(), []byte{2, 125, 0, 0})},
	} {
		p := ip6{from: b.local6, to: m.to, hops: 255, protocol: protoICMPv6, body: m.message}
		if m.name == "MLD query" {
			p.hops = 1
		}
		b.drop(m.reason, 6, m.name, m.why, b.v6(p))
		with := func(change func(*ip6)) ip6 {
			changed := p
			change(&changed)
			return changed
		}
		for _, e := range extensions {
			b.drop(m.reason, 6, m.name+" after "+e.name, m.why+hidden, b.v6(with(func(p *ip6) { p.before = e.headers })))
		}
		b.drop(m.reason, 6, m.name+" after a router alert", m.why+hidden, b.v6(with(func(p *ip6) { p.before = []extension{routerAlert} })))
		b.drop(m.reason, 6, m.name+" in fragments", m.why+hidden, b.fragments6(p, 8, 1000)[0])
		cut := b.fragments6(with(func(p *ip6) { p.before = []extension{options, options} }), 8, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" in the second fragment", m.why+" (RFC 7113 section 2.1: the first fragment has only the beginning of the header chain)", cut...)
		cut = b.fragments6(with(func(p *ip6) { p.before = []extension{{destination, append([]byte{0, 2, 1, 20}, make([]byte, 20)...)}} }), 16, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" after options cut in two", m.why+" (RFC 7112)", cut...)
		cut = b.fragments6(with(func(p *ip6) { p.before = []extension{atomic} }), 8, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" in nested fragments", m.why+hidden, cut...)
		b.drop(m.reason, 6, m.name+" from its global address", m.why, b.v6(with(func(p *ip6) { p.from = b.own6 })))
		b.drop(m.reason, 6, m.name+" from ::", m.why, b.v6(with(func(p *ip6) { p.from = unspecified6 })))
		b.drop(m.reason, 6, m.name+" as the gateway", m.why, b.v6(with(func(p *ip6) { p.from = eui64.LinkLocal(b.Gateway) })))
	}
	known := map[uint8]bool{ // by this filter, with a reason of its own or as legitimate
		130: true, 131: true, 132: true, 133: true, 134: true, 135: true, 136: true, 137: true, 143: true,
		1: true, 2: true, 3: true, 4: true, 128: true, 129: true, 160: true, 161: true,
		255: true,
	}
	for _, m := range []struct {
		kind      uint8
		name, why string
	}{
		{138, "router renumbering", "routers change their prefixes (RFC 2894)"},
		{139, "node information query", "hosts report their names and addresses (RFC 4620)"},
		{140, "node information response", "it claims any name"},
		{141, "inverse neighbour solicitation", "it asks for the addresses of a MAC (RFC 3122)"},
		{142, "inverse neighbour advertisement", "it claims addresses that the filter does not check"},
		{144, "home agent discovery request", "only routers receive it (RFC 6275)"},
		{145, "home agent discovery reply", "the guest is a router"},
		{146, "mobile prefix solicitation", "only routers receive it"},
		{147, "mobile prefix advertisement", "the guest is a router"},
		{148, "certification path solicitation", "only routers receive it (RFC 3971)"},
		{149, "certification path advertisement", "the guest is a router"},
		{151, "multicast router advertisement", "switches send it all groups (RFC 4286)"},
		{152, "multicast router solicitation", "switches report their routers"},
		{153, "multicast router termination", "switches forget the multicast router"},
		{155, "RPL control", "it takes part in a mesh's routing (RFC 6550)"},
		{157, "duplicate address request", "only routers receive it (RFC 6775)"},
		{158, "duplicate address confirmation", "the guest is a router"},
		{154, "fast handover", "only routers receive it (RFC 5568)"},
	} {
		known[m.kind] = true
		b.drop(firewall.ICMPType, 6, m.name, m.why, b.neighbour(b.local6, nodes, icmp(m.kind, 0, make([]byte, 4), make([]byte, 32))))
		b.drop(firewall.ICMPType, 6, m.name+" in fragments", m.why, b.fragments6(ip6{from: b.local6, to: nodes, hops: 255, protocol: protoICMPv6, body: icmp(m.kind, 0, make([]byte, 4), make([]byte, 32))}, 8, 64)[0])
	}
	var others [][]byte
	for kind := range 256 {
		if !known[uint8(kind)] {
			others = append(others, b.neighbour(b.local6, nodes, icmp(uint8(kind), 0, make([]byte, 4), make([]byte, 32))))
		}
	}
	b.drop(firewall.Malformed, 6, "ICMPv6 type 255", "the number is reserved", b.neighbour(b.local6, nodes, icmp(255, 0, make([]byte, 4), make([]byte, 32))))
	b.drop(firewall.ICMPType, 6, "ICMPv6 of all other types", "no host sends them", others...)
	b.drop(firewall.Malformed, 6, "ICMPv6 without a type", "a filter cannot see what it is", b.v6(ip6{protocol: protoICMPv6, sealed: true, body: []byte{}}))
}

// addDiscovery6 adds neighbour discovery for addresses or MACs of other stations.
func (b *builder) addDiscovery6() {
	const poison = "neighbours then send another station's packets to the guest"
	const away = "its own address moves to another station"
	add := func(reason firewall.Reason, name, why string, frame []byte) { b.drop(reason, 6, name, why, frame) }
	mine, its := linkLayer(2, b.MAC), linkLayer(2, otherMAC)
	neighbour := b.own6.Next().Next()
	fromNone := firewall.IPSpoof
	if !b.IPv6.IsValid() {
		fromNone = firewall.NeighbourSpoof // the target is not the guest's either
	}
	add(firewall.NeighbourSpoof, "neighbour advertisement of another's address", poison, b.advertisement(b.local6, nodes, neighbour, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of the gateway's address", poison, b.advertisement(b.local6, nodes, b.Gateway6, 0xa0, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of the gateway's link-local address", poison, b.advertisement(b.local6, nodes, eui64.LinkLocal(b.Gateway), 0xa0, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of a foreign address", poison, b.advertisement(b.own6, nodes, foreign6, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of a foreign link-local address", poison, b.advertisement(b.own6, nodes, foreign6l, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of another's address without an option", poison, b.advertisement(b.local6, b.Gateway6, neighbour, 0x60))
	add(firewall.NeighbourSpoof, "neighbour advertisement as the gateway", poison, b.advertisement(b.Gateway6, nodes, b.Gateway6, 0xa0, mine))
	add(fromNone, "neighbour advertisement from ::", poison, b.advertisement(unspecified6, nodes, b.own6, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement with another's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with the gateway's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, linkLayer(2, b.Gateway)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with two MACs, its own first", away, b.advertisement(b.own6, nodes, b.own6, 0x20, mine, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with two MACs, another's first", away, b.advertisement(b.own6, nodes, b.own6, 0x20, its, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a nonce before another's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, []byte{14, 1, 1, 2, 3, 4, 5, 6}, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a long option", away, b.advertisement(b.own6, nodes, b.own6, 0x20, append([]byte{2, 2}, append(otherMAC[:], make([]byte, 8)...)...)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a source option", away, b.advertisement(b.own6, nodes, b.own6, 0x20, linkLayer(1, otherMAC)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with an option of length 0", "a careless parser loops for ever", b.advertisement(b.own6, nodes, b.own6, 0x20, []byte{2, 0, 0, 0, 0, 0, 0, 0}))
	add(firewall.NeighbourSpoof, "neighbour advertisement cut in its target", "a filter cannot see whose address it is", b.neighbour(b.own6, nodes, icmp(136, 0, []byte{0x20, 0, 0, 0}, b.own6.AsSlice()[:8])))
	for _, e := range extensions {
		add(firewall.ExtensionHeader, "neighbour advertisement of another's address after "+e.name, poison,
			b.neighbour(b.local6, nodes, icmp(136, 0, []byte{0x20, 0, 0, 0}, neighbour.AsSlice(), mine), e.headers...))
	}
	b.drop(firewall.ExtensionHeader, 6, "neighbour advertisement in fragments", "RFC 6980 forbids it, and the option is in the second fragment",
		b.fragments6(ip6{from: b.own6, to: nodes, hops: 255, protocol: protoICMPv6, body: icmp(136, 0, []byte{0x20, 0, 0, 0}, b.own6.AsSlice(), its)}, 24, 1000)[0])

	its, mine = linkLayer(1, otherMAC), linkLayer(1, b.MAC)
	group := solicited(b.Gateway6)
	add(firewall.NeighbourSpoof, "neighbour solicitation with another's MAC", away, b.solicitation(b.own6, group, b.Gateway6, its))
	add(firewall.NeighbourSpoof, "neighbour solicitation with the gateway's MAC", away, b.solicitation(b.own6, group, b.Gateway6, linkLayer(1, b.Gateway)))
	add(firewall.NeighbourSpoof, "neighbour solicitation with two MACs", away, b.solicitation(b.own6, group, b.Gateway6, mine, its))
	add(firewall.NeighbourSpoof, "neighbour solicitation with a nonce and another's MAC", away, b.solicitation(b.own6, group, b.Gateway6, []byte{14, 1, 1, 2, 3, 4, 5, 6}, its))
	add(firewall.IPSpoof, "neighbour solicitation from another's address", poison, b.solicitation(neighbour, group, b.Gateway6, mine))
	add(firewall.IPSpoof, "neighbour solicitation from the gateway's address", poison, b.solicitation(b.Gateway6, group, neighbour, mine))
	add(firewall.IPSpoof, "neighbour solicitation from a foreign link-local address", poison, b.solicitation(foreign6l, group, b.Gateway6, mine))
	add(firewall.ExtensionHeader, "neighbour solicitation after destination options", "a filter at a fixed offset does not find its option",
		b.neighbour(b.own6, group, icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice(), its), options))
	b.drop(firewall.ExtensionHeader, 6, "neighbour solicitation in fragments", "RFC 6980 forbids it, and the option is in the second fragment",
		b.fragments6(ip6{from: b.own6, to: group, hops: 255, protocol: protoICMPv6, body: icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice(), its)}, 24, 1000)[0])
	const deny = "its owner gives the address up"
	add(firewall.NeighbourSpoof, "duplicate address detection of another's address", deny, b.solicitation(unspecified6, solicited(neighbour), neighbour))
	add(firewall.NeighbourSpoof, "duplicate address detection of the gateway's address", deny, b.solicitation(unspecified6, group, b.Gateway6))
	add(firewall.NeighbourSpoof, "duplicate address detection of a foreign link-local address", deny, b.solicitation(unspecified6, solicited(foreign6l), foreign6l))
	add(firewall.NeighbourSpoof, "duplicate address detection of another's address with a nonce", deny, b.solicitation(unspecified6, solicited(neighbour), neighbour, []byte{14, 1, 1, 2, 3, 4, 5, 6}))
	add(firewall.NeighbourSpoof, "duplicate address detection with a MAC", "RFC 4861 section 4.3 forbids it", b.solicitation(unspecified6, solicited(b.own6), b.own6, mine))
	add(firewall.NeighbourSpoof, "neighbour solicitation cut in its target", "a filter cannot see whose address it is", b.neighbour(b.own6, group, icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice()[:8])))

	const learn = "the router learns another station for the guest"
	asked := func(unserved firewall.Reason) firewall.Reason {
		if !b.Served {
			return unserved
		}
		return b.taken(b.IPv6, firewall.RouterSolicitation)
	}
	add(asked(firewall.NeighbourSpoof), "router solicitation with another's MAC", learn, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), its)))
	add(asked(firewall.IPSpoof), "router solicitation from a foreign link-local address", learn, b.neighbour(foreign6l, routers, icmp(133, 0, make([]byte, 4), mine)))
	add(asked(firewall.NeighbourSpoof), "router solicitation with two MACs", learn, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), mine, its)))
	if b.Served {
		const around = "a client's message that avoids the responder and reaches other routers"
		for _, e := range extensions[:4] {
			add(firewall.RouterSolicitation, "router solicitation after "+e.name, around, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), mine), e.headers...))
		}
	}
}

// addDiscoveryOptions6 adds neighbour discovery in which another's MAC stands at any place after the target, and
// messages with more options than a filter can look through.
func (b *builder) addDiscoveryOptions6() {
	const away = "its own address moves to another station"
	for _, m := range b.discovery(b.own6) {
		lie := func(number byte) []byte { return linkLayer(number, otherMAC) }
		var alone, between, long, second [][]byte
		for number := byte(1); number <= 2; number++ {
			for n := range 12 {
				before := slices.Repeat([][]byte{unknown(253, 1)}, n)
				alone = append(alone, m.frame(append(before, lie(number))...))
				if n < 11 {
					between = append(between, m.frame(append(before, lie(number), unknown(254, 1))...))
					second = append(second, m.frame(append(append([][]byte{linkLayer(m.option, b.MAC)}, before...), lie(number))...))
				}
				if n > 1 {
					long = append(long, m.frame(unknown(253, byte(n)), lie(number)))
				}
			}
			long = append(long, m.frame(unknown(33, 2), unknown(253, 3), lie(number)), m.frame(unknown(14, 1), unknown(253, 3), lie(number), unknown(38, 2)))
		}
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC at each place", away, alone...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC between options", away, between...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC after long options", away, long...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC after its own, at each place", away, second...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with the gateway's MAC after an unknown option", away, m.frame(unknown(253, 1), linkLayer(m.option, b.Gateway)))
		near := b.MAC
		near[5] ^= 1
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with a neighbouring MAC after an unknown option", away, m.frame(unknown(253, 1), linkLayer(m.option, near)))

		const far = "another's MAC may stand where the filter does not look"
		var frames [][]byte
		for _, units := range []byte{7, 8, 13, 28, 120} {
			units -= byte(m.fixed/8) - 3 // so many that the payload has 80 octets at least
			frames = append(frames, m.frame(unknown(253, units)), m.frame(unknown(253, units-1), lie(m.option)), m.frame(slices.Repeat([][]byte{unknown(254, 1)}, int(units))...))
		}
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with 80 octets and more", far, frames...)
	}
}

// message is a neighbour discovery message to which options can be added.
type message struct {
	name   string
	option byte // 1 or 2: the kind of link-layer address that the message has
	fixed  int  // octets in front of the options
	frame  func(options ...[]byte) []byte
	// bare: the message must not have a link-layer address.
	bare bool
}

// discovery returns the neighbour discovery messages that a guest sends for its address.
func (b *builder) discovery(own netip.Addr) []message {
	list := []message{
		{name: "neighbour solicitation", option: 1, fixed: 24, frame: func(options ...[]byte) []byte {
			return b.solicitation(own, solicited(b.Gateway6), b.Gateway6, options...)
		}},
		{name: "neighbour advertisement", option: 2, fixed: 24, frame: func(options ...[]byte) []byte {
			return b.advertisement(own, nodes, own, 0x20, options...)
		}},
		{name: "duplicate address detection", option: 1, fixed: 24, bare: true, frame: func(options ...[]byte) []byte {
			return b.solicitation(unspecified6, solicited(own), own, options...)
		}},
	}
	if !b.Served {
		list = append(list, message{name: "router solicitation", option: 1, fixed: 8, frame: func(options ...[]byte) []byte {
			return b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), slices.Concat(options...)))
		}})
	}
	return list
}

// unknown returns a neighbour discovery option of so many units of 8 octets, which a receiver skips.
func unknown(number, units byte) []byte {
	return append([]byte{number, units}, slices.Repeat([]byte{0xee}, int(units)*8-2)...)
}

func (b *builder) addServers6() {
	const server = "the guest hands out addresses and name servers"
	reply := func() []byte {
		return append([]byte{7, 1, 2, 3, 0, 2, 0, 10, 0, 3, 0, 1}, append(b.MAC[:], b.marker()...)...)
	}
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply", server, b.v6(ip6{from: b.local6, to: b.Gateway6, body: udp(547, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to all nodes", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(547, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply from another port", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(5470, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to another port", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(547, 5460, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply as the gateway", server, b.v6(ip6{from: eui64.LinkLocal(b.Gateway), to: nodes, body: udp(547, 546, reply())}))
	for _, e := range extensions {
		b.drop(firewall.DHCPServer, 6, "DHCPv6 reply after "+e.name, server, b.v6(ip6{from: b.local6, to: nodes, before: e.headers, body: udp(547, 546, reply())}))
	}
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply in fragments", server, b.fragments6(ip6{from: b.local6, to: nodes, body: udp(547, 546, reply())}, 8, 1000)[0])
	b.drop(firewall.HiddenFragment, 6, "DHCPv6 reply in the second fragment", server+" (RFC 7112)",
		b.fragments6(ip6{from: b.local6, to: nodes, before: []extension{options, options}, body: udp(547, 546, reply())}, 8, 1000)...)
	b.drop(firewall.HiddenFragment, 6, "DHCPv6 reply after options cut in two", server+" (RFC 7112)",
		b.fragments6(ip6{from: b.local6, to: nodes, before: []extension{{destination, append([]byte{0, 2, 1, 20}, make([]byte, 20)...)}}, body: udp(547, 546, reply())}, 16, 1000)...)
	b.drop(firewall.Malformed, 6, "IPv6 UDP datagram without ports", "a filter cannot see whether a server sent it", b.v6(ip6{sealed: true, body: []byte{0}}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to a relay", "a relay would send it to the clients of its network", b.v6(ip6{body: udp(547, 547, append([]byte{13}, reply()...))}))
	for _, to := range []netip.Addr{nodes, dhcp6SiteServers} {
		b.drop(firewall.DHCPServer, 6, "DHCPv6 message of a relay to "+to.String()+" in a frame to one station", "who listens for clients would answer",
			withDestination(b.Gateway, b.v6(ip6{to: to, body: udp(547, 547, append([]byte{12}, b.data(40)...))})))
	}
	if b.Served {
		const around = "a client's message that avoids the responder and reaches other servers"
		solicit := func() []byte { return append([]byte{1, 0, 0, 1}, b.marker()...) }
		for _, to := range []netip.Addr{b.Far6, dhcp6SiteServers} {
			b.drop(firewall.DHCPRequest, 6, "DHCPv6 solicit to "+to.String(), around, b.v6(ip6{to: to, body: udp(546, 547, solicit())}))
		}
		b.drop(firewall.DHCPRequest, 6, "DHCPv6 message of a relay to the link after options", around,
			b.v6(ip6{from: b.local6, to: dhcp6Servers, before: []extension{options}, body: udp(546, 547, append([]byte{12}, b.data(40)...))}))
		for _, e := range extensions {
			b.drop(firewall.DHCPRequest, 6, "DHCPv6 solicit after "+e.name, around, b.v6(ip6{from: b.local6, to: dhcp6Servers, before: e.headers, body: udp(546, 547, solicit())}))
		}
		b.drop(firewall.DHCPRequest, 6, "DHCPv6 solicit in fragments", around, b.fragments6(ip6{from: b.local6, to: dhcp6Servers, body: udp(546, 547, solicit())}, 8, 1000)[0])
		b.drop(firewall.VLANTag, 6, "DHCPv6 solicit with a tag", around, tagged(b.v6(ip6{from: b.local6, to: dhcp6Servers, body: udp(546, 547, solicit())}), []byte{0x81, 0, 0, 0}))
	}
}
