package main

import (
	"errors"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/infra"
)

// divertRows compare a guest whose list diverts with one that has the same list without diverts.
type divertRows struct {
	out, in row // frames of an open connection

	// A new connection that is allowed, beside the usual targets and beside most.
	allowed, allowedMany row
	// A new connection that is diverted, compared with one to a port of guard.open.
	diverted, divertedMany row
}

func newDivertRows(kind string) divertRows {
	return divertRows{
		newRow(kind+", open connection, from the guest", 2), newRow(kind+", open connection, to the guest", 2),
		newRow(kind+", a new connection, 3 targets", 2), newRow(kind+", a new connection, 64 targets", 2),
		newRow(kind+", one diverted, 3 targets", 2), newRow(kind+", one diverted, 64th target", 2),
	}
}

func (r divertRows) all() []row {
	return []row{r.out, r.in, r.allowed, r.allowedMany, r.diverted, r.divertedMany}
}

const (
	firstTarget   = 15443
	mostTargets   = 64 // of infra
	divertedPort  = 443
	firstDiverted = 1000 // of the ports that most targets have
)

// usualDiverts are those of a guest with a metadata service, a resolver and a proxy in the namespace.
func usualDiverts() []infra.Egress {
	return []infra.Egress{
		{To: "169.254.169.254", Ports: infra.Ports{First: 80}, Divert: netip.MustParseAddrPort("127.0.0.1:8080")},
		{To: "gateway", Ports: infra.Ports{First: 53, Protocol: "udp"}, Divert: target(53)},
		{To: "all", Ports: infra.Ports{First: divertedPort}, Divert: target(firstTarget)},
	}
}

// mostDiverts have as many targets as a list can have.
func mostDiverts() (list []infra.Egress) {
	for i := range uint16(mostTargets) {
		list = append(list, infra.Egress{To: "all", Ports: infra.Ports{First: firstDiverted + i}, Divert: target(firstTarget + i)})
	}
	return list
}

// target is a port of the guest's gateway.
func target(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

// measureDiverts measures guests with usual diverts, with none and with most. The one without reaches the target's port
// by guard.open.
func (s *scope) measureDiverts(binding infra.Binding, took divertRows) error {
	few := longPolicy(false, 24)
	few = few[max(0, len(few)-101):] // each entry for ports of all networks divides these
	with := func(diverts []infra.Egress) infra.Spec {
		return infra.Spec{Egress: append(append(diverts, toServer), few...)}
	}
	without := with(nil)
	without.Guard.Open = []infra.Ports{{First: firstTarget}}
	variants, err := s.newPolicyVariants(binding, with(usualDiverts()), without, with(mostDiverts()))
	if err != nil {
		return err
	}
	if err := s.takeTurns(variants[:2], shortBursts, took.out, took.in); err != nil {
		return err
	}
	to := []netip.AddrPort{
		netip.AddrPortFrom(gateways[0], divertedPort), netip.AddrPortFrom(variants[1].gateway, firstTarget),
		netip.AddrPortFrom(gateways[0], firstDiverted+mostTargets-1),
	}
	for way, port := range []uint16{firstTarget, firstTarget, firstTarget + mostTargets - 1} {
		if err := s.listen(variants[way].pod.Namespace, netip.AddrPortFrom(variants[way].gateway, port)); err != nil {
			return err
		}
	}
	return s.inTurns(setRounds, len(variants), func(_, way int) error {
		connect := func(at netip.AddrPort, usual, most row) error {
			took, err := variants[way].connect(at, header.TCPFlagSyn|header.TCPFlagAck)
			if way < 2 {
				usual.add(way, took)
			}
			if way > 0 {
				most.add(2-way, took)
			}
			return err
		}
		return errors.Join(connect(serverAt, took.allowed, took.allowedMany), connect(to[way], took.diverted, took.divertedMany))
	})
}
