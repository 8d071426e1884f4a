// Package frametext describes a frame in a line, as far as its first octets show: who sends what to whom.
package frametext

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/internal/frame"
)

// IP protocols and IPv6 extension headers (www.iana.org/assignments/protocol-numbers).
const (
	hopByHop    = 0
	icmp        = 1
	igmp        = 2
	tcp         = 6
	routing     = 43
	fragment    = 44
	destination = 60
	sctp        = 132
)

// Line describes a frame, such as "02:00:00:00:00:07 > ff:ff:ff:ff:ff:ff ARP 10.0.0.7 asks for 10.0.0.1".
//
// ethernet is the frame's Ethernet header, or shorter if there is none, without the VLAN tag: protocol and tag, zero
// for none. packet are the first octets after that header, of the type etherType. What cannot be read is left out.
func Line(ethernet []byte, tag [2]uint16, etherType uint16, packet []byte) string {
	line := ""
	if f, ok := frame.ParseEthernet(ethernet); ok {
		line = fmt.Sprintf("%v > %v ", f.Src, f.Dst)
		etherType = f.Type // the kernel knows no type of LLC frames; the header has their length
	}
	switch tag[0] {
	case 0:
	case 0x8100:
		line += fmt.Sprintf("VLAN %d ", tag[1]&0xfff)
	default:
		line += fmt.Sprintf("VLAN %d of %#04x ", tag[1]&0xfff, tag[0])
	}
	switch {
	case etherType == frame.TypeARP:
		return line + "ARP" + arp(packet)
	case etherType == frame.TypeIPv4:
		return line + "IPv4" + ipv4(packet)
	case etherType == frame.TypeIPv6:
		return line + "IPv6" + ipv6(packet)
	case etherType < 0x0600:
		return line + "LLC"
	}
	return line + fmt.Sprintf("EtherType %#04x", etherType)
}

// arp describes ARP for IPv4 and Ethernet (RFC 826).
func arp(b []byte) string {
	if len(b) < frame.ARPLen {
		return ", cut short"
	}
	a, ok := frame.ParseARP(b)
	switch {
	case !ok:
		return ", not for IPv4 and Ethernet"
	case a.Operation == frame.ARPRequest:
		return fmt.Sprintf(" %v (%v) asks for %v", a.Sender, a.SenderMAC, a.Target)
	case a.Operation == frame.ARPReply:
		return fmt.Sprintf(" %v is at %v, says to %v", a.Sender, a.SenderMAC, a.Target)
	}
	return fmt.Sprintf(" operation %d", a.Operation)
}

func ipv4(b []byte) string {
	if len(b) < frame.IPv4Len || b[0]>>4 != 4 || b[0]&15 < 5 {
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
	if len(b) < frame.IPv6Len || b[0]>>4 != 6 {
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
	name, ok := map[uint8]string{tcp: "TCP", frame.UDP: "UDP", sctp: "SCTP", icmp: "ICMP", frame.ICMPv6: "ICMPv6", igmp: "IGMP"}[protocol]
	switch {
	case !ok:
		return fmt.Sprintf("%s protocol %d", plain, protocol)
	case later || len(b) < 4:
		return plain + " " + name
	}
	switch protocol {
	case tcp, frame.UDP, sctp:
		source, destination := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		return fmt.Sprintf(" %v > %v %s", netip.AddrPortFrom(from, source), netip.AddrPortFrom(to, destination), name)
	}
	text := fmt.Sprintf("%s %s type %d", plain, name, b[0])
	if protocol == frame.ICMPv6 && (b[0] == frame.NeighbourSolicitation || b[0] == frame.NeighbourAdvertisement) && len(b) >= frame.NeighbourLen {
		text += fmt.Sprintf(" about %v", netip.AddrFrom16([16]byte(b[8:])))
	}
	return text
}
