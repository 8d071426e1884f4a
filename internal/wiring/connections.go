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
// wiring translates, and exchanges without ports: what is sent next is translated. If the guest begins, a policy has
// not seen what is open with the guest's addresses: the kernel forgets that, too.
func (p *Plan) OlderConnections(begins bool) []netstate.ConnectionsDel {
	if !begins || !p.policy.IsSet() {
		return p.olderExchanges
	}
	return slices.Concat(p.olderExchanges, router.NetworkConnections(p.guests))
}

// CutOff are the connections that the operations cut off: what was diverted to a loopback address, where no entry leads
// any more. The kernel takes no packet for it from the tap then, and neither side would hear of it.
func (p *Plan) CutOff(ops []netstate.Op) (connections []netstate.ConnectionsDel) {
	closes := func(op netstate.Op) bool {
		set, is := op.(netstate.ConfSet)
		return is && set.Link == p.names.Tap && set.Name == "route_localnet" && !set.On
	}
	if !slices.ContainsFunc(ops, closes) {
		return nil
	}
	for _, n := range p.guests {
		if n.Addr().Is4() {
			connections = append(connections, netstate.ConnectionsDel{OrigSrc: n, ReplySrc: loopback4})
		}
	}
	return connections
}

var loopback4 = netip.MustParsePrefix("127.0.0.0/8")
