package dhcp

import (
	"encoding/binary"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

const (
	udp4Len = frame.EthernetLen + frame.IPv4Len + frame.UDPLen // the headers before a DHCPv4 message
	udp6Len = frame.EthernetLen + frame.IPv6Len + frame.UDPLen // the headers before a DHCPv6 message

	portServer4 = 67
	portClient4 = 68
	portClient6 = 546
	portServer6 = 547
)

var broadcastIP = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// parseUDP4 returns the payload of a UDP datagram to the port in an IPv4 packet, or the reason to ignore the packet.
// It skips IP options and padding. It refuses fragments, wrong lengths and wrong checksums.
func parseUDP4(b []byte, port uint16) (payload []byte, ignored Reason) {
	if len(b) < frame.IPv4Len || b[0]>>4 != 4 {
		return nil, malformed
	}
	if b[9] != frame.UDP {
		return nil, otherProtocol
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < frame.IPv4Len || total < head+frame.UDPLen || total > len(b) {
		return nil, malformed
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		return nil, fragment
	}
	if frame.Fold(frame.Sum(0, b[:head])) != 0xffff {
		return nil, badChecksum
	}
	udp, ignored := datagram(b[head:total], port)
	if ignored != "" {
		return nil, ignored
	}
	if binary.BigEndian.Uint16(udp[6:]) != 0 && // RFC 768: 0 means that there is no checksum
		!validChecksum(frame.Sum(frame.UDP+uint32(len(udp)), b[12:20]), udp, 6) {
		return nil, badChecksum
	}
	return udp[frame.UDPLen:], ""
}

// parseUDP6 does for IPv6 what parseUDP4 does for IPv4.
func parseUDP6(p frame.IPv6, port uint16) (payload []byte, ignored Reason) {
	udp, ignored := datagram(p.Body, port)
	if ignored != "" {
		return nil, ignored
	}
	if binary.BigEndian.Uint16(udp[6:]) == 0 || // RFC 8200 section 8.1: the checksum is not optional
		!validChecksum(frame.Pseudo6(p.Src, p.Dst, frame.UDP, len(udp)), udp, 6) {
		return nil, badChecksum
	}
	return udp[frame.UDPLen:], ""
}

// datagram returns the UDP datagram to the port, without padding and with its header.
func datagram(b []byte, port uint16) (udp []byte, ignored Reason) {
	if len(b) < frame.UDPLen {
		return nil, malformed
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < frame.UDPLen || n > len(b) {
		return nil, malformed
	}
	if binary.BigEndian.Uint16(b[2:]) != port {
		return nil, otherProtocol
	}
	return b[:n], ""
}

// validChecksum checks the checksum of b, whose field is at the offset at.
//
// It accepts the sum of the pseudo header alone, too, which a guest sends that leaves checksums to its
// network device (CHECKSUM_PARTIAL). For a tap without vnet_hdr the kernel completes the checksum, but the
// responder can serve other ports as well.
func validChecksum(pseudo uint32, b []byte, at int) bool {
	return frame.Fold(frame.Sum(pseudo, b)) == 0xffff || binary.BigEndian.Uint16(b[at:]) == frame.Fold(pseudo)
}

// putUDPChecksum writes the checksum of a UDP datagram. A checksum of 0 becomes 0xffff, as 0 would mean that
// there is none (RFC 768).
func putUDPChecksum(pseudo uint32, udp []byte) {
	udp[6], udp[7] = 0, 0
	frame.PutChecksum(pseudo, udp, 6)
	if udp[6] == 0 && udp[7] == 0 {
		udp[6], udp[7] = 0xff, 0xff
	}
}

// putUDP4 writes the first udp4Len octets of a frame whose DHCPv4 message is in place.
func putUDP4(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr) {
	frame.AppendEthernet(b[:0], dstMAC, srcMAC, frame.TypeIPv4)
	ip, udp := b[frame.EthernetLen:frame.EthernetLen+frame.IPv4Len], b[frame.EthernetLen+frame.IPv4Len:]
	s, d := src.As4(), dst.As4()
	copy(ip, []byte{0: 0x45, 6: 0x40 /* do not fragment */, 8: 64, 9: frame.UDP})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-frame.EthernetLen))
	ip[10], ip[11] = 0, 0
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	frame.PutChecksum(0, ip, 10)
	binary.BigEndian.PutUint16(udp[0:], portServer4)
	binary.BigEndian.PutUint16(udp[2:], portClient4)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	putUDPChecksum(frame.Sum(frame.UDP+uint32(len(udp)), ip[12:20]), udp)
}

// putUDP6 writes the first udp6Len octets of a frame whose DHCPv6 message is in place.
func putUDP6(b []byte, dstMAC, srcMAC cache.MAC, dst, src netip.Addr) {
	udp := b[frame.EthernetLen+frame.IPv6Len:]
	frame.AppendIPv6(b[:0], dstMAC, srcMAC, dst, src, frame.UDP, 64, len(udp))
	binary.BigEndian.PutUint16(udp[0:], portServer6)
	binary.BigEndian.PutUint16(udp[2:], portClient6)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	putUDPChecksum(frame.Pseudo6(src, dst, frame.UDP, len(udp)), udp)
}
