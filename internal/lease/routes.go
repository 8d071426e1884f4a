package lease

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// NIC is a NIC of a namespace as it was found.
type NIC struct {
	netstate.Link
	found netstate.Snapshot
	*known
}

// known is what is computed when it is asked for, once.
type known struct {
	addresses [2][]netip.Prefix
	listed    bool
	tables    [2]*fib.Table // of the packets from the addresses
}

// Of returns the NIC, which need not be in the namespace.
func Of(found netstate.Snapshot, nic netstate.Link) NIC { return NIC{nic, found, &known{}} }

// VRF is the table of the VRF that the NIC is in; 0: none.
func (n NIC) VRF() uint32 {
	vrf, _ := n.found.Link(n.Master)
	return vrf.VRF
}

// Table is where the namespace sends packets from the NIC's first address, which becomes the guest's.
func (n NIC) Table(v ip.Version) *fib.Table {
	table := &n.tables[ip.Pick(v, 0, 1)]
	if *table == nil {
		*table = fib.Of(n.found, fib.Source{IP: v, From: n.Own(v), VRF: n.VRF()})
	}
	return *table
}

// Addresses returns the NIC's addresses, without IPv6 link-local ones. The first of each family is the one that the
// namespace itself sends from to the network, if it can be the guest's.
func (n NIC) Addresses() (v4, v6 []netip.Prefix) {
	if !n.listed {
		n.listed, n.addresses = true, [2][]netip.Prefix{n.list(ip.V4), n.list(ip.V6)}
	}
	return slices.Clone(n.addresses[0]), slices.Clone(n.addresses[1])
}

func (n NIC) list(v ip.Version) (list []netip.Prefix) {
	own := n.AddressesOn(v)
	slices.SortStableFunc(own, func(a, b netstate.Address) int { return cmp.Compare(lastResort(a), lastResort(b)) })
	for _, a := range own {
		list = append(list, a.Prefix)
	}
	if len(own) < 2 {
		return list
	}
	to := n.outward(v)
	chosen := to.source
	if !slices.ContainsFunc(own, func(a netstate.Address) bool { return a.Prefix.Addr() == chosen }) {
		fit := slices.DeleteFunc(own, func(a netstate.Address) bool { return lastResort(a) > lastResort(own[0]) })
		chooser := chooserOf(fit, nil)
		chosen = chooser.choose(to)
	}
	at := slices.IndexFunc(list, func(p netip.Prefix) bool { return p.Addr() == chosen })
	first := list[at]
	return slices.Insert(slices.Delete(list, at, at+1), 0, first)
}

// outward is where the NIC's least specific route leads for the namespace's own packets.
func (n NIC) outward(v ip.Version) destination {
	routes := n.by(fib.Of(n.found, fib.Source{IP: v, In: "lo", VRF: n.VRF()}))
	if len(routes) == 0 {
		return destination{network: v.All()}
	}
	to := routes[len(routes)-1].Destination
	first := routes[slices.IndexFunc(routes, func(r netstate.Route) bool { return r.Destination == to })] // the others have higher metrics
	return destination{to, n.hop(first), first.PrefSrc}
}

// RouteSource is the NIC's address from which its least specific route says to send (ip-route(8), src); zero: it names
// none, or the NIC has no other one, or the address has a lifetime, so that another one may take its place.
func (n NIC) RouteSource(v ip.Version) (named netip.Addr) {
	own := n.AddressesOn(v)
	if len(own) < 2 {
		return named
	}
	source := n.outward(v).source
	if slices.ContainsFunc(own, func(a netstate.Address) bool { return a.Prefix.Addr() == source && a.ValidSeconds == netstate.Forever }) {
		return source
	}
	return named
}

// AddressesOn are the NIC's addresses of the version in the kernel's order, without IPv6 link-local ones.
func (n NIC) AddressesOn(v ip.Version) (own []netstate.Address) {
	for _, a := range n.found.Addresses {
		if addr := a.Prefix.Addr(); a.Link == n.Index && ip.Of(addr) == v && (v == ip.V4 || !addr.IsLinkLocalUnicast()) {
			own = append(own, a)
		}
	}
	return own
}

// AddressesOf are the NIC's addresses of the version.
func (n NIC) AddressesOf(v ip.Version) []netip.Prefix {
	v4, v6 := n.Addresses()
	return ip.Pick(v, v4, v6)
}

// Own are the addresses without their prefix lengths.
func (n NIC) Own(v ip.Version) (own []netip.Addr) {
	for _, p := range n.AddressesOf(v) {
		own = append(own, p.Addr())
	}
	return own
}

// lastResort is higher for an address that is less fit to be the guest's first one. The kernel lists the IPv6 address
// that came last first, and an IPv4 address of the scope link before those of the scope global. Secondary addresses of
// IPv4 come last.
func lastResort(a netstate.Address) int {
	switch {
	case a.Duplicate: // another station has it
		return 3
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
func (n NIC) Leased(v ip.Version) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range n.AddressesOn(v) {
		if a.ValidSeconds != netstate.Forever && !a.Advertised() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			list = append(list, a.Prefix)
		}
	}
	return list
}

// Routes are the routes through the NIC for packets from the NIC's first address, which becomes the guest's.
// They come from the tables that the policy rules name; more specific routes come first.
func (n NIC) Routes(v ip.Version) []netstate.Route { return n.by(n.Table(v)) }

// RoutesFrom are the routes through the NIC for packets from the address.
func (n NIC) RoutesFrom(a netip.Addr) []netstate.Route {
	return n.by(fib.Of(n.found, fib.Source{IP: ip.Of(a), From: []netip.Addr{a}, VRF: n.VRF()}))
}

// by are the table's routes through the NIC. Where another table has a throw route, its destination is the route's.
func (n NIC) by(table *fib.Table) (routes []netstate.Route) {
	for _, way := range table.Ways() {
		for _, r := range way.Routes {
			if r.Uses(n.Index) && r.Type == netstate.RouteUnicast {
				r.Destination = way.To
				routes = append(routes, r)
			}
		}
	}
	return routes
}

// Destinations are those of the routes, each once.
func (n NIC) Destinations(v ip.Version) (to []netip.Prefix) {
	for _, r := range n.Routes(v) {
		if len(to) == 0 || to[len(to)-1] != r.Destination {
			to = append(to, r.Destination)
		}
	}
	return to
}

// Behind are the destinations that a guest behind the namespace reaches through the NIC. The namespace chooses the
// route for each of the guest's packets. So the routes count that some of the packets take: by a TOS, by one of the
// NIC's addresses, or from a table to which a rule leads some packets. More specific ones come first.
func (n NIC) Behind(v ip.Version) (to []netip.Prefix) {
	known := map[netip.Prefix]bool{}
	add := func(p netip.Prefix) {
		if !known[p] {
			to, known[p] = append(to, p), true
		}
	}
	for _, p := range n.Destinations(v) {
		add(p)
	}
	from := fib.Sorted(n.Own(v))
	isFrom := func(p netip.Prefix) bool { return p.Bits() <= 0 || from.MeetIn(p) }
	looked := map[uint32]bool{}
	for _, r := range fib.Rules(n.found, v, n.VRF()) {
		looked[r.Table] = looked[r.Table] || isFrom(r.Source)
	}
	for _, r := range n.found.Routes {
		if looked[r.Table] && ip.Of(r.Destination.Addr()) == v && r.Uses(n.Index) && r.Type == netstate.RouteUnicast && isFrom(r.Source) {
			add(r.Destination)
		}
	}
	slices.SortStableFunc(to, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	return to
}
