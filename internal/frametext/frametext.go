// Package frametext describes a frame in a line, as far as its first octets show: who sends what to whom.
package frametext

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// EtherTypes (www.iana.org/assignments/ieee-802-numbers).
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeIPv6 = 0x86dd
)

// IP protocols and IPv6 extension headers (www.iana.org/assignments/protocol-numbers).
const (
	hopByHop    = 0
	icmp        = 1
	igmp        = 2
	tcp         = 6
	udp         = 17
	routing     = 43
	fragment    = 44
	icmp6       = 58
	destination = 60
	sctp        = 132
)

// Line describes a frame, such as "02:00:00:00:00:07 > ff:ff:ff:ff:ff:ff ARP 10.0.0.7 asks for 10.0.0.1".
//
// ethernet is the frame's Ethernet header, or shorter if there is none, without the VLAN tag: protocol and tag, zero
// for none. packet are the first octets after that header, of the type etherType. What cannot be read is left out.
func Line(ethernet []byte, tag [2]uint16, etherType uint16, packet []byte) string {
	line := ""
	if len(ethernet) >= 14 {
		line = fmt.Sprintf("%v > %v ", net.HardwareAddr(ethernet[6:12]), net.HardwareAddr(ethernet[:6]))
		// The kernel knows no type of LLC frames. The header has their length.
		etherType = binary.BigEndian.Uint16(ethernet[12:])
	}
	switch tag[0] {
	case 0:
	case 0x8100:
		line += fmt.Sprintf("VLAN %d ", tag[1]&0xfff)
	default:
		line += fmt.Sprintf("VLAN %d of %#04x ", tag[1]&0xfff, tag[0])
	}
	switch {
	case etherType == typeARP:
		return line + "ARP" + arp(packet)
	case etherType == typeIPv4:
		return line + "IPv4" + ipv4(packet)
	case etherType == typeIPv6:
		return line + "IPv6" + ipv6(packet)
	case etherType < 0x0600:
		return line + "LLC"
	}
	return line + fmt.Sprintf("EtherType %#04x", etherType)
}

// arp describes ARP for IPv4 and Ethernet (RFC 826).
func arp(b []byte) string {
	if len(b) < 28 {
		return ", cut short"
	}
	if [6]byte(b) != [6]byte{0, 1, 8, 0, 6, 4} {
		return ", not for IPv4 and Ethernet"
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	switch operation := binary.BigEndian.Uint16(b[6:]); operation {
	case 1:
		return fmt.Sprintf(" %v (%v) asks for %v", sender, net.HardwareAddr(b[8:14]), target)
	case 2:
		return fmt.Sprintf(" %v is at %v, says to %v", sender, net.HardwareAddr(b[8:14]), target)
	default:
		return fmt.Sprintf(" operation %d", operation)
	}
}

func ipv4(b []byte) string {
	if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 {
		return ", header cannot be read"
	}
	protocol, rest := b[9], b[min(len(b), int(b[0]&15)*4):]
	offset := binary.BigEndian.Uint16(b[6:])
	text := transport(netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), protocol, rest, offset&0x1fff != 0)
	if offset&0x3fff != 0 {
		text += ", fragment"
	}
	return text
}

func ipv6(b []byte) string {
	if len(b) < 40 || b[0]>>4 != 6 {
		return ", header cannot be read"
	}
	from, to := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, rest, later, after := b[6], b[40:], false, ""
	for !later && len(rest) >= 8 {
		size := 8
		switch next {
		case hopByHop, routing, destination:
			size = 8 * (1 + int(rest[1]))
			if after == "" {
				after = ", after extension headers"
			}
		case fragment:
			later = binary.BigEndian.Uint16(rest[2:])&^7 != 0
			after = ", fragment"
		default:
			return transport(from, to, next, rest, false) + after
		}
		next, rest = rest[0], rest[min(len(rest), size):]
	}
	return transport(from, to, next, rest, later) + after
}

// transport describes a packet from its addresses on. Later says that it is a fragment without a transport header.
func transport(from, to netip.Addr, protocol uint8, b []byte, later bool) string {
	plain := fmt.Sprintf(" %v > %v", from, to)
	name, ok := map[uint8]string{tcp: "TCP", udp: "UDP", sctp: "SCTP", icmp: "ICMP", icmp6: "ICMPv6", igmp: "IGMP"}[protocol]
	switch {
	case !ok:
		return fmt.Sprintf("%s protocol %d", plain, protocol)
	case later || len(b) < 4:
		return plain + " " + name
	}
	switch protocol {
	case tcp, udp, sctp:
		source, destination := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		return fmt.Sprintf(" %v > %v %s", netip.AddrPortFrom(from, source), netip.AddrPortFrom(to, destination), name)
	}
	text := fmt.Sprintf("%s %s type %d", plain, name, b[0])
	if protocol == icmp6 && (b[0] == 135 || b[0] == 136) && len(b) >= 24 { // neighbour solicitation, advertisement
		text += fmt.Sprintf(" about %v", netip.AddrFrom16([16]byte(b[8:])))
	}
	return text
}
