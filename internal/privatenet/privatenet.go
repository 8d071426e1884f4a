// Package privatenet computes the networks of a guest behind a masquerade, and the addresses of the guest and its
// gateway in them.
package privatenet

import (
	"cmp"
	"net/netip"

	"github.com/guestwire/guestwire/internal/ip"
)

// The networks without other ones.
var (
	DefaultIPv4 = netip.MustParsePrefix("10.0.2.0/24")
	DefaultIPv6 = netip.MustParsePrefix("fd10:0:2::/120")
)

// Network has the fields of infra.Masquerade.
type Network struct {
	IPv4, IPv6     netip.Prefix // zero: the default
	Guest, Gateway []netip.Addr // at most one of each family; missing: the network's first addresses
}

// Prefix is the network of a version of IP.
func (n Network) Prefix(version ip.Version) netip.Prefix {
	return ip.Pick(version, cmp.Or(n.IPv4, DefaultIPv4), cmp.Or(n.IPv6, DefaultIPv6))
}

// Ends returns the addresses of guest and gateway, of a version of IP. The gateway's comes before the guest's, unless
// one of them is given.
func (n Network) Ends(version ip.Version) (guest netip.Prefix, gateway netip.Addr) {
	network := n.Prefix(version)
	first := network.Addr().Next()
	own := OfVersion(n.Guest, version)
	gateway = OfVersion(n.Gateway, version)
	if !gateway.IsValid() {
		gateway = otherThan(own, first)
	}
	if !own.IsValid() {
		own = otherThan(gateway, first)
	}
	return netip.PrefixFrom(own, network.Bits()), gateway
}

// OfVersion is the first address of the version of IP; zero: there is none.
func OfVersion(list []netip.Addr, version ip.Version) netip.Addr {
	for _, a := range list {
		if ip.Of(a) == version {
			return a
		}
	}
	return netip.Addr{}
}

// otherThan is the first address, or the next one if the first is taken.
func otherThan(taken, first netip.Addr) netip.Addr {
	if taken == first {
		return first.Next()
	}
	return first
}
