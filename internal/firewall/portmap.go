package firewall

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/ip"
)

// PortMap is a map of a table, by which [DNATMap] translates ports. A lookup costs the same for one port and for
// thousands. The ports are part of the table, unlike the elements of a [Set].
type PortMap struct {
	Name string
	// Ranges do not overlap.
	Ranges []PortRange
}

// PortRange are the ports from First to Last, and the ports that they become: To and those after it.
type PortRange struct{ First, Last, To uint16 }

type (
	// DNATMap translates a connection's destination address, and its port by the PortMap Map. A port that is not in the
	// map goes on with the next rule. The rule has to match the protocol, TCP, UDP or SCTP.
	DNATMap struct {
		Address  netip.Addr
		Protocol uint8
		Map      string
	}
	// DNATRange is DNATMap for iptables: the port Base becomes First, and the ports after Base those up to Last.
	DNATRange struct {
		Address           netip.Addr
		First, Last, Base uint16
	}
)

func (DNATMap) verdict()   {}
func (DNATRange) verdict() {}

func (v DNATMap) String() string {
	return fmt.Sprintf("dnat %s to %s : %s dport map @%s", ipWord(ip.Of(v.Address)), v.Address, protocol(v.Protocol), v.Map)
}

// String returns the words of iptables: nft(8) has none.
func (v DNATRange) String() string { return v.iptables() }

func (v DNATRange) iptables() string {
	first := netip.AddrPortFrom(v.Address, v.First)
	return fmt.Sprintf("DNAT --to-destination %s-%d/%d", first, v.Last, v.Base)
}

// Ports returns the number of ports.
func (m PortMap) Ports() int {
	n := 0
	for _, r := range m.Ranges {
		n += int(r.Last-r.First) + 1
	}
	return n
}

// Size returns the size of the map: a power of two, so that a map of about as many ports is changed in place.
func (m PortMap) Size() int {
	const least = 16
	return max(least, 1<<bits.Len(uint(m.Ports()-1)))
}

// String returns the map as nft -f reads it.
func (m PortMap) String() string {
	return fmt.Sprintf("map %s { type inet_service : inet_service; size %d; elements = { %s }; }", m.Name, m.Size(), m.elements())
}

func (m PortMap) elements() string {
	var elements []string
	for _, r := range m.Ranges {
		for i := range int(r.Last-r.First) + 1 {
			elements = append(elements, fmt.Sprintf("%d : %d", int(r.First)+i, int(r.To)+i))
		}
	}
	return strings.Join(elements, ", ")
}

// Head returns the map as an [Image] has it: the declaration, and what Held returns.
func (m PortMap) Head() string { return PortMapHead(m.Size()) + m.Held() }

// PortMapHead returns the declaration of a map of the size, without the ports.
func PortMapHead(size int) string { return fmt.Sprintf(portMapTypes+" size %d;", size) }

const portMapTypes = "inet_service : inet_service;"

// Held returns the ports, as few ranges.
func (m PortMap) Held() string {
	var text strings.Builder
	for _, r := range m.merged() {
		fmt.Fprintf(&text, " %s : %s;", ports(r.First, r.Last), ports(r.To, r.To+(r.Last-r.First)))
	}
	return text.String()
}

// merged are the ranges in order, as few as possible.
func (m PortMap) merged() []PortRange {
	sorted := slices.SortedFunc(slices.Values(m.Ranges), func(a, b PortRange) int { return int(a.First) - int(b.First) })
	var list []PortRange
	for _, r := range sorted {
		if n := len(list); n > 0 && list[n-1].Last+1 == r.First && r.To-r.First == list[n-1].To-list[n-1].First {
			list[n-1].Last = r.Last
		} else {
			list = append(list, r)
		}
	}
	return list
}
