// Package compare finds the operations that lead from the present namespace to the wanted one, and says in words what
// differs. One comparison serves Setup, repair, Check, Teardown and the recovery from a kill. It is pure.
//
//   - [Steps] takes the namespace as it is now (a Snapshot), the wanted [State] and the [NIC], and returns the operations.
//   - [Differences] describes what the operations repair.
//
// To read: steps, in this file, is the order of the operations. A method of it in links.go, addresses.go, routes.go,
// offstack.go or filters.go compares one kind of thing, by the indexes of index.go.
package compare

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Steps returns the operations that lead from the namespace as it is now to the state, in order. There are
// none if nothing differs. The error is infra.ErrNoNIC if the NIC has gone; then the operations are those
// that do not need the NIC. It is a [TakenError] if the operations cannot be carried out until a name is free.
func Steps(now netstate.Snapshot, want State, nic NIC) ([]netstate.Op, error) {
	s := &stepper{now: now, NIC: nic}
	s.links = map[int]netstate.Link{}
	for _, l := range now.Links {
		s.links[l.Index] = l
	}
	want = placeLinks(want, now, s.ownLinks())
	s.joined = joinedIn(now.Routes)
	s.single = singleIn(want.Routes)
	s.now.Routes, want.Routes = apart(now.Routes), apart(want.Routes)
	s.have = netstate.IndexRoutes(s.now.Routes)
	s.want = s.remaining(want)
	s.index()
	ops, err := s.steps()
	if list := taken(now, ops); err == nil && len(list) > 0 {
		err = list
	}
	return ops, err
}

// steps compares the namespace as it is with the state that is wanted. One order serves wiring and undoing. Rules are
// in force before the links that they guard are up. Routes are removed before addresses, and added after them. A name
// is free before another link takes it. The guest's tap comes up last.
func (s *stepper) steps() ([]netstate.Op, error) {
	if s.leavesDown() {
		s.takeDown()
	}
	s.removeLinks()
	s.addTaps()
	s.setTables()
	s.setSysctls(netstate.SysctlOrder(s.Names.NIC), false)
	s.allowIPv6()
	var err error
	if _, there := s.link(s.Index); there && len(s.want.Links) > 0 {
		s.removeUnwanted()
		s.changeNIC()
		s.addLinks()
		s.bringUp()
		s.setSysctls(netstate.OfRouter(s.Names), true) // the link has to exist
	} else if !there && !s.MayLeave {
		err = fmt.Errorf("%w any more in this namespace", infra.ErrNoNIC)
		l, named := s.now.Named(s.Names.NIC)
		if _, wired := netstate.Marked(l.Alias); named && !wired {
			err = fmt.Errorf("%w, and %s is %s", err, l.Name, whose(l))
		}
	}
	for _, i := range s.now.Tables {
		if !s.Direct && !slices.ContainsFunc(s.want.Tables, func(t firewall.Table) bool { return t.Family == i.Family && t.Name == i.Name }) {
			s.add(netstate.TableDel{Family: i.Family, Name: i.Name})
		}
	}
	return s.ops, err
}

// setSysctls sets the sysctls that the kernel has. Coming: they are of links that the operations may create, so the
// kernel will have them.
func (s *stepper) setSysctls(paths []string, coming bool) {
	for _, path := range paths {
		value, wanted := s.want.Sysctls[path]
		have, there := s.now.Sysctls[path]
		if coming && s.isNew(strings.Split(path, "/")[3]) {
			have = s.now.Sysctls[netstate.OfNewLinks(path)] // if it was read
		}
		if wanted && (there || coming) && have != value {
			s.add(netstate.SysctlSet{Path: path, Value: value})
		}
	}
}

// removeUnwanted removes routes, addresses and neighbours that are not wanted, one by one. Most would vanish
// when the link goes down, but then the plan would not show them.
func (s *stepper) removeUnwanted() {
	leaving := map[netip.Addr]bool{}
	for _, a := range s.now.Addresses {
		if s.ManageAddresses && a.Link == s.Index && !s.staysAsItIs(a) {
			leaving[a.Prefix.Addr()] = true
		}
	}
	for _, r := range s.now.Routes {
		// The kernel removes its own routes with their addresses, but not while the address stays. It removes those that
		// lose their source.
		own := (r.Protocol != netstate.ProtocolKernel || s.kernelImplies(r)) && (s.mayChangeRoute(r) || leaving[r.PrefSrc])
		if (own && !s.isLearned(r) || s.isGone(r) && !s.losing[r.PrefSrc]) && !s.wantsRoute(r) {
			if s.joined[partOf(r)] {
				r.Protocol = 0 // any: the kernel shows that of another part
			}
			s.add(netstate.RouteDel{Link: s.linkName(r.Link), Route: r, Hops: r.HopNames(s.linkName)})
		}
	}
	for _, n := range s.now.Neighbours {
		if n.Permanent && s.mayChange(n.Link) && !s.wantedNeighbours[n] {
			s.add(netstate.NeighbourDel{Link: s.linkName(n.Link), Neighbour: n})
		}
	}
	// The last address first: with an IPv4 address the kernel removes the later ones of the same network.
	for _, a := range slices.Backward(s.now.Addresses) {
		if s.mayChange(a.Link) && !s.staysAsItIs(a) && !s.isLearnedAddress(a) || s.isReplaced(a) {
			s.add(netstate.AddressDel{Link: s.linkName(a.Link), Address: a})
		}
	}
}

// bringUp brings the links up and adds addresses, routes and neighbours. A tap has its filters before it is
// up. The guest's tap, the last of the links, comes up when everything else is there.
func (s *stepper) bringUp() {
	last := len(s.want.Links) - 1
	if tap := s.want.Links[last]; tap.Name != s.Names.Tap || slices.ContainsFunc(s.want.Routes, func(r netstate.Route) bool { return r.Link == tap.Index }) {
		last++ // a route needs a link that is up
	}
	s.setFilters()
	for _, want := range s.want.Links[:last] {
		s.setUpOrDown(want)
	}
	s.addAddresses()
	s.setOffStack()
	s.addRoutes()
	for _, n := range s.want.Neighbours {
		if s.mayAdd(n.Link) && (!s.neighbours[n] || s.isForgotten(n)) {
			s.add(netstate.NeighbourAdd{Link: s.newName(n.Link), Neighbour: n})
		}
	}
	for _, want := range s.want.Links[last:] {
		s.setUpOrDown(want)
	}
	now, _ := s.link(s.Index)
	if want, _ := s.wantedLink(s.Index); want.AddrGen != netstate.AddrGenNone && !s.makesLinkLocal(now, want) {
		have := want
		have.AddrGen = now.AddrGen
		s.setLink(have, want)
	}
}
