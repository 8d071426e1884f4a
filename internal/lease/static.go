package lease

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Static is what the namespace had on the NIC, for a guest with this MAC that is configured without DHCP; nil: the
// NIC has no address, or no ARP, so that the guest cannot be configured as the NIC is.
func (n NIC) Static(guest cache.MAC) *cache.Static {
	if n.NoARP {
		return nil
	}
	s := &cache.Static{}
	var own []netstate.Address
	for _, a := range n.found.Addresses {
		if a.Link != n.Index || n.Index == 0 {
			continue
		}
		own = append(own, a)
		if a.Prefix.Addr() == eui64.LinkLocal(n.MAC) && n.MAC != guest {
			continue // the guest has one of its own MAC
		}
		s.Addresses = append(s.Addresses, cache.StaticAddress{
			Address: a.Prefix, Peer: a.Peer, Broadcast: a.Broadcast, Scope: a.Scope, Deprecated: a.PreferredSeconds == 0,
			NoPrefixRoute: !n.hasConnected(own),
		})
	}
	if len(s.Addresses) == 0 {
		return nil
	}
	n.addStaticRoutes(s, own)
	n.addStaticRules(s)
	for o := range n.neighbours() {
		if o.Permanent && o.Address.IsValid() {
			s.Neighbours = append(s.Neighbours, cache.Neighbour{Address: o.Address, MAC: o.MAC})
		}
	}
	return s
}

// hasConnected reports whether the namespace has the routes that the kernel made of the last address.
func (n NIC) hasConnected(own []netstate.Address) bool {
	last := len(own) - 1
	if own[last].Prefix.Addr() == eui64.LinkLocal(n.MAC) {
		return true // the guest makes this address, and the route, by itself
	}
	if own[last].Flags&netstate.AddrNoPrefixRoute != 0 || own[last].Metric != 0 {
		return false // the guest gets the route by itself, with its metric
	}
	for _, c := range netstate.Connected(own[last], n.Link, own[:last]) {
		if c.Table == netstate.TableMain && !slices.ContainsFunc(n.found.Routes, c.Same) {
			return false
		}
	}
	return true
}

// routeTypes are the routes that a guest can be given, by their type (linux/rtnetlink.h).
var routeTypes = map[uint8]string{
	netstate.RouteUnicast: "", 6: "blackhole", 7: "unreachable", 8: "prohibit", netstate.RouteThrow: "throw",
}

// addStaticRoutes adds the routes through the NIC that no address implies, and those that refuse packets: routes on
// the link first, so that a guest can install them in their order.
func (n NIC) addStaticRoutes(s *cache.Static, own []netstate.Address) {
	var onLink, routed []cache.StaticRoute
	for _, r := range n.found.Routes {
		kind, known := routeTypes[r.Type]
		switch {
		case r.Table == netstate.TableLocal || n.isConnected(r, own):
			continue
		case known && kind != "":
			if r.Protocol == netstate.ProtocolKernel {
				continue // of the loopback
			}
		case !r.Uses(n.Index):
			continue
		case !known:
			s.Warnings = append(s.Warnings, fmt.Sprintf("the route to %v of table %d is left out: it is of type %d, and not unicast", r.Destination, r.Table, r.Type))
			continue
		}
		if r.TOS != 0 || unknownAttributes(r) {
			s.Warnings = append(s.Warnings, fmt.Sprintf("the route to %v of table %d has attributes other than those of the record: the guest gets it without them", r.Destination, r.Table))
		}
		to := cache.StaticRoute{
			Destination: r.Destination, Type: kind, Table: r.Table, Gateway: r.Gateway, OnLink: r.OnLink && r.Gateway.IsValid(),
			Source: r.PrefSrc, Metric: r.Metric, MTU: r.MTU,
		}
		if r.Source.IsValid() && r.Source.Bits() > 0 {
			to.From = r.Source
		}
		if r.Destination.Addr().Is4() && kind == "" {
			to.Scope = r.Scope
		}
		for _, h := range r.Hops {
			if h.Link != n.Index {
				s.Warnings = append(s.Warnings, fmt.Sprintf("the route to %v of table %d has a next hop through another link: the guest gets it without that one", r.Destination, r.Table))
				continue
			}
			to.Hops = append(to.Hops, cache.StaticHop{Gateway: h.Gateway, OnLink: h.OnLink && h.Gateway.IsValid(), Weight: int(h.Weight) + 1})
		}
		if to.Gateway.IsValid() || len(to.Hops) > 0 {
			routed = append(routed, to)
		} else {
			onLink = append(onLink, to)
		}
	}
	s.Routes = append(onLink, routed...)
}

// isConnected reports whether one of the addresses implies the route.
func (n NIC) isConnected(r netstate.Route, own []netstate.Address) bool {
	if r.Protocol != netstate.ProtocolKernel || r.Table != netstate.TableMain {
		return false
	}
	for i := range own {
		if n.hasConnected(own[:i+1]) && slices.ContainsFunc(netstate.Connected(own[i], n.Link, own[:i]), r.Same) {
			return true
		}
	}
	return false
}

// Attributes of routes (linux/rtnetlink.h).
const (
	attributeMetrics    = 8
	attributePreference = 20
	metricMTU           = 2 // RTAX_MTU
)

// unknownAttributes reports whether the route has an attribute that a record cannot hold. The kernel gives each IPv6
// route a preference; zero is medium.
func unknownAttributes(r netstate.Route) bool {
	return slices.ContainsFunc(r.Other, func(a netstate.Attribute) bool {
		switch a.Type {
		case attributeMetrics: // one attribute of 4 octets, with a header of 4
			return r.MTU == 0 || len(a.Data) > 8
		case attributePreference:
			return len(a.Data) > 0 && a.Data[0] != 0
		}
		return true
	})
}

// addStaticRules adds the rules that concern the addresses, or lead to the tables of the routes.
func (n NIC) addStaticRules(s *cache.Static) {
	about := func(r netstate.Rule) bool {
		ofAddress := func(a cache.StaticAddress) bool { return r.Source.IsValid() && r.Source.Contains(a.Address.Addr()) }
		ofTable := func(t cache.StaticRoute) bool {
			return t.Table == r.Table && t.Table != netstate.TableMain && t.Destination.Addr().Is6() == r.IPv6
		}
		return slices.ContainsFunc(s.Addresses, ofAddress) || slices.ContainsFunc(s.Routes, ofTable)
	}
	others := 0
	for _, r := range n.found.Rules {
		switch {
		case r.Other:
			others++
		case about(r) && r.Table != 0 && r.Table != netstate.TableLocal:
			s.Rules = append(s.Rules, cache.StaticRule{Priority: r.Priority, Table: r.Table, Source: maskedSource(r.Source), IPv6: r.IPv6})
		}
	}
	if others > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d policy rules of the namespace are left out: they match more than the source, or do not look up a table", others))
	}
	for _, version := range n.found.NoMain {
		s.Warnings = append(s.Warnings, fmt.Sprintf("the namespace has no IPv%d rule for the table main, and the guest has one", version))
	}
}

// maskedSource is a rule's source without host bits, which the kernel ignores.
func maskedSource(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return netip.Prefix{}
	}
	return p.Masked()
}
