// Package lease says what a guest learns of a NIC: by DHCP, by router advertisements, or from files. It reads the
// namespace as it was found. It is pure.
package lease

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// lose adds a loss to the record.
func lose(r *cache.Record, kind, what, why string, args ...any) {
	r.Losses = append(r.Losses, cache.Loss{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)})
}

// loseGateway adds a next hop whose MAC is not known.
func loseGateway(r *cache.Record, gateway netip.Addr, version int) {
	if l := len(r.Losses); l > 0 && r.Losses[l-1].What == gateway.String() {
		return // another route by way of it
	}
	lose(r, "gateway", gateway.String(), "it does not answer, or was not asked, as on standby, so its MAC is not known: the guest gets no IPv%d next hop until a later Setup", version)
}

// Fill puts what the NIC has into the record of a guest with a responder: addresses, routes, permanent neighbours.
func (n NIC) Fill(r *cache.Record) {
	v4, v6 := n.Addresses()
	learned := n.Tables()
	for _, route := range n.found.Routes {
		has := len(v6) > 0
		if route.Destination.Addr().Is4() {
			has = len(v4) > 0
		}
		if kind, ok := noWay[route.Type]; ok && has && learned[route.Table] {
			lose(r, "route", fmt.Sprintf("%s %v", kind, route.Destination), "a lease has no such routes, so the guest sends what the namespace would not")
		}
	}
	n.loseConditional(r, v4, v6)
	if n.NoARP {
		n.addLeaseBehind(r, v4, v6)
		n.addStandIn(r)
		return
	}
	for o := range n.neighbours() {
		if o.Permanent {
			r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: o.Address, MAC: o.MAC})
		}
	}
	if len(v4) > 0 {
		n.addLease4(r, v4)
	}
	if len(v6) > 0 {
		n.addLease6(r, v6)
	}
	n.addStandIn(r)
}

// noWay are the route types that refuse or drop packets (linux/rtnetlink.h).
var noWay = map[uint8]string{6: "blackhole", 7: "unreachable", 8: "prohibit"}

// addLeaseBehind is for a NIC without ARP, such as an ipvlan of mode L3, which sends each packet by its IP address
// alone. The guest does use ARP and neighbour discovery. So it gets one next hop for all destinations, at the
// gateway's MAC if the gateway is a permanent neighbour, else at the NIC's own MAC, as the kernel sends.
func (n NIC) addLeaseBehind(r *cache.Record, v4, v6 []netip.Prefix) {
	if len(v4) > 0 {
		loseSecond(r, v4)
		routes := n.learned(r, true)
		hop := n.server()
		r.IPv4 = leaseBehind4(v4[0].Addr(), hop, routes)
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: hop, MAC: n.hopMAC(r, true)})
	}
	if len(v6) > 0 {
		routes := n.learned(r, false)
		router := cache.Router{Address: eui64.LinkLocal(netstate.DeriveMACOf(r.MAC.String(), n.Name, "router")), MAC: n.hopMAC(r, false)}
		r.IPv6 = n.leaseBehind6(v6, router, routes)
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: router.Address, MAC: router.MAC})
	}
}

// FillRouted is Fill for a guest whose next hop for all destinations is the namespace, with the record's GatewayMAC.
// The guest has the NIC's addresses.
func (n NIC) FillRouted(r *cache.Record) {
	v4, v6 := n.Addresses()
	if len(v4) > 0 {
		r.IPv4 = leaseBehind4(v4[0].Addr(), Hop(v4[0].Addr()), destinations(n.Behind(true)))
		if r.ResponderTap != "" {
			n.addStandIn(r)
		}
	}
	if len(v6) > 0 {
		router := cache.Router{Address: eui64.LinkLocal(r.GatewayMAC), MAC: r.GatewayMAC}
		r.IPv6 = n.leaseBehind6(v6, router, destinations(n.Behind(false)))
	}
	loseSecond(r, v4)
}

// destinations are the routes without their next hops.
func destinations(routes []netstate.Route) []cache.Route {
	var list []cache.Route
	listed := map[netip.Prefix]bool{}
	for _, r := range routes {
		if !listed[r.Destination] {
			list = append(list, cache.Route{Destination: r.Destination})
			listed[r.Destination] = true
		}
	}
	return list
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

// hopMAC is the MAC to which a NIC without ARP sends packets for its gateway.
func (n NIC) hopMAC(r *cache.Record, v4 bool) cache.MAC {
	for _, route := range n.Routes(v4) {
		for o := range n.neighbours() {
			if o.Permanent && o.Address == route.Gateway && route.Default() {
				return o.MAC
			}
		}
	}
	return r.MAC
}

// The namespace's own addresses behind infra.Routed. The guest's gateway and its DHCP server have the address
// RoutedIPv4, or the next one if the guest has RoutedIPv4 itself.
var (
	RoutedIPv4 = netip.AddrFrom4([4]byte{169, 254, 75, 1})
	RoutedIPv6 = netip.MustParseAddr("fd00:a9fe:4b01::1")
)

// Hop is the gateway and DHCP server of a guest behind the namespace: a link-local address for which the namespace
// answers ARP.
func Hop(guest netip.Addr) netip.Addr {
	if guest == RoutedIPv4 {
		return guest.Next()
	}
	return RoutedIPv4
}

// server is the DHCP server identifier of a guest without a gateway: a link-local address for which the responder
// answers ARP. A guest may send renewals by its routing table, so each NIC of the namespace has another address, by its
// index: 169.254.75.2 for the index 2, and 169.254.75.254 is followed by 169.254.75.2 again. A NIC whose address an
// earlier link or the namespace has gets the next one.
func (n NIC) server() netip.Addr {
	const first, count = 2, 253
	network := RoutedIPv4.As4()
	of := func(number int) netip.Addr {
		return netip.AddrFrom4([4]byte{network[0], network[1], network[2], byte(first + number%count)})
	}
	taken := map[netip.Addr]bool{}
	for _, a := range n.found.Addresses {
		taken[a.Prefix.Addr()] = true
	}
	indices := []int{n.Index}
	for _, l := range n.found.Links {
		if l.Index < n.Index && !l.Loopback {
			indices = append(indices, l.Index)
		}
	}
	slices.Sort(indices)
	var server netip.Addr
	for _, index := range indices {
		number := index + count - first
		for tries := 0; taken[of(number)] && tries < count; tries++ {
			number++
		}
		server = of(number)
		taken[server] = true
	}
	return server
}

// lease4 puts the namespace's IPv4 routes into the record. If the address has no connected route, or the
// gateway lies outside of it, the guest gets a /32 and each route by itself, on-link routes first: all clients
// can install them in that order.
func (n NIC) addLease4(r *cache.Record, addresses []netip.Prefix) {
	loseSecond(r, addresses)
	routes := n.learned(r, true)
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
	mac := r.GatewayMAC
	for _, o := range r.Neighbours { // those of a NIC without ARP
		if o.Address == gateway {
			mac = o.MAC
		}
	}
	if known, ok := n.Neighbour(gateway); ok {
		mac = known.MAC
	}
	if mac.IsZero() {
		return
	}
	r.IPv4.StandIn = standIn
	r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: standIn, MAC: mac})
}

// Gateways are the next hops whose MACs the record holds: of IPv4 as addStandIn needs it, or if it is an IPv6 address,
// and of IPv6 as addRouter needs it.
func (n NIC) Gateways() []netip.Addr {
	var needed []netip.Addr
	if n.NoARP {
		return nil
	}
	v4, v6 := n.Addresses()
	if len(v4) > 0 {
		address, gateway, _ := asLeased(v4[0], n.learned(&cache.Record{}, true))
		hop := n.hop6(n.Routes(true))
		if hop.IsValid() {
			needed = append(needed, hop)
		}
		if gateway.IsValid() && address.Bits() == 32 && gateway != otherOfPair(address.Addr()) && (!hop.IsValid() || gateway != n.server()) {
			needed = append(needed, gateway)
		}
	}
	if len(v6) > 0 {
		gateway := gateway6(n.learned(&cache.Record{}, false))
		if gateway.IsValid() && (!gateway.IsLinkLocalUnicast() || n.Kind == "ipvlan") && !slices.Contains(needed, gateway) {
			needed = append(needed, gateway)
		}
	}
	return needed
}

// Neighbour returns the NIC's neighbour with the address.
func (n NIC) Neighbour(a netip.Addr) (netstate.Neighbour, bool) {
	for o := range n.neighbours() {
		if o.Address == a {
			return o, true
		}
	}
	return netstate.Neighbour{}, false
}

// neighbours are the NIC's neighbours whose MACs are those of stations. The kernel accepts each MAC, also from an
// answer of the network, but a guest cannot have a group as its router.
func (n NIC) neighbours() iter.Seq[netstate.Neighbour] {
	return func(yield func(netstate.Neighbour) bool) {
		for _, o := range n.found.Neighbours {
			if o.Link == n.Index && o.MAC.Unicast() && !yield(o) {
				return
			}
		}
	}
}

// hop is the route's next hop on the NIC's link, the first one of several.
func (n NIC) hop(route netstate.Route) netip.Addr {
	if i := slices.IndexFunc(route.Hops, func(h netstate.Hop) bool { return h.Link == n.Index }); i >= 0 {
		return route.Hops[i].Gateway
	}
	return route.Gateway
}

// learned are the NIC's routes as DHCP can carry them, a destination and one next hop each. The record gets what is
// lost.
func (n NIC) learned(r *cache.Record, v4 bool) []cache.Route {
	return n.asGuest(r, n.Routes(v4))
}

func (n NIC) asGuest(r *cache.Record, routes []netstate.Route) []cache.Route {
	var guest []cache.Route
	known := map[netip.Prefix]bool{}
	for _, route := range routes {
		if known[route.Destination] {
			continue // the route has a higher metric
		}
		g := cache.Route{Destination: route.Destination, Gateway: n.hop(route)}
		if len(route.Hops) > 0 {
			lose(r, "next-hop", route.Destination.String(), "the guest gets one of %d, %v", len(route.Hops), g.Gateway)
		}
		if g.Gateway.Is6() && g.Destination.Addr().Is4() && !n.NoARP {
			known, answers := n.Neighbour(g.Gateway)
			switch hop := n.hop6(routes); {
			case g.Gateway != hop:
				lose(r, "route", route.Destination.String(), "its next hop is %v, and the guest has one of IPv6, %v", g.Gateway, hop)
				continue
			case !answers:
				loseGateway(r, hop, 4)
				continue
			}
			// The guest's next hop is an address for which the responder answers with the MAC of the IPv6 next hop.
			g.Gateway = n.server()
			if standIn := (cache.Neighbour{Address: g.Gateway, MAC: known.MAC}); !slices.Contains(r.Neighbours, standIn) {
				r.Neighbours = append(r.Neighbours, standIn)
			}
		}
		guest = append(guest, g)
		known[g.Destination] = true
	}
	return guest
}

// installable puts the routes into an order in which each next hop can be reached when its route
// comes: routes on the link, those that were missing for a next hop among them, then the others,
// the default route last.
func installable(network netip.Prefix, server netip.Addr, routes []cache.Route) []cache.Route {
	var onLink, routed []cache.Route
	reached := networks{}
	reached.add(network)
	for _, r := range routes {
		if !r.Gateway.IsValid() && !r.Default() {
			onLink = append(onLink, r)
			reached.add(r.Destination)
		} else {
			routed = append(routed, r)
		}
	}
	hops := []netip.Addr{server}
	for _, r := range routed {
		hops = append(hops, r.Gateway)
	}
	for _, hop := range hops {
		if hop.IsValid() && !reached.contain(hop) {
			host := netip.PrefixFrom(hop, hop.BitLen())
			onLink = append(onLink, cache.Route{Destination: host})
			reached.add(host)
		}
	}
	return append(onLink, routed...)
}

// by are the routes by way of the gateway.
func by(routes []cache.Route, gateway netip.Addr) []cache.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r cache.Route) bool { return r.Gateway != gateway })
}

// defaultIndex is the index of the default route among routes of a family, and negative if there is none.
func defaultIndex(routes []cache.Route) int {
	return syntax.DefaultIndex(routes, func(r cache.Route) netip.Prefix { return r.Destination })
}

// loseSecond adds the IPv4 addresses that DHCP does not give the guest.
func loseSecond(r *cache.Record, addresses []netip.Prefix) {
	for _, a := range addresses[min(1, len(addresses)):] {
		lose(r, "address", a.Addr().String(), "DHCPv4 leases one address, %v: configure it in the guest", addresses[0].Addr())
	}
}

// RemoveDefaultRoutes removes what would lead the guest's traffic to the world through this NIC. The server and the
// router stay as they are: the guest asks the one, and prefixes and other routes come from the other.
func RemoveDefaultRoutes(r *cache.Record) {
	if r.IPv4 != nil {
		r.IPv4.Routes = slices.DeleteFunc(r.IPv4.Routes, cache.Route.Default)
		if standIn := r.IPv4.StandIn; standIn.IsValid() {
			r.IPv4.StandIn = netip.Addr{}
			r.Neighbours = slices.DeleteFunc(r.Neighbours, func(n cache.Neighbour) bool { return n.Address == standIn })
		}
	}
	if r.IPv6 != nil && r.IPv6.Router != nil {
		r.IPv6.Router.Default = false
		r.IPv6.Router.Routes = slices.DeleteFunc(r.IPv6.Router.Routes, syntax.IsDefault)
	}
	if r.IPv6 != nil {
		r.IPv6.OnLink = slices.DeleteFunc(r.IPv6.OnLink, syntax.IsDefault)
	}
	if r.Static != nil {
		r.Static.Routes = slices.DeleteFunc(r.Static.Routes, func(s cache.StaticRoute) bool {
			return syntax.IsDefault(s.Destination) && s.Table == netstate.TableMain
		})
	}
}
