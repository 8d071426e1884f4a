package firewall

import (
	"fmt"
	"net/netip"
	"strings"
)

// Match is a condition on a packet, one of the types below.
type Match interface {
	fmt.Stringer
	match()
}

type (
	// InInterface is the name of the link that a packet came from; with Not it is any other.
	InInterface struct {
		Name string
		Not  bool
	}
	// OutInterface is that of the link that it leaves by.
	OutInterface struct {
		Name string
		Not  bool
	}
	// EtherType is what stands in the frame, 0x8100 if it has a VLAN tag.
	EtherType struct{ Number uint16 }
	// IP is the version of the Internet Protocol, 4 or 6, for the family inet.
	IP struct{ Version int }
	// Carries is the same for netdev and bridge.
	Carries struct{ Version int }
	// Protocol is that of the transport header, behind IPv6's extension headers. It holds for no
	// packet whose headers are ill-formed, whether with Not or without.
	Protocol struct {
		Number uint8
		Not    bool
	}
	// Source is a packet's source address.
	Source struct{ Prefix netip.Prefix }
	// Destination is a packet's destination address.
	Destination struct{ Prefix netip.Prefix }
	// SourcePort is that of the transport header; a Protocol of 0 is the one that is known to be there.
	// It holds for no fragment but the first.
	SourcePort struct {
		Protocol    uint8
		First, Last uint16
		Not         bool
	}
	// DestinationPort is as SourcePort.
	DestinationPort struct {
		Protocol    uint8
		First, Last uint16
		Not         bool
	}
	// ICMP is a message's type, of version 4 or 6.
	ICMP struct {
		Version int
		Type    uint8
	}
	// Bytes are some of a header's, under a mask of the same length if there is one.
	Bytes struct {
		Header Header
		Offset int
		Value  []byte
		Mask   []byte
		Not    bool
	}
	// Fragment is an IPv6 fragment that is not the first.
	Fragment struct{}
	// State is a connection's: one of several.
	State struct{ States States }
	// Translated says that the connection's destination has been translated.
	Translated struct{}
	// Connections says that there are more than Over that the rule has seen.
	Connections struct{ Over uint32 }
	// Opening is a TCP segment with SYN; with Not it is any other.
	Opening struct{ Not bool }
)

// Mask is a prefix's for Bytes: nil for a whole address.
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

// Header is where Bytes begin to count.
type Header string

// The headers.
const (
	Ethernet  Header = "ll"
	Network   Header = "nh"
	Transport Header = "th"
)

// States is a set of a connection's states (linux/netfilter/nf_conntrack_common.h).
type States uint32

// The states.
const (
	Invalid     States = 1
	Established States = 2
	Related     States = 4
	New         States = 8
	Untracked   States = 64
)

// Protocols of transport (linux/in.h).
const (
	ProtocolICMP   = 1
	ProtocolIGMP   = 2
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolICMPv6 = 58
	ProtocolSCTP   = 132
)

func (InInterface) match()     {}
func (OutInterface) match()    {}
func (EtherType) match()       {}
func (IP) match()              {}
func (Carries) match()         {}
func (Protocol) match()        {}
func (Source) match()          {}
func (Destination) match()     {}
func (SourcePort) match()      {}
func (DestinationPort) match() {}
func (ICMP) match()            {}
func (Bytes) match()           {}
func (Fragment) match()        {}
func (State) match()           {}
func (Translated) match()      {}
func (Connections) match()     {}
func (Opening) match()         {}

func (m InInterface) String() string  { return "iifname " + not(m.Not) + fmt.Sprintf("%q", m.Name) }
func (m OutInterface) String() string { return "oifname " + not(m.Not) + fmt.Sprintf("%q", m.Name) }

func not(is bool) string {
	if is {
		return "!= "
	}
	return ""
}

func (m EtherType) String() string {
	if name, ok := map[uint16]string{0x0800: "ip", 0x0806: "arp", 0x86dd: "ip6"}[m.Number]; ok {
		return "ether type " + name
	}
	return fmt.Sprintf("ether type %#04x", m.Number)
}

func (m IP) String() string { return fmt.Sprintf("meta nfproto ipv%d", m.Version) }

func (m Carries) String() string { return "meta protocol " + version(m.Version == 4) }

// version is how nft calls the Internet Protocol.
func version(is4 bool) string {
	if is4 {
		return "ip"
	}
	return "ip6"
}

func (m Protocol) String() string {
	if m.Number == 0 { // IPv6's hop-by-hop options
		return "meta l4proto " + not(m.Not) + "0"
	}
	return "meta l4proto " + not(m.Not) + protocol(m.Number)
}

// protocol is the name that nft has for one of transport.
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

func (m Source) String() string { return version(m.Prefix.Addr().Is4()) + " saddr " + prefix(m.Prefix) }
func (m Destination) String() string {
	return version(m.Prefix.Addr().Is4()) + " daddr " + prefix(m.Prefix)
}

func prefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (m SourcePort) String() string {
	return protocol(m.Protocol) + " sport " + not(m.Not) + ports(m.First, m.Last)
}

func (m DestinationPort) String() string {
	return protocol(m.Protocol) + " dport " + not(m.Not) + ports(m.First, m.Last)
}

func ports(first, last uint16) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

func (m ICMP) String() string {
	if m.Version == 6 {
		return fmt.Sprintf("icmpv6 type %d", m.Type)
	}
	return fmt.Sprintf("icmp type %d", m.Type)
}

func (m Bytes) String() string {
	text := fmt.Sprintf("@%s,%d,%d ", m.Header, 8*m.Offset, 8*len(m.Value))
	if m.Mask != nil {
		text += fmt.Sprintf("& %#x ", m.Mask)
		if !m.Not {
			text += "== "
		}
	}
	return text + not(m.Not) + fmt.Sprintf("%#x", m.Value)
}

func (Fragment) String() string { return "frag frag-off != 0" }

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

func (Translated) String() string    { return "ct status dnat" }
func (m Connections) String() string { return fmt.Sprintf("ct count over %d", m.Over) }

func (m Opening) String() string {
	if m.Not {
		return "tcp flags & (syn | rst) != syn"
	}
	return "tcp flags & (syn | rst) == syn"
}
