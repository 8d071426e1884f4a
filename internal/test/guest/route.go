package guest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
)

// Route is one route of the guest.
type Route struct {
	Destination netip.Prefix
	// Gateway is the next hop; zero: the destination is on the link.
	Gateway netip.Addr
}

// String returns the route as ip-route(8) prints it, without the device: "default via 10.0.2.1" or
// "10.0.2.0/24".
func (r Route) String() string {
	text := r.Destination.String()
	if r.Destination.Bits() == 0 {
		text = "default"
	}
	if r.Gateway.IsValid() {
		text += " via " + r.Gateway.String()
	}
	return text
}

// offLinkRoute is a destination that a router advertised.
type offLinkRoute struct {
	Route
	preference header.NDPRoutePreference
}

// rank returns the order of the route's preference; the lowest is the most preferred (RFC 4191 section 2.1).
func (r offLinkRoute) rank() int {
	switch r.preference {
	case header.HighRoutePreference:
		return 0
	case header.LowRoutePreference:
		return 2
	default:
		return 1
	}
}

var linkLocal = netip.MustParsePrefix("fe80::/64")

// routeTable returns the guest's routes; routes with equal prefix length are in the order of preference. The
// caller holds Guest.mu.
func (s *state) routeTable() []Route {
	routes := []Route{{Destination: linkLocal}}
	if s.lease4 != nil {
		usable, _ := s.lease4.usableRoutes() // DHCPv4 has returned this error already
		routes = append(routes, usable...)
	}
	for _, p := range s.onLink {
		routes = append(routes, Route{Destination: p})
	}
	offLink := slices.SortedStableFunc(slices.Values(s.offLink), func(a, b offLinkRoute) int {
		return cmp.Compare(a.rank(), b.rank())
	})
	for _, r := range offLink {
		routes = append(routes, r.Route)
	}
	return routes
}

// installRoutes sets the stack's routes and MTU to those of the state.
func (g *Guest) installRoutes() {
	g.installing.Lock()
	defer g.installing.Unlock()
	g.mu.Lock()
	routes := g.routeTable()
	mtu := g.config.MTU
	if g.lease4 != nil && g.lease4.MTU >= cache.MinMTU {
		mtu = g.lease4.MTU
	}
	if g.raMTU != 0 {
		mtu = min(mtu, g.raMTU)
	}
	g.mu.Unlock()

	table := make([]tcpip.Route, 0, len(routes))
	for _, r := range routes {
		route := tcpip.Route{Destination: withPrefix(r.Destination).Subnet(), NIC: nicID}
		if r.Gateway.IsValid() {
			route.Gateway = address(r.Gateway)
		}
		table = append(table, route)
	}
	g.stack.SetRouteTable(table)
	g.link.SetMTU(uint32(mtu))
}

// followRoutes calls installRoutes after changes by advertisements and expired lifetimes.
func (g *Guest) followRoutes() {
	seen := 0
	for g.waitUntil(g.ctx, func() bool {
		moved := g.generation != seen
		seen = g.generation
		return moved
	}) == nil {
		g.installRoutes()
	}
}

// Addresses returns the guest's addresses with their prefix lengths, sorted.
func (g *Guest) Addresses() []netip.Prefix {
	var addresses []netip.Prefix
	for _, a := range g.stack.AllAddresses()[nicID] {
		if a.AddressWithPrefix.Address == header.IPv4Broadcast {
			continue // the stack adds this address to every interface
		}
		addresses = append(addresses, netip.PrefixFrom(fromAddress(a.AddressWithPrefix.Address), a.AddressWithPrefix.PrefixLen))
	}
	slices.SortFunc(addresses, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return addresses
}

// Routes returns the guest's routes, the longest prefixes first.
func (g *Guest) Routes() []Route {
	var routes []Route
	for _, r := range g.stack.GetRouteTable() {
		routes = append(routes, route(r.Destination, r.Gateway))
	}
	return routes
}

// MTU returns the guest's current MTU, in octets of IP.
func (g *Guest) MTU() int { return int(g.link.MTU()) }

// Conversions between net/netip, the stack's types and net.IP.

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func fromAddress(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice()) // zero if there is none
	return ip
}

func fullAddress(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nicID, Addr: address(a.Addr()), Port: a.Port()}
}

func withPrefix(p netip.Prefix) tcpip.AddressWithPrefix {
	return tcpip.AddressWithPrefix{Address: address(p.Addr()), PrefixLen: p.Bits()}
}

func prefix(s tcpip.Subnet) netip.Prefix {
	return netip.PrefixFrom(fromAddress(s.ID()), s.Prefix())
}

func route(to tcpip.Subnet, via tcpip.Address) Route {
	return Route{Destination: prefix(to), Gateway: fromAddress(via)}
}

func fromIP(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip) // zero if there is none
	return a.Unmap()
}

func fromIPs(ips []net.IP) []netip.Addr {
	var addresses []netip.Addr
	for _, ip := range ips {
		addresses = append(addresses, fromIP(ip))
	}
	return addresses
}

// usableRoutes returns the lease's routes that a kernel accepts if they are added in order: a gateway must be on
// the link by an earlier route. The error names the other routes.
func (l *Lease4) usableRoutes() ([]Route, error) {
	var usable []Route
	var refused error
	if l.Address.Bits() < 32 {
		usable = append(usable, Route{Destination: l.Address.Masked()})
	}
	for _, r := range l.Routes {
		onLink := slices.ContainsFunc(usable, func(known Route) bool {
			return !known.Gateway.IsValid() && known.Destination.Contains(r.Gateway)
		})
		if r.Gateway.IsValid() && !onLink {
			refused = errors.Join(refused, fmt.Errorf("route %v: the gateway is not on the link, which has %v", r, usable))
			continue
		}
		usable = append(usable, r)
	}
	return usable, refused
}
