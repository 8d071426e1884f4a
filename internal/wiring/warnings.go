package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// partialRoutes report what of the namespace goes on without the guest.
func partialRoutes(found netstate.Snapshot, nic netstate.Link) []string {
	var w []string
	for _, r := range found.Routes {
		if r.Uses(nic.Index) && slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return h.Link != nic.Index }) {
			w = append(w, fmt.Sprintf("the route to %v leads through other links too: the namespace is without it until Teardown", r.Destination))
		}
	}
	return w
}

// sharedAddresses returns the addresses that both links have, without link-local IPv6 addresses.
func sharedAddresses(s netstate.Snapshot, a, b netstate.Link) (both []netip.Addr) {
	for _, address := range s.Addresses {
		same := func(other netstate.Address) bool {
			return other.Link == b.Index && other.Prefix.Addr() == address.Prefix.Addr()
		}
		if address.Link == a.Index && !(address.Prefix.Addr().Is6() && address.Prefix.Addr().IsLinkLocalUnicast()) && slices.ContainsFunc(s.Addresses, same) {
			both = append(both, address.Prefix.Addr())
		}
	}
	return both
}

// isWired reports whether the link is part of another NIC's wiring, or is a wired NIC: a guest has its routes.
func isWired(found netstate.Snapshot, link netstate.Link) bool {
	return slices.ContainsFunc(found.Links, func(l netstate.Link) bool {
		return l.Alias == netstate.Mark(link.Name) || l.Index == link.Index && strings.HasPrefix(l.Alias, netstate.Mark(""))
	})
}

// warn adds a sentence to the record.
func (p *Plan) warn(format string, args ...any) {
	p.Record.Warnings = append(p.Record.Warnings, fmt.Sprintf(format, args...))
}

// warnUnfiltered warns of what the guest can do without a filter, unless the guard is off: then the caller
// knows.
func (p *Plan) warnUnfiltered(what string) {
	if !p.spec.Guard.Off {
		p.warn("no filter lies between the guest and its network: %s; set guard.off to accept that", what)
	}
}

// warnDown warns of a NIC that is down.
func (p *Plan) warnDown(nic netstate.Link) {
	if !nic.Up {
		p.warn("%s is down, and Setup leaves it down: the guest has no network until it is up (ip link set %[1]s up)", nic.Name)
	}
}

// warnNotServed warns of addresses that no responder of guestwire gives to the guest.
func (p *Plan) warnNotServed(nic netstate.Link) {
	if v4, v6 := lease.Of(p.found, nic).Addresses(); len(v4)+len(v6) > 0 {
		p.warn("guestwire does not give the guest the addresses %[2]v of %[1]s: the guest gets them from that network, or is configured with them", nic.Name, slices.Concat(v4, v6))
	}
}
