package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// routesOf are the routes of a namespace, for the question whether the kernel would add one of them again: by their
// destinations, in which tables, and whether one there is of type local, broadcast, anycast or multicast.
type routesOf struct{ ip.Prefixes[map[uint32]bool] }

func routesIn(found netstate.Snapshot) (routes routesOf) {
	for _, r := range found.Routes {
		if r.Type <= netstate.RouteMulticast {
			at, known := routes.Get(r.Destination)
			if !known {
				at = map[uint32]bool{}
				routes.Set(r.Destination, at)
			}
			at[r.Table] = at[r.Table] || r.Type != netstate.RouteUnicast
		}
	}
	return routes
}

// whyLost says why the kernel would refuse the route through the NIC when it is added again; empty: the
// kernel would not.
func (routes routesOf) whyLost(r netstate.Route, nic netstate.Link) string {
	switch {
	case nexthopObject(r):
		return "uses a nexthop object"
	case !nic.Up && len(r.Hops) > 0:
		return "leads through " + nic.Name + ", which is down, and through another link"
	}
	for _, h := range r.NextHops() {
		if h.Gateway.IsValid() && !h.OnLink && routes.takeAsOwn(h.Gateway, r.Table) {
			return fmt.Sprintf("has the gateway %v, which another route gives to the namespace itself", h.Gateway)
		}
	}
	return ""
}

// takeAsOwn reports whether a special route covers the gateway, so that the kernel takes it for the namespace's own, a
// broadcast address or the like, and refuses it as a gateway.
func (routes routesOf) takeAsOwn(gateway netip.Addr, table uint32) bool {
	for _, in := range routes.Around(firewall.HostPrefix(gateway)) {
		special, is := in[table]
		local, isLocal := in[netstate.TableLocal]
		if is || isLocal {
			return special || local
		}
	}
	return false
}

// nexthopObject reports whether the route uses a nexthop object (ip-nexthop(8)), which a Snapshot does not hold.
func nexthopObject(r netstate.Route) bool {
	return slices.ContainsFunc(r.Other, func(a netstate.Attribute) bool { return a.Type == routeNexthopID })
}

// routeNexthopID is RTA_NH_ID (linux/rtnetlink.h).
const routeNexthopID = 30
