package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

func (s *stepper) mayChangeRoute(r netstate.Route) bool {
	return s.mayChange(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.mayChange(h.Link) })
}

// SourcesOf are the addresses of the link. With an address the kernel removes the routes whose preferred source it is,
// whichever link they lead through.
func SourcesOf(link int, addresses []netstate.Address) map[netip.Addr]bool {
	sources := map[netip.Addr]bool{}
	for _, a := range addresses {
		if a.Link == link {
			sources[a.Prefix.Addr()] = true
		}
	}
	return sources
}

// apart returns the routes with each next hop of an IPv6 route as a route of its own, as it is in the kernel. The
// kernel shows the routes to one destination with one metric as one route, so another NIC's route can join one of the
// NIC.
func apart(routes []netstate.Route) []netstate.Route {
	var list []netstate.Route
	for _, r := range routes {
		if len(r.Hops) == 0 || r.Destination.Addr().Is4() {
			list = append(list, r)
			continue
		}
		for _, h := range r.Hops {
			one := r
			one.Hops = []netstate.Hop{h}
			if h.Weight == 0 { // as the kernel shows a route that is alone
				one.Link, one.Gateway, one.OnLink, one.Hops = h.Link, h.Gateway, h.OnLink, nil
			}
			list = append(list, one)
		}
	}
	return list
}

// wantsRoute reports whether the route of the namespace is wanted.
func (s *stepper) wantsRoute(r netstate.Route) bool {
	return s.wanted.Has(r) || s.joined[partOf(r)] && s.wantedParts[partOf(r)]
}

// addRoutes adds the missing routes, except those that the kernel adds with an address. The kernel refuses a
// route whose next hop no other route reaches, so such a next hop gets a host route for the moment.
func (s *stepper) addRoutes() {
	var own, onLink, gatewayed []netstate.Route
	sources := SourcesOf(s.Index, s.want.Addresses)
	for _, r := range s.want.Routes {
		switch {
		case !s.mayAddRoute(r) && !(s.ManageAddresses && sources[r.PrefSrc]) || s.hasRoute(r) || s.coming.Has(r) || s.wouldJoin(r):
		case r.Type == netstate.RouteLocal && !r.PrefSrc.IsValid():
			own = append(own, r) // other routes may have a source in it
		case !r.Gateway.IsValid() && len(r.Hops) == 0:
			onLink = append(onLink, r)
		default:
			gatewayed = append(gatewayed, r)
		}
	}
	for _, r := range append(own, onLink...) {
		s.add(netstate.RouteAdd{Link: s.newName(r.Link), Route: r, Hops: nil})
	}
	for _, r := range gatewayed {
		var scaffold []netstate.Route
		for _, h := range r.NextHops() {
			if h.Gateway.IsValid() && !h.OnLink && !s.reaches(h) {
				scaffold = append(scaffold, hostRoute(h))
			}
		}
		for _, h := range scaffold {
			s.add(netstate.RouteAdd{Link: s.newName(h.Link), Route: h, Hops: nil})
		}
		s.add(netstate.RouteAdd{Link: s.newName(r.Link), Route: r, Hops: r.HopNames(s.newName)})
		for _, h := range scaffold {
			s.add(netstate.RouteDel{Link: s.newName(h.Link), Route: h, Hops: nil})
		}
	}
}

// reaches reports whether a wanted route leads to the next hop on its link.
func (s *stepper) reaches(h netstate.Hop) bool {
	networks := s.onLink[h.Link]
	return h.Gateway.IsLinkLocalUnicast() && h.Gateway.Is6() || networks != nil && networks.Contain(h.Gateway)
}

func (s *stepper) mayAddRoute(r netstate.Route) bool {
	return s.mayAdd(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.mayAdd(h.Link) })
}

// hasRoute reports whether the namespace has the route. Of a route that was joined with others the kernel shows only
// where it leads: protocol, lifetime and metrics are those of the first one.
func (s *stepper) hasRoute(r netstate.Route) bool { return s.have.Has(r) || s.joined[partOf(r)] }

// wouldJoin reports whether the kernel, if the route were added, would join it with a route that it keeps apart now. So
// it is with routes of router advertisements: an added route is none, whatever its protocol. The next advertisement
// brings it.
func (s *stepper) wouldJoin(r netstate.Route) bool {
	if r.Protocol != netstate.ProtocolRA || !s.single[partOf(r)] {
		return false
	}
	return len(s.beside[GroupOf(r)]) > 1 // the route itself is one, as it is wanted
}

// isLearned reports whether the NIC's route comes and goes with router advertisements. Where the NIC is the
// namespace's, those that have come since are left to the kernel, and a router that never stops to advertise keeps no
// call from its end.
func (s *stepper) isLearned(r netstate.Route) bool {
	nic, _ := s.wantedLink(s.Index)
	return r.Advertised() && r.Uses(s.Index) && nic.Master == 0
}

// kernelImplies reports whether the kernel may have added the route for a wanted address: with the address, or, to the
// network of an IPv6 peer, when addAddresses gave the address its flags.
func (s *stepper) kernelImplies(r netstate.Route) bool { return s.implied.Has(r) }
