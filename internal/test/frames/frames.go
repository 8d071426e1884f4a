// Package frames builds the frames that a guest can send: hostile ones, which the guest filter must drop, and
// legitimate ones, which it must pass.
package frames

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/frame"
)

// Link is the guest's link: the addresses of the guest, of its gateway and of hosts behind the gateway.
type Link struct {
	MAC        cache.MAC  // the guest's
	IPv4, IPv6 netip.Addr // the guest's; the zero value: no address of this family

	Gateway            cache.MAC
	Gateway4, Gateway6 netip.Addr
	Far4, Far6         netip.Addr // hosts behind the gateway

	// Served: the guest has a responder, so messages to other DHCP servers and routers are hostile.
	Served bool
	// MTU is the NIC's or the guest's, if frames leave without a bridge or a router that checks their length. Longer
	// frames are hostile then. 0: something checks, or fragments.
	MTU int
}

// Kind is one attack, or one use of the network.
type Kind struct {
	Name string
	// Why is the damage that a hostile kind does, or the purpose of a legitimate one.
	Why string
	// Version is the IP version, 4 or 6; 0: neither.
	Version int
	// Frames are sent in this order.
	Frames [][]byte
	// Forwarded: a gateway forwards the legitimate kind, also a gateway with NAT.
	Forwarded bool
	// Marker is in the data of the last frame, if the kind has data.
	Marker string
	// Reason is the one for which a table drops each frame of a hostile kind; empty: tc takes the frames for the
	// responder.
	Reason firewall.Reason
	// Pass is how many of a hostile kind's frames pass, the last ones. They are later fragments, or decoys: without
	// the frames before them a host makes nothing of them.
	Pass int
}

// Sentinel returns a frame from the guest's address own that a gateway forwards. A test that receives the frame
// has received all frames that were sent before it.
func (l Link) Sentinel(own netip.Addr, number int) []byte {
	b := builder{Link: l}
	body := udp(SentinelPort, SentinelPort, SentinelData(number))
	if own.Is4() {
		return b.v4(ip4{from: own, to: l.Far4, body: body})
	}
	return b.v6(ip6{from: own, to: l.Far6, body: body})
}

// SentinelPort is the source and destination port of the UDP datagram in a sentinel.
const SentinelPort = 7777

// SentinelData returns the payload of a sentinel.
func SentinelData(number int) []byte { return fmt.Appendf(nil, "guestwire sentinel %09d", number) }

// builder collects kinds. Its methods add some, or build one frame.
type builder struct {
	Link
	kinds []Kind

	// Default source addresses of frames.
	own4, own6, local6 netip.Addr
}

// newBuilder uses documentation addresses (RFC 5737, RFC 3849) for a family in which the guest has no address.
func newBuilder(l Link) *builder {
	b := &builder{Link: l, own4: l.IPv4, own6: l.IPv6, local6: eui64.LinkLocal(l.MAC)}
	if !b.own4.IsValid() {
		b.own4 = netip.MustParseAddr("192.0.2.7")
	}
	if !b.own6.IsValid() {
		b.own6 = netip.MustParseAddr("2001:db8::7")
	}
	return b
}

func (b *builder) add(version int, name, why string, frames ...[]byte) *Kind {
	b.kinds = append(b.kinds, Kind{Name: name, Why: why, Version: version, Frames: frames, Marker: b.marker()})
	return &b.kinds[len(b.kinds)-1]
}

// drop adds a hostile kind.
func (b *builder) drop(reason firewall.Reason, version int, name, why string, frames ...[]byte) {
	b.add(version, name, why, frames...).Reason = reason
}

// taken is the reason of a request that tc takes for the responder, if the guest has an address of the family.
func (b *builder) taken(own netip.Addr, otherwise firewall.Reason) firewall.Reason {
	if own.IsValid() {
		return ""
	}
	return otherwise
}

// asks is the reason for which what asks servers of the family of an address is dropped. Without any address of the
// guest's, its families are not known.
func (b *builder) asks(own netip.Addr, otherwise firewall.Reason) firewall.Reason {
	if own.IsValid() || !b.IPv4.IsValid() && !b.IPv6.IsValid() {
		return otherwise
	}
	return firewall.NoFamily
}

// marker returns the Marker of the next kind.
func (b *builder) marker() string { return fmt.Sprintf("guestwire kind %03d", len(b.kinds)) }

// data returns size octets, or more, that end with the marker.
func (b *builder) data(size int) []byte {
	m := b.marker()
	return append(make([]byte, max(0, size-len(m))), m...)
}

// EtherTypes.
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeRARP = 0x8035
	typeIPv6 = 0x86dd
)

// IP protocols and IPv6 extension headers.
const (
	hopByHop    = 0
	protoICMP   = 1
	protoIGMP   = 2
	protoIPIP   = 4
	protoTCP    = 6
	protoUDP    = 17
	routing     = 43
	fragment    = 44
	protoGRE    = 47
	protoESP    = 50
	protoAH     = 51
	protoICMPv6 = 58
	noNext      = 59
	destination = 60
	protoSCTP   = 132
)

var (
	broadcast = cache.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	otherMAC  = cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}

	unspecified4 = netip.IPv4Unspecified()
	unspecified6 = netip.IPv6Unspecified()
	all4         = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	foreign4     = netip.MustParseAddr("203.0.113.66")
	foreign6     = netip.MustParseAddr("2001:db8:bad::66")
	foreign6l    = netip.MustParseAddr("fe80::bad:66")
	nodes        = netip.MustParseAddr("ff02::1")
	routers      = netip.MustParseAddr("ff02::2")
	mldv2        = netip.MustParseAddr("ff02::16")
)

func ethernet(to, from cache.MAC, kind uint16, payload ...[]byte) []byte {
	return append(frame.AppendEthernet(nil, to, from, kind), slices.Concat(payload...)...)
}

// withSource returns the frame with another source MAC.
func withSource(mac cache.MAC, frame []byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[6:], mac[:])
	return frame
}

// withDestination returns the frame with another destination MAC.
func withDestination(mac cache.MAC, frame []byte) []byte {
	frame = slices.Clone(frame)
	copy(frame, mac[:])
	return frame
}

// tagged returns the frame with VLAN tags after the MAC addresses.
func tagged(frame []byte, tags ...[]byte) []byte {
	return slices.Concat(frame[:12], slices.Concat(tags...), frame[12:])
}

// withOctets returns the frame with other octets from the offset at on.
func withOctets(frame []byte, at int, octets ...byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[at:], octets)
	return frame
}

// macFor returns the destination MAC for an IP address: a group's (RFC 1112, RFC 2464), or the gateway's.
func (b *builder) macFor(a netip.Addr) cache.MAC {
	switch octets := a.AsSlice(); {
	case a == all4:
		return broadcast
	case a.Is4() && a.IsMulticast():
		return cache.MAC{0x01, 0x00, 0x5e, octets[1] & 0x7f, octets[2], octets[3]}
	case a.IsMulticast():
		return frame.MulticastMAC(a)
	}
	return b.Gateway
}

// arp holds the fields of an ARP packet (RFC 826) and of its frame.
type arp struct {
	hardware, protocol   uint16
	lengths              [2]byte
	operation            uint16
	sender, target       cache.MAC
	senderIP, targetIP   netip.Addr
	destination, station cache.MAC // of the frame; station is the source
}

// arp builds an ARP request for the address after the guest's, with the fields that change sets.
func (b *builder) arp(change func(*arp)) []byte {
	a := arp{
		hardware: 1, protocol: typeIPv4, lengths: [2]byte{6, 4}, operation: 1,
		sender: b.MAC, senderIP: b.own4, targetIP: b.own4.Next(), destination: broadcast, station: b.MAC,
	}
	change(&a)
	p := binary.BigEndian.AppendUint16(nil, a.hardware)
	p = binary.BigEndian.AppendUint16(p, a.protocol)
	p = append(p, a.lengths[:]...)
	p = binary.BigEndian.AppendUint16(p, a.operation)
	p = slices.Concat(p, a.sender[:], a.senderIP.AsSlice(), a.target[:], a.targetIP.AsSlice())
	return ethernet(a.destination, a.station, typeARP, p)
}

// rarp builds a RARP request for the guest's own address (RFC 903), with the fields that change sets.
func (b *builder) rarp(change func(*arp)) []byte {
	frame := b.arp(func(a *arp) {
		a.operation, a.target, a.senderIP, a.targetIP = 3, a.sender, unspecified4, unspecified4
		change(a)
	})
	return withOctets(frame, 12, typeRARP>>8, typeRARP&0xff)
}

// ip4 holds the fields of an IPv4 packet. Zero values become a UDP datagram from the guest to Far4.
type ip4 struct {
	from, to netip.Addr
	protocol uint8
	tos      uint8
	flags    uint16 // with the fragment offset
	options  []byte // the length is a multiple of 4
	body     []byte
	sealed   bool // the body has its checksum already, or must have none
}

func (b *builder) setDefaults4(p *ip4) {
	if !p.from.IsValid() {
		p.from = b.own4
	}
	if !p.to.IsValid() {
		p.to = b.Far4
	}
	if p.protocol == 0 {
		p.protocol = protoUDP
	}
	if p.body == nil {
		p.body = udp(5000, 5001, b.data(0))
	}
	if !p.sealed {
		p.body, p.sealed = withChecksum(p.protocol, p.from, p.to, p.body), true
	}
}

func (b *builder) v4(p ip4) []byte {
	b.setDefaults4(&p)
	h := make([]byte, 20, 20+len(p.options))
	h = append(h, p.options...)
	h[0], h[1] = 0x40|byte(len(h)/4), p.tos
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(p.body)))
	binary.BigEndian.PutUint16(h[4:], 0x6777) // identification, the same in all fragments
	binary.BigEndian.PutUint16(h[6:], p.flags)
	h[8], h[9] = 64, p.protocol
	copy(h[12:], p.from.AsSlice())
	copy(h[16:], p.to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^checksum(h))
	return ethernet(b.macFor(p.to), b.MAC, typeIPv4, h, p.body)
}

// fragments4 returns the packet's fragments. The first has first octets of data, the others at most size.
func (b *builder) fragments4(p ip4, first, size int) [][]byte {
	b.setDefaults4(&p)
	var frames [][]byte
	for at, n := 0, first; at < len(p.body); at, n = at+n, size {
		n = min(n, len(p.body)-at)
		piece := p
		piece.body, piece.flags = p.body[at:at+n], uint16(at/8)
		if at+n < len(p.body) {
			piece.flags |= 0x2000
		}
		frames = append(frames, b.v4(piece))
	}
	return frames
}

// extension is an IPv6 extension header. Its first octet, the next header, is filled in by chain.
type extension struct {
	number uint8
	octets []byte
}

// Extension headers that a host accepts and ignores.
var (
	padding     = []byte{0, 0, 1, 4, 0, 0, 0, 0}
	hop         = extension{hopByHop, padding}
	options     = extension{destination, padding}
	route       = extension{routing, []byte{0, 0, 253, 0, 0, 0, 0, 0}} // experimental type (RFC 4727), no segments left
	atomic      = extension{fragment, []byte{0, 0, 0, 0, 0, 0, 0x67, 0x77}}
	routerAlert = extension{hopByHop, []byte{0, 0, 5, 2, 0, 0, 1, 0}} // RFC 2711, of MLD
	authentic   = extension{protoAH, []byte{0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}
)

// ip6 holds the fields of an IPv6 packet, with defaults like ip4.
type ip6 struct {
	from, to netip.Addr
	hops     uint8
	class    uint8
	before   []extension
	protocol uint8
	body     []byte
	sealed   bool
}

func (b *builder) setDefaults6(p *ip6) {
	if !p.from.IsValid() {
		p.from = b.own6
	}
	if !p.to.IsValid() {
		p.to = b.Far6
	}
	if p.protocol == 0 {
		p.protocol = protoUDP
	}
	if p.hops == 0 {
		p.hops = 64
	}
	if p.body == nil {
		p.body = udp(5000, 5001, b.data(0))
	}
	if !p.sealed {
		p.body, p.sealed = withChecksum(p.protocol, p.from, p.to, p.body), true
	}
}

func (b *builder) v6(p ip6) []byte {
	b.setDefaults6(&p)
	first, rest := chain(p.before, p.protocol, p.body)
	return b.raw6(p, first, rest)
}

// raw6 builds a packet with any octets after the IPv6 header; next is the number of the first header in them.
func (b *builder) raw6(p ip6, next uint8, rest []byte) []byte {
	b.setDefaults6(&p)
	h := []byte{0x60 | p.class>>4, p.class << 4, 0, 0, byte(len(rest) >> 8), byte(len(rest)), next, p.hops}
	return ethernet(b.macFor(p.to), b.MAC, typeIPv6, h, p.from.AsSlice(), p.to.AsSlice(), rest)
}

// chain returns the extension headers and the body, and the number of the first header.
func chain(before []extension, protocol uint8, body []byte) (uint8, []byte) {
	next, rest := protocol, body
	for _, e := range slices.Backward(before) {
		header := slices.Clone(e.octets)
		header[0] = next
		next, rest = e.number, slices.Concat(header, rest)
	}
	return next, rest
}

// behind6 returns the IPv6 frame with one more extension header, in front of the others.
func behind6(e extension, frame []byte) []byte {
	frame = slices.Insert(slices.Clone(frame), 14+40, e.octets...)
	frame[14+40], frame[14+6] = frame[14+6], e.number
	binary.BigEndian.PutUint16(frame[14+4:], uint16(len(frame)-14-40))
	return frame
}

// fragments6 returns the packet's fragments. The first has first octets of data, the others at most size.
func (b *builder) fragments6(p ip6, first, size int) [][]byte {
	b.setDefaults6(&p)
	next, rest := chain(p.before, p.protocol, p.body)
	var frames [][]byte
	for at, n := 0, first; at < len(rest); at, n = at+n, size {
		n = min(n, len(rest)-at)
		frames = append(frames, b.raw6(p, fragment, slices.Concat(fragment6(next, at, at+n < len(rest)), rest[at:at+n])))
	}
	return frames
}

func fragment6(next uint8, offset int, more bool) []byte {
	h := []byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0x67, 0x78}
	if more {
		h[3] |= 1
	}
	return h
}

func udp(source, destination uint16, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, destination)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

// TCP's flags.
const (
	syn = 2
	ack = 16
)

func tcp(source, destination uint16, flags uint8, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, destination)
	b = append(b, 0, 0, 0x67, 0x77, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0)
	return append(b, data...)
}

// icmp returns an ICMP, ICMPv6 or IGMP message without checksum.
func icmp(kind, code uint8, rest ...[]byte) []byte {
	return append([]byte{kind, code, 0, 0}, slices.Concat(rest...)...)
}

// withChecksum returns the message with its checksum, if the protocol has one.
func withChecksum(protocol uint8, from, to netip.Addr, message []byte) []byte {
	at, ok := map[uint8]int{protoICMP: 2, protoIGMP: 2, protoTCP: 16, protoUDP: 6, protoICMPv6: 2, protoSCTP: 8}[protocol]
	if !ok || len(message) < at+2 {
		return message
	}
	message = slices.Clone(message)
	switch protocol {
	case protoSCTP: // RFC 9260 appendix A
		binary.LittleEndian.PutUint32(message[at:], crc32.Checksum(message, crc32.MakeTable(crc32.Castagnoli)))
	case protoICMP, protoIGMP:
		binary.BigEndian.PutUint16(message[at:], ^checksum(message))
	default:
		length := []byte{0, 0, byte(len(message) >> 8), byte(len(message)), 0, 0, 0, protocol}
		binary.BigEndian.PutUint16(message[at:], ^checksum(from.AsSlice(), to.AsSlice(), length, message))
	}
	return message
}

// checksum returns the sum of RFC 1071, not inverted. All parts but the last have an even number of octets.
func checksum(parts ...[]byte) uint16 {
	var acc uint32
	for _, b := range parts {
		acc = frame.Sum(acc, b)
	}
	return frame.Fold(acc)
}

// Ask returns a frame with a TCP SYN, or with a UDP datagram whose data is the target address and port.
func (l Link) Ask(protocol uint8, from, to netip.Addr, port uint16) []byte {
	b := builder{Link: l}
	body := tcp(SentinelPort, port, syn, nil)
	if protocol == protoUDP {
		body = udp(SentinelPort, port, []byte(netip.AddrPortFrom(to, port).String()))
	}
	if to.Is4() {
		return b.v4(ip4{from: from, to: to, protocol: protocol, body: body})
	}
	return b.v6(ip6{from: from, to: to, protocol: protocol, body: body})
}

// Ping returns a frame with an echo request that carries the number.
func (l Link) Ping(from, to netip.Addr, number int) []byte {
	b := builder{Link: l}
	if to.Is4() {
		return b.v4(ip4{from: from, to: to, protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, SentinelData(number))})
	}
	return b.v6(ip6{from: from, to: to, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, SentinelData(number))})
}

// Packet returns a frame of the guest with a transport header or an ICMP message, whose checksum Packet completes.
func (l Link) Packet(protocol uint8, from, to netip.Addr, body []byte) []byte {
	b := builder{Link: l}
	if to.Is4() {
		return b.v4(ip4{from: from, to: to, protocol: protocol, body: body})
	}
	return b.v6(ip6{from: from, to: to, protocol: protocol, body: body})
}

// Datagram returns a UDP datagram for [Link.Packet].
func Datagram(source, destination uint16, data []byte) []byte { return udp(source, destination, data) }

// Segment returns a TCP segment without options for [Link.Packet].
func Segment(source, destination uint16, flags uint8, data []byte) []byte {
	return tcp(source, destination, flags, data)
}

// AskAs returns a frame by which the guest asks for its gateway's MAC, with the address as its own.
func (l Link) AskAs(from netip.Addr) []byte {
	b := newBuilder(l)
	if from.Is4() {
		return b.arp(func(a *arp) { a.senderIP, a.targetIP = from, l.Gateway4 })
	}
	return b.solicitation(from, solicited(l.Gateway6), l.Gateway6, linkLayer(1, l.MAC))
}
