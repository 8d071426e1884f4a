package wiring

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// addressesOf returns the NIC's that another host could use: no link-local ones.
func addressesOf(s netstate.Snapshot, nic netstate.Link) (v4, v6 []netip.Prefix) {
	for _, a := range s.Addresses {
		switch addr := a.Prefix.Addr(); {
		case a.Link != nic.Index:
		case addr.Is4():
			v4 = append(v4, a.Prefix)
		case !addr.IsLinkLocalUnicast():
			v6 = append(v6, a.Prefix)
		}
	}
	return v4, v6
}

// routesOf are the routes through the NIC of what comes from its address, which is what a guest sends
// that has it: those of the tables that the rules say, the more specific ones first.
func routesOf(s netstate.Snapshot, nic netstate.Link, v4 bool) []netstate.Route {
	from, v6 := addressesOf(s, nic)
	if !v4 {
		from = v6
	}
	if len(from) == 0 {
		return routesBy(s, nic, v4, netstate.TableMain)
	}
	return routesBy(s, nic, v4, lookups(s, from[0].Addr())...)
}

// lookups are the tables in which the namespace looks for a route for what comes from an address.
func lookups(s netstate.Snapshot, from netip.Addr) []uint32 {
	rules := slices.Clone(s.Rules)
	if !slices.Contains(s.NoMain, version(from)) {
		rules = append([]netstate.Rule{{Priority: netstate.PriorityMain, Table: netstate.TableMain, IPv6: from.Is6()}}, rules...)
	}
	slices.SortStableFunc(rules, func(a, b netstate.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	var tables []uint32
	for _, r := range rules {
		if isAbout(r, from) && !slices.Contains(tables, r.Table) {
			tables = append(tables, r.Table)
		}
	}
	return tables
}

// isAbout says that the rule holds for whatever comes from an address.
func isAbout(r netstate.Rule, from netip.Addr) bool {
	return !r.Other && r.IPv6 == from.Is6() && (!r.Source.IsValid() || r.Source.Contains(from))
}

// decided says whether one of the tables has a route for all of a destination: the most specific one of a
// table counts, and throw goes on with the next table.
func decided(s netstate.Snapshot, destination netip.Prefix, tables []uint32) bool {
	return slices.ContainsFunc(tables, func(table uint32) bool {
		best := netstate.Route{Type: netstate.RouteThrow, Destination: netip.PrefixFrom(destination.Addr(), 0)}
		for _, r := range s.Routes {
			covers := r.Destination.Addr().Is4() == destination.Addr().Is4() && r.Destination.Bits() <= destination.Bits() && r.Destination.Contains(destination.Addr())
			if r.Table == table && covers && r.Destination.Bits() >= best.Destination.Bits() {
				best = r
			}
		}
		return best.Type != netstate.RouteThrow
	})
}

// routesBy are those through the NIC of some tables, unless an earlier table decides for all of the
// destination.
func routesBy(s netstate.Snapshot, nic netstate.Link, v4 bool, tables ...uint32) []netstate.Route {
	var routes []netstate.Route
	for i, table := range tables {
		for _, r := range s.Routes {
			if r.Table == table && r.Destination.Addr().Is4() == v4 && r.Uses(nic.Index) && r.Type == netstate.RouteUnicast && !decided(s, r.Destination, tables[:i]) {
				routes = append(routes, r)
			}
		}
	}
	slices.SortStableFunc(routes, func(a, b netstate.Route) int {
		if d := b.Destination.Bits() - a.Destination.Bits(); d != 0 {
			return d
		}
		return int(a.Metric) - int(b.Metric)
	})
	return routes
}

// nextHops are those through the NIC of what comes from an address.
func (p *Plan) nextHops(nic netstate.Link, from netip.Addr) []cache.Route {
	routes, _ := guestRoutes(routesBy(p.found, nic, from.Is4(), lookups(p.found, from)...))
	return routes
}

// learned are the tables whose routes a guest learns that has the NIC's addresses.
func (p *Plan) learned(nic netstate.Link) map[uint32]bool {
	learned := map[uint32]bool{netstate.TableMain: true}
	v4, v6 := addressesOf(p.found, nic)
	for _, a := range slices.Concat(v4[:min(1, len(v4))], v6[:min(1, len(v6))]) {
		for _, table := range lookups(p.found, a.Addr()) {
			learned[table] = true
		}
	}
	return learned
}
