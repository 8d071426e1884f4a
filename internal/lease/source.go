package lease

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// Source is the address that the namespace's own packets to the network get when they leave by the NIC.
type Source struct {
	To      netip.Prefix // zero: all other destinations of the family
	Address netip.Addr
}

// uniqueLocal are the unique local addresses (RFC 4193), which have a label of their own in RFC 6724 section 2.1.
var uniqueLocal = netip.MustParsePrefix("fc00::/7")

// Sources are the NIC's addresses that the kernel would choose for packets from the hop, an address of the same family,
// by destination. More specific destinations come first, and the one for all others is last. They are for IPv4: the
// source of the route (ip-route(8), src), else the address in the gateway's network, else the first. For IPv6 the
// route's source comes first too, and then the rules 3, 6 and 8 of RFC 6724 section 5.
func (n NIC) Sources(hop netip.Addr) []Source {
	var own []netstate.Address
	for _, a := range n.found.Addresses {
		if addr := a.Prefix.Addr(); a.Link == n.Index && addr.Is4() == hop.Is4() && (addr.Is4() || !addr.IsLinkLocalUnicast()) {
			own = append(own, a)
		}
	}
	family := netip.PrefixFrom(hop, 0).Masked()
	var choices []Source
	chosen := map[netip.Prefix]bool{}
	add := func(to netip.Prefix, address netip.Addr) {
		if !chosen[to] {
			choices = append(choices, Source{to, address})
			chosen[to] = true
		}
	}
	for _, r := range n.routesIn(hop.Is4(), []netip.Addr{hop}, n.lookups(hop)...) {
		if r.Destination.Addr().IsLinkLocalUnicast() && hop.Is6() {
			continue // the kernel chooses the NIC's link-local address
		}
		address := sourceTo(own, r.Destination, r.Gateway)
		if slices.ContainsFunc(own, func(a netstate.Address) bool { return a.Prefix.Addr() == r.PrefSrc }) {
			address = r.PrefSrc
		}
		add(r.Destination, address)
	}
	if hop.Is6() {
		for _, a := range own {
			add(a.Prefix.Masked(), sourceTo(own, a.Prefix.Masked(), netip.Addr{}))
		}
		if a := sourceTo(own, uniqueLocal, netip.Addr{}); uniqueLocal.Contains(a) {
			add(uniqueLocal, a)
		}
	}
	add(family, sourceTo(own, family, netip.Addr{}))
	slices.SortStableFunc(choices, func(a, b Source) int { return b.To.Bits() - a.To.Bits() })
	last := len(choices) - 1
	otherwise := choices[last]
	var needed []Source // from the least specific one on
	for _, c := range slices.Backward(choices[:last]) {
		wider := otherwise.Address
		for _, o := range needed {
			if o.To.Overlaps(c.To) {
				wider = o.Address
			}
		}
		if c.Address != wider {
			needed = append(needed, c)
		}
	}
	slices.Reverse(needed)
	return append(needed, Source{Address: otherwise.Address})
}

// sourceTo is the address that the kernel would choose for packets to the destination, by way of the gateway if there
// is one.
func sourceTo(own []netstate.Address, to netip.Prefix, gateway netip.Addr) netip.Addr {
	score := func(a netstate.Address) int {
		n := 0
		if gateway.IsValid() && a.Prefix.Masked().Contains(gateway) {
			n++
		}
		if to.Addr().Is4() {
			if a.Scope == netstate.ScopeUniverse && (gateway.IsValid() || to.Bits() == 0) {
				n += 2 // for a route on the link, the kernel takes an address of the scope link as well
			}
			return n
		}
		if a.PreferredSeconds > 0 {
			n += 8
		}
		if uniqueLocal.Contains(a.Prefix.Addr()) == (to.Bits() >= uniqueLocal.Bits() && uniqueLocal.Contains(to.Addr())) {
			n += 4
		}
		if to.Bits() > 0 && a.Prefix.Overlaps(to) {
			n += 2
		}
		return n
	}
	best := own[0]
	for _, a := range own[1:] {
		if score(a) > score(best) {
			best = a
		}
	}
	return best.Prefix.Addr()
}
