package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// stepper collects the operations that lead from one state of a namespace to another.
type stepper struct {
	NIC
	now  netstate.Snapshot // as it is
	want State             // with indices for links that must be created, and without what has ended
	ops  []netstate.Op     // the result
	indexes
}

// indexes find routes, addresses and neighbours of now and want: a namespace can have many thousands. Steps and index
// make them; families and replaced are made when they are needed.
type indexes struct {
	// have and wanted are the routes of now and of want, each next hop of an IPv6 route apart; unwanted those of
	// Unwanted.
	have, wanted, unwanted netstate.RouteIndex
	// implied are the routes that the kernel may have added for a wanted address, coming those that it adds with the
	// operations.
	implied, coming netstate.RouteIndex
	// scaffold are the host routes that addRoutes adds for the moment.
	scaffold netstate.RouteIndex

	// joined are the parts of IPv6 routes with several next hops in now, and wantedParts those of wanted IPv6 routes.
	joined, wantedParts map[part]bool
	// single are the wanted routes that had one next hop when they were read.
	single map[part]bool
	// beside are the next hops, in now and in want, of each group of routes that the kernel can join.
	beside map[Group]map[part]bool

	onLink map[int]*ip.Prefixes[bool] // the destinations of the wanted routes without a gateway, by their links

	links                        map[int]netstate.Link // of now
	neighbours, wantedNeighbours map[netstate.Neighbour]bool
	wantedAddresses              map[netstate.LinkPrefix]bool
	// addresses are those of now, by their links: one address can be there with several prefix lengths.
	addresses map[linkAddress][]netstate.Address
	// offStack are those of now that the namespace does not take as its own, wantedOffStack those that it must not take.
	offStack       map[linkAddress]netstate.OffStack
	wantedOffStack map[linkAddress]bool
	// losing are the IPv4 addresses of now that are at links alone that removeLinks deletes.
	losing   map[netip.Addr]bool
	families map[familyKey]family
	replaced map[netip.Prefix]bool
}

type linkAddress struct {
	link    int
	address netip.Addr
}

// familyKey is equal for addresses whose order among each other counts.
type familyKey struct {
	link int
	v4   bool
}

func familyOf(a netstate.Address) familyKey { return familyKey{a.Link, a.Prefix.Addr().Is4()} }

// family are the addresses of a link and IP version.
type family struct {
	want, now []netstate.Address // now has those that are wanted
	there     map[netstate.Address]bool
	stay      bool // they are as wanted, in their order
}

// link is the link of now with the index.
func (s *stepper) link(index int) (l netstate.Link, there bool) {
	l, there = s.links[index]
	return l, there
}

func (s *stepper) add(op netstate.Op) { s.ops = append(s.ops, op) }

func (s *stepper) wantedLink(index int) (netstate.Link, bool) {
	i := slices.IndexFunc(s.want.Links, func(l netstate.Link) bool { return l.Index == index })
	if i < 0 {
		return netstate.Link{}, false
	}
	return s.want.Links[i], true
}

// isNew reports whether a link with the name is created.
func (s *stepper) isNew(name string) bool {
	return slices.ContainsFunc(s.want.Links, func(l netstate.Link) bool {
		_, there := s.link(l.Index)
		return l.Name == name && !there
	})
}

// mayChange reports whether the wiring adds and removes the link's addresses, routes and neighbours.
func (s *stepper) mayChange(index int) bool {
	if index == s.Index {
		return s.ManageAddresses
	}
	_, wanted := s.wantedLink(index)
	return wanted
}

// mayAdd reports whether the wiring adds addresses, routes and neighbours that are missing at the link.
func (s *stepper) mayAdd(index int) bool {
	return s.mayChange(index) || s.RestoreAddresses && index == s.Index
}

// linkName is the link's name before the operations, newName the one after them.
func (s *stepper) linkName(index int) string {
	l, _ := s.link(index)
	return l.Name
}

func (s *stepper) newName(index int) string {
	if l, ok := s.wantedLink(index); ok {
		return l.Name
	}
	return s.linkName(index)
}
