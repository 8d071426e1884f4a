package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// The kernel decides once for a connection whether it is translated, and a policy is asked once, when the connection
// begins. Rules of another program can have the namespace track connections. Then it knows some that are older than the
// wiring, and some that go on when the wiring has gone. It has to forget these. TCP connections of the namespace that
// cannot become the guest's belong to the sockets that opened them, and stay.

// OlderConnections come after Steps. The kernel forgets the UDP exchanges that others have opened to ports that the
// wiring translates: what these send next is translated. If the guest begins, a policy has not seen what is open with
// the guest's addresses: the kernel forgets that, too.
func (p *Plan) OlderConnections(begins bool) []netstate.Op {
	if !begins || !policyOf(p.spec, Networks{}).IsSet() {
		return p.olderExchanges
	}
	return slices.Concat(p.olderExchanges, p.guestConnections())
}

// OwnConnections come after Undo: the kernel forgets the guest's connections, and those of the namespace that the
// wiring has translated.
func (p *Plan) OwnConnections() []netstate.Op {
	return slices.Concat(p.guestConnections(), p.translated)
}

// guestConnections are those that the guest has opened, or answers. Under routed, a process that had the NIC's
// addresses before may have opened them.
func (p *Plan) guestConnections() []netstate.Op { return router.NetworkConnections(p.guests) }

// guestsAt are the guest's networks at the tap, and its addresses to which a route of the wiring leads. Those of a
// routed guest have routes, as the tap's address is the namespace's own.
func (p *Plan) guestsAt(tap netstate.Link, addresses []netstate.Address, routes []netstate.Route) (networks []netip.Prefix) {
	for _, a := range addresses {
		if a.Link == tap.Index && !a.Prefix.Addr().IsLinkLocalUnicast() && !p.binding.traits().offStack {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	for _, r := range routes {
		if r.Link == tap.Index && r.Type == netstate.RouteUnicast && r.Protocol == netstate.ProtocolStatic {
			networks = append(networks, r.Destination)
		}
	}
	return networks
}
