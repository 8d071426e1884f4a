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

// Judge returns a function that reports whether the sets refuse the first packet of a connection. The sets are those of
// JudgedBy, with the kernel's boxes.
func Judge(sets []firewall.Destinations) (refused func(to netip.AddrPort, protocol uint8) bool) {
	of := map[string]boxes{}
	for _, s := range sets {
		of[s.Name] = sorted(s.Boxes)
	}
	return func(to netip.AddrPort, protocol uint8) bool {
		has := func(name func(version ip.Version) string) bool {
			set := name(ip.Of(to.Addr()))
			return of[set].has(to, protocol) || of[firewall.AllPortsSet(set)].has(to, protocol)
		}
		return !has(allowedSet) && !(has(firewall.PinnableSet) && has(firewall.PinSet))
	}
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
