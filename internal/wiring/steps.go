package wiring

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// String is the whole plan as an administrator would type it, from the namespace as it was found.
func (p *Plan) String() string {
	ops, err := p.Steps(p.found)
	if err != nil {
		return err.Error() // cannot be: the NIC was found
	}
	return netstate.Text(append(ops, netstate.Ops(p.OlderConnections(true))...))
}

// Steps are the operations left to wire the NIC, in order. The namespace may now be as it was found, half wired,
// damaged, or wired; then there are none. The error is infra.ErrNoNIC if the NIC has gone, and infra.ErrWired if
// another link has a name of the wiring.
func (p *Plan) Steps(now netstate.Snapshot) ([]netstate.Op, error) {
	if now.TablesStay { // compare without the tables first: to make them is most of a plan
		steps, err := p.compare(now, p.wantedNow(now))
		if err == nil && len(steps) == 0 {
			return nil, nil
		}
		now = p.withTables(now)
	}
	want := p.wantedNow(now)
	want.Tables = p.Tables()
	return p.compare(now, want)
}

// withTables returns the Snapshot with the wanted tables, if it has none because they stay (Snapshot.TablesStay).
func (p *Plan) withTables(now netstate.Snapshot) netstate.Snapshot {
	if now.TablesStay {
		now.TablesStay = false
		for _, t := range p.Tables() {
			now.Tables = append(now.Tables, t.Held())
		}
	}
	return now
}

// Made is what the way back has to know of the wiring.
func (p *Plan) Made() compare.Made {
	made := compare.Made{NIC: p.compared(), ChangesNIC: len(p.wanted.Links) > 0, Added: p.added, Guests: router.WithoutOwn(p.guests, p.nic.Index, p.found.Addresses), Translated: p.translated, IPTables: p.programs}
	own := netstate.OfRouter(p.names)
	for _, path := range slices.Sorted(maps.Keys(p.wanted.Sysctls)) {
		if !slices.Contains(own, path) {
			made.Sysctls = append(made.Sysctls, path)
		}
	}
	return made
}

// Differences says what of the wiring is not as wanted: "eth0-tap is no port of eth0-br". The steps
// repair it; there are none as long as another link has a name of the wiring. Both are empty if nothing differs. The
// error is infra.ErrNoNIC if the NIC has gone.
func (p *Plan) Differences(now netstate.Snapshot) (differences []cache.Finding, steps []netstate.Op, err error) {
	steps, err = p.Steps(now)
	var taken compare.TakenError
	isTaken := errors.As(err, &taken)
	if err != nil && !isTaken || len(steps) == 0 {
		return nil, nil, err
	}
	differences = compare.Differences(p.withTables(now), steps)
	if isTaken {
		return differences, nil, nil
	}
	return differences, steps, nil
}

// compare finds the steps from the namespace as it is now to the state that is wanted.
func (p *Plan) compare(now netstate.Snapshot, want compare.State) ([]netstate.Op, error) {
	nic := p.compared()
	nic.RestoreAddresses = true // those that are wanted
	steps, err := compare.StepsSince(p.found, now, want, nic)
	if errors.Is(err, infra.ErrNoNIC) {
		err = fmt.Errorf("%w: take down what is left of the wiring (Teardown, guestwire-agent teardown)", err)
	}
	return steps, err
}

// compared is the NIC, for the comparison.
func (p *Plan) compared() compare.NIC {
	found := p.nic
	nic := compare.NIC{Traits: p.traits(), Names: p.names, Index: found.Index}
	for _, l := range p.wanted.Links {
		if l.Tap != nil && l.Name == p.spec.Tap {
			nic.NamedTap = l.Tap
		}
		if l.Index == found.Index {
			nic.MAC = l.MAC
			nic.AllMulticast = l.AllMulticast && !found.AllMulticast
			nic.Raised = l.Up && !found.Up
		}
	}
	return nic
}

// isReplacement reports whether the link is another one that has come under the index of a NIC that has gone.
func (p *Plan) isReplacement(l netstate.Link) bool { return p.compared().IsReplacement(p.found, l) }

// SysctlPaths are the sysctls that a Snapshot needs for comparing with the plan: the wanted ones, and those by which
// new links have IPv6 and others forward.
func (p *Plan) SysctlPaths() []string {
	paths := append(slices.Collect(maps.Keys(p.wanted.Sysctls)), netstate.NoIPv6)
	if p.traits().Routes {
		paths = append(paths, netstate.Forwarding6)
	}
	for _, path := range netstate.SourceRoutes6("default") { // a new tap has these, and what cannot be written is not
		if slices.Contains(p.found.ReadOnly, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Hinders are the sysctls that a Snapshot needs for Hindrances.
func (p *Plan) Hinders() []string { return p.binding.asks(p.names).Hinders }
