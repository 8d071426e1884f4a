package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// First computes the plan for the first Setup. For Auto it is the first plan without a loss, else the one that loses
// least: see choosePlan. Nothing else decides, so that the plans' refusals are the whole reason.
//
// The errors: *cache.FieldError for a bad Spec, infra.ErrNoNIC, infra.ErrWired, infra.ErrCollision,
// *infra.RefusedError.
func (j Journal) First() (*Plan, error) {
	if auto, is := j.Spec.Binding.(infra.Auto); is && j.Role != cache.RoleActive {
		left := slices.DeleteFunc(kindsOf(auto), func(kind cache.Kind) bool { return kind == cache.BindingRouted }) // SetTurn would refuse it
		if len(left) > 0 {
			auto.Order = left
			j.Spec.Binding = auto
		}
	}
	p, err := firstOf(j)
	if err == nil {
		err = p.SetTurn(j.Turn)
	}
	return p, err
}

// Plan computes the plan of a NIC that is wired by the journal's binding. What the guest loses is no reason to refuse
// it: the first Setup has judged that. The errors are those of First.
func (j Journal) Plan() (*Plan, error) { return j.plan((*Plan).findKeepers) }

// Try is Plan without a thought of other bindings: no loss names one that keeps it. Where AskOthers asks nothing, it is
// First.
func (j Journal) Try() (*Plan, error) { return j.plan(func(*Plan) {}) }

func (j Journal) plan(complete func(*Plan)) (*Plan, error) {
	if err := j.Spec.Validate(); err != nil {
		return nil, err
	}
	p, err := newPlan(j)
	if err != nil {
		return nil, err
	}
	complete(p)
	return p, p.SetTurn(j.Turn)
}

// SetTurn writes t into the plan's record. Unless t.Role is RoleActive, the plan wants the guest's tap down. The error
// is an *infra.RefusedError if the binding has no tap that Setup makes, and a *cache.FieldError for the routed binding.
func (p *Plan) SetTurn(t Turn) error {
	if t.Role != cache.RoleActive && p.traits().Direct {
		return &infra.RefusedError{NIC: p.names.NIC, Binding: p.spec.Binding.Kind(), Instead: p.instead(),
			Reason: "guestwire makes no tap for the guest, so it cannot keep the guest on standby"}
	}
	if t.Role != cache.RoleActive && p.traits().OffStack {
		return &cache.FieldError{Field: "standby", Reason: "under the routed binding the namespace answers for the guest's addresses all the time: want another binding, such as masquerade, for a guest that moves"}
	}
	p.Record.Role, p.Record.Source, p.Record.Turn = t.Role, t.Source, t.Turn
	return nil
}
