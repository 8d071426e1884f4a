package lease

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
)

// addLease4 puts the namespace's IPv4 routes into the record. If the address has no connected route, or the
// gateway lies outside of it, the guest gets a /32 and each route by itself, on-link routes first: all clients
// can install them in that order.
func (n NIC) addLease4(r *cache.Record, addresses []netip.Prefix) {
	loseSecond(r, addresses)
	routes := n.learned(r, ip.V4)
	address, gateway, routes := asLeased(addresses[0], routes)

	server := gateway
	if !server.IsValid() {
		server = n.server()
		isServer := func(o cache.Neighbour) bool { return o.Address == server } // the next hop of another route
		if !slices.ContainsFunc(r.Neighbours, isServer) {
			r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: server, MAC: r.ResponderMAC})
		}
	}
	r.IPv4 = &cache.IPv4{
		Address: address,
		Server:  server,
		Routes:  installable(address.Masked(), server, routes),
	}
}

// asLeased returns the address with the prefix length that the guest gets, the gateway, zero if there is none, and the
// routes that the address does not imply.
func asLeased(address netip.Prefix, routes []cache.Route) (netip.Prefix, netip.Addr, []cache.Route) {
	network := address.Masked()
	gateway := (&cache.IPv4{Routes: routes}).Gateway()
	isConnected := func(route cache.Route) bool { return route.Destination == network && !route.Gateway.IsValid() }
	if slices.ContainsFunc(routes, isConnected) && (!gateway.IsValid() || network.Contains(gateway)) {
		return address, gateway, slices.DeleteFunc(routes, isConnected)
	}
	return netip.PrefixFrom(address.Addr(), 32), gateway, routes
}

// addStandIn adds the router for a guest that asks for no classless routes, if the gateway is outside of the guest's
// network: the address beside the guest's, with the gateway's MAC. What the guest sends to that address itself reaches
// the gateway, too, which knows the way. There is no stand-in while the gateway's MAC is not known, and none if the
// address beside the guest's is that of a station on the link.
func (n NIC) addStandIn(r *cache.Record) {
	if r.IPv4 == nil {
		return
	}
	gateway := r.IPv4.Gateway()
	if !gateway.IsValid() || r.IPv4.Address.Bits() < 32 {
		return
	}
	standIn := otherOfPair(r.IPv4.Address.Addr())
	if standIn == gateway {
		r.IPv4.StandIn = standIn
		return
	}
	isStation := slices.ContainsFunc(r.IPv4.Routes, func(route cache.Route) bool {
		return !route.Gateway.IsValid() && route.Destination.Contains(standIn)
	}) || slices.ContainsFunc(r.Neighbours, func(o cache.Neighbour) bool { return o.Address == standIn })
	if isStation || standIn.IsUnspecified() {
		return
	}
	router := cache.Neighbour{Address: standIn, MAC: r.GatewayMAC}
	for _, o := range r.Neighbours { // those of a NIC without ARP, and those behind which is a gateway of IPv6
		if o.Address == gateway {
			router.MAC, router.Station = o.MAC, o.Station
		}
	}
	if known, ok := n.Neighbour(gateway); ok {
		router.MAC, router.Station = known.MAC, n.followed(gateway)
	}
	if router.MAC.IsZero() {
		return
	}
	r.IPv4.StandIn = standIn
	r.Neighbours = append(r.Neighbours, router)
}

// installable puts the routes into an order in which each next hop can be reached when its route
// comes: routes on the link, those that were missing for a next hop among them, then the others,
// the default route last.
func installable(network netip.Prefix, server netip.Addr, routes []cache.Route) []cache.Route {
	var onLink, routed []cache.Route
	var reached ip.Prefixes[bool]
	reached.Set(network, true)
	for _, r := range routes {
		if !r.Gateway.IsValid() && !r.Default() {
			onLink = append(onLink, r)
			reached.Set(r.Destination, true)
		} else {
			routed = append(routed, r)
		}
	}
	hops := []netip.Addr{server}
	for _, r := range routed {
		hops = append(hops, r.Gateway)
	}
	for _, hop := range hops {
		if hop.IsValid() && !reached.Contain(hop) {
			host := netip.PrefixFrom(hop, hop.BitLen())
			onLink = append(onLink, cache.Route{Destination: host})
			reached.Set(host, true)
		}
	}
	return append(onLink, routed...)
}

// leaseBehind4 is the configuration of a guest that reaches all destinations of the routes by way of one hop.
func leaseBehind4(guest, hop netip.Addr, routes []cache.Route) *cache.IPv4 {
	own := netip.PrefixFrom(guest, 32)
	routes = slices.DeleteFunc(routes, func(route cache.Route) bool { return route.Destination == own })
	for i := range routes {
		routes[i].Gateway = hop
	}
	return &cache.IPv4{Address: own, Server: hop, Routes: installable(own, hop, routes)}
}

// otherOfPair returns the other address of the /31.
func otherOfPair(a netip.Addr) netip.Addr {
	b := a.As4()
	b[3] ^= 1
	return netip.AddrFrom4(b)
}
