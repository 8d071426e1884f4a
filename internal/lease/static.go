package lease

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Static is what the namespace had on the NIC, for a guest with this MAC that is configured without DHCP; nil: the
// NIC has no address, or no ARP, so that the guest cannot be configured as the NIC is.
func (n NIC) Static(guest cache.MAC) *cache.Static {
	if n.NoARP {
		return nil
	}
	s := &cache.Static{}
	routes := netstate.IndexRoutes(n.found.Routes)
	earlier := netstate.Earlier{}
	var implied []netstate.Route // by the addresses
	for _, a := range n.found.Addresses {
		if a.Link != n.Index || n.Index == 0 {
			continue
		}
		connected := earlier.Connected(a, n.Link)
		earlier.Add(a)
		has := n.hasConnected(a, connected, routes)
		if has {
			implied = append(implied, connected...)
		}
		if a.Prefix.Addr() == eui64.LinkLocal(n.MAC) && n.MAC != guest {
			continue // the guest has one of its own MAC
		}
		s.Addresses = append(s.Addresses, cache.StaticAddress{
			Address: a.Prefix, Peer: a.Peer, Broadcast: a.Broadcast, Scope: a.Scope, Deprecated: a.PreferredSeconds == 0,
			NoPrefixRoute: !has,
		})
	}
	if len(s.Addresses) == 0 {
		return nil
	}
	n.addStaticRoutes(s, netstate.IndexRoutes(implied))
	n.addStaticRules(s)
	for o := range n.neighbours() {
		if o.Permanent && o.Address.IsValid() {
			s.Neighbours = append(s.Neighbours, cache.Neighbour{Address: o.Address, MAC: o.MAC})
		}
	}
	return s
}

// hasConnected reports whether the namespace has the routes that the kernel makes of the address.
func (n NIC) hasConnected(a netstate.Address, connected []netstate.Route, routes netstate.RouteIndex) bool {
	if a.Prefix.Addr() == eui64.LinkLocal(n.MAC) {
		return true // the guest makes this address, and the route, by itself
	}
	if a.Flags&netstate.AddrNoPrefixRoute != 0 || a.Metric != 0 {
		return false // the guest gets the route by itself, with its metric
	}
	return !slices.ContainsFunc(connected, func(c netstate.Route) bool { return c.Table == netstate.TableMain && !routes.Has(c) })
}

// addStaticRoutes adds the routes through the NIC that no address implies, and those that refuse packets: routes on
// the link first, so that a guest can install them in their order.
func (n NIC) addStaticRoutes(s *cache.Static, implied netstate.RouteIndex) {
	var onLink, routed []cache.StaticRoute
	for _, r := range n.found.Routes {
		kind := r.Refuses()
		if r.Type == netstate.RouteThrow {
			kind = "throw"
		}
		switch {
		case r.Table == netstate.TableLocal || r.Protocol == netstate.ProtocolKernel && implied.Has(r):
			continue
		case kind != "":
			if r.Protocol == netstate.ProtocolKernel {
				continue // of the loopback
			}
		case !r.Uses(n.Index):
			continue
		case r.Type != netstate.RouteUnicast:
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
	var own []netip.Addr
	for _, a := range s.Addresses {
		own = append(own, a.Address.Addr())
	}
	addresses := fib.Sorted(own)
	type family struct {
		table uint32
		v6    bool
	}
	tables := map[family]bool{}
	for _, t := range s.Routes {
		tables[family{t.Table, t.Destination.Addr().Is6()}] = t.Table != netstate.TableMain
	}
	about := func(r netstate.Rule) bool {
		return r.Source.IsValid() && addresses.MeetIn(r.Source) || tables[family{r.Table, r.IPv6}]
	}
	others := 0
	for _, r := range n.found.Rules {
		switch {
		case !r.BySource():
			others++
		case about(r) && r.Table != 0 && r.Table != netstate.TableLocal:
			s.Rules = append(s.Rules, cache.StaticRule{Priority: r.Priority, Table: r.Table, Source: maskedSource(r.Source), IPv6: r.IPv6})
		}
	}
	if others > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d policy rules of the namespace are left out: they match more than the source, or do not look up a table", others))
	}
	for _, v := range n.found.NoMain {
		s.Warnings = append(s.Warnings, fmt.Sprintf("the namespace has no %v rule for the table main, and the guest has one", v))
	}
}

// maskedSource is a rule's source without host bits, which the kernel ignores.
func maskedSource(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return netip.Prefix{}
	}
	return p.Masked()
}
