// Package lease computes what a guest learns of a NIC: by DHCP, by router advertisements, or from files. It is pure.
//
//   - [Of] takes the namespace as it was found, and the NIC.
//   - [NIC.Fill] fills the record of a guest on the NIC's link, [NIC.FillRouted] that of a guest behind the namespace.
//     What a lease cannot carry becomes a loss of the record.
//   - [NIC.Static] returns what a guest without DHCP gets.
package lease

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Fill puts what the NIC has into the record of a guest with a responder: addresses, routes, permanent neighbours.
func (n NIC) Fill(r *cache.Record) {
	v4, v6 := n.Addresses()
	for _, v := range ip.Both {
		if len(n.AddressesOf(v)) > 0 {
			n.loseRefusing(r, v)
			n.loseConditional(r, v)
		}
	}
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
		n.addLease6(r)
	}
	n.addStandIn(r)
}

// loseRefusing adds the routes that refuse or drop packets where the namespace would not send them.
func (n NIC) loseRefusing(r *cache.Record, v ip.Version) {
	for _, way := range n.Table(v).Ways() {
		if kind := way.Routes[0].Refuses(); kind != "" {
			lose(r, "route", fmt.Sprintf("%s %v", kind, way.To), "a lease has no such routes, so the guest sends what the namespace would not")
		}
	}
}

// addLeaseBehind is for a NIC without ARP, such as an ipvlan of mode L3, which sends each packet by its IP address
// alone. The guest does use ARP and neighbour discovery. So it gets one next hop for all destinations, at the
// gateway's MAC if the gateway is a permanent neighbour, else at the NIC's own MAC, as the kernel sends.
func (n NIC) addLeaseBehind(r *cache.Record, v4, v6 []netip.Prefix) {
	if len(v4) > 0 {
		loseSecond(r, v4)
		hop := n.server()
		r.IPv4 = leaseBehind4(v4[0].Addr(), hop, n.learned(r, ip.V4))
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: hop, MAC: n.hopMAC(r, ip.V4)})
	}
	if len(v6) > 0 {
		routes := n.learned(r, ip.V6)
		router := cache.Router{Address: eui64.LinkLocal(netstate.DeriveMACOf(r.MAC.String(), n.Name, "router")), MAC: n.hopMAC(r, ip.V6)}
		r.IPv6 = n.leaseBehind6(router, routes)
		r.Neighbours = append(r.Neighbours, cache.Neighbour{Address: router.Address, MAC: router.MAC})
	}
}

// FillRouted is Fill for a guest whose next hop for all destinations is the namespace, with the record's GatewayMAC.
// The guest has the NIC's addresses.
func (n NIC) FillRouted(r *cache.Record) {
	v4, v6 := n.Addresses()
	if len(v4) > 0 {
		r.IPv4 = leaseBehind4(v4[0].Addr(), Hop(v4[0].Addr()), routesTo(n.Behind(ip.V4)))
		if r.ResponderTap != "" {
			n.addStandIn(r)
		}
	}
	if len(v6) > 0 {
		router := cache.Router{Address: eui64.LinkLocal(r.GatewayMAC), MAC: r.GatewayMAC}
		r.IPv6 = n.leaseBehind6(router, routesTo(n.Behind(ip.V6)))
	}
	loseSecond(r, v4)
}

// Gateways are the next hops whose MACs the record holds: of IPv4 as addStandIn needs it, or if it is an IPv6 address,
// and of IPv6 as addRouter needs it.
func (n NIC) Gateways() []netip.Addr {
	var needed []netip.Addr
	if n.NoARP || !n.Ethernet { // the question is an Ethernet frame
		return nil
	}
	v4, v6 := n.Addresses()
	if len(v4) > 0 {
		address, gateway, _ := asLeased(v4[0], n.learned(&cache.Record{}, ip.V4))
		hop := n.hop6(n.Routes(ip.V4))
		if hop.IsValid() {
			needed = append(needed, hop)
		}
		if gateway.IsValid() && address.Bits() == 32 && gateway != otherOfPair(address.Addr()) && (!hop.IsValid() || gateway != n.server()) {
			needed = append(needed, gateway)
		}
	}
	if len(v6) > 0 {
		gateway := gateway6(n.learned(&cache.Record{}, ip.V6))
		if gateway.IsValid() && (!gateway.IsLinkLocalUnicast() || n.SharesMAC()) && !slices.Contains(needed, gateway) {
			needed = append(needed, gateway)
		}
	}
	return needed
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
