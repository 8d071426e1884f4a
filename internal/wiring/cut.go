package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
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
	local, guests, own := addressesOf(now), newNetworks(p.guests), newNetworks(p.guests, p.spec.Guard.Prefixes)
	refused := policy.Judge(sets)
	return func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
		a := to.Addr()
		if !own.contain(from) || local[from] || guests.contain(a) || local[a] || a.IsLoopback() {
			return false
		}
		return refused(to, protocol)
	}
}

// networks are prefixes by which addresses are looked up: a NIC can have thousands of addresses.
type networks struct {
	hosts map[netip.Addr]bool
	wider []netip.Prefix
}

func newNetworks(lists ...[]netip.Prefix) networks {
	n := networks{hosts: map[netip.Addr]bool{}}
	for _, p := range slices.Concat(lists...) {
		if p.IsSingleIP() {
			n.hosts[p.Addr()] = true
		} else {
			n.wider = append(n.wider, p)
		}
	}
	return n
}

func (n networks) contain(a netip.Addr) bool {
	return n.hosts[a] || slices.ContainsFunc(n.wider, func(p netip.Prefix) bool { return p.Contains(a) })
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
