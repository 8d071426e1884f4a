package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// remaining returns the state with the lifetimes that addresses and routes have left now. What is there has the
// kernel's lifetime. What is missing and has ended since it was read is not wanted any more: the kernel has removed it,
// or would have.
func (s *stepper) remaining(want State) State {
	passed := uint32(0)
	if want.UptimeMS != 0 && s.now.UptimeMS > want.UptimeMS {
		// Rounded up, so that nothing lives longer than it would have.
		passed = uint32(min((s.now.UptimeMS-want.UptimeMS+999)/1000, netstate.Forever-1))
	}
	there := map[netstate.LinkPrefix]netstate.Address{}
	for _, a := range s.now.Addresses {
		there[a.LinkPrefix()] = a
	}
	ended := map[netip.Addr]bool{}
	var addresses []netstate.Address
	for _, a := range want.Addresses {
		now, is := there[a.LinkPrefix()]
		if left, alive := withLifetimes(a, now, is, passed); alive {
			addresses = append(addresses, left)
		} else {
			ended[a.Prefix.Addr()] = true
		}
	}
	for _, a := range addresses { // an address can be at two links
		delete(ended, a.Prefix.Addr())
	}
	ends := s.endingLinks(want)
	for _, a := range s.now.Addresses {
		if !ends[a.Link] { // the kernel may be late to remove the address from a link that holds the NIC's
			delete(ended, a.Prefix.Addr())
		}
	}
	var routes []netstate.Route
	for _, r := range want.Routes {
		if now, is := s.have.Find(r); is {
			r.ExpiresSeconds = now.ExpiresSeconds
		} else if r.ExpiresSeconds != 0 && !is {
			if r.ExpiresSeconds <= passed {
				continue
			}
			r.ExpiresSeconds -= passed
		}
		if ended[r.PrefSrc] { // the kernel removes an IPv4 route with its source, and the source of an IPv6 route
			if r.PrefSrc.Is4() {
				continue
			}
			r.PrefSrc = netip.Addr{}
		}
		routes = append(routes, r)
	}
	want.Addresses, want.Routes = addresses, routes
	return want
}

// endingLinks are the indices of the wiring's links that the state does not want.
func (s *stepper) endingLinks(want State) map[int]bool {
	ends := map[int]bool{}
	for _, l := range s.ownLinks() {
		ends[l.Index] = !slices.ContainsFunc(want.Links, func(w netstate.Link) bool { return w.Index == l.Index })
	}
	return ends
}

// withLifetimes returns the wanted address with the lifetimes that it has left, and whether it is alive. Now is the
// address as it is there, if it is; passed is the time since the wanted one was read.
func withLifetimes(a, now netstate.Address, there bool, passed uint32) (left netstate.Address, alive bool) {
	ends := a.ValidSeconds != netstate.Forever
	if ends && there && now.ValidSeconds != netstate.Forever {
		if a.PreferredSeconds != 0 && a.PreferredSeconds != netstate.Forever {
			a.PreferredSeconds = less(now.ValidSeconds, less(a.ValidSeconds, a.PreferredSeconds))
		}
		a.ValidSeconds = now.ValidSeconds
		return a, true
	}
	if ends && !there && a.ValidSeconds <= passed {
		return a, false
	}
	if a.PreferredSeconds != netstate.Forever {
		a.PreferredSeconds = less(a.PreferredSeconds, passed)
	}
	if ends && !there {
		a.ValidSeconds -= passed
	}
	return a, true
}

func less(a, b uint32) uint32 { return a - min(a, b) }
