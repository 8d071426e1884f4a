package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// lease puts what the NIC has into the record: addresses, routes, permanent neighbours. A NIC without addresses
// gives the guest a connection without a responder.
func (p *Plan) addLease(r *cache.Record, nic netstate.Link) {
	v4, v6 := addressesOf(p.found, nic)
	if len(v4)+len(v6) == 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s has no address: the guest gets a connection without a responder of guestwire", nic.Name))
		return
	}
	if r.Options.NoResponder {
		return
	}
	learned := p.learnedTables(nic)
	for _, route := range p.found.Routes {
		if kind, ok := noWay[route.Type]; ok && learned[route.Table] {
			r.Warnings = append(r.Warnings, fmt.Sprintf("the %s route to %v is not the guest's: DHCP cannot say it", kind, route.Destination))
		}
	}
	p.addResponder(r, nic)
	if nic.NoARP {
		p.addLeaseBehind(r, nic, v4, v6)
		return
	}
	for _, n := range p.found.Neighbours {
		if n.Link == nic.Index && n.Permanent {
			r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: n.Address, MAC: n.MAC})
		}
	}
	if len(v4) > 0 {
		p.addLease4(r, nic, v4)
	}
	if len(v6) > 0 {
		p.addLease6(r, nic, v6)
	}
}

// noWay are the route types that refuse or drop packets (linux/rtnetlink.h).
var noWay = map[uint8]string{6: "blackhole", 7: "unreachable", 8: "prohibit"}

// leaseBehind is for a NIC without ARP, such as an ipvlan of mode L3, which sends each packet by its IP address
// alone. The guest does use ARP and neighbour discovery. So it gets one next hop for all destinations, at the
// gateway's MAC if the gateway is a permanent neighbour, else at the NIC's own MAC, as the kernel sends.
func (p *Plan) addLeaseBehind(r *cache.Record, nic netstate.Link, v4, v6 []netip.Prefix) {
	if len(v4) > 0 {
		r.Warnings = append(r.Warnings, secondAddresses(v4)...)
		routes, warnings := guestRoutes(routesOf(p.found, nic, true))
		r.Warnings = append(r.Warnings, warnings...)
		own, hop := netip.PrefixFrom(v4[0].Addr(), 32), serverFor(v4[0].Addr())
		routes = slices.DeleteFunc(routes, func(route cache.Route) bool { return route.Destination == own })
		r.IPv4 = &cache.IPv4{Address: own, Server: hop}
		for i := range routes {
			routes[i].Gateway = hop
		}
		r.IPv4.Routes = installable(own, hop, routes)
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: hop, MAC: p.hopMAC(r, nic, true)})
	}
	if len(v6) > 0 {
		r.Warnings = append(r.Warnings, secondAddresses(v6)...)
		routes, warnings := guestRoutes(routesOf(p.found, nic, false))
		r.Warnings = append(r.Warnings, warnings...)
		router := cache.Router{Address: netstate.DeriveMACOf(r.MAC.String(), nic.Name, "router").LinkLocal(), MAC: p.hopMAC(r, nic, false)}
		for _, route := range routes {
			switch d := route.Destination; {
			case d.Addr().IsLinkLocalUnicast(), d == single(v6[0].Addr()):
			case route.Default():
				router.Default = true
			default:
				router.Routes = append(router.Routes, d)
			}
		}
		r.IPv6 = &cache.IPv6{Address: v6[0].Addr(), Router: &router}
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: router.Address, MAC: router.MAC})
	}
}

// hopMAC is the MAC to which a NIC without ARP sends packets for its gateway.
func (p *Plan) hopMAC(r *cache.Record, nic netstate.Link, v4 bool) cache.MAC {
	for _, route := range routesOf(p.found, nic, v4) {
		for _, n := range p.found.Neighbours {
			if n.Link == nic.Index && n.Permanent && n.Address == route.Gateway && route.Default() {
				return n.MAC
			}
		}
	}
	return r.MAC
}

// serverFor is withoutGateway, or the next address if withoutGateway is the guest's.
func serverFor(guest netip.Addr) netip.Addr {
	if guest == withoutGateway {
		return guest.Next()
	}
	return withoutGateway
}

// withoutGateway is the DHCP server identifier of a guest without a gateway: a link-local address for which the
// responder answers ARP.
var withoutGateway = netip.AddrFrom4([4]byte{169, 254, 75, 1})

// lease4 puts the namespace's IPv4 routes into the record. If the address has no connected route, or the
// gateway lies outside of it, the guest gets a /32 and each route by itself, on-link routes first: all clients
// can install them in that order.
func (p *Plan) addLease4(r *cache.Record, nic netstate.Link, addresses []netip.Prefix) {
	r.Warnings = append(r.Warnings, secondAddresses(addresses)...)
	routes, warnings := guestRoutes(routesOf(p.found, nic, true))
	r.Warnings = append(r.Warnings, warnings...)

	address := addresses[0]
	network := address.Masked()
	gateway := netip.Addr{}
	if i := slices.IndexFunc(routes, cache.Route.Default); i >= 0 {
		gateway = routes[i].Gateway
	}
	isConnected := func(route cache.Route) bool { return route.Destination == network && !route.Gateway.IsValid() }
	if slices.ContainsFunc(routes, isConnected) && (!gateway.IsValid() || network.Contains(gateway)) {
		routes = slices.DeleteFunc(routes, isConnected)
	} else {
		address = netip.PrefixFrom(address.Addr(), 32)
	}

	server := gateway
	if !server.IsValid() {
		server = serverFor(address.Addr())
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: server, MAC: r.ResponderMAC})
	}
	r.IPv4 = &cache.IPv4{
		Address: address,
		Server:  server,
		Routes:  installable(address.Masked(), server, routes),
	}
}

// guestRoutes are the routes as DHCP can tell them, a destination and one next hop each, and warnings of what is
// lost.
func guestRoutes(routes []netstate.Route) ([]cache.Route, []string) {
	var guest []cache.Route
	var warnings []string
	for _, route := range routes {
		g := cache.Route{Destination: route.Destination, Gateway: route.Gateway}
		if len(route.Hops) > 0 {
			g.Gateway = route.Hops[0].Gateway
			warnings = append(warnings, fmt.Sprintf("the route to %v has %d next hops: the guest gets the first, %v", route.Destination, len(route.Hops), g.Gateway))
		}
		if g.Gateway.IsValid() && g.Gateway.Is4() != g.Destination.Addr().Is4() {
			warnings = append(warnings, fmt.Sprintf("the route to %v by way of %v is not the guest's: DHCP cannot say it", route.Destination, g.Gateway))
			continue
		}
		if slices.ContainsFunc(guest, func(o cache.Route) bool { return o.Destination == g.Destination }) {
			continue // the route has a higher metric
		}
		guest = append(guest, g)
	}
	return guest, warnings
}

// installable puts the routes into an order in which each next hop can be reached when its route
// comes: routes on the link, those that were missing for a next hop among them, then the others,
// the default route last.
func installable(network netip.Prefix, server netip.Addr, routes []cache.Route) []cache.Route {
	var onLink, behind []cache.Route
	reachable := func(a netip.Addr) bool {
		return network.Contains(a) || slices.ContainsFunc(onLink, func(r cache.Route) bool { return r.Destination.Contains(a) })
	}
	for _, r := range routes {
		if !r.Gateway.IsValid() && !r.Default() {
			onLink = append(onLink, r)
		} else {
			behind = append(behind, r)
		}
	}
	hops := []netip.Addr{server}
	for _, r := range behind {
		hops = append(hops, r.Gateway)
	}
	for _, hop := range hops {
		if hop.IsValid() && !reachable(hop) {
			onLink = append(onLink, cache.Route{Destination: netip.PrefixFrom(hop, hop.BitLen())})
		}
	}
	return append(onLink, behind...)
}

// lease6 puts the namespace's IPv6 routes into the record. The next hop of an advertised route is the
// advertisement's source, which has to be link-local. So a gateway with a global address gets the link-local
// address of its MAC, for which the responder answers.
func (p *Plan) addLease6(r *cache.Record, nic netstate.Link, addresses []netip.Prefix) {
	r.Warnings = append(r.Warnings, secondAddresses(addresses)...)
	routes, warnings := guestRoutes(routesOf(p.found, nic, false))
	r.Warnings = append(r.Warnings, warnings...)
	r.IPv6 = &cache.IPv6{Address: addresses[0].Addr()}

	gateway := gateway6(routes)
	for _, route := range routes {
		switch d := route.Destination; {
		case d.Addr().IsLinkLocalUnicast(), d == netip.PrefixFrom(r.IPv6.Address, 128):
		case route.Default() && !route.Gateway.IsValid():
			r.Warnings = append(r.Warnings, "the IPv6 default route has no next hop: the guest has none")
		case !route.Gateway.IsValid():
			r.IPv6.OnLink = append(r.IPv6.OnLink, d)
		case route.Gateway != gateway:
			r.Warnings = append(r.Warnings, fmt.Sprintf("the route to %v by way of %v is not the guest's: its router is %v", d, route.Gateway, gateway))
		}
	}
	if gateway.IsValid() {
		p.addRouter(r, nic, routes, gateway)
	}
}

// gateway6 is the next hop of the default route, else of any route; zero: there is none.
func gateway6(routes []cache.Route) netip.Addr {
	gateway := netip.Addr{}
	for _, route := range routes { // the default route comes last
		if route.Gateway.IsValid() && (route.Default() || !gateway.IsValid()) {
			gateway = route.Gateway
		}
	}
	return gateway
}

func (p *Plan) addRouter(r *cache.Record, nic netstate.Link, routes []cache.Route, gateway netip.Addr) {
	router := cache.Router{Address: gateway}
	for _, n := range p.found.Neighbours {
		if n.Link == nic.Index && n.Address == gateway {
			router.MAC = n.MAC
		}
	}
	switch {
	case gateway.IsLinkLocalUnicast() && nic.Kind == kindIPVLAN && !router.MAC.IsZero():
		// An ipvlan shares its parent's MAC, so answers to the guest's link-local address reach the parent.
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: gateway, MAC: router.MAC})
	case !gateway.IsLinkLocalUnicast():
		if router.MAC.IsZero() {
			r.Warnings = append(r.Warnings, fmt.Sprintf("the gateway %v does not answer, or was not asked, as on standby, so its MAC is not known: the guest gets no IPv6 next hop", gateway))
			return
		}
		router.Address = router.MAC.LinkLocal()
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: router.Address, MAC: router.MAC})
	}
	for _, route := range routes {
		if route.Gateway != gateway {
			continue
		}
		if route.Default() {
			router.Default = true
		} else {
			router.Routes = append(router.Routes, route.Destination)
		}
	}
	r.IPv6.Router = &router
}

func secondAddresses(addresses []netip.Prefix) []string {
	var w []string
	for _, a := range addresses[1:] {
		w = append(w, fmt.Sprintf("the address %v is not the guest's: DHCP hands out one of a family, %v", a, addresses[0]))
	}
	return w
}

// removeDefaultRoutes removes what would lead the guest's traffic to the world through this NIC. The server and the router
// stay as they are: the guest asks the one, and prefixes and other routes come from the other.
func removeDefaultRoutes(r *cache.Record) {
	if r.IPv4 != nil {
		r.IPv4.Routes = slices.DeleteFunc(r.IPv4.Routes, cache.Route.Default)
	}
	if r.IPv6 != nil && r.IPv6.Router != nil {
		r.IPv6.Router.Default = false
	}
	if r.Static != nil {
		r.Static.Routes = slices.DeleteFunc(r.Static.Routes, func(s cache.StaticRoute) bool {
			return s.Destination.Bits() == 0 && s.Table == netstate.TableMain
		})
	}
}
