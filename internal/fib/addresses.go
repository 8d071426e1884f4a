package fib

import (
	"net/netip"
	"slices"
)

// Addresses are sorted addresses, each once, among which to look for those in a network.
type Addresses []netip.Addr

// Sorted returns the addresses sorted.
func Sorted(list []netip.Addr) Addresses {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// MeetIn reports whether one of the addresses lies in the network.
func (a Addresses) MeetIn(network netip.Prefix) bool {
	at, _ := slices.BinarySearchFunc(a, network.Masked().Addr(), netip.Addr.Compare)
	return at < len(a) && network.Contains(a[at])
}

// LieIn reports whether all of the addresses, at least one, lie in the network.
func (a Addresses) LieIn(network netip.Prefix) bool {
	return len(a) > 0 && network.Contains(a[0]) && network.Contains(a[len(a)-1])
}

// Has reports whether the address is one of them.
func (a Addresses) Has(one netip.Addr) bool {
	_, is := slices.BinarySearchFunc(a, one, netip.Addr.Compare)
	return is
}
