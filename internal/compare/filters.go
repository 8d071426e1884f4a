package compare

import (
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// setTables comes before the links that the tables guard are up, and after the taps, to which chains are bound.
func (s *stepper) setTables() {
	for _, t := range s.want.Tables {
		at := slices.IndexFunc(s.now.Tables, func(i firewall.Image) bool { return i.Family == t.Family && i.Name == t.Name })
		if at >= 0 && s.now.Tables[at].Equals(t) && !s.losesChain(t) {
			continue
		}
		t = t.Resolve(s.indexOf)
		// A table that exists is changed, or replaced, in one transaction.
		if at >= 0 {
			if c, can := s.now.Tables[at].ChangeTo(t); can && !s.losesChain(t) {
				s.add(netstate.TableChange{Table: t, Change: c})
				continue
			}
			s.add(netstate.TableDel{Family: t.Family, Name: t.Name})
		}
		s.add(netstate.TableSet{Table: t})
	}
}

// indexOf is the index of the wiring's link with that name; 0: there is none.
func (s *stepper) indexOf(name string) int {
	for _, l := range s.want.Links {
		if l.Name == name {
			return l.Index
		}
	}
	return 0
}

// losesChain reports whether a chain or a flow table of the table is bound to a link that is about to be created again.
// Before Linux 6.16 the kernel deletes such a chain with the old link, and the new link would be up without the chain
// until the namespace is compared again.
func (s *stepper) losesChain(t firewall.Table) bool {
	return slices.ContainsFunc(t.Chains, func(c firewall.Chain) bool { return s.isNew(c.Device) }) ||
		slices.ContainsFunc(t.Flows, func(f firewall.FlowTable) bool { return slices.ContainsFunc(f.Devices, s.isNew) })
}

// setFilters adds the filters that are missing at each link. A filter that is not wanted is removed by its preference.
// A foreign filter, whose preference says nothing, is removed with the whole qdisc, and so is a qdisc of the other
// kind.
func (s *stepper) setFilters() {
	for _, l := range s.want.Links {
		now, want := netstate.FiltersOf(s.now.Filters, l.Index), netstate.FiltersOf(s.want.Filters, l.Index)
		if len(want) == 0 { // what others have there stays
			now = slices.DeleteFunc(now, func(f netstate.Filter) bool { return !f.Clears })
			left := map[netstate.Place]bool{}
			for _, f := range now {
				if !left[f.Place()] {
					s.add(netstate.FilterDel{Link: l.Name, Filter: f})
				}
				left[f.Place()] = true
			}
			continue
		}
		copies := slices.ContainsFunc(want, func(f netstate.Filter) bool { return f.Copies })
		ingress, clsact := slices.Contains(s.now.Ingress, l.Index), slices.Contains(s.now.Clsact, l.Index)
		isForeign := slices.ContainsFunc(now, func(f netstate.Filter) bool { return f.Foreign != "" })
		if isForeign || copies && ingress || !copies && clsact {
			s.add(netstate.IngressDel{Index: l.Index, Link: l.Name, Clsact: clsact})
			ingress, clsact, now = false, false, nil
		}
		if !ingress && !clsact {
			s.add(netstate.IngressAdd{Index: l.Index, Link: l.Name, Clsact: copies})
		}
		left, has := map[netstate.Place]bool{}, keysOf(now)
		wanted := keysOf(want)
		for _, f := range now {
			if !wanted[f.Key()] && !left[f.Place()] {
				s.add(netstate.FilterDel{Link: l.Name, Filter: f})
				left[f.Place()] = true
			}
		}
		for _, f := range want {
			if !has[f.Key()] || left[f.Place()] {
				s.add(netstate.FilterAdd{Link: l.Name, Filter: f, Target: s.newName(f.Target)})
			}
		}
	}
}

func keysOf(filters []netstate.Filter) map[netstate.FilterKey]bool {
	keys := map[netstate.FilterKey]bool{}
	for _, f := range filters {
		keys[f.Key()] = true
	}
	return keys
}
