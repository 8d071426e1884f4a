package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
)

// EgressSets returns the sets whose boxes a caller reads from the kernel for Judge. None: every connection is allowed.
func (p *Plan) EgressSets() []firewall.Destinations {
	if !slices.ContainsFunc(p.Tables(), func(t firewall.Table) bool { return len(t.Destinations) > 0 }) {
		return nil
	}
	return policy.JudgedBy()
}

// Judge returns a function that reports of a tracked connection whether the chain egress would refuse its first
// packet. To is the destination after translation. What others open, and what the guest opens to the namespace or to
// itself, is not egress. The sets are those of EgressSets, with the kernel's boxes. Without a guard, a guest that sends
// from addresses of others is not recognized.
func (p *Plan) Judge(now netstate.Snapshot, sets []firewall.Destinations) func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
	local, guests, own := addressesOf(now), ip.PrefixesOf(p.guests), ip.PrefixesOf(slices.Concat(p.guests, p.spec.Guard.Prefixes))
	refused := policy.Judge(sets)
	return func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
		a := to.Addr()
		if !own.Contain(from) || local[from] || guests.Contain(a) || local[a] || a.IsLoopback() {
			return false
		}
		return refused(to, protocol)
	}
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
