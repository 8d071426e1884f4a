package frames

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
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
	// inName is the reason for a sender's address. Those of hosts that have got no lease are the guest's as well as
	// another's.
	inName := func(sender netip.Addr) firewall.Reason {
		if sender.IsLinkLocalUnicast() {
			return b.asks(b.IPv4, firewall.ARPSpoof)
		}
		return firewall.ARPSpoof
	}
	neighbour := b.Gateway4.Next()
	for neighbour == b.own4 {
		neighbour = neighbour.Next()
	}
	add(inName(neighbour), "ARP request in another's name", poison, func(a *arp) { a.senderIP = neighbour })
	add(inName(b.Gateway4), "ARP request in the gateway's name", poison, func(a *arp) { a.senderIP = b.Gateway4 })
	add(inName(neighbour), "ARP reply in another's name", poison, func(a *arp) { a.operation, a.senderIP, a.target, a.destination = 2, neighbour, b.Gateway, b.Gateway })
	add(inName(b.Gateway4), "ARP reply in the gateway's name", poison, func(a *arp) { a.operation, a.senderIP = 2, b.Gateway4 })
	add(firewall.ARPSpoof, "ARP reply of a foreign address", poison, func(a *arp) { a.operation, a.senderIP = 2, foreign4 })
	add(inName(neighbour), "gratuitous ARP request in another's name", poison, func(a *arp) { a.senderIP, a.targetIP = neighbour, neighbour })
	add(inName(b.Gateway4), "gratuitous ARP request in the gateway's name", poison, func(a *arp) { a.senderIP, a.targetIP = b.Gateway4, b.Gateway4 })
	add(inName(neighbour), "gratuitous ARP reply in another's name", poison, func(a *arp) { a.operation, a.senderIP, a.targetIP, a.target = 2, neighbour, neighbour, broadcast })
	add(inName(b.Gateway4), "gratuitous ARP reply in the gateway's name", poison, func(a *arp) { a.operation, a.senderIP, a.targetIP, a.target = 2, b.Gateway4, b.Gateway4, broadcast })
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
		reason := inName(target.address)
		for _, s := range probeShapes {
			b.drop(reason, 4, "ARP probe for "+target.name+s.name, deny, s.frame(b, func(a *arp) { a.senderIP, a.targetIP = unspecified4, target.address }))
		}
		b.drop(reason, 4, "ARP probe for "+target.name+" by unicast", deny, b.arp(func(a *arp) {
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
