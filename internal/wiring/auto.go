package wiring

import (
	"errors"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// auto is the first of its bindings whose plan is not refused. Nothing else decides, so that the plan's refusals are
// the whole reason.
type auto struct{ infra.Auto }

func (a auto) asks(nic string) Questions {
	var q Questions
	for _, b := range a.Bindings() {
		asked := bindingOf(b).asks(nic)
		q.Sysctls = append(q.Sysctls, asked.Sysctls...)
		q.Listeners = q.Listeners || asked.Listeners
		q.Connections = q.Connections || asked.Connections
		q.Dummy = q.Dummy || asked.Dummy
		q.Log = q.Log || asked.Log
		q.FlowTables = q.FlowTables || asked.FlowTables
		q.Gateways = q.Gateways || asked.Gateways
	}
	slices.Sort(q.Sysctls)
	q.Sysctls = slices.Compact(q.Sysctls)
	return q
}

// kindsOf are the kinds that auto tries.
func kindsOf(a infra.Auto) []string {
	var kinds []string
	for _, b := range a.Bindings() {
		kinds = append(kinds, b.Kind())
	}
	return kinds
}

func (auto) traits() traits { return traits{} }

func (auto) withoutNIC() (string, bool) { return "", false }

func (a auto) wire(p *Plan, nic netstate.Link) error {
	var refused []*infra.RefusedError
	for _, b := range a.Bindings() {
		spec := p.spec
		spec.Binding = b
		try := emptyPlan(p.found, spec)
		err := try.wire(nic)
		var refusal *infra.RefusedError
		if errors.As(err, &refusal) {
			refused = append(refused, refusal)
			continue
		}
		*p = *try
		p.Refused = refused
		return err
	}
	last := *refused[len(refused)-1]
	for _, r := range refused[:len(refused)-1] {
		last.Reason += fmt.Sprintf("; %s: %s", r.Binding, r.Reason)
	}
	last.Instead = ""
	return &last
}
