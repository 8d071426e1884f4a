package dhcp

import (
	"encoding/binary"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// The parts of Ethernet, IPv4, UDP and IPv6 that the responder needs: no VLAN tags, no fragments, no
// extension headers. Lengths are in octets.
const (
	ethLen  = 14
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
	udp4Len = ethLen + ip4Len + udpLen // the headers before a DHCPv4 message
	udp6Len = ethLen + ip6Len + udpLen // the headers before a DHCPv6 message

	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd

	protoUDP    = 17
	protoICMPv6 = 58

	portServer4 = 67
	portClient4 = 68
	portClient6 = 546
	portServer6 = 547
)

var (
	broadcastMAC = cache.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	broadcastIP  = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	allNodes     = netip.MustParseAddr("ff02::1")
)

// multicastMAC returns the destination of a frame to an IPv6 multicast address (RFC 2464 section 7).
func multicastMAC(a netip.Addr) cache.MAC {
	b := a.As16()
	return cache.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// parseUDP4 returns the payload of a UDP datagram to the port in an IPv4 packet, or the reason to ignore the packet.
// It skips IP options and padding. It refuses fragments, wrong lengths and wrong checksums.
func parseUDP4(b []byte, port uint16) (payload []byte, ignored Reason) {
	if len(b) < ip4Len || b[0]>>4 != 4 {
		return nil, malformed
	}
	if b[9] != protoUDP {
		return nil, otherProtocol
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ip4Len || total < head+udpLen || total > len(b) {
		return nil, malformed
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		return nil, fragment
	}
	if fold(sum(0, b[:head])) != 0xffff {
		return nil, badChecksum
	}
	udp := b[head:total]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n < udpLen || n > len(udp) {
		return nil, malformed
	}
	if binary.BigEndian.Uint16(udp[2:]) != port {
		return nil, otherProtocol
	}
	udp = udp[:n]
	if binary.BigEndian.Uint16(udp[6:]) != 0 && // RFC 768: 0 means that there is no checksum
		!validChecksum(sum(protoUDP+uint32(n), b[12:20]), udp, 6) {
		return nil, badChecksum
	}
	return udp[udpLen:], ""
}

// packet6 is an IPv6 packet.
type packet6 struct {
	src, dst netip.Addr
	next     uint8
	hops     uint8
	body     []byte
}

func parseIPv6(b []byte) (packet6, bool) {
	if len(b) < ip6Len || b[0]>>4 != 6 {
		return packet6{}, false
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n > len(b)-ip6Len {
		return packet6{}, false
	}
	return packet6{
		src:  netip.AddrFrom16([16]byte(b[8:24])),
		dst:  netip.AddrFrom16([16]byte(b[24:40])),
		next: b[6],
		hops: b[7],
		body: b[ip6Len : ip6Len+n],
	}, true
}

// parseUDP6 does for IPv6 what parseUDP4 does for IPv4.
func parseUDP6(p packet6, port uint16) (payload []byte, ignored Reason) {
	udp := p.body
	if len(udp) < udpLen {
		return nil, malformed
	}
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n < udpLen || n > len(udp) {
		return nil, malformed
	}
	if binary.BigEndian.Uint16(udp[2:]) != port {
		return nil, otherProtocol
	}
	udp = udp[:n]
	if binary.BigEndian.Uint16(udp[6:]) == 0 || // RFC 8200 section 8.1: the checksum is not optional
		!validChecksum(pseudo6(p.src, p.dst, protoUDP, n), udp, 6) {
		return nil, badChecksum
	}
	return udp[udpLen:], ""
}

// sum adds the 16-bit words of b to acc (RFC 1071). The sum of up to 128 KiB does not overflow.
func sum(acc uint32, b []byte) uint32 {
	for len(b) > 1 {
		acc += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

// fold returns the sum in 16 bits, by ones' complement addition.
func fold(acc uint32) uint16 {
	acc = acc>>16 + acc&0xffff
	return uint16(acc>>16 + acc)
}

// pseudo6 returns the sum of the pseudo header of n octets of the protocol (RFC 8200 section 8.1).
func pseudo6(src, dst netip.Addr, proto uint8, n int) uint32 {
	s, d := src.As16(), dst.As16()
	return sum(sum(uint32(proto)+uint32(n), s[:]), d[:])
}

// validChecksum checks the checksum of b, whose field is at the offset at.
//
// It accepts the sum of the pseudo header alone, too, which a guest sends that leaves checksums to its
// network device (CHECKSUM_PARTIAL). For a tap without vnet_hdr the kernel completes the checksum, but the
// responder can serve other ports as well.
func validChecksum(pseudo uint32, b []byte, at int) bool {
	return fold(sum(pseudo, b)) == 0xffff || binary.BigEndian.Uint16(b[at:]) == fold(pseudo)
}

// putChecksum writes the checksum of b to the field at the offset at, which has to be zero before.
func putChecksum(pseudo uint32, b []byte, at int) {
	binary.BigEndian.PutUint16(b[at:], ^fold(sum(pseudo, b)))
}

// putUDPChecksum writes the checksum of a UDP datagram. A checksum of 0 becomes 0xffff, as 0 would mean that
// there is none (RFC 768).
func putUDPChecksum(pseudo uint32, udp []byte) {
	udp[6], udp[7] = 0, 0
	putChecksum(pseudo, udp, 6)
	if udp[6] == 0 && udp[7] == 0 {
		udp[6], udp[7] = 0xff, 0xff
	}
}

func appendEthernet(b []byte, dst, src cache.MAC, etherType uint16) []byte {
	b = append(b, dst[:]...)
	b = append(b, src[:]...)
	return binary.BigEndian.AppendUint16(b, etherType)
}

// putUDP4 writes the first udp4Len octets of a frame whose DHCPv4 message is in place.
func putUDP4(frame []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr) {
	appendEthernet(frame[:0], dstMAC, srcMAC, etherIPv4)
	ip, udp := frame[ethLen:ethLen+ip4Len], frame[ethLen+ip4Len:]
	s, d := src.As4(), dst.As4()
	copy(ip, []byte{0: 0x45, 6: 0x40 /* do not fragment */, 8: 64, 9: protoUDP})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(frame)-ethLen))
	ip[10], ip[11] = 0, 0
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	putChecksum(0, ip, 10)
	binary.BigEndian.PutUint16(udp[0:], portServer4)
	binary.BigEndian.PutUint16(udp[2:], portClient4)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	putUDPChecksum(sum(protoUDP+uint32(len(udp)), ip[12:20]), udp)
}

// putUDP6 writes the first udp6Len octets of a frame whose DHCPv6 message is in place.
func putUDP6(frame []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr) {
	udp := frame[ethLen+ip6Len:]
	appendIPv6(frame[:0], dstMAC, srcMAC, dst, src, protoUDP, 64, len(udp))
	binary.BigEndian.PutUint16(udp[0:], portServer6)
	binary.BigEndian.PutUint16(udp[2:], portClient6)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	putUDPChecksum(pseudo6(src, dst, protoUDP, len(udp)), udp)
}

// appendIPv6 appends the Ethernet and the IPv6 header of a packet with n octets of payload.
func appendIPv6(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr, next, hops uint8, n int) []byte {
	s, d := src.As16(), dst.As16()
	b = appendEthernet(b, dstMAC, srcMAC, etherIPv6)
	b = append(b, 0x60, 0, 0, 0, byte(n>>8), byte(n), next, hops)
	b = append(b, s[:]...)
	return append(b, d[:]...)
}

// appendICMPv6 appends a frame with the ICMPv6 message msg, whose checksum field is zero. The hop limit is
// 255, as neighbour discovery wants it.
func appendICMPv6(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr, msg []byte) []byte {
	b = appendIPv6(b, dstMAC, srcMAC, dst, src, protoICMPv6, 255, len(msg))
	b = append(b, msg...)
	putChecksum(pseudo6(src, dst, protoICMPv6, len(msg)), b[len(b)-len(msg):], 2)
	return b
}
