// Package frames builds what a guest could send: hostile frames, which are to end at its tap, and
// legitimate ones, which are not.
package frames

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// Link is the guest's, and who is on it.
type Link struct {
	MAC        cache.MAC  // the guest's
	IPv4, IPv6 netip.Addr // the guest's; zero: it has none of that family

	Gateway            cache.MAC
	Gateway4, Gateway6 netip.Addr
	Far4, Far6         netip.Addr // hosts beyond the gateway

	// Served says that the guest has a responder, so it has no business with another server.
	Served bool
}

// Kind is one thing that a guest can do.
type Kind struct {
	Name string
	// Why it is hostile, or what a guest does it for.
	Why string
	// Version is that of IP, 0 for neither.
	Version int
	// Frames are sent in this order.
	Frames [][]byte
	// Forwarded says of a legitimate kind that a gateway passes it on, also one that translates.
	Forwarded bool
	// Marker is in the data of the last frame, if the kind has data.
	Marker string
}

// Sentinel is a frame of a guest with that address, which a gateway passes on, to tell what was sent before
// from what is sent after.
func (l Link) Sentinel(own netip.Addr, number int) []byte {
	b := builder{Link: l}
	body := udp(SentinelPort, SentinelPort, SentinelData(number))
	if own.Is4() {
		return b.v4(ip4{from: own, to: l.Far4, body: body})
	}
	return b.v6(ip6{from: own, to: l.Far6, body: body})
}

// SentinelPort is the UDP port from and to which sentinels go.
const SentinelPort = 7777

// SentinelData is the payload of a sentinel.
func SentinelData(number int) []byte { return fmt.Appendf(nil, "guestwire sentinel %09d", number) }

// builder makes kinds one after the other.
type builder struct {
	Link
	kinds []Kind

	// What frames have where nothing else is said.
	own4, own6, local6 netip.Addr
}

// start fills in addresses of the documentation (RFC 5737, RFC 3849) where the guest has none.
func start(l Link) *builder {
	b := &builder{Link: l, own4: l.IPv4, own6: l.IPv6, local6: l.MAC.LinkLocal()}
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

// marker is that of the kind which comes next.
func (b *builder) marker() string { return fmt.Sprintf("guestwire kind %03d", len(b.kinds)) }

// data ends with the marker.
func (b *builder) data(size int) []byte {
	m := b.marker()
	return append(make([]byte, max(0, size-len(m))), m...)
}

// EtherTypes.
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeIPv6 = 0x86dd
)

// Protocols, and IPv6's extension headers.
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
	other     = cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}

	nobody4   = netip.IPv4Unspecified()
	nobody6   = netip.IPv6Unspecified()
	all4      = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	foreign4  = netip.MustParseAddr("203.0.113.66")
	foreign6  = netip.MustParseAddr("2001:db8:bad::66")
	foreign6l = netip.MustParseAddr("fe80::bad:66")
	nodes     = netip.MustParseAddr("ff02::1")
	routers   = netip.MustParseAddr("ff02::2")
	mldv2     = netip.MustParseAddr("ff02::16")
)

func ethernet(to, from cache.MAC, kind uint16, payload ...[]byte) []byte {
	b := append(append([]byte(nil), to[:]...), from[:]...)
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, slices.Concat(payload...)...)
}

// from is the frame with another source.
func from(mac cache.MAC, frame []byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[6:], mac[:])
	return frame
}

// to is the frame with another destination.
func to(mac cache.MAC, frame []byte) []byte {
	frame = slices.Clone(frame)
	copy(frame, mac[:])
	return frame
}

// tagged puts VLAN tags behind the addresses.
func tagged(frame []byte, tags ...[]byte) []byte {
	return slices.Concat(frame[:12], slices.Concat(tags...), frame[12:])
}

// with changes octets of a frame.
func with(frame []byte, at int, octets ...byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[at:], octets)
	return frame
}

// station is the Ethernet address for an IP address: a group's (RFC 1112, RFC 2464), or the gateway's.
func (b *builder) station(a netip.Addr) cache.MAC {
	switch octets := a.AsSlice(); {
	case a == all4:
		return broadcast
	case a.Is4() && a.IsMulticast():
		return cache.MAC{0x01, 0x00, 0x5e, octets[1] & 0x7f, octets[2], octets[3]}
	case a.IsMulticast():
		return cache.MAC{0x33, 0x33, octets[12], octets[13], octets[14], octets[15]}
	}
	return b.Gateway
}

// arp is a packet of RFC 826.
type arp struct {
	hardware, protocol   uint16
	lengths              [2]byte
	operation            uint16
	sender, target       cache.MAC
	senderIP, targetIP   netip.Addr
	destination, station cache.MAC // of the frame
}

// arp is a request for the gateway's address, changed.
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

// ip4 is an IPv4 packet. What is zero is the guest's, a UDP datagram to far away.
type ip4 struct {
	from, to netip.Addr
	protocol uint8
	tos      uint8
	flags    uint16 // with the fragment's offset
	options  []byte // a multiple of 4
	body     []byte
	sealed   bool // the body has its checksum
}

func (b *builder) ip4(p *ip4) {
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
		p.body, p.sealed = seal(p.protocol, p.from, p.to, p.body), true
	}
}

func (b *builder) v4(p ip4) []byte {
	b.ip4(&p)
	h := make([]byte, 20, 20+len(p.options))
	h = append(h, p.options...)
	h[0], h[1] = 0x40|byte(len(h)/4), p.tos
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(p.body)))
	binary.BigEndian.PutUint16(h[4:], 0x6777) // the packet's number, that of its fragments
	binary.BigEndian.PutUint16(h[6:], p.flags)
	h[8], h[9] = 64, p.protocol
	copy(h[12:], p.from.AsSlice())
	copy(h[16:], p.to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^sum(h))
	return ethernet(b.station(p.to), b.MAC, typeIPv4, h, p.body)
}

// cut4 are the packet's fragments, the first of which has that many octets, the others size.
func (b *builder) cut4(p ip4, first, size int) [][]byte {
	b.ip4(&p)
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

// extension is a header between IPv6's and that of transport. Its first octet is filled in.
type extension struct {
	number uint8
	octets []byte
}

// Extensions without a meaning, of 8 octets.
var (
	padding     = []byte{0, 0, 1, 4, 0, 0, 0, 0}
	hop         = extension{hopByHop, padding}
	options     = extension{destination, padding}
	route       = extension{routing, []byte{0, 0, 253, 0, 0, 0, 0, 0}} // an experiment's type, no segment left
	atomic      = extension{fragment, []byte{0, 0, 0, 0, 0, 0, 0x67, 0x77}}
	routerAlert = extension{hopByHop, []byte{0, 0, 5, 2, 0, 0, 1, 0}} // RFC 2711, of MLD
	authentic   = extension{protoAH, []byte{0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}
)

// ip6 is an IPv6 packet, with defaults like ip4.
type ip6 struct {
	from, to netip.Addr
	hops     uint8
	class    uint8
	before   []extension
	protocol uint8
	body     []byte
	sealed   bool
}

func (b *builder) ip6(p *ip6) {
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
		p.body, p.sealed = seal(p.protocol, p.from, p.to, p.body), true
	}
}

func (b *builder) v6(p ip6) []byte {
	b.ip6(&p)
	first, rest := chain(p.before, p.protocol, p.body)
	return b.raw6(p, first, rest)
}

// raw6 is a packet with whatever behind its header.
func (b *builder) raw6(p ip6, next uint8, rest []byte) []byte {
	b.ip6(&p)
	h := []byte{0x60 | p.class>>4, p.class << 4, 0, 0, byte(len(rest) >> 8), byte(len(rest)), next, p.hops}
	return ethernet(b.station(p.to), b.MAC, typeIPv6, h, p.from.AsSlice(), p.to.AsSlice(), rest)
}

// chain is what stands behind IPv6's header, and the number of the first of it.
func chain(before []extension, protocol uint8, body []byte) (uint8, []byte) {
	next, rest := protocol, body
	for _, e := range slices.Backward(before) {
		header := slices.Clone(e.octets)
		header[0] = next
		next, rest = e.number, slices.Concat(header, rest)
	}
	return next, rest
}

// cut6 are the fragments of what stands behind the packet's header.
func (b *builder) cut6(p ip6, first, size int) [][]byte {
	b.ip6(&p)
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

// icmp is a message of either version, and of IGMP.
func icmp(kind, code uint8, rest ...[]byte) []byte {
	return append([]byte{kind, code, 0, 0}, slices.Concat(rest...)...)
}

// seal is the message with its checksum, where it has one.
func seal(protocol uint8, from, to netip.Addr, message []byte) []byte {
	at, ok := map[uint8]int{protoICMP: 2, protoIGMP: 2, protoTCP: 16, protoUDP: 6, protoICMPv6: 2, protoSCTP: 8}[protocol]
	if !ok || len(message) < at+2 {
		return message
	}
	message = slices.Clone(message)
	switch protocol {
	case protoSCTP: // RFC 9260 appendix A
		binary.LittleEndian.PutUint32(message[at:], crc32.Checksum(message, crc32.MakeTable(crc32.Castagnoli)))
	case protoICMP, protoIGMP:
		binary.BigEndian.PutUint16(message[at:], ^sum(message))
	default:
		length := []byte{0, 0, byte(len(message) >> 8), byte(len(message)), 0, 0, 0, protocol}
		binary.BigEndian.PutUint16(message[at:], ^sum(from.AsSlice(), to.AsSlice(), length, message))
	}
	return message
}

// sum is that of RFC 1071, of parts with an even number of octets but for the last.
func sum(parts ...[]byte) uint16 {
	var acc uint32
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			acc += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) == 1 {
			acc += uint32(b[0]) << 8
		}
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

// Ask opens a TCP connection, or sends a UDP datagram that names its target.
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

// Ping is an echo request with a number.
func (l Link) Ping(from, to netip.Addr, number int) []byte {
	b := builder{Link: l}
	if to.Is4() {
		return b.v4(ip4{from: from, to: to, protocol: protoICMP, body: icmp(8, 0, []byte{0, 1, 0, 1}, SentinelData(number))})
	}
	return b.v6(ip6{from: from, to: to, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, SentinelData(number))})
}
