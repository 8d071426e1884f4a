package wiring

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// newPlan computes the wiring for a journal with a valid Spec and another binding than Auto.
func newPlan(j Journal) (*Plan, error) {
	spec := j.Spec
	p := &Plan{seen: see(j), binding: bindingOf(spec.Binding), names: netstate.NamesFor(j.NIC, spec.Tap), wanted: compare.State{Sysctls: map[string]string{}}}
	if p.nic.Index == 0 && !p.traits().MayLeave {
		return nil, p.noNIC("")
	}
	if p.nic.Loopback {
		others := p.found
		others.Links = slices.DeleteFunc(slices.Clone(others.Links), func(l netstate.Link) bool { return l.Loopback })
		return nil, &cache.FieldError{Field: "nic", Reason: fmt.Sprintf("%s is the loopback: name the link that leads out of the namespace, of %s", p.nic.Name, linkNames(others))}
	}
	if n := p.names; spec.Tap != "" && slices.Contains([]string{n.NIC, n.Moved, n.Bridge, n.Responder}, n.Tap) {
		return nil, &cache.FieldError{Field: "tap", Reason: fmt.Sprintf("%s is the name of another link of the wiring of %s: name another one", n.Tap, n.NIC)}
	}
	for _, next := range []func() error{p.checkFree, p.checkVRF, p.checkMTU, p.checkLimits, p.checkPolicy, p.addFlows, p.wire, p.warnFlows} {
		if err := next(); err != nil {
			return nil, err
		}
	}
	p.found.OffStack = p.offStack()
	if p.spec.Options.NoDefaultRoute {
		lease.RemoveDefaultRoutes(&p.Record)
	}
	p.addWarnings(warnModel(&p.Record)...)
	p.addWarnings(p.duplicates()...)
	p.addLosses(serverLosses(&p.Record)...)
	if !p.traits().Direct {
		p.addLosses(p.namespaceLosses()...)
		p.addWarnings(p.partialRoutes()...)
	}
	if err := p.Record.Validate(); err != nil {
		return nil, err
	}
	p.addLosses(unsentLosses(&p.Record)...)
	return p, nil
}

// offStack is what the journal needs of OffStack, so that other journals do not depend on the time at which an
// address was added.
func (s *seen) offStack() (own []netstate.OffStack) {
	for _, o := range s.found.OffStack {
		if s.traits().OffStack && o.Link == s.nic.Index && !o.Tentative {
			own = append(own, o)
		}
	}
	return own
}

// checkFree refuses a NIC that is wired or another link's port already, and a wiring whose names are in use.
func (p *Plan) checkFree() error {
	if strings.HasPrefix(p.nic.Alias, netstate.Mark("")) {
		return fmt.Errorf("%w, its alias is %q: take it down first (Teardown, guestwire-agent teardown), or name another NIC", infra.ErrWired, p.nic.Alias)
	}
	if err := p.checkPort(); err != nil {
		return err
	}
	var taken compare.TakenError
	otherwise := ""
	for _, name := range p.names.Links() {
		for _, l := range p.found.Links {
			if l.Has(name) {
				taken = append(taken, compare.Taken(name, l))
				if name == p.spec.Tap {
					otherwise = ", or name another one in tap"
				}
			}
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("%w%s", taken, otherwise)
	}
	if tables := p.found.Tables; len(tables) > 0 {
		return fmt.Errorf("%w, there is already the %s: take its NIC down first (Teardown, guestwire-agent teardown), or delete it", infra.ErrWired, tables[0].Family.Describe(tables[0].Name))
	}
	return nil
}
