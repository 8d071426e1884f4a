package lease

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// addLease6 puts the namespace's IPv6 routes into the record. The next hop of an advertised route is the
// advertisement's source, which has to be link-local. So a gateway with a global address gets the link-local
// address of its MAC, for which the responder answers.
func (n NIC) addLease6(r *cache.Record) {
	routes := n.learned(r, ip.V6)
	r.IPv6 = n.newIPv6()

	gateway, own := gateway6(routes), fib.Sorted(n.Own(ip.V6))
	for _, route := range routes {
		switch d := route.Destination; {
		case d.Addr().IsLinkLocalUnicast(), isOwn(own, d):
		case !route.Gateway.IsValid():
			r.IPv6.OnLink = append(r.IPv6.OnLink, d)
		case route.Gateway != gateway:
			kind := "route"
			if syntax.IsDefault(d) && defaultIndex(by(routes, gateway)) < 0 { // the guest gets the other half
				kind = "default-route"
			}
			lose(r, kind, d.String(), "its next hop is %v, and the guest has one router, %v", route.Gateway, gateway)
		}
	}
	if gateway.IsValid() {
		n.addRouter(r, routes, gateway)
	}
}

// newIPv6 has all of the NIC's addresses, at least one.
func (n NIC) newIPv6() *cache.IPv6 {
	own := n.Own(ip.V6)
	v6 := &cache.IPv6{Address: own[0], Others: append([]netip.Addr(nil), own[1:]...)}
	for _, a := range n.AddressesOn(ip.V6) {
		if isDeprecated(a) {
			v6.Deprecated = append(v6.Deprecated, a.Prefix.Addr())
		}
	}
	return v6
}

// isOwn reports whether the network is one of the addresses alone.
func isOwn(addresses fib.Addresses, network netip.Prefix) bool {
	return network.IsSingleIP() && addresses.Has(network.Addr())
}

// gateway6 is the next hop of the default route, else of any route; zero: there is none.
func gateway6(routes []cache.Route) netip.Addr {
	routes = slices.DeleteFunc(slices.Clone(routes), func(r cache.Route) bool { return !r.Gateway.IsValid() })
	if len(routes) == 0 {
		return netip.Addr{}
	}
	return routes[max(0, defaultIndex(routes))].Gateway
}

func (n NIC) addRouter(r *cache.Record, routes []cache.Route, gateway netip.Addr) {
	router := cache.Router{Address: gateway}
	if known, ok := n.Neighbour(gateway); ok {
		router.MAC = known.MAC
	}
	switch {
	case gateway.IsLinkLocalUnicast() && n.SharesMAC() && !router.MAC.IsZero():
		// An ipvlan shares its parent's MAC, so answers to the guest's link-local address reach the parent.
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: gateway, MAC: router.MAC, Station: n.followed(gateway)})
	case !gateway.IsLinkLocalUnicast():
		if router.MAC.IsZero() {
			loseGateway(r, gateway, 6)
			return
		}
		router.Address = eui64.LinkLocal(router.MAC)
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: router.Address, MAC: router.MAC, Station: n.followed(gateway)})
	}
	routes = by(routes, gateway)
	router.Default = defaultIndex(routes) >= 0
	for _, route := range n.Routes(ip.V6) {
		if route.Default() && n.hop(route) == gateway {
			router.Preference = route.Preference()
			break
		}
	}
	for _, route := range routes {
		if route.Destination.Bits() > 0 {
			router.Routes = append(router.Routes, route.Destination)
		}
	}
	r.IPv6.Router = &router
}

// leaseBehind6 is the IPv6 configuration of such a guest.
func (n NIC) leaseBehind6(router cache.Router, routes []cache.Route) *cache.IPv6 {
	own := fib.Sorted(n.Own(ip.V6))
	for _, route := range routes {
		switch d := route.Destination; {
		case d.Addr().IsLinkLocalUnicast(), isOwn(own, d), d.Bits() == 0:
		default:
			router.Routes = append(router.Routes, d)
		}
	}
	router.Default = defaultIndex(routes) >= 0
	guest := n.newIPv6()
	guest.Router = &router
	return guest
}
