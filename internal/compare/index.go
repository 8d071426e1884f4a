package compare

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/netstate"
)

// indexes find routes, addresses and neighbours: a namespace can have many thousands.
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
	beside map[group]map[part]bool

	// onLink are the wanted routes without a gateway, and onLinkBits which lengths they have, by whether they are IPv6.
	onLink     map[linkPrefix]bool
	onLinkBits map[bool][]bool

	neighbours, wantedNeighbours map[netstate.Neighbour]bool
	wantedAddresses              map[linkPrefix]bool
	linksWith                    map[netip.Addr][]int // of the addresses of now
	families                     map[familyKey]family // made when they are needed
	replaced                     map[netip.Prefix]bool
}

type linkPrefix struct {
	link   int
	prefix netip.Prefix
}

// group is what IPv6 routes have in common that the kernel joins to one, if they have gateways.
type group struct {
	destination, source netip.Prefix
	table, metric       uint32
}

func groupOf(r netstate.Route) group { return group{r.Destination, r.Source, r.Table, r.Metric} }

// part is one route of a group. The zero value is that of a route that is in no group.
type part struct {
	group
	hop netstate.Hop
}

// partOf returns the part that a route with one next hop is.
func partOf(r netstate.Route) part {
	hop := netstate.Hop{Link: r.Link, Gateway: r.Gateway, OnLink: r.OnLink}
	if len(r.Hops) == 1 {
		hop = r.Hops[0]
	}
	if !r.Destination.Addr().Is6() || !hop.Gateway.IsValid() {
		return part{}
	}
	return part{groupOf(r), hop}
}

// joinedIn returns the parts of the IPv6 routes that have several next hops.
func joinedIn(routes []netstate.Route) map[part]bool {
	joined := map[part]bool{}
	for _, r := range routes {
		for _, h := range r.Hops {
			if r.Destination.Addr().Is6() {
				joined[part{groupOf(r), h}] = true
			}
		}
	}
	return joined
}

// singleIn returns the parts of the IPv6 routes that have one next hop.
func singleIn(routes []netstate.Route) map[part]bool {
	single := map[part]bool{}
	for _, r := range routes {
		if p := partOf(r); p != (part{}) && len(r.Hops) == 0 {
			single[p] = true
		}
	}
	return single
}

// index makes the indexes of now and want.
func (s *stepper) index() {
	s.wanted, s.unwanted = netstate.IndexRoutes(s.want.Routes), netstate.IndexRoutes(s.want.Unwanted.Routes)
	s.wantedParts, s.beside = map[part]bool{}, map[group]map[part]bool{}
	s.onLink, s.onLinkBits = map[linkPrefix]bool{}, map[bool][]bool{false: make([]bool, 33), true: make([]bool, 129)}
	var hosts []netstate.Route
	for _, r := range s.want.Routes {
		s.wantedParts[partOf(r)] = true
		s.putBeside(r)
		if r.Gateway.IsValid() && !r.OnLink {
			hosts = append(hosts, hostRoute(netstate.Hop{Link: r.Link, Gateway: r.Gateway}))
		}
		inMain := r.Table == netstate.TableMain || r.Table == netstate.TableLocal
		if inMain && r.Type == netstate.RouteUnicast && !r.Gateway.IsValid() && len(r.Hops) == 0 {
			s.onLink[linkPrefix{r.Link, r.Destination.Masked()}] = true
			s.onLinkBits[r.Destination.Addr().Is6()][r.Destination.Bits()] = true
		}
	}
	delete(s.wantedParts, part{})
	s.scaffold = netstate.IndexRoutes(hosts)
	for _, r := range s.now.Routes {
		s.putBeside(r)
	}

	s.neighbours, s.wantedNeighbours = setOf(s.now.Neighbours), setOf(s.want.Neighbours)
	s.wantedAddresses, s.linksWith = map[linkPrefix]bool{}, map[netip.Addr][]int{}
	for _, a := range s.now.Addresses {
		s.linksWith[a.Prefix.Addr()] = append(s.linksWith[a.Prefix.Addr()], a.Link)
	}
	for _, a := range s.want.Addresses {
		s.wantedAddresses[linkPrefix{a.Link, a.Prefix}] = true
	}
	s.families = map[familyKey]family{}
	s.indexConnected()
}

func (s *stepper) putBeside(r netstate.Route) {
	p := partOf(r)
	if p == (part{}) {
		return
	}
	p.hop.Weight = 0
	if s.beside[p.group] == nil {
		s.beside[p.group] = map[part]bool{}
	}
	s.beside[p.group][p] = true
}

// indexConnected makes the indexes of the routes that the kernel adds for wanted addresses.
func (s *stepper) indexConnected() {
	var implied, coming []netstate.Route
	for i, a := range s.want.Addresses {
		l, _ := s.wantedLink(a.Link)
		connected := netstate.Connected(a, l, s.want.Addresses[:i])
		if len(connected) > 0 && (s.isMissing(a) || s.comesUp(l)) {
			coming = append(coming, connected...)
		}
		implied = append(implied, connected...)
		if len(connected) > 0 && a.Peer.Addr().Is6() {
			network := connected[0]
			network.Destination = a.Peer.Masked()
			implied = append(implied, network)
		}
	}
	s.implied, s.coming = netstate.IndexRoutes(implied), netstate.IndexRoutes(coming)
}

func setOf(list []netstate.Neighbour) map[netstate.Neighbour]bool {
	set := make(map[netstate.Neighbour]bool, len(list))
	for _, n := range list {
		set[n] = true
	}
	return set
}
