package phase1

import (
	"context"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// askGateways asks the NIC's network for the MACs of the guest's gateways, from which the record's IPv6 router and IPv4
// stand-in are made. If a gateway has another MAC than in the plan, the result is the plan with that MAC, and the
// differences; else it is the plan itself, and nil. A gateway that does not answer within a second keeps its MAC,
// as it may be down for a moment. With once, a gateway whose MAC is known is asked once only, and not again. On standby
// nothing is asked, as a question would be sent.
//
// The plan is one of a journal: the first Setup asks the kernel. The caller compares the namespace with the plan
// that askGateways returns, and writes that plan's journal and record.
func (s *session) askGateways(ctx context.Context, plan *wiring.Plan, once bool) (*wiring.Plan, []infra.Difference, error) {
	if plan.Record.Role != cache.RoleActive {
		return plan, nil, nil
	}
	plan, differs, err := s.takeReplaced(plan)
	if err != nil {
		return nil, nil, err
	}
	v6 := plan.Record.IPv6
	ownIPv6 := v6 != nil && !slices.ContainsFunc(plan.Journal().Found.Addresses, func(a netstate.Address) bool { return a.Duplicate && a.Prefix.Addr() == v6.Address })
	for _, gateway := range plan.Gateways() {
		q := kernel.Solicitation{
			Link: gateway.Link, MAC: plan.Record.MAC, Target: gateway.Address, Known: gateway.MAC, Once: once && !gateway.MAC.IsZero(),
		}
		part, family := "router", "IPv6"
		switch {
		case gateway.Address.Is4():
			part, family = "stand-in", "IPv4"
			q.Source = plan.Record.IPv4.Address.Addr()
		case ownIPv6:
			q.Source = v6.Address
		default: // of IPv4 routes (RFC 8950), or all are another station's
			part = "IPv4 next hop"
			q.Source = eui64.LinkLocal(plan.Record.MAC)
		}
		mac, answered, err := s.ns.Solicit(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		if !answered || mac == gateway.MAC {
			continue
		}
		text := fmt.Sprintf("the %s gateway %v has the MAC %v, the record's %s is of %v", family, gateway.Address, mac, part, gateway.MAC)
		if gateway.MAC.IsZero() {
			text = fmt.Sprintf("the %s gateway %v has the MAC %v, the record has no %s", family, gateway.Address, mac, part)
		}
		gateway.MAC = mac
		if plan, err = plan.WithGateway(gateway); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", text, err)
		}
		differs = append(differs, infra.Difference{Kind: "gateway", Text: text})
	}
	return plan, differs, nil
}

// takeReplaced is askGateways for permanent neighbours, which another program has set anew. Nobody is asked.
func (s *session) takeReplaced(plan *wiring.Plan) (*wiring.Plan, []infra.Difference, error) {
	if !plan.HasPermanent() {
		return plan, nil, nil
	}
	links, err := s.ns.Links()
	if err != nil {
		return nil, nil, err
	}
	neighbours, err := s.ns.Neighbours()
	if err != nil {
		return nil, nil, err
	}
	var differs []infra.Difference
	for _, gateway := range plan.Replaced(links, neighbours) {
		text := fmt.Sprintf("the permanent neighbour %v has the MAC %v, the record has the MAC of Setup", gateway.Address, gateway.MAC)
		if plan, err = plan.WithGateway(gateway); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", text, err)
		}
		differs = append(differs, infra.Difference{Kind: "gateway", Text: text})
	}
	return plan, differs, nil
}
