package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

// String is the whole plan as an administrator would type it, from the namespace as it was found.
func (p *Plan) String() string {
	ops, err := p.Steps(p.found)
	if err != nil {
		return err.Error() // cannot be: the NIC was found
	}
	return netstate.Text(append(ops, p.OlderConnections(true)...))
}

// Steps are the operations left to wire the NIC, in order. The namespace may now be as it was found, half wired,
// damaged, or wired; then there are none. The error is infra.ErrNoNIC if the NIC has gone.
func (p *Plan) Steps(now netstate.Snapshot) ([]netstate.Op, error) {
	if now.TablesStay { // compare without the tables first: to make them is most of a plan
		steps, err := p.compare(now, p.wantedNow(now), true)
		if err == nil && len(steps) == 0 {
			return nil, nil
		}
		now = p.withTables(now)
	}
	want := p.wantedNow(now)
	want.Tables = p.Tables()
	return p.compare(now, want, true)
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

// Undo are the steps back to the namespace as it was found. The error is infra.ErrNoNIC if the NIC has gone;
// then the steps are those that remove what guestwire created.
func (p *Plan) Undo(now netstate.Snapshot) ([]netstate.Op, error) {
	nic := p.nic()
	want := compare.State{Sysctls: map[string]string{}}
	if len(p.wanted.Links) > 0 {
		want.Links = []netstate.Link{nic}
	}
	own := netstate.OfRouter(p.names)
	for path := range p.wanted.Sysctls {
		if !slices.Contains(own, path) && !slices.Contains(now.Needed, path) {
			value, known := p.found.Sysctls[path]
			if !known {
				value = netstate.DefaultBridgeCall // the kernel had no bridge yet
			}
			want.Sysctls[path] = value
		}
	}
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			want.Addresses = append(want.Addresses, a)
		}
	}
	want.Unwanted, want.OffStack = p.added, p.found.OffStack
	want.LateLinkLocal = nic.NoCarrier && !slices.ContainsFunc(want.Addresses, func(a netstate.Address) bool {
		return a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	})
	sources := compare.SourcesOf(nic.Index, p.found.Addresses)
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) || sources[r.PrefSrc] {
			want.Routes = append(want.Routes, r)
		}
	}
	want.Neighbours = permanentNeighbours(p.found, nic)
	return p.compare(now, want, p.binding.traits().restoresAddresses)
}

// Differences says what of the wiring is not as wanted: "eth0-tap is no port of eth0-br". The steps
// repair it. Both are empty if nothing differs. The error is infra.ErrNoNIC if the NIC has gone.
func (p *Plan) Differences(now netstate.Snapshot) (differences []infra.Difference, steps []netstate.Op, err error) {
	steps, err = p.Steps(now)
	if err != nil || len(steps) == 0 {
		return nil, nil, err
	}
	return compare.Differences(p.withTables(now), steps), steps, nil
}

// compare finds the steps from the namespace as it is now to the state that is wanted.
func (p *Plan) compare(now netstate.Snapshot, want compare.State, restore bool) ([]netstate.Op, error) {
	found := p.nic()
	now.Links = slices.DeleteFunc(slices.Clone(now.Links), func(l netstate.Link) bool { return l.Index == found.Index && p.isReplacement(l) })
	t := p.binding.traits()
	want.Routes, want.UptimeMS = withoutGone(p.found, now, found, want.Routes), p.found.UptimeMS
	nic := compare.NIC{Names: p.names, Index: found.Index, ManageAddresses: t.managesAddresses, RestoreAddresses: restore, MayLeave: t.mayBeAbsent, Direct: t.direct, OffStack: t.offStack}
	for _, l := range p.wanted.Links {
		if l.Tap != nil && l.Name == p.spec.Tap {
			nic.NamedTap = l.Tap
		}
		if l.Index == found.Index {
			nic.AllMulticast = l.AllMulticast && !found.AllMulticast
			nic.Raised = l.Up && !found.Up
		}
	}
	return compare.Steps(now, want, nic)
}

// withoutGone removes the routes through another link that has gone since the namespace was found. Like the kernel, it
// removes an IPv4 route with several next hops as a whole, and of an IPv6 route the next hop.
func withoutGone(found, now netstate.Snapshot, nic netstate.Link, routes []netstate.Route) []netstate.Route {
	missing := map[int]bool{}
	for _, l := range found.Links {
		missing[l.Index] = l.Index != nic.Index
	}
	for _, l := range now.Links {
		missing[l.Index] = false
	}
	gone := func(index int) bool { return missing[index] }
	var left []netstate.Route
	for _, r := range routes {
		if slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return gone(h.Link) }) {
			r.Hops = slices.DeleteFunc(slices.Clone(r.Hops), func(h netstate.Hop) bool { return gone(h.Link) })
			if len(r.Hops) == 0 || r.Destination.Addr().Is4() {
				continue
			}
			if len(r.Hops) == 1 {
				r.Link, r.Gateway, r.OnLink, r.Hops = r.Hops[0].Link, r.Hops[0].Gateway, r.Hops[0].OnLink, nil
			}
		}
		if !gone(r.Link) {
			left = append(left, r)
		}
	}
	return left
}

// isReplacement reports whether the link is another one that has come under the index of a NIC that has gone.
func (p *Plan) isReplacement(l netstate.Link) bool {
	nic := p.nic()
	named := l.Name == nic.Name || l.Name == p.names.Moved
	ours := slices.ContainsFunc(p.wanted.Links, func(w netstate.Link) bool { return w.Index == nic.Index && w.MAC == l.MAC })
	return l.Index == nic.Index && !named && !ours && l.MAC != nic.MAC && l.MAC != netstate.DeriveMAC(nic, "moved")
}
