// Package ip is the version of IP, for code that does the same for both, and the longest-prefix search.
package ip

import (
	"fmt"
	"net/netip"
)

// Version is 4 or 6.
type Version int

const (
	V4 Version = 4
	V6 Version = 6
)

// Both are the versions in the order in which they are named.
var Both = [2]Version{V4, V6}

// Of is the version of the address.
func Of(a netip.Addr) Version {
	if a.Is4() {
		return V4
	}
	return V6
}

// Pick is the first value for IPv4, and the second one for IPv6.
func Pick[T any](v Version, v4, v6 T) T {
	if v == V4 {
		return v4
	}
	return v6
}

// All is the network of all addresses.
func (v Version) All() netip.Prefix {
	return netip.PrefixFrom(Pick(v, netip.IPv4Unspecified(), netip.IPv6Unspecified()), 0)
}

// String is IPv4 or IPv6. The verb %d prints the number.
func (v Version) String() string { return fmt.Sprintf("IPv%d", int(v)) }
