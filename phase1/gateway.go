package phase1

import (
	"context"
	"fmt"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/wiring"
)

// askGateway asks the NIC's network for the MAC of the guest's IPv6 gateway, from which the record's router is
// made. If the gateway has another MAC than in the plan, the result is the plan with that MAC, and the
// difference; else it is the plan itself, and nil. A gateway that does not answer within a second keeps its MAC,
// as it may be down for a moment. On standby nothing is asked, as to ask is to send.
//
// The plan is one of a journal: the first Setup asks the kernel. The caller compares the namespace with the plan
// that askGateway returns, and writes that plan's journal and record.
func (s *session) askGateway(ctx context.Context, plan *wiring.Plan) (*wiring.Plan, *infra.Difference, error) {
	return s.askGatewayAs(ctx, plan, false)
}

// askGatewayAs is askGateway, which asks once only, or again.
func (s *session) askGatewayAs(ctx context.Context, plan *wiring.Plan, once bool) (*wiring.Plan, *infra.Difference, error) {
	gateway, needed := plan.Gateway()
	if !needed || plan.Record.Standby {
		return plan, nil, nil
	}
	mac, answered, err := s.ns.Solicit(ctx, kernel.Solicitation{
		Link: gateway.Link, MAC: plan.Record.MAC, Source: plan.Record.IPv6.Address, Target: gateway.Address, Known: gateway.MAC, Once: once,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("NIC %s: %w", s.nic, err)
	}
	if !answered || mac == gateway.MAC {
		return plan, nil, nil
	}
	text := fmt.Sprintf("the IPv6 gateway %v has the MAC %v, the record's router is of %v", gateway.Address, mac, gateway.MAC)
	if gateway.MAC.IsZero() {
		text = fmt.Sprintf("the IPv6 gateway %v has the MAC %v, the record has no router", gateway.Address, mac)
	}
	gateway.MAC = mac
	mended, err := plan.WithGateway(gateway)
	if err != nil {
		return nil, nil, fmt.Errorf("NIC %s: %s: %w", s.nic, text, err)
	}
	return mended, &infra.Difference{Kind: "gateway", Text: text}, nil
}
