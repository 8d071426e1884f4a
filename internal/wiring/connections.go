package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
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

// CutOff are the connections that end with the diverts of the earlier Spec: all of these if there is no policy any
// more, which would ask for them again, and those to loopback addresses if no entry leads there any more: the kernel
// takes no packet for them from the tap then.
func (p *Plan) CutOff(earlier infra.Spec) (connections []netstate.ConnectionsDel) {
	was := seen{spec: earlier}
	add := func(target netip.Addr) {
		to := firewall.HostPrefix(target)
		if target.IsLoopback() {
			to = netip.PrefixFrom(target, 8).Masked() // all: what is open can be older than the list
		}
		for _, from := range slices.Concat(p.guests, p.spec.Guard.Prefixes) {
			if ip.Of(from.Addr()) == ip.Of(target) {
				connections = append(connections, netstate.ConnectionsDel{OrigSrc: from, ReplySrc: to})
			}
		}
	}
	for _, t := range was.targets() {
		a := t.entry.Divert.Addr()
		switch {
		case a.IsLoopback() && !(p.policy.IsSet() && p.divertsToLoopback()):
			add(a)
		case p.policy.IsSet() || a.IsLoopback():
		case a.IsValid():
			add(a)
		default:
			for _, gateway := range p.policy.Gateways {
				add(gateway)
			}
		}
	}
	return connections
}
