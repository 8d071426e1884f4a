package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
	"github.com/guestwire/guestwire/internal/syntax"
)

// EgressSets returns the sets whose boxes a caller reads from the kernel for Judge. None: every connection is allowed.
func (p *Plan) EgressSets() []firewall.Destinations {
	if len(p.sets) == 0 {
		return nil
	}
	sets := policy.JudgedBy()
	for _, d := range p.diverted {
		sets = append(sets, firewall.Destinations{Name: d.Set.Name, Version: d.Set.Version})
	}
	return sets
}

// Tracked is a connection that the kernel tracks: where its first packet went, and where that is after translation. A
// protocol without ports has the port 0.
type Tracked struct {
	From      netip.Addr
	First, To netip.AddrPort
	Protocol  uint8
}

// Judge returns a function that reports of a tracked connection whether the rules would refuse its first packet. What
// others open, and what the guest opens to the namespace or to itself, is not egress, unless a divert has led the guest
// there. The sets are those of EgressSets, with the kernel's boxes. Without a guard, a guest that sends from addresses
// of others is not recognized.
func (p *Plan) Judge(now netstate.Snapshot, sets []firewall.Destinations) func(Tracked) bool {
	local, guests, own := addressesOf(now), ip.PrefixesOf(p.guests), ip.PrefixesOf(slices.Concat(p.guests, p.spec.Guard.Prefixes))
	judged := policy.Judge(sets)
	return func(c Tracked) bool {
		to := c.To.Addr()
		switch {
		case !own.Contain(c.From) || local[c.From] || guests.Contain(to) && !local[to]:
			return false
		case !local[to] && !to.IsLoopback():
			return judged.Refuses(c.To, c.Protocol)
		case c.First == c.To || !to.IsLoopback() && p.isOpen(c.To.Port(), c.Protocol):
			return false
		}
		return !slices.ContainsFunc(p.diverted, func(d firewall.Divert) bool {
			return d.Target == c.To && judged.Diverts(d, c.First, c.Protocol)
		})
	}
}

// isOpen reports whether the guest may open connections to the namespace's port, wherever a rule has found them.
func (p *Plan) isOpen(port uint16, protocol uint8) bool {
	return p.spec.Guard.Off || slices.ContainsFunc(p.spec.Guard.Open, func(o infra.Ports) bool { return firewall.HasPort(syntax.Ports(o), protocol, port) })
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
