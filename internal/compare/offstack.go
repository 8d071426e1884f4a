package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// isGone reports whether the route is one that must not be there, or what a kill has left: the kernel's route of an
// address that was added anew, or a host route that addRoutes adds for the moment.
func (s *stepper) isGone(r netstate.Route) bool {
	if !s.OffStack || !r.Uses(s.Index) {
		return false
	}
	if r.Protocol == netstate.ProtocolKernel && r.ExpiresSeconds == 0 && s.kernelImplies(r) {
		return true
	}
	return s.unwanted.Has(r) || s.scaffold.Has(r)
}

// isReplaced reports whether the NIC's address is removed, though ManageAddresses is not set: it must not be there, or
// it has to be added anew. An IPv6 address has to be if it is not in its place in the kernel's list, or if the kernel
// has to make its local route: one that is added gets another metric.
func (s *stepper) isReplaced(a netstate.Address) bool {
	if !s.OffStack || a.Link != s.Index {
		return false
	}
	if s.replaced == nil {
		s.replaced = s.findReplaced()
	}
	return s.replaced[a.Prefix]
}

func (s *stepper) findReplaced() map[netip.Prefix]bool {
	found := map[netip.Prefix]bool{}
	for _, n := range s.want.Unwanted.Addresses {
		found[n.Prefix] = true
	}
	ofNIC := func(o netstate.Address) bool {
		return o.Link == s.Index && o.Prefix.Addr().Is6() && o.Scope == netstate.ScopeUniverse
	}
	var now, want []netstate.Address
	for _, w := range s.want.Addresses {
		if ofNIC(w) {
			want = append(want, w)
		}
	}
	for _, n := range s.now.Addresses {
		if ofNIC(n) && s.wantedAddresses[n.LinkPrefix()] {
			now = append(now, n)
		}
	}
	// The kernel puts a new address before the others, so those at the end can stay.
	for len(now) > 0 && len(want) > 0 && s.isInPlace(now[len(now)-1], want[len(want)-1]) {
		now, want = now[:len(now)-1], want[:len(want)-1]
	}
	for _, n := range now {
		found[n.Prefix] = true
	}
	return found
}

func (s *stepper) isInPlace(now, want netstate.Address) bool {
	o, off := s.isOffStack(now)
	return now.Prefix == want.Prefix && now.Peer == want.Peer && now.Flags == want.Flags && (!off || s.wantsOffStack(o) && !o.Tentative)
}

// isOffStack reports whether the namespace does not take the NIC's address as its own.
func (s *stepper) isOffStack(a netstate.Address) (o netstate.OffStack, off bool) {
	if o, off := s.offStack[linkAddress{a.Link, a.Prefix.Addr()}]; off {
		return o, true
	}
	return netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr()}, false
}

func (s *stepper) wantsOffStack(o netstate.OffStack) bool {
	return s.wantedOffStack[linkAddress{o.Link, o.Address}]
}

// setOffStack takes the NIC's addresses off the namespace's stack, or puts them back, and lets the namespace's own
// sockets prefer another IPv6 address.
func (s *stepper) setOffStack() {
	nic, _ := s.wantedLink(s.Index)
	if !s.OffStack {
		return
	}
	earlier := netstate.Earlier{}
	for _, a := range s.want.Addresses {
		if a.Link != s.Index {
			continue
		}
		addr := a.Prefix.Addr()
		o, off := s.isOffStack(a)
		added := s.isMissing(a)
		now, _ := s.link(s.Index)
		route := earlier.LocalRoute(a)
		earlier.Add(a)
		same := s.addresses[linkAddress{a.Link, addr}]
		i := slices.IndexFunc(same, func(n netstate.Address) bool { return n.Prefix == a.Prefix })
		if i >= 0 && same[i].Duplicate {
			continue // it is on no stack, and would be on this one after a change
		}
		switch wanted := s.wantsOffStack(o); {
		case addr.Is6() && !now.Up && !s.comesUp(nic): // the kernel adds the route when the NIC comes up
		case wanted && (!off || added):
			s.add(netstate.RouteDel{Link: nic.Name, Route: route})
		case !wanted && off && !added && addr.Is4() && !s.comesUp(nic): // else the kernel has added it by then
			s.add(netstate.RouteAdd{Link: nic.Name, Route: route})
		}
		if i >= 0 && !added && addr.Is6() {
			if have := same[i]; (have.PreferredSeconds == 0) != (a.PreferredSeconds == 0) {
				have.PreferredSeconds = a.PreferredSeconds
				s.add(netstate.AddressAdd{Link: nic.Name, Address: have})
				for _, r := range netstate.Earlier(nil).Connected(a, nic) { // which the kernel adds if it is not there
					if !s.wantsRoute(r) && have.ValidSeconds == netstate.Forever {
						s.add(netstate.RouteDel{Link: nic.Name, Route: r})
					}
				}
			}
		}
	}
}

// settles reports whether the local route of an address that is added is needed: to be deleted, or to be there.
func (s *stepper) settles(a netstate.Address) bool {
	nic, _ := s.wantedLink(s.Index)
	o, _ := s.isOffStack(a)
	return s.OffStack && a.Link == s.Index && a.Prefix.Addr().Is6() && nic.Up && (s.isReplaced(a) || s.wantsOffStack(o))
}
