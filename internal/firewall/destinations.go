package firewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
)

// Destinations is a set of a table: where packets of one IP version may go. A lookup costs about the same for one box
// and for thousands. The boxes are part of the table, unlike the elements of a [Set].
type Destinations struct {
	Name    string
	Version ip.Version
	// AllPorts is set if each box has all protocols and ports. The keys are addresses, and the kernel adds many fast.
	AllPorts bool
	// Boxes do not overlap. Those of AllPorts do not touch either.
	Boxes []Box
}

// DestinationsOf returns two sets that have the boxes: one of those without all protocols and ports, and AllPorts.
// Boxes with the same protocols and ports must not touch.
func DestinationsOf(name string, version ip.Version, boxes []Box) []Destinations {
	some, all := Destinations{Name: name, Version: version}, Destinations{Name: AllPortsSet(name), Version: version, AllPorts: true}
	for _, b := range boxes {
		if b.AllPorts() {
			all.Boxes = append(all.Boxes, b)
		} else {
			some.Boxes = append(some.Boxes, b)
		}
	}
	return []Destinations{some, all}
}

// AllPortsSet is the name of the second set of DestinationsOf.
func AllPortsSet(name string) string { return name + "-all" }

// Protocols are those of the boxes, if each box is of one.
func (s Destinations) Protocols() (numbers []uint8) {
	for _, b := range s.Boxes {
		if !slices.Contains(numbers, b.FirstProtocol) {
			numbers = append(numbers, b.FirstProtocol)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// Divert leads connections to a port of the namespace in place of their destinations.
type Divert struct {
	Target netip.AddrPort
	// Set has the destinations, whose protocols are Protocols alone.
	Set       Destinations
	Protocols []uint8
	// Resolver says that the gateway's port for DNS leads to the namespace's resolver, and no entry of a policy.
	Resolver bool
}

// DivertSet returns the names of the set of the n-th Divert, by the version of IP.
func DivertSet(n int) func(ip.Version) string {
	return func(v ip.Version) string { return fmt.Sprintf("divert-%d-%d", v, n) }
}

// DivertedSet returns the name of the set that has what is in all of them.
func DivertedSet(v ip.Version) string { return fmt.Sprintf("divert-%d", v) }

// Box is a range of addresses, of protocols and of destination ports.
type Box struct {
	First, Last                 netip.Addr
	FirstProtocol, LastProtocol uint8
	FirstPort, LastPort         uint16
}

// AllPorts reports whether the box has all protocols and ports.
func (b Box) AllPorts() bool {
	return b.FirstProtocol == 0 && b.LastProtocol == 255 && b.FirstPort == 0 && b.LastPort == 65535
}

// InDestinations holds if the set has the packet's destination, protocol and destination port, or what other protocols
// have in the port's place. It never matches a packet that ends before that. With AllPorts, the set's own, it looks up
// the destination alone. The rule has to match the IP version.
type InDestinations struct {
	Version  ip.Version
	Set      string
	AllPorts bool
}

func (InDestinations) match() {}

// FirstInDestinations is InDestinations for the destination that the first packet of the connection had, before NAT.
// The set is none of AllPorts. The rule has to match the IP version, and for nft(8) the protocol as well.
type FirstInDestinations struct {
	Version ip.Version
	Set     string
}

func (FirstInDestinations) match() {}

func (m FirstInDestinations) String() string {
	return fmt.Sprintf("ct original %s daddr . meta l4proto . ct original proto-dst @%s", ipWord(m.Version), m.Set)
}

// Lookup returns the match of packets whose destination the set has.
func (s Destinations) Lookup() InDestinations {
	return InDestinations{Version: s.Version, Set: s.Name, AllPorts: s.AllPorts}
}

func (m InDestinations) String() string {
	key := "daddr . meta l4proto . th dport"
	if m.AllPorts {
		key = "daddr"
	}
	return fmt.Sprintf("%s %s @%s", ipWord(m.Version), key, m.Set)
}

// String returns the set as nft -f reads it.
func (s Destinations) String() string {
	elements := ""
	if len(s.Boxes) > 0 {
		elements = " elements = { " + strings.Join(s.texts(), ", ") + " };"
	}
	return fmt.Sprintf("set %s { type %s%s }", s.Name, s.Declaration(), elements)
}

func (s Destinations) elements() string { return s.Name + " { " + strings.Join(s.texts(), ", ") + " }" }

// Head returns the set as an [Image] has it: the declaration, and what Held returns.
func (s Destinations) Head() string { return s.Declaration() + s.Held() }

// Declaration returns the declaration of the set, without the boxes.
func (s Destinations) Declaration() string {
	kind := destinationType(s.Version)
	if s.AllPorts {
		kind = fmt.Sprintf("ipv%d_addr;", s.Version)
	}
	return kind + " flags interval;"
}

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
		text := b.String()
		if s.AllPorts {
			text = addresses(b.First, b.Last)
		}
		list = append(list, text)
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

// addresses returns a range of addresses, if possible as a prefix.
func addresses(first, last netip.Addr) string {
	for bits := first.BitLen(); bits > 0; bits-- { // not 0: nft reads no such prefix in an element
		p := netip.PrefixFrom(first, bits)
		if p.Masked() != p {
			break
		}
		if ip.LastOf(p) == last {
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
