package phase1

import (
	"context"
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Plan returns what Setup would do, and changes nothing. If there are no steps, the wiring is complete. Plan waits for
// gateways as Setup does. Options and errors are those of Setup, except *infra.StepError.
func (n NIC) Plan(ctx context.Context, spec infra.Spec, options ...SetupOption) (*Preview, error) {
	preview, err := n.request(spec, options).plan(ctx)
	return preview, n.failed("plan", err)
}

func (c request) plan(ctx context.Context) (*Preview, error) {
	taken, owner, err := c.check(ctx)
	if err != nil {
		return nil, err
	}
	var preview *Preview
	err = c.read(ctx, func(s *session) error {
		earlier, plan, now, err := s.plan(ctx, c, taken, owner)
		if err == nil && earlier == nil && s.lacksFwd(plan) {
			without := c
			without.noFwd = true
			earlier, plan, now, err = s.plan(ctx, without, taken, owner)
		}
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		if err := s.previewState(ctx, plan.Journal().Spec.State, owner); err != nil {
			return err
		}
		refused := append([]*infra.RefusedError{}, plan.Refused...) // not nil, which would be null in JSON
		if len(ops) > 0 {
			ops = append(ops, netstate.Ops(plan.OlderConnections(c.guestBegins(earlier, plan, ops)))...)
		}
		preview = &Preview{Steps: netstate.Steps(ops), Record: plan.Record, Refused: refused}
		from := c.From
		if earlier != nil {
			from = earlier.From
			if preview.Record.Warnings, err = s.warningsNow(plan); err != nil {
				return err
			}
			if preview.Later, err = plan.Later(ctx, now); err != nil {
				return err
			}
		}
		if _, auto := c.Spec.Binding.(infra.Auto); auto && earlier == nil {
			preview.Advertised = plan.Advertised()
		}
		if from != nil {
			preview.Changes = cache.Changes(*from, plan.Record)
		}
		if c.Owner.Inside {
			preview.Owner, preview.OnNode = c.Owner, plan.Journal().Found.OnNode
		}
		return nil
	})
	return preview, err
}

// Preview is what Setup would do, and the record that it would leave.
type Preview struct {
	Steps  []infra.Step `json:"steps"`
	Record cache.Record `json:"record"`

	// Refused are the bindings that infra.Auto tried in a first Setup and did not take: those
	// that cannot work, and those with which the guest would lose more (Losses).
	Refused []*infra.RefusedError `json:"refused"`

	// Advertised are addresses and routes of the NIC that came by router advertisements, when
	// infra.Auto chooses in a first Setup. Any station of the link can send these, and they take
	// part in the choice. A named binding does not ask them.
	Advertised []string `json:"advertised,omitempty"`

	// Changes are what a guest that moves here, or a snapshot of its VMM, notices. Empty without Moving.From.
	Changes []cache.Change `json:"changes,omitempty"`

	// Later are addresses, routes and policy rules that came after the first Setup, and that the
	// guest has not. Setup does nothing about them. Empty before the first Setup.
	Later []infra.Difference `json:"later,omitempty"`

	// Owner is the Spec's Owner if Inside is set there. Otherwise it is zero.
	Owner infra.Owner `json:"owner,omitzero"`

	// OnNode has Owner's numbers on the node. If Owner is zero, it is zero.
	OnNode infra.Owner `json:"onNode,omitzero"`
}

// String returns a line for each step, its Summary or Command. Lines that begin with # come first.
func (p *Preview) String() string {
	var b strings.Builder
	b.WriteString("# binding: " + string(p.Record.Binding) + "\n")
	for _, r := range p.Refused {
		b.WriteString("# not " + string(r.Binding) + ": " + r.Reason + "\n")
	}
	for _, a := range p.Advertised {
		b.WriteString("# advertised: " + a + ": auto chooses by it, and a named binding does not\n")
	}
	for _, l := range p.Record.Losses {
		b.WriteString("# lost: " + l.String() + "\n")
	}
	for _, w := range p.Record.Warnings {
		b.WriteString("# warning: " + w + "\n")
	}
	for _, c := range p.Changes {
		b.WriteString("# " + noticed(c) + "\n")
	}
	for _, d := range p.Later {
		b.WriteString("# later: " + d.Text + "\n")
	}
	if p.Owner.Inside {
		fmt.Fprintf(&b, "# owner: %v\n", resolvedOwner{Owner: p.OnNode, given: p.Owner})
	}
	if p.Record.Role != cache.RoleActive {
		b.WriteString("# standby: the guest's tap stays down until Activate\n")
	}
	if len(p.Steps) == 0 {
		b.WriteString("# nothing is left to do\n")
	}
	for _, s := range p.Steps {
		b.WriteString(s.String() + "\n")
	}
	return b.String()
}
