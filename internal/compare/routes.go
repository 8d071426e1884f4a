package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

func (s *stepper) mayChangeRoute(r netstate.Route) bool {
	return s.mayChange(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.mayChange(h.Link) })
}

// Sourced says whether the route's preferred source is an address of the link. The kernel removes such a route
// with the address, whichever link the route leads through.
func Sourced(r netstate.Route, link int, addresses []netstate.Address) bool {
	return r.PrefSrc.IsValid() && slices.ContainsFunc(addresses, func(a netstate.Address) bool { return a.Link == link && a.Prefix.Addr() == r.PrefSrc })
}

// apart returns the routes with each next hop of an IPv6 route as a route of its own. That is what they are to the kernel,
// which shows the routes to one destination with one metric as one route: so another NIC's route can join one of the NIC.
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

func (s *stepper) wantsRoute(r netstate.Route) bool {
	return slices.ContainsFunc(s.want.Routes, r.Same)
}

// addRoutes adds the missing routes, except those that the kernel adds with an address. The kernel refuses a
// route whose next hop no other route reaches, so such a next hop gets a host route for the moment.
func (s *stepper) addRoutes() {
	var own, onLink, behind []netstate.Route
	for _, r := range s.want.Routes {
		switch {
		case !s.mayAddRoute(r) && !(s.Whole && Sourced(r, s.Index, s.want.Addresses)) || s.hasRoute(r) || s.kernelWillAdd(r):
		case r.Type == netstate.RouteLocal && !r.PrefSrc.IsValid():
			own = append(own, r) // other routes may have a source in it
		case !r.Gateway.IsValid() && len(r.Hops) == 0:
			onLink = append(onLink, r)
		default:
			behind = append(behind, r)
		}
	}
	for _, r := range append(own, onLink...) {
		s.add(netstate.RouteAdd{Link: s.newName(r.Link), Route: r, Hops: nil})
	}
	for _, r := range behind {
		var scaffold []netstate.Route
		for _, h := range append([]netstate.Hop{{Link: r.Link, Gateway: r.Gateway, OnLink: r.OnLink}}, r.Hops...) {
			if h.Gateway.IsValid() && !h.OnLink && !s.reaches(h) {
				scaffold = append(scaffold, hostRoute(h))
			}
		}
		for _, h := range scaffold {
			s.add(netstate.RouteAdd{Link: s.newName(h.Link), Route: h, Hops: nil})
		}
		s.add(netstate.RouteAdd{Link: s.newName(r.Link), Route: r, Hops: hopNames(r, s.newName)})
		for _, h := range scaffold {
			s.add(netstate.RouteDel{Link: s.newName(h.Link), Route: h, Hops: nil})
		}
	}
}

// reaches says whether a wanted route leads to the next hop on its link.
func (s *stepper) reaches(h netstate.Hop) bool {
	if h.Gateway.IsLinkLocalUnicast() && h.Gateway.Is6() {
		return true
	}
	return slices.ContainsFunc(s.want.Routes, func(r netstate.Route) bool {
		return r.Link == h.Link && (r.Table == netstate.TableMain || r.Table == netstate.TableLocal) && r.Type == netstate.RouteUnicast &&
			!r.Gateway.IsValid() && len(r.Hops) == 0 && r.Destination.Contains(h.Gateway)
	})
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

func (s *stepper) mayAddRoute(r netstate.Route) bool {
	return s.mayAdd(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.mayAdd(h.Link) })
}

// routeKey is what most routes differ in, for hasRoute.
type routeKey struct {
	destination netip.Prefix
	table       uint32
}

// hasRoute says whether the namespace has the route. There can be many routes, so they are indexed.
func (s *stepper) hasRoute(r netstate.Route) bool {
	if s.known == nil {
		s.known = map[routeKey][]netstate.Route{}
		for _, o := range s.now.Routes {
			key := routeKey{o.Destination, o.Table}
			s.known[key] = append(s.known[key], o)
		}
	}
	return slices.ContainsFunc(s.known[routeKey{r.Destination, r.Table}], r.Same)
}

// kernelWillAdd says whether the kernel adds the route when its address is added, or when the link comes up.
func (s *stepper) kernelWillAdd(r netstate.Route) bool {
	for i, a := range s.want.Addresses {
		l, _ := s.wantedLink(a.Link)
		if slices.ContainsFunc(netstate.Connected(a, l, s.want.Addresses[:i]), r.Same) && (s.isMissing(a) || s.comesUp(l)) {
			return true
		}
	}
	return false
}

// kernelImplies says whether the kernel may have added the route for a wanted address: with the address, or, to the network
// of an IPv6 peer, when addAddresses gave the address its flags.
func (s *stepper) kernelImplies(r netstate.Route) bool {
	for i, a := range s.want.Addresses {
		l, _ := s.wantedLink(a.Link)
		connected := netstate.Connected(a, l, s.want.Addresses[:i])
		if len(connected) > 0 && a.Peer.Addr().Is6() {
			network := connected[0]
			network.Destination = a.Peer.Masked()
			connected = append(connected, network)
		}
		if slices.ContainsFunc(connected, r.Same) {
			return true
		}
	}
	return false
}
