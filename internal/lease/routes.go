package lease

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// NIC is a NIC of a namespace as it was found.
type NIC struct {
	netstate.Link
	found netstate.Snapshot
}

// Of returns the NIC, which need not be in the namespace.
func Of(found netstate.Snapshot, nic netstate.Link) NIC { return NIC{nic, Seen(found, nic)} }

// Seen is the namespace as the packets of the NIC see it: the rule for VRFs leads to the table of the NIC's VRF, or is
// left out. So are the routes of that table that the kernel makes of addresses. A Snapshot has none of these in the
// table local either.
func Seen(found netstate.Snapshot, nic netstate.Link) netstate.Snapshot {
	isVRF := func(r netstate.Rule) bool { return r.VRF }
	if !slices.ContainsFunc(found.Rules, isVRF) {
		return found
	}
	vrf, _ := found.Link(nic.Master)
	rules := slices.Clone(found.Rules)
	for i := range rules {
		if rules[i].VRF && vrf.VRF != 0 {
			rules[i].Table, rules[i].VRF = vrf.VRF, false
		}
	}
	found.Rules = slices.DeleteFunc(rules, isVRF)
	found.Routes = slices.DeleteFunc(slices.Clone(found.Routes), func(r netstate.Route) bool {
		ofAddress := r.Protocol == netstate.ProtocolKernel && r.Type != netstate.RouteUnicast && r.Type <= netstate.RouteMulticast
		return vrf.VRF != 0 && r.Table == vrf.VRF && ofAddress
	})
	return found
}

// Addresses returns the NIC's addresses, without IPv6 link-local ones. The first of each family is one that the
// namespace itself sends from to the network, if there is such an address.
func (n NIC) Addresses() (v4, v6 []netip.Prefix) {
	own := slices.DeleteFunc(slices.Clone(n.found.Addresses), func(a netstate.Address) bool { return a.Link != n.Index })
	slices.SortStableFunc(own, func(a, b netstate.Address) int { return cmp.Compare(lastResort(a), lastResort(b)) })
	for _, a := range own {
		switch addr := a.Prefix.Addr(); {
		case addr.Is4():
			v4 = append(v4, a.Prefix)
		case !addr.IsLinkLocalUnicast():
			v6 = append(v6, a.Prefix)
		}
	}
	return v4, v6
}

// lastResort is higher for an address that is less fit to be the guest's first one. The kernel lists the IPv6 address
// that came last first, and an IPv4 address of the scope link before those of the scope global. Secondary addresses of
// IPv4 come last.
func lastResort(a netstate.Address) int {
	switch {
	case isDeprecated(a):
		return 2
	case a.Temporary: // the kernel replaces it
		return 1
	case a.Prefix.Addr().Is4() && a.Scope != netstate.ScopeUniverse: // no source of what leaves by a gateway
		return 1
	}
	return 0
}

// isDeprecated reports whether a station sends from the address only if no other fits (RFC 4862 section 5.5.4). IPv4
// has no such state (RFC 6724 section 3.2).
func isDeprecated(a netstate.Address) bool { return a.Prefix.Addr().Is6() && a.PreferredSeconds == 0 }

// Leased are the NIC's addresses of the IP version that a DHCP client in the namespace has leased: they have a
// lifetime, and do not come from a router advertisement. What CNI's dhcp plugin leases has no lifetime in the kernel.
func (n NIC) Leased(version int) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range n.found.Addresses {
		is := a.Prefix.Addr().Is4() == (version == 4) && !a.Prefix.Addr().IsLinkLocalUnicast()
		if a.Link == n.Index && is && a.ValidSeconds != netstate.Forever && !a.Advertised() {
			list = append(list, a.Prefix)
		}
	}
	return list
}

// Routes are the routes through the NIC for packets from the NIC's first address, which becomes the guest's.
// They come from the tables that the policy rules name; more specific routes come first.
func (n NIC) Routes(v4 bool) []netstate.Route {
	from, v6 := n.Addresses()
	if !v4 {
		from = v6
	}
	if len(from) == 0 {
		return n.routesIn(v4, nil, netstate.TableMain)
	}
	return n.routesIn(v4, addressesOf(from), n.lookups(from[0].Addr())...)
}

func addressesOf(prefixes []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes {
		list = append(list, p.Addr())
	}
	return list
}

// isPlain reports whether the route is one for all packets from the addresses: it does not ask for a TOS, or for a
// source that not all of them have.
func isPlain(r netstate.Route, from Addresses) bool {
	return r.TOS == 0 && (r.Source.Bits() <= 0 || from.lieIn(r.Source))
}

// lookups are the tables in which the namespace looks up a route for packets from the address, in order.
func (n NIC) lookups(from netip.Addr) []uint32 {
	version := 4
	if from.Is6() {
		version = 6
	}
	rules := slices.Clone(n.found.Rules)
	if !slices.Contains(n.found.NoMain, version) {
		rules = append([]netstate.Rule{{Priority: netstate.PriorityMain, Table: netstate.TableMain, IPv6: from.Is6()}}, rules...)
	}
	slices.SortStableFunc(rules, func(a, b netstate.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	var tables []uint32
	listed := map[uint32]bool{}
	for _, r := range rules {
		if isAbout(r, from) && !listed[r.Table] {
			tables, listed[r.Table] = append(tables, r.Table), true
		}
	}
	return tables
}

// isAbout reports whether the rule matches all packets from the address.
func isAbout(r netstate.Rule, from netip.Addr) bool {
	return !r.Other && r.IPv6 == from.Is6() && (!r.Source.IsValid() || r.Source.Contains(from))
}

// routesIn are the tables' unicast routes through the NIC for all packets from the addresses, without those whose whole
// destination an earlier table decides. Of two with one destination, that with a source is first, as in the kernel.
func (n NIC) routesIn(v4 bool, from []netip.Addr, tables ...uint32) []netstate.Route {
	of := make(map[uint32][]netstate.Route, len(tables))
	for _, table := range tables {
		of[table] = nil
	}
	all := SortedAddresses(from)
	for _, r := range n.found.Routes {
		if list, asked := of[r.Table]; asked && r.Destination.Addr().Is4() == v4 && r.Uses(n.Index) && r.Type == netstate.RouteUnicast && isPlain(r, all) {
			of[r.Table] = append(list, r)
		}
	}
	var first map[netip.Prefix]int
	if len(tables) > 1 {
		first = n.decisions().first(tables)
	}
	var routes []netstate.Route
	for i, table := range tables {
		for _, r := range of[table] {
			if i == 0 || firstFor(r.Destination, first) >= i {
				routes = append(routes, r)
			}
		}
	}
	slices.SortStableFunc(routes, func(a, b netstate.Route) int {
		if d := b.Destination.Bits() - a.Destination.Bits(); d != 0 {
			return d
		}
		if d := b.Source.Bits() - a.Source.Bits(); d != 0 {
			return d
		}
		return int(a.Metric) - int(b.Metric)
	})
	return routes
}

// Behind are the routes through the NIC to what a guest behind the namespace reaches. The namespace chooses the route
// for each of the guest's packets. So the routes count that some of the packets take: by a TOS, by one of the NIC's
// addresses, or from a table to which a rule leads some packets. More specific routes come first.
func (n NIC) Behind(v4 bool) []netstate.Route {
	routes := n.Routes(v4)
	own, v6 := n.Addresses()
	if !v4 {
		own = v6
	}
	from := AddressesIn(own)
	isFrom := func(p netip.Prefix) bool { return p.Bits() <= 0 || from.MeetIn(p) }
	known := make(map[netip.Prefix]bool, len(routes))
	for _, r := range routes {
		known[r.Destination] = true
	}
	looked := map[uint32]bool{netstate.TableMain: true}
	for _, r := range n.found.Rules {
		if r.IPv6 != v4 && isFrom(r.Source) {
			looked[r.Table] = true
		}
	}
	for _, r := range n.found.Routes {
		if looked[r.Table] && r.Destination.Addr().Is4() == v4 && r.Uses(n.Index) && r.Type == netstate.RouteUnicast && isFrom(r.Source) && !known[r.Destination] {
			routes, known[r.Destination] = append(routes, r), true
		}
	}
	slices.SortStableFunc(routes, func(a, b netstate.Route) int { return b.Destination.Bits() - a.Destination.Bits() })
	return routes
}

// Ahead are the policy rules that come before the one for the table main, and send what is for an address behind the
// namespace elsewhere. All says that none of these packets is looked up in main: the last rule takes the rest, or no
// rule leads to main.
func (n NIC) Ahead(behind netip.Addr) (ahead []netstate.Rule, all bool) {
	version := 4
	if behind.Is6() {
		version = 6
	}
	rules := slices.Clone(n.found.Rules)
	if !slices.Contains(n.found.NoMain, version) {
		rules = append(rules, netstate.Rule{Priority: netstate.PriorityMain, Table: netstate.TableMain, IPv6: behind.Is6()})
	}
	slices.SortStableFunc(rules, func(a, b netstate.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	own := make(map[netip.Addr]bool, len(n.found.Addresses))
	for _, a := range n.found.Addresses {
		own[a.Prefix.Addr()] = true
	}
	isOwn := func(p netip.Prefix) bool { return p.IsSingleIP() && own[p.Addr()] } // answers come from others
	d := n.decisions()
	for _, r := range rules {
		switch {
		case r.IPv6 != behind.Is6() || isOwn(r.Source):
		case r.Table == netstate.TableMain && r.Source.Bits() <= 0:
			return ahead, false // also one that leaves default routes out, as wg-quick(8) adds
		case d.isDecided(netip.PrefixFrom(behind, behind.BitLen()), r.Table):
			ahead = append(ahead, r)
			if !r.Other && r.Source.Bits() <= 0 {
				return ahead, true
			}
		}
	}
	return ahead, true
}

// Tables are the tables whose routes the guest gets: the main table, and those that the policy rules name
// for the NIC's addresses, which become the guest's.
func (n NIC) Tables() map[uint32]bool {
	learned := map[uint32]bool{netstate.TableMain: true}
	v4, v6 := n.Addresses()
	for _, a := range slices.Concat(v4[:min(1, len(v4))], v6[:min(1, len(v6))]) {
		for _, table := range n.lookups(a.Addr()) {
			learned[table] = true
		}
	}
	return learned
}
