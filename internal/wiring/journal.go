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
	// Salvaged says that Found is what Salvage could find, and not what Setup found.
	Salvaged bool `json:"salvaged,omitempty"`
	// Networks are what the last Setup read anew; nil: as in Found.
	Networks *Networks `json:"networks,omitempty"`
	// Lost says what Salvage could not find out, a phrase each.
	Lost []string `json:"lost,omitempty"`
	// Wired says that an earlier Setup wired the NIC so. Its plan is not refused for what another version of guestwire
	// accepted: Teardown needs it.
	Wired bool `json:"-"`
	Turn
}

// Journal returns what must be kept while the plan is in force.
func (p *Plan) Journal() Journal {
	return Journal{NIC: p.names.NIC, Found: p.found, Spec: p.spec, Networks: p.networks, Wired: p.wired, Turn: turnOf(p.Record)}
}

// Plan computes the plan that the journal is made of. That of a salvaged journal can be undone and nothing else.
//
// For Auto it is the first plan without a loss, else the one that loses least: see choose. Nothing else decides, so
// that the plans' refusals are the whole reason. The errors: *cache.FieldError for a bad Spec, infra.ErrNoNIC,
// infra.ErrWired, infra.ErrCollision, *infra.RefusedError.
func (j Journal) Plan() (*Plan, error) {
	if j.Salvaged {
		return j.salvagedPlan(), nil
	}
	if auto, is := j.Spec.Binding.(infra.Auto); is && j.Standby {
		left := slices.DeleteFunc(kindsOf(auto), func(kind cache.Kind) bool { return kind == cache.BindingRouted }) // SetTurn would refuse it
		if len(left) > 0 {
			auto.Order = left
			j.Spec.Binding = auto
		}
	}
	p, err := planBy(j)
	if err == nil {
		err = p.SetTurn(j.Turn)
	}
	return p, err
}
