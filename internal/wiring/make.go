package wiring

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// firstOf computes the first wiring of the journal's NIC in the namespace that was found.
func firstOf(j Journal) (*Plan, error) {
	networks, found, nic, spec := j.Networks, j.Found, j.NIC, j.Spec
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	asked := spec
	var plans []*Plan
	var refused []*infra.RefusedError
	tries := triesOf(spec.Binding)
	for _, b := range tries {
		spec.Binding = b
		p, err := newPlan(networks, found, nic, spec)
		var refusal *infra.RefusedError
		switch {
		case err == nil:
			refusal = p.refuseLosses()
		case errors.As(err, &refusal):
		case len(plans) > 0, errors.Is(err, infra.ErrCollision) && len(tries) > 1: // another of Auto's works, or may
			refusal = &infra.RefusedError{NIC: nic, Binding: b.Kind(), Reason: err.Error()}
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
		return nil, refusalOf(refused, asked, func() []*Plan { return others(networks, found, nic, asked) })
	}
	p, passed := choose(plans)
	p.Refused = append(refused, passed...)
	p.findKeepers()
	return p, nil
}

// newPlan computes the wiring for a valid Spec with another binding than Auto, by these networks; nil: those that were
// found.
func newPlan(networks *Networks, found netstate.Snapshot, name string, spec infra.Spec) (*Plan, error) {
	p := &Plan{
		spec: spec, binding: bindingOf(spec.Binding), names: netstate.NamesFor(name, spec.Tap), found: found, networks: networks,
		wanted: compare.State{Sysctls: map[string]string{}},
	}
	nic, ok := found.Named(name)
	if !ok && !p.traits().MayLeave {
		return nil, noNIC(found, "")
	}
	if !ok {
		nic.Name = name // the guest may have it already
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

// refusalOf is the error for a Spec all of whose bindings are refused. For Auto it has the reason of each.
func refusalOf(refused []*infra.RefusedError, asked infra.Spec, others func() []*Plan) error {
	r := *refused[0]
	if kind := asked.Binding.Kind(); r.Binding != kind { // Auto's Order has the kinds that may work
		r.Instead, r.Losses = "", nil
		r.Binding, r.Reason = kind, "no binding works: "+strings.Join(reasonsOf(refused), "; ")
		return &r
	}
	for _, o := range others() {
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

// recordOf is the part of a record that does not depend on the binding.
func recordOf(spec infra.Spec, found netstate.Snapshot, nic netstate.Link, mac cache.MAC) cache.Record {
	return cache.Record{
		Version: cache.Version,
		Name:    nic.Name,
		Binding: spec.Binding.Kind(),
		Tap:     netstate.NamesFor(nic.Name, spec.Tap).Tap,
		Queues:  max(1, spec.Queues),
		MAC:     mac,
		MTU:     guestMTU(spec, found, nic),
		DNS:     spec.DNS,
		Options: spec.Options,
		Device:  spec.Device,
		Limits:  spec.Limits,
	}
}

// guestMTU is the guest's. A route's own MTU takes precedence over the link's. The guest has one MTU for all its
// routes, so it is the smallest, and at least what IPv6 needs if the guest has that.
func guestMTU(spec infra.Spec, found netstate.Snapshot, nic netstate.Link) int {
	mtu := linkMTU(spec, nic)
	least := syntax.MinMTU
	on := lease.Of(found, nic)
	if _, v6 := on.Addresses(); len(v6) > 0 {
		least = min(mtu, minMTUIPv6)
	}
	for _, v4 := range []bool{true, false} {
		for _, route := range on.Routes(v4) {
			if route.MTU >= syntax.MinMTU {
				mtu = min(mtu, max(least, route.MTU))
			}
		}
	}
	return mtu
}
