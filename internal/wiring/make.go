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
	nic, found := p.nic, p.found
	if nic.Index == 0 && !p.traits().MayLeave {
		return nil, noNIC(found, "")
	}
	if nic.Loopback {
		others := found
		others.Links = slices.DeleteFunc(slices.Clone(found.Links), func(l netstate.Link) bool { return l.Loopback })
		return nil, &cache.FieldError{Field: "nic", Reason: fmt.Sprintf("%s is the loopback: name the link that leads out of the namespace, of %s", nic.Name, linkNames(others))}
	}
	if n := p.names; spec.Tap != "" && slices.Contains([]string{n.NIC, n.Moved, n.Bridge, n.Responder}, n.Tap) {
		return nil, &cache.FieldError{Field: "tap", Reason: fmt.Sprintf("%s is the name of another link of the wiring of %s: name another one", n.Tap, n.NIC)}
	}
	if err := checkFree(found, nic, p.names); err != nil {
		return nil, err
	}
	if err := checkVRF(found, nic, spec.Binding.Kind()); err != nil {
		return nil, err
	}
	if err := checkMTU(spec, found, nic); err != nil {
		return nil, err
	}
	if err := checkLimits(spec, found); err != nil {
		return nil, err
	}
	if err := checkPolicy(spec, found, nic); err != nil {
		return nil, err
	}
	if err := p.wire(nic); err != nil {
		return nil, err
	}
	p.found.OffStack = offStackOf(p.found, nic, p.traits())
	if p.spec.Options.NoDefaultRoute {
		lease.RemoveDefaultRoutes(&p.Record)
	}
	p.addWarnings(warnModel(&p.Record)...)
	p.addLosses(serverLosses(&p.Record)...)
	if !p.traits().Direct {
		p.addLosses(namespaceLosses(p.found, nic, p.ways(nic), p.Record.MTU, p.losses())...)
		p.addWarnings(partialRoutes(found, nic)...)
	}
	if err := p.Record.Validate(); err != nil {
		return nil, err
	}
	p.addLosses(unsentLosses(&p.Record)...)
	return p, nil
}

// offStackOf is what the journal needs of OffStack, so that other journals do not depend on the time at which an
// address was added.
func offStackOf(found netstate.Snapshot, nic netstate.Link, t compare.Traits) (own []netstate.OffStack) {
	for _, o := range found.OffStack {
		if t.OffStack && o.Link == nic.Index && !o.Tentative {
			own = append(own, o)
		}
	}
	return own
}

// checkFree refuses a NIC that is wired or another link's port already, and a wiring whose names are in use.
func checkFree(found netstate.Snapshot, nic netstate.Link, names netstate.Names) error {
	if strings.HasPrefix(nic.Alias, netstate.Mark("")) {
		return fmt.Errorf("%w, its alias is %q: take it down first (Teardown, ForceTeardown, agent teardown), or name another NIC", infra.ErrWired, nic.Alias)
	}
	if err := checkPort(found, nic); err != nil {
		return err
	}
	for _, name := range names.Links() {
		if _, taken := found.Named(name); taken {
			otherwise := ""
			if name != netstate.NamesFor(nic.Name, "").Tap && name == names.Tap {
				otherwise = ", or name another one in tap"
			}
			return fmt.Errorf("%w, a link called %s is there: take its NIC down first (Teardown, ForceTeardown, agent teardown), or rename it%s", infra.ErrWired, name, otherwise)
		}
	}
	if len(found.Tables) > 0 {
		return fmt.Errorf("%w, there is already the %s: take its NIC down first (Teardown, ForceTeardown, agent teardown), or delete it", infra.ErrWired, found.Tables[0].Family.Describe(found.Tables[0].Name))
	}
	return nil
}
