package policy

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// judging are the names of the sets by which the kernel decides: what allowedSet has is allowed, else what
// PinnableSet and PinSet have, and the rest is refused. A set may be missing.
var judging = []func(version ip.Version) string{allowedSet, firewall.PinnableSet, firewall.PinSet}

// JudgedBy returns the sets whose boxes a caller reads from the kernel for Judge. They have none here.
func JudgedBy() (sets []firewall.Destinations) {
	for _, name := range judging {
		for _, v := range ip.Both {
			sets = append(sets, firewall.DestinationsOf(name(v), v, nil)...)
		}
	}
	return sets
}

// Judged are sets with the kernel's boxes, by their names.
type Judged map[string]boxes

// Judge returns the sets, which are those of JudgedBy and of diverts, ready to be looked up.
func Judge(sets []firewall.Destinations) Judged {
	j := Judged{}
	for _, s := range sets {
		j[s.Name] = sorted(s.Boxes)
	}
	return j
}

// Refuses reports whether the sets of JudgedBy refuse the first packet of a connection.
func (j Judged) Refuses(to netip.AddrPort, protocol uint8) bool {
	has := func(name func(version ip.Version) string) bool {
		set := name(ip.Of(to.Addr()))
		return j[set].has(to, protocol) || j[firewall.AllPortsSet(set)].has(to, protocol)
	}
	return !has(allowedSet) && !(has(firewall.PinnableSet) && has(firewall.PinSet))
}

// Diverts reports whether the set of the divert has the first packet of a connection.
func (j Judged) Diverts(d firewall.Divert, to netip.AddrPort, protocol uint8) bool {
	return j[d.Set.Name].has(to, protocol)
}

// boxes are sorted by their first addresses, protocols and ports. Two that have an address in common have all addresses
// in common, and if they have a protocol in common too, all protocols.
type boxes []firewall.Box

func sorted(list []firewall.Box) boxes {
	return slices.SortedFunc(slices.Values(list), compareFirst)
}

func compareFirst(a, b firewall.Box) int {
	return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.FirstProtocol, b.FirstProtocol), cmp.Compare(a.FirstPort, b.FirstPort))
}

func (list boxes) has(to netip.AddrPort, protocol uint8) bool {
	b := list.last(firewall.Box{First: to.Addr(), FirstProtocol: math.MaxUint8, FirstPort: math.MaxUint16})
	b = list.last(firewall.Box{First: b.First, FirstProtocol: protocol, FirstPort: math.MaxUint16})
	b = list.last(firewall.Box{First: b.First, FirstProtocol: b.FirstProtocol, FirstPort: to.Port()})
	return b.Has(firewall.Pin{To: to.Addr(), Protocol: protocol, Port: to.Port()})
}

// last is the last box that does not begin after the one that is looked for; the zero value, which has nothing: there
// is none.
func (list boxes) last(at firewall.Box) firewall.Box {
	after, _ := slices.BinarySearchFunc(list, at, func(b, at firewall.Box) int { return cmp.Or(compareFirst(b, at), -1) })
	if after == 0 {
		return firewall.Box{}
	}
	return list[after-1]
}
