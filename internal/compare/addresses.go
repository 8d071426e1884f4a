package compare

import (
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// staysAsItIs reports whether an existing address is as wanted. Where an address is missing, all addresses of the
// link and family are added again with it, as the kernel lists them in the order of their addition.
func (s *stepper) staysAsItIs(a netstate.Address) bool {
	if s.want.LateLinkLocal && a.Link == s.Index && a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() {
		return true // which the kernel has made
	}
	key := familyOf(a)
	f, known := s.families[key]
	if !known {
		wanted := map[netstate.Address]bool{}
		for _, b := range s.want.Addresses {
			if familyOf(b) == key {
				f.want = append(f.want, b)
				wanted[b.Kind()] = true
			}
		}
		f.there = map[netstate.Address]bool{}
		for _, b := range s.now.Addresses {
			if familyOf(b) == key && wanted[b.Kind()] {
				f.now = append(f.now, b)
				f.there[b.Kind()] = true
			}
		}
		f.stay = slices.EqualFunc(f.now, f.want, netstate.Address.Same)
		s.families[key] = f
	}
	return f.stay && f.there[a.Kind()]
}

// isLearnedAddress reports whether the NIC's address, which is not wanted, comes and goes with router advertisements:
// see isLearned.
func (s *stepper) isLearnedAddress(a netstate.Address) bool {
	nic, _ := s.wantedLink(s.Index)
	return a.Link == s.Index && nic.Master == 0 && a.Prefix.Addr().Is6() && a.ValidSeconds != netstate.Forever && !s.wantedAddresses[a.LinkPrefix()]
}

// addAddresses adds IPv6 addresses without duplicate address detection: the namespace had them a moment ago,
// and would be without them for a second. A second operation restores the flags. A duplicate is detected anew.
func (s *stepper) addAddresses() {
	connected := make([][]netstate.Route, len(s.want.Addresses))
	earlier := netstate.Earlier{}
	for i, a := range s.want.Addresses {
		link, _ := s.wantedLink(a.Link)
		connected[i] = earlier.Connected(a, link)
		earlier.Add(a)
	}
	for _, i := range addingOrder(s.want.Addresses) {
		a := s.want.Addresses[i]
		if !s.isMissing(a) {
			continue
		}
		name := s.newName(a.Link)
		link, _ := s.wantedLink(a.Link)
		if a.Prefix.Addr().Is6() && link.Up && a.Flags&netstate.AddrNoDAD == 0 && !a.Duplicate {
			quick := a
			quick.Flags |= netstate.AddrNoDAD
			s.add(netstate.AddressAdd{Link: name, Address: quick, Settle: s.settles(a)})
		}
		s.add(netstate.AddressAdd{Link: name, Address: a, Settle: s.settles(a)})
		for _, r := range connected[i] {
			if !s.wantsRoute(r) {
				s.add(netstate.RouteDel{Link: name, Route: r, Hops: nil})
			}
		}
	}
}

// isMissing reports whether a wanted address has to be added. At a NIC that the wiring may not change, an address
// is not missing if it is there with other flags.
func (s *stepper) isMissing(a netstate.Address) bool {
	if s.mayChange(a.Link) {
		return !s.staysAsItIs(a)
	}
	if a.Temporary {
		return false // the kernel makes them, and one that is added is another
	}
	return s.mayAdd(a.Link) && !slices.ContainsFunc(s.addresses[linkAddress{a.Link, a.Prefix.Addr()}], func(o netstate.Address) bool { return !s.isReplaced(o) })
}

// addingOrder is the order in which the addresses have to be added so that the kernel lists them in the order
// of the list, and chooses sources as before. The kernel puts a new IPv4 address at the end of its list, and a
// new IPv6 address at the beginning.
func addingOrder(list []netstate.Address) []int {
	var v4, v6 []int
	for i, a := range list {
		if a.Prefix.Addr().Is4() {
			v4 = append(v4, i)
		} else {
			v6 = append(v6, i)
		}
	}
	slices.Reverse(v6)
	return append(v4, v6...)
}
