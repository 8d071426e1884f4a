package compare

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Group is what routes have in common of which the kernel asks one after the other (IPv4), or which it joins to one if
// they have gateways (IPv6).
type Group struct {
	destination, source netip.Prefix
	table, metric       uint32
}

// GroupOf returns the group that a route is in.
func GroupOf(r netstate.Route) Group { return Group{r.Destination, r.Source, r.Table, r.Metric} }

// part is one route of a group. The zero value is that of a route that is in no group.
type part struct {
	Group
	hop netstate.Hop
}

// partOf returns the part that a route with one next hop is.
func partOf(r netstate.Route) part {
	hops := r.NextHops()
	if !r.Destination.Addr().Is6() || len(hops) != 1 || !hops[0].Gateway.IsValid() {
		return part{}
	}
	return part{GroupOf(r), hops[0]}
}

// joinedIn returns the parts of the IPv6 routes that have several next hops.
func joinedIn(routes []netstate.Route) map[part]bool {
	joined := map[part]bool{}
	for _, r := range routes {
		for _, h := range r.Hops {
			if r.Destination.Addr().Is6() {
				joined[part{GroupOf(r), h}] = true
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
	s.wantedParts, s.beside = map[part]bool{}, map[Group]map[part]bool{}
	s.onLink = map[int]*ip.Prefixes[bool]{}
	var hosts []netstate.Route
	for _, r := range s.want.Routes {
		s.wantedParts[partOf(r)] = true
		s.putBeside(r)
		if r.Gateway.IsValid() && !r.OnLink {
			hosts = append(hosts, hostRoute(netstate.Hop{Link: r.Link, Gateway: r.Gateway}))
		}
		inMain := r.Table == netstate.TableMain || r.Table == netstate.TableLocal
		if inMain && r.Type == netstate.RouteUnicast && !r.Gateway.IsValid() && len(r.Hops) == 0 {
			if s.onLink[r.Link] == nil {
				s.onLink[r.Link] = &ip.Prefixes[bool]{}
			}
			s.onLink[r.Link].Set(r.Destination, true)
		}
	}
	delete(s.wantedParts, part{})
	s.scaffold = netstate.IndexRoutes(hosts)
	for _, r := range s.now.Routes {
		s.putBeside(r)
	}

	s.neighbours, s.wantedNeighbours = setOf(s.now.Neighbours), setOf(s.want.Neighbours)
	removed := s.removedLinks()
	s.wantedAddresses, s.addresses, s.losing = map[netstate.LinkPrefix]bool{}, map[linkAddress][]netstate.Address{}, map[netip.Addr]bool{}
	for _, a := range s.now.Addresses {
		at := linkAddress{a.Link, a.Prefix.Addr()}
		s.addresses[at] = append(s.addresses[at], a)
		before, known := s.losing[at.address]
		s.losing[at.address] = at.address.Is4() && removed[a.Link] && (before || !known)
	}
	s.offStack, s.wantedOffStack = map[linkAddress]netstate.OffStack{}, map[linkAddress]bool{}
	for _, o := range s.now.OffStack {
		s.offStack[linkAddress{o.Link, o.Address}] = o
	}
	for _, o := range s.want.OffStack {
		s.wantedOffStack[linkAddress{o.Link, o.Address}] = true
	}
	for _, a := range s.want.Addresses {
		s.wantedAddresses[a.LinkPrefix()] = true
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
	if s.beside[p.Group] == nil {
		s.beside[p.Group] = map[part]bool{}
	}
	s.beside[p.Group][p] = true
}

// indexConnected makes the indexes of the routes that the kernel adds for wanted addresses.
func (s *stepper) indexConnected() {
	var implied, coming []netstate.Route
	earlier := netstate.Earlier{}
	for _, a := range s.want.Addresses {
		l, _ := s.wantedLink(a.Link)
		connected := earlier.Connected(a, l)
		earlier.Add(a)
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

func hostRoute(h netstate.Hop) netstate.Route {
	r := netstate.Route{
		Link: h.Link, Table: netstate.TableMain, Destination: netip.PrefixFrom(h.Gateway, h.Gateway.BitLen()),
		Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
	}
	if h.Gateway.Is4() {
		r.Scope = netstate.ScopeLink
	}
	return r
}
