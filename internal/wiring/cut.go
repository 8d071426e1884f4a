package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/compare"
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
	behind, local := behindTap(p.wanted, p.names.Tap), addressesOf(now)
	own := slices.Concat(behind, p.spec.Guard.Prefixes)
	refused := policy.Judge(sets)
	return func(from netip.Addr, to netip.AddrPort, protocol uint8) bool {
		a := to.Addr()
		if !contains(own, from) || local[from] || contains(behind, a) || local[a] || a.IsLoopback() {
			return false
		}
		return refused(to, protocol)
	}
}

// behindTap are the networks that lie behind the guest's tap.
func behindTap(wanted compare.State, tap string) []netip.Prefix {
	at := slices.IndexFunc(wanted.Links, func(l netstate.Link) bool { return l.Name == tap })
	if at < 0 {
		return nil
	}
	return guestNetworks(wanted.Links[at], wanted.Addresses, wanted.Routes)
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
