package firewall

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
)

// Set is a set of addresses of a table, to which rules add with [AddToSet], or of destinations, to which programs add
// each [Pin]. Like a counter's count, its elements are no part of the table: a new table's set is empty, and a
// table that replaces another one keeps them.
type Set struct {
	Name string
	// Of is the part of a packet that the set holds. A set may hold several parts of one length.
	Of Part
	// Size is the largest number of elements. Above it, AddToSet does not match.
	Size int
	// Milliseconds is the life of an element; 0: for ever.
	Milliseconds uint64
	// Elements are in the set from the start: those of the table that this one replaces. They are no part of the text.
	Elements []Element
}

// Element is what a [Set] holds.
type Element struct {
	Key          []byte
	Milliseconds uint64 // what is left of its life; 0: the set's
	Comment      string // of at most 253 octets; no comparison looks at it
}

// Part is a part of a packet with an address, by its name in nft(8).
type Part string

// The parts in use.
const (
	SourceAddress4  Part = "ip saddr"
	SourceAddress6  Part = "ip6 saddr"
	NextHop4        Part = "rt ip nexthop"
	NextHop6        Part = "rt ip6 nexthop"
	ARPSender       Part = "@nh,112,32" // the sender's address in ARP
	RawSource6      Part = "@nh,64,128" // the IPv6 source, for a set that also holds targets
	DiscoveryTarget Part = "@th,64,128" // the target of a neighbour solicitation or advertisement
	// What InDestinations looks up.
	Destination4 Part = "ip daddr . meta l4proto . th dport"
	Destination6 Part = "ip6 daddr . meta l4proto . th dport"
)

// Version returns the IP version of the part.
func (p Part) Version() ip.Version {
	if p == SourceAddress4 || p == NextHop4 || p == ARPSender || p == Destination4 {
		return ip.V4
	}
	return ip.V6
}

type (
	// InSet holds if the set has the part of the packet.
	InSet struct {
		Part     Part
		Set      string
		Inverted bool
	}
	// AddToSet adds the part of the packet to the set. It does not match if the set is full. With Renew, an
	// element that the set has already lives on for the set's Milliseconds.
	AddToSet struct {
		Part  Part
		Set   string
		Renew bool
	}
)

func (InSet) match()    {}
func (AddToSet) match() {}

func (m InSet) String() string { return string(m.Part) + " " + negation(m.Inverted) + "@" + m.Set }

func (m AddToSet) String() string {
	word := "add"
	if m.Renew {
		word = "update"
	}
	return fmt.Sprintf("%s @%s { %s }", word, m.Set, m.Part)
}

// IsDestination reports whether the part is an address, a protocol and a port.
func (p Part) IsDestination() bool { return p == Destination4 || p == Destination6 }

// String returns the set as nft -f reads it.
func (s Set) String() string {
	if s.Of.IsDestination() {
		return fmt.Sprintf("set %s { type %s }", s.Name, s.Head())
	}
	return fmt.Sprintf("set %s { typeof %s; %s; }", s.Name, s.Of, strings.Join(s.properties(), "; "))
}

func (s Set) properties() []string {
	list := []string{fmt.Sprintf("size %d", s.Size), "flags dynamic"}
	if s.Milliseconds != 0 {
		list[1] += ",timeout"
		life := fmt.Sprintf("timeout %dms", s.Milliseconds)
		if s.Milliseconds%1000 == 0 { // nft reads no large number of milliseconds
			life = fmt.Sprintf("timeout %ds", s.Milliseconds/1000)
		}
		list = append(list, life)
	}
	return list
}

// Head returns the set as an [Image] has it.
func (s Set) Head() string {
	kind := fmt.Sprintf("ipv%d_addr;", s.Of.Version())
	if s.Of.IsDestination() {
		kind = destinationType(s.Of.Version())
	}
	return kind + " " + strings.Join(s.properties(), "; ") + ";"
}

func destinationType(version ip.Version) string {
	return fmt.Sprintf("ipv%d_addr . inet_proto . inet_service;", version)
}
