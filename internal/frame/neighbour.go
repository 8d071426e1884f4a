package frame

import (
	"iter"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// Types of messages of neighbour discovery, and of its options (RFC 4861 sections 4.1 to 4.4 and 4.6.1).
const (
	RouterSolicitation     = 133
	RouterAdvertisement    = 134
	NeighbourSolicitation  = 135
	NeighbourAdvertisement = 136

	SourceLinkLayer = 1
	TargetLinkLayer = 2
)

// NeighbourLen is the length of a neighbour solicitation or advertisement before its options. The target is in the
// last 16 octets of these.
const NeighbourLen = 24

// Flags of a neighbour advertisement.
const (
	Router    = 0x80
	Solicited = 0x40
	Override  = 0x20
)

// Advertisement returns a neighbour advertisement with the target's MAC, without a checksum.
func Advertisement(flags byte, target netip.Addr, mac cache.MAC) []byte {
	return neighbour(NeighbourAdvertisement, flags, target, TargetLinkLayer, mac)
}

func neighbour(kind, flags byte, target netip.Addr, option byte, mac cache.MAC) []byte {
	t := target.As16()
	b := append([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, t[:]...)
	return append(append(b, option, 1), mac[:]...)
}

// AppendICMPv6 appends a frame with the ICMPv6 message msg, whose checksum field is zero. The hop limit is 255, as
// neighbour discovery wants it.
func AppendICMPv6(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr, msg []byte) []byte {
	b = AppendIPv6(b, dstMAC, srcMAC, dst, src, ICMPv6, 255, len(msg))
	b = append(b, msg...)
	PutChecksum(Pseudo6(src, dst, ICMPv6, len(msg)), b[len(b)-len(msg):], 2)
	return b
}

// AppendSolicitation appends a frame by which a station asks for a neighbour's MAC.
func AppendSolicitation(b []byte, mac cache.MAC, source, target netip.Addr) []byte {
	to := SolicitedNode(target)
	return AppendICMPv6(b, MulticastMAC(to), mac, to, source, neighbour(NeighbourSolicitation, 0, target, SourceLinkLayer, mac))
}

// ValidOptions reports whether b has whole options alone, none of them of the length zero (RFC 4861 section 4.6).
func ValidOptions(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 2 || b[1] == 0 || int(b[1])*8 > len(b) {
			return false
		}
		b = b[int(b[1])*8:]
	}
	return true
}

// Options returns valid options, each with its type and length.
func Options(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := int(b[1]) * 8
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// Answer is what a neighbour advertisement or an ARP packet says of a station.
type Answer struct {
	Receiver, Sender cache.MAC  // of the frame
	Target           netip.Addr // the station
	MAC              cache.MAC
}

// ParseAnswer returns false if the frame is neither a valid neighbour advertisement (RFC 4861 section 7.1.2) nor an ARP
// packet, or if it says no MAC that a station can have.
func ParseAnswer(b []byte) (a Answer, ok bool) {
	f, ok := ParseEthernet(b)
	if !ok {
		return Answer{}, false
	}
	a.Receiver, a.Sender = f.Dst, f.Src
	switch f.Type {
	case TypeARP:
		var packet ARP
		packet, ok = ParseARP(f.Body)
		a.Target, a.MAC = packet.Sender, packet.SenderMAC
	case TypeIPv6:
		a.Target, a.MAC, ok = parseAdvertisement(f.Body)
	default:
		ok = false
	}
	if !ok || !a.MAC.Unicast() {
		return Answer{}, false
	}
	return a, true
}

// parseAdvertisement returns the zero MAC if no option has it.
func parseAdvertisement(b []byte) (target netip.Addr, mac cache.MAC, ok bool) {
	p, ok := ParseIPv6(b)
	if !ok || p.Next != ICMPv6 || p.Hops != 255 || len(p.Body) < NeighbourLen {
		return target, mac, false
	}
	if p.Body[0] != NeighbourAdvertisement || p.Body[1] != 0 || Fold(Sum(Pseudo6(p.Src, p.Dst, ICMPv6, len(p.Body)), p.Body)) != 0xffff {
		return target, mac, false
	}
	target, options := netip.AddrFrom16([16]byte(p.Body[8:NeighbourLen])), p.Body[NeighbourLen:]
	if target.IsMulticast() || !ValidOptions(options) {
		return target, mac, false
	}
	for option := range Options(options) {
		if option[0] == TargetLinkLayer && len(option) == 8 {
			mac = cache.MAC(option[2:])
		}
	}
	return target, mac, true
}
