package firewall

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Match is a condition on a packet: one of the types below. With Inverted the condition is negated.
type Match interface {
	fmt.Stringer
	match()
}

type (
	// InInterface is the name of the link on which the packet arrived.
	InInterface struct {
		Name     string
		Inverted bool
	}
	// OutInterface is the name of the link by which the packet leaves.
	OutInterface struct {
		Name     string
		Inverted bool
	}
	// OutGroup is the group of the link by which the packet leaves, under a mask. It is for nftables.
	OutGroup struct{ Group, Mask uint32 }
	// EtherType is the type field of the Ethernet header; 0x8100 if the frame has a VLAN tag. It is for the
	// family bridge; a netdev table compares Bytes.
	EtherType struct{ Number uint16 }
	// Multicast is a frame whose destination is a group, but not broadcast.
	Multicast struct{ Inverted bool }
	// IP is the packet's IP version, 4 or 6, in the family inet.
	IP struct{ Version ip.Version }
	// Carries is the packet's IP version, 4 or 6, in the families netdev and bridge.
	Carries struct{ Version ip.Version }
	// Protocol is the transport protocol, after IPv6's extension headers. It never matches a packet with
	// malformed headers, also not with Inverted.
	Protocol struct {
		Number   uint8
		Inverted bool
	}
	// Source is the prefix of the packet's source address.
	Source struct{ Prefix netip.Prefix }
	// Destination is the prefix of the packet's destination address.
	Destination struct{ Prefix netip.Prefix }
	// LocalSource is a packet whose source is an address of the namespace's own.
	LocalSource struct{}
	// SourcePort is a range of source ports. Protocol 0 leaves the protocol to the rule's other matches. It
	// never matches a fragment other than the first.
	SourcePort struct {
		Protocol    uint8
		First, Last uint16
		Inverted    bool
	}
	// DestinationPort is a range of destination ports, see SourcePort.
	DestinationPort struct {
		Protocol    uint8
		First, Last uint16
		Inverted    bool
	}
	// ICMP is a message type of ICMP (Version 4) or ICMPv6 (Version 6), with a code, or with any if Code is 0.
	ICMP struct {
		Version ip.Version
		Type    uint8
		Code    uint8
	}
	// Bytes are octets of a header from Offset on. Mask and Last, if not nil, have the length of Value. With Last, the
	// octets are a number from Value to Last.
	Bytes struct {
		Header   Header
		Offset   int
		Value    []byte
		Mask     []byte
		Last     []byte
		Inverted bool
	}
	// SocketUser is the user of the socket from which the packet comes. It never matches a packet without a socket.
	SocketUser struct {
		UID      uint32
		Inverted bool
	}
	// Fragment is an IPv6 fragment that is not the first.
	Fragment struct{}
	// RoutingHeader is an IPv6 packet with a routing header (RFC 8200 section 4.4).
	RoutingHeader struct{}
	// Longer is a packet of more than Octets, counted after the Ethernet header in a netdev table.
	Longer struct{ Octets uint32 }
	// State holds if the connection's state is in States.
	State struct{ States States }
	// Translated holds if the connection's destination was translated by DNAT.
	Translated struct{}
	// Origin is the prefix of the source address in a direction of the packet's connection: the address of the
	// client, or with Reply that of the server, before NAT. For an ICMP error it is the connection that
	// the error is about. The rule has to match the IP version as well.
	Origin struct {
		Prefix netip.Prefix
		Reply  bool
	}
	// Original is a packet in the direction in which its connection was opened.
	Original struct{}
	// Unconfirmed holds for the first packet of a connection, which the kernel's table does not have yet. The
	// state [New] holds for all packets up to the first answer.
	Unconfirmed struct{}
	// Unanswered holds for a connection that nobody has answered. For an ICMP error it is the connection that the error
	// is about.
	Unanswered struct{}
	// Connections holds if the rule counts more than Over connections.
	Connections struct{ Over uint32 }
	// Opening is a TCP segment with SYN and without RST.
	Opening struct{ Inverted bool }
	// Count holds for all packets, and counts those that the matches before it let through. The count is no part of a
	// rule's text.
	Count struct{}
	// Rate holds for so many Packets a second, or with PerMinute a minute, and for Burst packets at once; with Over,
	// for the packets above that.
	Rate struct {
		Packets   int
		PerMinute bool
		Burst     int
		Over      bool
	}
	// Faster holds for packets above so many octets a second, counted as Longer counts them. Burst octets, and those of
	// one second, may pass at once.
	Faster struct {
		Octets uint64
		Burst  uint32
	}
)

// ProtocolOfICMP is that of a version of IP.
func ProtocolOfICMP(v ip.Version) uint8 { return ip.Pick[uint8](v, ProtocolICMP, ProtocolICMPv6) }

// HostPrefix returns the prefix that has the address alone.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Mask returns the prefix's mask for [Bytes]: nil for a single address, otherwise 4 or 16 octets.
func Mask(p netip.Prefix) []byte {
	if p.IsSingleIP() {
		return nil
	}
	m := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}

// Header is the header in which [Bytes] are counted, by its name in nft(8).
type Header string

// The headers.
const (
	Ethernet  Header = "ll"
	Network   Header = "nh"
	Transport Header = "th"
)

// States is a set of connection states, NF_STATE_BIT of each (linux/netfilter/nf_conntrack_common.h).
type States uint32

// The states.
const (
	Invalid     States = 1
	Established States = 2
	Related     States = 4
	New         States = 8
	Untracked   States = 64
)

// Transport protocols (linux/in.h).
const (
	ProtocolICMP   = 1
	ProtocolIGMP   = 2
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolICMPv6 = 58
	ProtocolSCTP   = 132
)

// Message types of ICMP and ICMPv6, and the ports of DHCP clients.
const (
	ICMPUnreachable    = 3
	ICMPEcho           = 8
	ICMP6Echo          = 128
	ICMP6Solicitation  = 135
	ICMP6Advertisement = 136

	DHCPClient4 = 68
	DHCPClient6 = 546
)

// AllDHCP6 is All_DHCP_Relay_Agents_and_Servers (RFC 9915 section 7.1).
var AllDHCP6 = netip.MustParseAddr("ff02::1:2")

// HasPort reports whether the ports have the port of the protocol.
func HasPort(ports syntax.Ports, protocol uint8, port uint16) bool {
	full := ports.Full()
	return Transports[full.Protocol] == protocol && full.First <= port && port <= full.Last
}

// Transports are the protocols with ports, by the names that infra.Ports has.
var Transports = map[string]uint8{"tcp": ProtocolTCP, "udp": ProtocolUDP, "sctp": ProtocolSCTP}

func (InInterface) match()     {}
func (OutInterface) match()    {}
func (OutGroup) match()        {}
func (EtherType) match()       {}
func (Multicast) match()       {}
func (IP) match()              {}
func (Carries) match()         {}
func (Protocol) match()        {}
func (Source) match()          {}
func (Destination) match()     {}
func (LocalSource) match()     {}
func (SourcePort) match()      {}
func (DestinationPort) match() {}
func (ICMP) match()            {}
func (Bytes) match()           {}
func (SocketUser) match()      {}
func (Fragment) match()        {}
func (RoutingHeader) match()   {}
func (Longer) match()          {}
func (State) match()           {}
func (Translated) match()      {}
func (Origin) match()          {}
func (Original) match()        {}
func (Unconfirmed) match()     {}
func (Unanswered) match()      {}
func (Connections) match()     {}
func (Opening) match()         {}
func (Count) match()           {}
func (Rate) match()            {}
func (Faster) match()          {}

func (m InInterface) String() string {
	return "iifname " + negation(m.Inverted) + fmt.Sprintf("%q", m.Name)
}
func (m OutInterface) String() string {
	return "oifname " + negation(m.Inverted) + fmt.Sprintf("%q", m.Name)
}

func (m OutGroup) String() string {
	return fmt.Sprintf("meta oifgroup & %#x == %#x", m.Mask, m.Group)
}

func negation(is bool) string {
	if is {
		return "!= "
	}
	return ""
}

func (m EtherType) String() string {
	if name, ok := etherTypes[m.Number]; ok {
		return "ether type " + name
	}
	return fmt.Sprintf("ether type %#04x", m.Number)
}

func (m Multicast) String() string { return "meta pkttype " + negation(m.Inverted) + "multicast" }

func (m IP) String() string { return fmt.Sprintf("meta nfproto ipv%d", m.Version) }

func (m Carries) String() string { return "meta protocol " + ipWord(m.Version) }

// ipWord returns nft's name of the IP version.
func ipWord(v ip.Version) string { return ip.Pick(v, "ip", "ip6") }

func (m Protocol) String() string {
	if m.Number == 0 { // IPv6's hop-by-hop options
		return "meta l4proto " + negation(m.Inverted) + "0"
	}
	return "meta l4proto " + negation(m.Inverted) + protocol(m.Number)
}

// protocol returns the name that nft and iptables have for a transport protocol; 0 is the nft name of any
// transport header.
func protocol(number uint8) string {
	switch number {
	case 0:
		return "th"
	case ProtocolICMP:
		return "icmp"
	case ProtocolIGMP:
		return "igmp"
	case ProtocolTCP:
		return "tcp"
	case ProtocolUDP:
		return "udp"
	case ProtocolICMPv6:
		return "ipv6-icmp"
	case ProtocolSCTP:
		return "sctp"
	}
	return fmt.Sprint(number)
}

func (m Source) String() string    { return ipWord(ip.Of(m.Prefix.Addr())) + " saddr " + prefix(m.Prefix) }
func (LocalSource) String() string { return "fib saddr type local" }

func (m Destination) String() string {
	return ipWord(ip.Of(m.Prefix.Addr())) + " daddr " + prefix(m.Prefix)
}

func prefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (m SourcePort) String() string {
	return protocol(m.Protocol) + " sport " + negation(m.Inverted) + ports(m.First, m.Last)
}

func (m DestinationPort) String() string {
	return protocol(m.Protocol) + " dport " + negation(m.Inverted) + ports(m.First, m.Last)
}

func ports(first, last uint16) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

func (m ICMP) String() string {
	name := ip.Pick(m.Version, "icmp", "icmpv6")
	text := fmt.Sprintf("%s type %d", name, m.Type)
	if m.Code != 0 {
		text += fmt.Sprintf(" %s code %d", name, m.Code)
	}
	return text
}

func (m Bytes) String() string {
	text := fmt.Sprintf("@%s,%d,%d ", m.Header, 8*m.Offset, 8*len(m.Value))
	if m.Mask != nil {
		text += fmt.Sprintf("& %#x ", m.Mask)
		if !m.Inverted {
			text += "== "
		}
	}
	text += negation(m.Inverted) + fmt.Sprintf("%#x", m.Value)
	if m.Last != nil {
		text += fmt.Sprintf("-%#x", m.Last)
	}
	return text
}

func (m SocketUser) String() string {
	return fmt.Sprintf("meta skuid %s%d", negation(m.Inverted), m.UID)
}

func (Fragment) String() string { return "frag frag-off != 0" }

func (RoutingHeader) String() string { return "exthdr rt exists" }

func (m Longer) String() string { return fmt.Sprintf("meta length > %d", m.Octets) }

func (m State) String() string {
	var words []string
	for _, s := range []struct {
		bit  States
		name string
	}{{Established, "established"}, {Related, "related"}, {New, "new"}, {Invalid, "invalid"}, {Untracked, "untracked"}} {
		if m.States&s.bit != 0 {
			words = append(words, s.name)
		}
	}
	return "ct state " + strings.Join(words, ",")
}

func (Count) String() string { return "counter" }

func (m Rate) String() string {
	over, unit := "", "second"
	if m.Over {
		over = "over "
	}
	if m.PerMinute {
		unit = "minute"
	}
	return fmt.Sprintf("limit rate %s%d/%s burst %d packets", over, m.Packets, unit, m.Burst)
}

func (m Faster) String() string {
	return fmt.Sprintf("limit rate over %d bytes/second burst %d bytes", m.Octets, m.Burst)
}

func (m Origin) String() string {
	direction := "original"
	if m.Reply {
		direction = "reply"
	}
	return "ct " + direction + " saddr " + prefix(m.Prefix)
}

func (Translated) String() string    { return "ct status dnat" }
func (Original) String() string      { return "ct direction original" }
func (Unconfirmed) String() string   { return "ct status ! confirmed" }
func (Unanswered) String() string    { return "ct status ! seen-reply" }
func (m Connections) String() string { return fmt.Sprintf("ct count over %d", m.Over) }

func (m Opening) String() string {
	if m.Inverted {
		return "tcp flags & (syn | rst) != syn"
	}
	return "tcp flags & (syn | rst) == syn"
}

// etherTypes and transportNames are nft's names of the headers that follow.
var (
	etherTypes     = map[uint16]string{0x0800: "ip", 0x0806: "arp", 0x86dd: "ip6"}
	transportNames = map[uint8]string{ProtocolICMP: "icmp", ProtocolIGMP: "igmp", ProtocolTCP: "tcp", ProtocolUDP: "udp",
		ProtocolICMPv6: "icmpv6", ProtocolSCTP: "sctp"}
)
