package guestfilter

import (
	"encoding/binary"
	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"net/netip"
)

// Types of ICMP and IGMP (www.iana.org/assignments/icmp-parameters, igmp-type-numbers, icmpv6-parameters).
const (
	icmpEchoReply     = 0
	icmpRedirect      = 5
	icmpAdvertisement = 9
	icmpTimeExceeded  = 11 // and 12, a parameter problem, and 13, a timestamp request
	icmpTimestampBack = 14
	icmpExtendedEcho  = 42 // RFC 8335
	icmpExtendedBack  = 43

	igmpReport1 = 0x12
	igmpReport2 = 0x16
	igmpLeave   = 0x17
	igmpReport3 = 0x22

	icmp6Query               = 130
	icmp6Report              = 131
	icmp6Done                = 132
	icmp6RouterSolicitation  = 133
	icmp6RouterAdvertisement = 134
	icmp6Redirect            = 137
	icmp6Report2             = 143
)

// Ports of DHCP servers.
const (
	server4 = 67
	server6 = 547

	// Ports near one of DHCP's have the same bits in the mask.
	nearDHCP4 = 0xfff8
	nearDHCP6 = 0xfffc
)

func rule(v firewall.Verdict, m ...firewall.Match) firewall.Rule {
	return firewall.Rule{Matches: m, Verdict: v}
}

// drop is a drop for a reason.
func drop(why firewall.Reason) firewall.Drop { return firewall.Drop{Reason: why} }

// farFrom matches a port that differs from the other in the bits of the mask. It never matches a port that cannot
// be read.
func farFrom(offset int, port, mask uint16) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Offset: offset,
		Value: binary.BigEndian.AppendUint16(nil, port&mask), Mask: binary.BigEndian.AppendUint16(nil, mask), Inverted: true}
}

// from matches the source MAC of a frame and its EtherType, which lie side by side. With a VLAN tag the EtherType is
// the tag's.
func from(m cache.MAC, kind uint16) firewall.Match {
	return firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: binary.BigEndian.AppendUint16(m[:], kind)}
}

// Fields of ARP: the operation, 1 for a request and 2 for a reply, and the IPv4 addresses of sender and target.
func arpOperation(n byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, n}}
}

func arpSender(p netip.Prefix) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 14, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
}

func arpTarget(p netip.Prefix) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 24, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
}

func ofProtocol(protocol uint8) firewall.Match { return firewall.Protocol{Number: protocol} }

// wellFormed matches every packet whose transport header the kernel has found.
var wellFormed = firewall.Protocol{Number: 255, Inverted: true}

// laterFragment4 is an IPv4 fragment that is not the first.
var laterFragment4 = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x1f, 0xff}, Inverted: true}

// messageType matches the first octet of the transport header, which is the type in ICMP, ICMPv6 and IGMP. It is for
// chains into which the protocol leads. With last, the type lies in a range.
func messageType(first byte, last ...byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Value: []byte{first}, Last: last}
}

// messageTypes matches the types that agree with kind in the bits of mask.
func messageTypes(kind, mask byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Value: []byte{kind}, Mask: []byte{mask}}
}

// typeReadable matches an ICMP, ICMPv6 or IGMP message whose type can be read, except the type 255, which is reserved.
var typeReadable = firewall.Bytes{Header: firewall.Transport, Value: []byte{255}, Inverted: true}

func optionType(offset int, first byte, last ...byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: []byte{first}, Last: last}
}

// length6 matches the length of what follows the IPv6 header.
func length6(first, last uint16, not bool) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 4, Inverted: not,
		Value: binary.BigEndian.AppendUint16(nil, first), Last: binary.BigEndian.AppendUint16(nil, last)}
}

// Destinations in the IP header that the filter drops: 127.0.0.0/8; and ::1, ::ffff:0:0/96 and others that no station
// has.
var (
	loopback4Octets = firewall.Bytes{Header: firewall.Network, Offset: 16, Value: []byte{127}}
	loopback6Octets = firewall.Bytes{Header: firewall.Network, Offset: 24, Value: make([]byte, 4)}
)

// fromUnspecified matches the source ::, in a packet that is known as IPv6.
var fromUnspecified = firewall.Bytes{Header: firewall.Network, Offset: 8, Value: make([]byte, 16)}

type chainAdder func(name string, rules ...firewall.Rule)
