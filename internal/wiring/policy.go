package wiring

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// addressesOf returns the NIC's addresses, without IPv6 link-local ones.
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

// routesOf are the routes through the NIC for packets from the NIC's first address, which becomes the guest's.
// They come from the tables that the policy rules name; more specific routes come first.
func routesOf(s netstate.Snapshot, nic netstate.Link, v4 bool) []netstate.Route {
	from, v6 := addressesOf(s, nic)
	if !v4 {
		from = v6
	}
	if len(from) == 0 {
		return routesOfTables(s, nic, v4, netstate.TableMain)
	}
	return routesOfTables(s, nic, v4, lookups(s, from[0].Addr())...)
}

// lookups are the tables in which the namespace looks up a route for packets from the address, in order.
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

// isAbout says whether the rule matches all packets from the address.
func isAbout(r netstate.Rule, from netip.Addr) bool {
	return !r.Other && r.IPv6 == from.Is6() && (!r.Source.IsValid() || r.Source.Contains(from))
}

// isDecided says whether one of the tables has a route for the whole destination. The most specific route of a
// table counts. A throw route sends the lookup to the next table.
func isDecided(s netstate.Snapshot, destination netip.Prefix, tables []uint32) bool {
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

// routesOfTables are the tables' unicast routes through the NIC, without those whose whole destination an
// earlier table decides.
func routesOfTables(s netstate.Snapshot, nic netstate.Link, v4 bool, tables ...uint32) []netstate.Route {
	var routes []netstate.Route
	for i, table := range tables {
		for _, r := range s.Routes {
			if r.Table == table && r.Destination.Addr().Is4() == v4 && r.Uses(nic.Index) && r.Type == netstate.RouteUnicast && !isDecided(s, r.Destination, tables[:i]) {
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

// nextHops are the routes through the NIC for packets from the address, as a guest would get them.
func (p *Plan) nextHops(nic netstate.Link, from netip.Addr) []cache.Route {
	routes, _ := guestRoutes(routesOfTables(p.found, nic, from.Is4(), lookups(p.found, from)...))
	return routes
}

// learnedTables are the tables whose routes the guest gets: the main table, and those that the policy rules name
// for the NIC's addresses, which become the guest's.
func (p *Plan) learnedTables(nic netstate.Link) map[uint32]bool {
	learned := map[uint32]bool{netstate.TableMain: true}
	v4, v6 := addressesOf(p.found, nic)
	for _, a := range slices.Concat(v4[:min(1, len(v4))], v6[:min(1, len(v6))]) {
		for _, table := range lookups(p.found, a.Addr()) {
			learned[table] = true
		}
	}
	return learned
}
