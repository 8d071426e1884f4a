// Package servers chooses the resolvers, time servers and search domains that a guest gets. It is pure.
package servers

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// NIC is what decides which servers a guest reaches by one of its NICs.
type NIC struct {
	name     string         // in the namespace; it is the zone of addresses on the guest's link
	own      []netip.Prefix // the guest's addresses
	networks []netip.Prefix // to which its routes lead
	alone    []netip.Prefix // in which the gateways are the only other stations
	gateways []netip.Addr
	// resolver is a loopback address of the namespace. The guest asks the address instead.
	resolver, instead netip.Addr
	// proxy are the addresses of a DNS proxy, which the guest asks instead of all resolvers.
	proxy []netip.Addr
}

var (
	linkLocal = netip.MustParsePrefix("fe80::/10")
	everyone  = netip.AddrFrom4([4]byte{255, 255, 255, 255})
)

// newNIC has the networks in which a guest behind masquerade is alone with its gateway.
func newNIC(r *cache.Record) NIC {
	n := NIC{name: r.Name}
	if r.Resolver.IsValid() && r.IPv4 != nil {
		n.resolver, n.instead = r.Resolver, r.IPv4.Server
	}
	for _, a := range r.DNSProxy {
		n.proxy = append(n.proxy, a.Addr())
	}
	if r.Binding != cache.BindingMasquerade {
		return n
	}
	if v := r.IPv4; v != nil && !v.Shared {
		n.alone, n.gateways = append(n.alone, v.Address.Masked()), append(n.gateways, v.Server)
	}
	if v := r.IPv6; v != nil {
		n.alone, n.gateways = append(n.alone, v.OnLink...), append(n.gateways, v.Gateway)
	}
	return n
}

// Leased is the NIC of a guest with the addresses and routes of the record's lease.
func Leased(r *cache.Record) NIC {
	n := newNIC(r)
	if v := r.IPv4; v != nil {
		n.own, n.networks = append(n.own, v.Address), append(n.networks, v.Address.Masked())
		for _, route := range v.Routes {
			n.networks = append(n.networks, route.Destination)
		}
	}
	if v := r.IPv6; v != nil {
		for _, a := range v.Addresses() {
			n.own = append(n.own, netip.PrefixFrom(a, a.BitLen()))
		}
		n.networks = append(n.networks, v.OnLink...)
		if v.Router != nil {
			n.networks = append(n.networks, v.Router.Routes...)
			if v.Router.Default {
				n.networks = append(n.networks, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
			}
		}
		n.addLink(r)
	}
	return n
}

// Configured is the NIC of a guest with the record's MAC and another configuration.
func Configured(r *cache.Record, s cache.Static) NIC {
	n := newNIC(r)
	for _, a := range s.Addresses {
		n.own = append(n.own, a.Address)
		if a.Peer.IsValid() {
			n.networks = append(n.networks, a.Peer.Masked())
		} else if !a.NoPrefixRoute {
			n.networks = append(n.networks, a.Address.Masked())
		}
	}
	for _, route := range s.Routes {
		if route.Type == "" {
			n.networks = append(n.networks, route.Destination)
		}
	}
	if slices.ContainsFunc(n.own, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		n.addLink(r)
	}
	return n
}

// addLink adds the guest's IPv6 link: that of the NIC, or one with the namespace alone as its other station.
func (n *NIC) addLink(r *cache.Record) {
	n.own = append(n.own, netip.PrefixFrom(eui64.LinkLocal(r.MAC), 128))
	switch {
	case r.Binding != cache.BindingMasquerade && r.Binding != cache.BindingRouted:
		n.networks = append(n.networks, linkLocal)
	case r.IPv6 != nil && r.IPv6.Router != nil:
		n.networks = append(n.networks, netip.PrefixFrom(r.IPv6.Router.Address, 128))
	}
}

// Resolvers is Reachable for the DNS servers. Where a DNS proxy is the guest's server, it stands for those that are
// given.
func (n NIC) Resolvers(given []netip.Addr) (reachable []netip.Addr, left []cache.Finding) {
	if len(n.proxy) > 0 {
		given = n.proxy
	}
	return n.Reachable(given)
}

// Reachable returns the servers that the guest can use by the NIC, each once, without zones and in the form of its
// family.
func (n NIC) Reachable(given []netip.Addr) (reachable []netip.Addr, left []cache.Finding) {
	for _, g := range given {
		a := g.WithZone("").Unmap()
		if a == n.resolver {
			a = n.instead
		}
		why := n.whyNot(a, g.Zone())
		switch {
		case why != "":
			left = append(left, cache.Finding{Kind: "server", What: g.String(), Why: why})
		case !slices.Contains(reachable, a):
			reachable = append(reachable, a)
		}
	}
	return reachable, left
}

// whyNot is why the guest cannot use the server; empty: it can.
func (n NIC) whyNot(a netip.Addr, zone string) string {
	isOwn := func(p netip.Prefix) bool { return p.Addr() == a }
	onLink := linkLocal.Contains(a)
	leads := func(p netip.Prefix) bool { return p.Contains(a) && (!onLink || p.Addr().IsLinkLocalUnicast()) }
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a == everyone || slices.ContainsFunc(n.own, isLast(a)):
		return "no server has this address"
	case a.IsLoopback() || slices.ContainsFunc(n.own, isOwn):
		return "for the guest, that is the guest itself"
	case zone != "" && zone != n.name || onLink && !slices.ContainsFunc(n.networks, leads):
		return "it is not on the guest's link"
	case !slices.ContainsFunc(n.own, func(p netip.Prefix) bool { return ip.Of(p.Addr()) == ip.Of(a) }):
		return fmt.Sprintf("the guest has no %v address", ip.Of(a))
	case slices.ContainsFunc(n.alone, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(n.gateways, a):
		return "it lies in the guest's own network, where the gateway alone is: choose another network in binding.masquerade"
	case !slices.ContainsFunc(n.networks, leads):
		return fmt.Sprintf("no route of the guest by %s leads to it", n.name)
	}
	return ""
}

// isLast reports whether the address is the broadcast address of a network.
func isLast(a netip.Addr) func(netip.Prefix) bool {
	return func(p netip.Prefix) bool {
		if !p.Addr().Is4() || p.Bits() > 30 || !p.Contains(a) {
			return false
		}
		b := a.As4()
		host := ^uint32(0) >> p.Bits()
		return binary.BigEndian.Uint32(b[:])&host == host
	}
}

// Search returns the guest's search list, each domain once and without the root's dot.
func Search(o *cache.Options, domains []string) (names []string, left []cache.Finding) {
	for _, given := range o.Search(domains) {
		name, err := syntax.SearchDomain(given)
		same := func(other string) bool { return strings.EqualFold(other, name) }
		switch {
		case err != nil:
			left = append(left, cache.Finding{Kind: "option", What: fmt.Sprintf("search domain %q", given), Why: "it has " + err.Error()})
		case name != "" && !slices.ContainsFunc(names, same):
			names = append(names, name)
		}
	}
	return names, left
}
