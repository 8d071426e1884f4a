package frames

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// RFC 8415 section 7.1.
var (
	dhcp6Servers     = netip.MustParseAddr("ff02::1:2")
	dhcp6SiteServers = netip.MustParseAddr("ff05::1:3")
)

// neighbour returns a frame with a neighbour discovery message (RFC 4861).
func (b *builder) neighbour(from, to netip.Addr, message []byte, before ...extension) []byte {
	return b.v6(ip6{from: from, to: to, hops: 255, before: before, protocol: protoICMPv6, body: message})
}

func (b *builder) solicitation(from, to, target netip.Addr, options ...[]byte) []byte {
	return b.neighbour(from, to, icmp(135, 0, make([]byte, 4), target.AsSlice(), slices.Concat(options...)))
}

func (b *builder) advertisement(from, to, target netip.Addr, flags byte, options ...[]byte) []byte {
	return b.neighbour(from, to, icmp(136, 0, []byte{flags, 0, 0, 0}, target.AsSlice(), slices.Concat(options...)))
}

// linkLayer returns the source (1) or target (2) link-layer address option.
func linkLayer(number byte, mac cache.MAC) []byte { return append([]byte{number, 1}, mac[:]...) }

func solicited(a netip.Addr) netip.Addr { return frame.SolicitedNode(a) }

func sctpInit(data []byte) []byte {
	init := []byte{1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1}
	cookie := append([]byte{0x80, 0, 0, byte(4 + len(data))}, data...) // an unknown parameter that the receiver skips
	init[3] += byte(len(cookie))
	return slices.Concat([]byte{0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0, 0, 0, 0, 0}, init, cookie)
}
