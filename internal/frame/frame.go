// Package frame encodes and parses the frames of an Ethernet link by which stations find each other: ARP and neighbour
// discovery, and the headers and checksums for these and for DHCP. It knows no VLAN tags except priority tags, no
// fragments and no extension headers.
package frame

import (
	"encoding/binary"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// Lengths of headers, in octets.
const (
	EthernetLen = 14
	IPv4Len     = 20
	IPv6Len     = 40
	UDPLen      = 8
	ARPLen      = 28 // of the packet
)

// EtherTypes (www.iana.org/assignments/ieee-802-numbers).
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeRARP = 0x8035
	TypeIPv6 = 0x86dd
)

// IP protocols (www.iana.org/assignments/protocol-numbers).
const (
	UDP    = 17
	ICMPv6 = 58
)

// Broadcast is the destination of a frame to all stations.
var Broadcast = cache.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// AllNodes is the multicast address of all IPv6 nodes.
var AllNodes = netip.MustParseAddr("ff02::1")

// MulticastMAC returns the destination of a frame to an IPv6 multicast address (RFC 2464 section 7).
func MulticastMAC(a netip.Addr) cache.MAC {
	b := a.As16()
	return cache.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// SolicitedNode returns the solicited-node multicast address (RFC 4291 section 2.7.1).
func SolicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	copy(b[:], []byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff})
	return netip.AddrFrom16(b)
}

// Ethernet is a frame.
type Ethernet struct {
	Dst, Src cache.MAC
	Type     uint16
	Body     []byte // with padding
}

// ParseEthernet returns false if the header is cut short.
func ParseEthernet(b []byte) (Ethernet, bool) {
	if len(b) < EthernetLen {
		return Ethernet{}, false
	}
	return Ethernet{Dst: cache.MAC(b[:6]), Src: cache.MAC(b[6:12]), Type: binary.BigEndian.Uint16(b[12:]), Body: b[EthernetLen:]}, true
}

// PriorityTagLen is the length of a priority tag: an 802.1Q tag of VLAN 0, which stations ignore.
const PriorityTagLen = 4

// WithoutPriority returns the frame without its priority tag, if it has one.
func (e Ethernet) WithoutPriority() Ethernet {
	const type8021Q, maskVLAN = 0x8100, 0x0fff
	if e.Type == type8021Q && len(e.Body) >= PriorityTagLen && binary.BigEndian.Uint16(e.Body)&maskVLAN == 0 {
		e.Type, e.Body = binary.BigEndian.Uint16(e.Body[2:]), e.Body[PriorityTagLen:]
	}
	return e
}

// AppendEthernet appends an Ethernet header.
func AppendEthernet(b []byte, dst, src cache.MAC, etherType uint16) []byte {
	b = append(b, dst[:]...)
	b = append(b, src[:]...)
	return binary.BigEndian.AppendUint16(b, etherType)
}

// Operations of ARP (RFC 826) and RARP (RFC 903).
const (
	ARPRequest  = 1
	ARPReply    = 2
	RARPRequest = 3
)

// ARP is an ARP or RARP packet for IPv4 on Ethernet.
type ARP struct {
	Operation uint16
	SenderMAC cache.MAC
	Sender    netip.Addr
	TargetMAC cache.MAC
	Target    netip.Addr
}

// arpHead begins each ARP packet for IPv4 on Ethernet.
var arpHead = [6]byte{0, 1, TypeIPv4 >> 8, TypeIPv4 & 0xff, 6, 4}

// ParseARP returns false if the packet is cut short, or not for IPv4 on Ethernet.
func ParseARP(b []byte) (ARP, bool) {
	if len(b) < ARPLen || [6]byte(b) != arpHead {
		return ARP{}, false
	}
	return ARP{
		Operation: binary.BigEndian.Uint16(b[6:]),
		SenderMAC: cache.MAC(b[8:14]), Sender: netip.AddrFrom4([4]byte(b[14:18])),
		TargetMAC: cache.MAC(b[18:24]), Target: netip.AddrFrom4([4]byte(b[24:28])),
	}, true
}

// Append appends the packet.
func (a ARP) Append(b []byte) []byte {
	sender, target := a.Sender.As4(), a.Target.As4()
	b = append(b, arpHead[:]...)
	b = binary.BigEndian.AppendUint16(b, a.Operation)
	b = append(append(b, a.SenderMAC[:]...), sender[:]...)
	return append(append(b, a.TargetMAC[:]...), target[:]...)
}

// IPv6 is a packet.
type IPv6 struct {
	Src, Dst netip.Addr
	Next     uint8 // the protocol
	Hops     uint8
	Body     []byte // without padding
}

// ParseIPv6 returns false if the packet is cut short, or of another version.
func ParseIPv6(b []byte) (IPv6, bool) {
	if len(b) < IPv6Len || b[0]>>4 != 6 {
		return IPv6{}, false
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n > len(b)-IPv6Len {
		return IPv6{}, false
	}
	return IPv6{
		Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])),
		Next: b[6], Hops: b[7], Body: b[IPv6Len : IPv6Len+n],
	}, true
}

// AppendIPv6 appends the Ethernet and the IPv6 header of a packet with n octets of payload.
func AppendIPv6(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr, next, hops uint8, n int) []byte {
	s, d := src.As16(), dst.As16()
	b = AppendEthernet(b, dstMAC, srcMAC, TypeIPv6)
	b = append(b, 0x60, 0, 0, 0, byte(n>>8), byte(n), next, hops)
	b = append(b, s[:]...)
	return append(b, d[:]...)
}

// Sum adds the 16-bit words of b to acc (RFC 1071). The sum of up to 128 KiB does not overflow.
func Sum(acc uint32, b []byte) uint32 {
	for len(b) > 1 {
		acc += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

// Fold returns the sum in 16 bits, by ones' complement addition. It is 0xffff over octets with the right checksum.
func Fold(acc uint32) uint16 {
	acc = acc>>16 + acc&0xffff
	return uint16(acc>>16 + acc)
}

// Pseudo6 returns the sum of the pseudo header of n octets of the protocol (RFC 8200 section 8.1).
func Pseudo6(src, dst netip.Addr, proto uint8, n int) uint32 {
	s, d := src.As16(), dst.As16()
	return Sum(Sum(uint32(proto)+uint32(n), s[:]), d[:])
}

// PutChecksum writes the checksum of b to the field at the offset at, which has to be zero before.
func PutChecksum(pseudo uint32, b []byte, at int) {
	binary.BigEndian.PutUint16(b[at:], ^Fold(Sum(pseudo, b)))
}
