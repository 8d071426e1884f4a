package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
)

// judging are the names of the sets by which the kernel decides: what allowedSet has is allowed, else what
// PinnableSet and PinSet have, and the rest is refused. A set may be missing.
var judging = []func(version int) string{allowedSet, firewall.PinnableSet, firewall.PinSet}

// JudgedBy returns the sets whose boxes a caller reads from the kernel for Judge. They have none here.
func JudgedBy() (sets []firewall.Destinations) {
	for _, name := range judging {
		for _, v := range []int{4, 6} {
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
		has := func(name func(version int) string) bool {
			set := name(firewall.Version(to.Addr()))
			return of[set].has(to, protocol) || of[firewall.AllPortsSet(set)].has(to, protocol)
		}
		return !has(allowedSet) && !(has(firewall.PinnableSet) && has(firewall.PinSet))
	}
}

// boxes are sorted by their first addresses. Two that have one address in common have all in common.
type boxes []firewall.Box

func sorted(list []firewall.Box) boxes {
	return slices.SortedFunc(slices.Values(list), func(a, b firewall.Box) int { return a.First.Compare(b.First) })
}

func (list boxes) has(to netip.AddrPort, protocol uint8) bool {
	after, _ := slices.BinarySearchFunc(list, to.Addr(), func(b firewall.Box, a netip.Addr) int { return cmp.Or(b.First.Compare(a), -1) })
	for _, b := range slices.Backward(list[:after]) {
		switch {
		case b.Last.Less(to.Addr()):
			return false
		case b.Has(firewall.Pin{To: to.Addr(), Protocol: protocol, Port: to.Port()}):
			return true
		}
	}
	return false
}
