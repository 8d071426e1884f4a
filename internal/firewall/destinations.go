package firewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Destinations is a set of a table: where packets of one IP version may go. A lookup costs about the same for one box
// and for thousands. The boxes are part of the table, unlike the elements of a [Set].
type Destinations struct {
	Name    string
	Version int
	// Boxes do not overlap.
	Boxes []Box
}

// Box is a range of addresses, of protocols and of destination ports.
type Box struct {
	First, Last                 netip.Addr
	FirstProtocol, LastProtocol uint8
	FirstPort, LastPort         uint16
}

// InDestinations holds if the set has the packet's destination, protocol and destination port, or what other protocols
// have in the port's place. It never matches a packet that ends before that. The rule has to match the IP version.
type InDestinations struct {
	Version int
	Set     string
}

func (InDestinations) match() {}

func (m InDestinations) String() string {
	return fmt.Sprintf("%s daddr . meta l4proto . th dport @%s", ipWord(m.Version == 4), m.Set)
}

// String returns the set as nft -f reads it.
func (s Destinations) String() string {
	elements := ""
	if len(s.Boxes) > 0 {
		elements = " elements = { " + strings.Join(s.texts(), ", ") + " };"
	}
	return fmt.Sprintf("set %s { type %s flags interval;%s }", s.Name, destinationType(s.Version), elements)
}

func destinationType(version int) string {
	return fmt.Sprintf("ipv%d_addr . inet_proto . inet_service;", version)
}

func (s Destinations) elements() string { return s.Name + " { " + strings.Join(s.texts(), ", ") + " }" }

// Head returns the set as an [Image] has it: the declaration, and what Held returns.
func (s Destinations) Head() string { return s.Declaration() + s.Held() }

// Declaration returns the declaration of the set, without the boxes.
func (s Destinations) Declaration() string { return destinationType(s.Version) + " flags interval;" }

// Held returns the boxes in order.
func (s Destinations) Held() string {
	var text strings.Builder
	for _, t := range s.texts() {
		text.WriteString(" " + t + ";")
	}
	return text.String()
}

func (s Destinations) texts() []string {
	sorted := slices.SortedFunc(slices.Values(s.Boxes), func(a, b Box) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.FirstProtocol, b.FirstProtocol), cmp.Compare(a.FirstPort, b.FirstPort))
	})
	var list []string
	for _, b := range sorted {
		list = append(list, b.String())
	}
	return list
}

// String returns the box as an element of a set.
func (b Box) String() string {
	protocols := protocol(b.FirstProtocol)
	if b.FirstProtocol != b.LastProtocol || b.FirstProtocol == 0 {
		protocols = ports(uint16(b.FirstProtocol), uint16(b.LastProtocol))
	}
	return addresses(b.First, b.Last) + " . " + protocols + " . " + ports(b.FirstPort, b.LastPort)
}

// without returns the boxes of the list that the others are none of.
func without(list, others []Box) []Box {
	in := map[Box]bool{}
	for _, b := range others {
		in[b] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(b Box) bool { return in[b] })
}

// boxesOf are those of the set with the name.
func (t Table) boxesOf(set string) []Box {
	at := slices.IndexFunc(t.Destinations, func(d Destinations) bool { return d.Name == set })
	if at < 0 {
		return nil
	}
	return t.Destinations[at].Boxes
}

// looksUp reports whether a rule of the chain looks the set up.
func (c Chain) looksUp(set string) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Matches, func(m Match) bool {
			in, is := m.(InDestinations)
			return is && in.Set == set
		})
	})
}

// addresses returns a range of addresses, if possible as a prefix.
func addresses(first, last netip.Addr) string {
	for bits := first.BitLen(); bits > 0; bits-- { // not 0: nft reads no such prefix in an element
		p := netip.PrefixFrom(first, bits)
		if p.Masked() != p {
			break
		}
		if LastOf(p) == last {
			return prefix(p)
		}
	}
	return first.String() + "-" + last.String()
}

// Has reports whether the pin's destination is in the box.
func (b Box) Has(p Pin) bool {
	return b.First.Compare(p.To) <= 0 && p.To.Compare(b.Last) <= 0 && b.First.BitLen() == p.To.BitLen() &&
		b.FirstProtocol <= p.Protocol && p.Protocol <= b.LastProtocol && b.FirstPort <= p.Port && p.Port <= b.LastPort
}

// LastOf returns the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	octets := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(octets); i++ {
		octets[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(octets)
	return last
}
