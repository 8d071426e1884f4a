package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Journal is what a plan was made of.
type Journal struct {
	NIC   string            `json:"nic"`
	Found netstate.Snapshot `json:"found"`
	Spec  infra.Spec        `json:"spec"`
	// Networks are what the last Setup read anew; nil: as in Found.
	Networks *Networks `json:"networks,omitempty"`
	Turn
}

// Journal returns what must be kept while the plan is in force.
func (p *Plan) Journal() Journal {
	return Journal{NIC: p.names.NIC, Found: p.found, Spec: p.spec, Networks: p.networks, Turn: turnOf(p.Record)}
}

// First computes the plan for the first Setup. For Auto it is the first plan without a loss, else the one that loses
// least: see choose. Nothing else decides, so that the plans' refusals are the whole reason.
//
// The errors: *cache.FieldError for a bad Spec, infra.ErrNoNIC, infra.ErrWired, infra.ErrCollision,
// *infra.RefusedError.
func (j Journal) First() (*Plan, error) {
	if auto, is := j.Spec.Binding.(infra.Auto); is && j.Standby {
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
	p, err := newPlan(j.Networks, j.Found, j.NIC, j.Spec)
	if err != nil {
		return nil, err
	}
	complete(p)
	return p, p.SetTurn(j.Turn)
}
