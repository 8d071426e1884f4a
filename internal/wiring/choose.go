package wiring

import (
	"errors"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// firstOf computes the first wiring of the journal's NIC in the namespace that was found.
func firstOf(j Journal) (*Plan, error) {
	if err := j.Spec.Validate(); err != nil {
		return nil, err
	}
	asked := j
	var plans []*Plan
	var refused []*infra.RefusedError
	tries := triesOf(j.Spec.Binding)
	for _, b := range tries {
		j.Spec.Binding = b
		p, err := newPlan(j)
		var refusal *infra.RefusedError
		switch {
		case err == nil:
			refusal = p.refuseLosses()
		case errors.As(err, &refusal):
		case len(plans) > 0, errors.Is(err, infra.ErrCollision) && len(tries) > 1: // another of Auto's works, or may
			refusal = &infra.RefusedError{NIC: j.NIC, Binding: b.Kind(), Reason: err.Error()}
		default:
			return nil, err
		}
		if refusal != nil {
			refused = append(refused, refusal)
			continue
		}
		plans = append(plans, p)
		if p.losses().weight() == 0 {
			break
		}
	}
	if len(plans) == 0 {
		return nil, refusalOf(refused, asked)
	}
	p, passed := choosePlan(plans)
	p.Refused = append(refused, passed...)
	p.findKeepers()
	return p, nil
}

// refusalOf is the error for a Spec all of whose bindings are refused. For Auto it has the reason of each.
func refusalOf(refused []*infra.RefusedError, asked Journal) error {
	r := *refused[0]
	if kind := asked.Spec.Binding.Kind(); r.Binding != kind { // Auto's Order has the kinds that may work
		r.Instead, r.Losses = "", nil
		r.Binding, r.Reason = kind, "no binding works: "+strings.Join(reasonsOf(refused), "; ")
		return &r
	}
	for _, o := range others(asked) {
		if r.Instead == "" && o.refuseLosses() == nil {
			r.Instead = o.spec.Binding.Kind()
		}
	}
	return &r
}

// reasonsOf are the reasons of the refusals, each once, after the bindings that it is for.
func reasonsOf(refused []*infra.RefusedError) []string {
	var list []string
	for i, r := range refused {
		same := func(o *infra.RefusedError) bool { return o.Reason == r.Reason }
		if slices.IndexFunc(refused, same) < i {
			continue
		}
		var kinds []string
		for _, o := range refused {
			if same(o) {
				kinds = append(kinds, string(o.Binding))
			}
		}
		list = append(list, strings.Join(kinds, ", ")+": "+r.Reason)
	}
	return list
}

// others are the plans of the other bindings that would work on the NIC, with the MAC that the Spec's binding names.
// The one that loses least comes first.
func others(j Journal) []*Plan {
	var plans []*Plan
	asked := j.Spec.Binding.Kind()
	auto := infra.Auto{MAC: givenMAC(j.Spec.Binding)}
	for _, b := range auto.Bindings() {
		j.Spec.Binding = b
		if b.Kind() == asked || j.Spec.Validate() != nil {
			continue
		}
		if p, err := newPlan(j); err == nil {
			plans = append(plans, p)
		}
	}
	slices.SortStableFunc(plans, func(a, b *Plan) int { return a.weigh() - b.weigh() })
	return plans
}

// instead is the binding that would work in the place of the plan's, with a tap that can be down; empty: none would.
func (p *Plan) instead() cache.Kind {
	for _, o := range others(p.Journal()) {
		if o.refuseLosses() == nil && !o.traits().OffStack {
			return o.spec.Binding.Kind()
		}
	}
	return ""
}

// findKeepers names for each loss a binding that keeps it.
func (p *Plan) findKeepers() {
	if len(p.Record.Losses) == 0 {
		return
	}
	others := others(p.Journal())
	named := slices.Clone(p.Record.Losses)
	for _, o := range others {
		if len(o.losses().grave()) > 0 {
			continue
		}
		lost := o.losses().keys()
		for i, l := range named {
			if l.Way == "" && !lost[lossKey{l.Kind, l.What}] {
				named[i].Way = string(o.spec.Binding.Kind()) + " keeps it"
			}
		}
	}
	p.Record.Losses = named
}

// choosePlan returns the plan for Auto: the first one without a loss, else the one that loses least. The others say
// what they lose in comparison.
func choosePlan(plans []*Plan) (chosen *Plan, passed []*infra.RefusedError) {
	chosen = slices.MinFunc(plans, func(a, b *Plan) int { return a.weigh() - b.weigh() })
	kept := chosen.losses().keys()
	for _, p := range plans {
		if p == chosen {
			break
		}
		lost := slices.DeleteFunc(slices.Clone(p.Record.Losses), func(l cache.Finding) bool { return isTemporary(l) || isOfClient(l) || kept[lossKey{l.Kind, l.What}] })
		if len(lost) > 0 {
			passed = append(passed, p.refusedFor(lost))
		}
	}
	return chosen, passed
}

// AskOthers are the questions for First, which also looks at other bindings: those that Auto tries next, and those that
// would work in the place of one that is refused or loses something. Not needed: p and err, of Try by FirstTry, are
// what First would return.
func AskOthers(nic string, spec infra.Spec, p *Plan, err error) (q Questions, needed bool) {
	var refused *infra.RefusedError
	_, auto := spec.Binding.(infra.Auto)
	if err == nil && len(p.Record.Losses) == 0 || err != nil && !auto && !errors.As(err, &refused) {
		return Questions{}, false
	}
	q = Ask(nic, spec)
	// What was asked before is known. Of others it is no reason to send and to wait: auto does not choose by a gateway
	// that is silent.
	gateways := q.Gateways && !Ask(nic, FirstTry(spec)).Gateways
	spec.Binding = infra.Auto{}
	q = q.and(Ask(nic, spec))
	q.Gateways = gateways
	return q, true
}

// FirstTry is the Spec with the first binding that a first plan tries. Most often no other one is needed.
func FirstTry(spec infra.Spec) infra.Spec {
	spec.Binding = triesOf(spec.Binding)[0]
	return spec
}

// refuseLosses returns the refusal of a plan whose guest would lose too much; nil: it does not, or the Spec accepts it.
func (p *Plan) refuseLosses() *infra.RefusedError {
	if grave := p.losses().grave(); len(grave) > 0 && !p.spec.AcceptLosses {
		refusal := p.refusedFor(grave)
		refusal.Reason += `; "acceptLosses": true in the configuration takes that`
		return refusal
	}
	return nil
}

// refusedFor is the refusal of a binding for its losses.
func (p *Plan) refusedFor(losses []cache.Finding) *infra.RefusedError {
	var texts []string
	for _, l := range losses {
		l.Way = ""
		texts = append(texts, l.String())
	}
	reason := "the guest would lose " + strings.Join(texts, ", ")
	return &infra.RefusedError{NIC: p.names.NIC, Binding: p.spec.Binding.Kind(), Reason: reason, Losses: losses}
}

// Advertised are the NIC's addresses and routes that came by router advertisements, in the words of ip(8), without
// their lifetimes. Any station of the link can send these, and Auto compares what each binding loses of them.
func (p *Plan) Advertised() (list []string) {
	nic := p.nic
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index && a.Advertised() {
			list = append(list, a.Prefix.String())
		}
	}
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) && r.Advertised() {
			name := func(index int) string { return p.links.at(index).Name }
			r.ExpiresSeconds = 0
			list = append(list, netstate.RouteText(r, name(r.Link), r.HopNames(name)))
		}
	}
	return list
}
