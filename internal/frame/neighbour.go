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
