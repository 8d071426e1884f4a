package wiring

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// judging are the names of the sets by which the kernel decides: what allowedSet has is allowed, else what
// PinnableSet and PinSet have, and the rest is refused. A set may be missing.
var judging = []func(version int) string{allowedSet, firewall.PinnableSet, firewall.PinSet}

// Judging are the sets of the kernel for Judge, without boxes.
func Judging() (sets []firewall.Destinations) {
	for _, name := range judging {
		for _, v := range []int{4, 6} {
			sets = append(sets, firewall.DestinationsOf(name(v), v, nil)...)
		}
	}
	return sets
}

// Judge returns a function that reports whether the sets refuse the first packet of a connection. The sets are those of
// Judging, with the kernel's boxes.
func Judge(sets []firewall.Destinations) (refused func(to netip.AddrPort, protocol uint8) bool) {
	of := map[string]boxes{}
	for _, s := range sets {
		of[s.Name] = sorted(s.Boxes)
	}
	return func(to netip.AddrPort, protocol uint8) bool {
		has := func(name func(version int) string) bool {
			set := name(version(to.Addr()))
			return of[set].has(to, protocol) || of[firewall.AllPortsSet(set)].has(to, protocol)
		}
		return !has(allowedSet) && !(has(firewall.PinnableSet) && has(firewall.PinSet))
	}
}

// EgressSets are the sets of the kernel for Judge, without boxes; none: every connection is allowed.
func (p *Plan) EgressSets() []firewall.Destinations {
	if !slices.ContainsFunc(p.Tables(), func(t firewall.Table) bool { return len(t.Destinations) > 0 }) {
		return nil
	}
	return Judging()
}

// Judge returns a function that reports of a tracked connection whether the chain egress would refuse its first
// packet. To is the destination after translation. What others open, and what the guest opens to the namespace or to
// itself, is not egress. The sets are those of EgressSets, with the kernel's boxes. Without a guard, a guest that sends
// from addresses of others is not recognized.
func (p *Plan) Judge(now netstate.Snapshot, sets []firewall.Destinations) func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
	behind, local := p.behindTap(), addressesOf(now)
	own := slices.Concat(behind, p.spec.Guard.Prefixes)
	refused := Judge(sets)
	return func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
		a := to.Addr()
		if !contains(own, from) || local[from] || contains(behind, a) || local[a] || a.IsLoopback() {
			return false
		}
		return refused(to, protocol)
	}
}

// behindTap are the networks that lie behind the guest's tap.
func (p *Plan) behindTap() (list []netip.Prefix) {
	at := slices.IndexFunc(p.wanted.Links, func(l netstate.Link) bool { return l.Name == p.names.Tap })
	if at < 0 {
		return list
	}
	tap := p.wanted.Links[at].Index
	for _, a := range p.wanted.Addresses {
		if a.Link == tap && !a.Prefix.Addr().IsLinkLocalUnicast() {
			list = append(list, a.Prefix.Masked())
		}
	}
	for _, r := range p.wanted.Routes {
		if r.Link == tap && r.Type == netstate.RouteUnicast {
			list = append(list, r.Destination)
		}
	}
	return list
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// addressesOf are the addresses that the namespace takes as its own.
func addressesOf(now netstate.Snapshot) map[netip.Addr]bool {
	list := map[netip.Addr]bool{}
	for _, a := range now.Addresses {
		list[a.Prefix.Addr()] = true
	}
	for _, o := range now.OffStack {
		delete(list, o.Address)
	}
	return list
}

// boxes are sorted by their first addresses. Two that have one address in common have all in common.
type boxes []firewall.Box

func sorted(list []firewall.Box) boxes {
	return slices.SortedFunc(slices.Values(list), func(a, b firewall.Box) int { return a.First.Compare(b.First) })
}

func (list boxes) has(to netip.AddrPort, protocol uint8) bool {
	after, _ := slices.BinarySearchFunc(list, to.Addr(), func(b firewall.Box, a netip.Addr) int { return cmp.Or(b.First.Compare(a), -1) })
	for _, b := range slices.Backward(list[:after]) {
		switch {
		case b.Last.Less(to.Addr()):
			return false
		case b.FirstProtocol <= protocol && protocol <= b.LastProtocol && b.FirstPort <= to.Port() && to.Port() <= b.LastPort:
			return true
		}
	}
	return false
}
