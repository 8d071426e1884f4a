package compare

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// ownLinks are the links that guestwire created for the NIC. Such a link has the alias; or the group, if the
// alias is empty or the name is one of the wiring's, as another program may have changed the alias; or it is
// a tap with a name of the wiring and no alias: a Setup was killed before it set the alias. It has its owner by then.
func (s *stepper) ownLinks() []netstate.Link {
	if s.Direct {
		return nil
	}
	var ours []netstate.Link
	for _, l := range s.now.Links {
		if l.Index == s.Index {
			continue
		}
		grouped := l.Group == netstate.Group(s.Index) && (l.Alias == "" || l.Name == s.Names.NIC || slices.Contains(s.Names.Links(), l.Name))
		marked := l.Alias == netstate.Mark(s.Names.NIC) || grouped
		fresh := l.Tap != nil && l.Alias == "" && (l.Name == s.Names.Responder || l.Name == s.Names.Tap && (s.NamedTap == nil || *l.Tap == *s.NamedTap))
		if marked || fresh {
			ours = append(ours, l)
		}
	}
	return ours
}

// firstIndex is far from the indices that the kernel chooses, so that a link that another program creates
// meanwhile does not get an index of the plan.
const firstIndex = 1 << 20

// placeLinks gives each link that must be created its index: the one that it has already, or the first free
// one. So a link that is created again gets the index of an undisturbed run.
func placeLinks(want State, now netstate.Snapshot, ours []netstate.Link) State {
	next := firstIndex
	at, modes := map[int]bool{}, map[int]netstate.Link{}
	for _, l := range now.Links {
		at[l.Index] = true
		if l.Mode == netstate.ModeActive {
			modes[l.Index] = l
		}
	}
	free := func() int {
		for at[next] {
			next++
		}
		next++
		return next - 1
	}
	index := map[int]int{}
	placed := want
	placed.Links = slices.Clone(want.Links)
	for i, l := range want.Links {
		if l.Index > 0 {
			continue
		}
		own := slices.IndexFunc(ours, func(o netstate.Link) bool {
			return o.Name == l.Name && o.Kind == l.Kind && o.Ethernet && reflect.DeepEqual(o.Tap, l.Tap)
		})
		if own >= 0 {
			index[l.Index] = ours[own].Index
		} else {
			index[l.Index] = free()
		}
		placed.Links[i].Index = index[l.Index]
	}
	resolve := func(i int) int {
		if i < 0 {
			return index[i]
		}
		return i
	}
	for i, l := range placed.Links {
		placed.Links[i].Master = resolve(l.Master)
		if bond, is := modes[l.Index]; is {
			placed.Links[i].MAC = bond.MAC // as its ports have it
		}
	}
	placed.Addresses = slices.Clone(want.Addresses)
	for i := range placed.Addresses {
		placed.Addresses[i].Link = resolve(placed.Addresses[i].Link)
	}
	placed.Routes = slices.Clone(want.Routes)
	for i := range placed.Routes {
		placed.Routes[i].Link = resolve(placed.Routes[i].Link)
	}
	placed.Neighbours = slices.Clone(want.Neighbours)
	for i := range placed.Neighbours {
		placed.Neighbours[i].Link = resolve(placed.Neighbours[i].Link)
	}
	placed.Filters = slices.Clone(want.Filters)
	for i := range placed.Filters {
		placed.Filters[i].Link = resolve(placed.Filters[i].Link)
		placed.Filters[i].Target = resolve(placed.Filters[i].Target)
	}
	return placed
}

// addTaps comes first, as taps are created and reset by ioctl and not by netlink.
func (s *stepper) addTaps() {
	for _, l := range s.want.Links {
		now, there := s.link(l.Index)
		if there && now.Offloads && l.Tap != nil {
			s.add(netstate.TapReset{Index: l.Index, Link: l.Name, MultiQueue: l.Tap.MultiQueue, Context: s.want.TapContext})
		}
		if !there && l.Tap != nil {
			s.add(netstate.TapAdd{Index: l.Index, Link: l.Name, Tap: *l.Tap, VNetHeader: l.Name == s.Names.Tap, Context: s.want.TapContext})
		}
	}
}

// removeLinks deletes the wiring's links that are not wanted. The kernel deletes a whole group in a third of
// the time that the links take one by one.
func (s *stepper) removeLinks() {
	var grouped, single []netstate.Link
	for _, l := range s.ownLinks() {
		if _, wanted := s.wantedLink(l.Index); wanted {
			continue
		}
		if l.Group == netstate.Group(s.Index) {
			grouped = append(grouped, l)
		} else {
			single = append(single, l)
		}
	}
	members := 0
	for _, l := range s.now.Links {
		if l.Group == netstate.Group(s.Index) {
			members++
		}
	}
	if len(grouped) > 0 && len(grouped) == members {
		s.add(netstate.GroupDel{Group: netstate.Group(s.Index)})
	} else {
		single = append(single, grouped...)
	}
	for _, l := range single {
		s.add(netstate.LinkDel{Index: l.Index, Link: l.Name})
	}
}

func (s *stepper) removedLinks() map[int]bool {
	removed := map[int]bool{}
	for _, l := range s.ownLinks() {
		_, wanted := s.wantedLink(l.Index)
		removed[l.Index] = !wanted
	}
	return removed
}

// allowIPv6 enables IPv6 at existing links that get an IPv6 address. A new tap exists by then, and was made
// before the sysctl for new links is written.
func (s *stepper) allowIPv6() {
	for _, want := range s.want.Links {
		now, there := s.link(want.Index)
		wanted := func(a netstate.Address) bool { return a.Link == want.Index && a.Prefix.Addr().Is6() }
		newTap := !there && want.Tap != nil && s.now.Sysctls[netstate.NoIPv6] == "1"
		if (there && now.NoIPv6 && s.mayAdd(want.Index) || newTap) && slices.ContainsFunc(s.want.Addresses, wanted) {
			s.add(netstate.SysctlSet{Path: netstate.DisableIPv6(cmp.Or(now.Name, want.Name)), Value: "0"})
		}
	}
}

// takesDown reports whether changeNIC takes the NIC down: for another name, for a link-local address, and for another
// MAC unless the NIC takes it while it is up.
func (s *stepper) takesDown(want netstate.Link) bool {
	now, there := s.link(want.Index)
	if want.Index != s.Index || !there || !now.Up {
		return false
	}
	if s.makesLinkLocal(now, want) && !now.NoCarrier {
		return true
	}
	return now.Name != want.Name || now.MAC != want.MAC && !netstate.ChangesMACUp(now.Kind)
}

// makesLinkLocal reports whether the NIC gets back the mode by which the kernel makes the link-local address that it
// has not made so far. With a carrier the kernel makes it when the NIC comes up.
func (s *stepper) makesLinkLocal(now, want netstate.Link) bool {
	return s.want.LateLinkLocal && now.AddrGen == netstate.AddrGenNone && want.AddrGen != netstate.AddrGenNone
}

// isForgotten reports whether the kernel forgets the neighbour because the link's MAC changes, or the NIC goes down.
func (s *stepper) isForgotten(n netstate.Neighbour) bool {
	now, there := s.link(n.Link)
	want, _ := s.wantedLink(n.Link)
	return there && n.Address.IsValid() && (!want.MAC.IsZero() && now.MAC != want.MAC || s.takesDown(want))
}

// leavesDown reports whether the NIC goes down before it leaves its bridge: a macvlan in mode passthru, which was down
// when it became a port. Such a macvlan hands on to the link below it what a bridge asks of a port that is up, and not
// what it asks of one that is down (macvlan_change_rx_flags in drivers/net/macvlan.c). So that link would count a user
// less of all multicast than it has, and receive all of it from then on.
func (s *stepper) leavesDown() bool {
	now, _ := s.link(s.Index)
	want, wanted := s.wantedLink(s.Index)
	return wanted && now.Mode == "passthru" && now.Master != 0 && now.Master != want.Master && s.takesDown(want)
}

// changeNIC sets the NIC's name and MAC, for which the NIC may have to be down, and its other properties.
func (s *stepper) changeNIC() {
	now, _ := s.link(s.Index)
	want, _ := s.wantedLink(s.Index)
	if now.Master != want.Master && !s.removedLinks()[now.Master] {
		alone := now
		alone.Master = 0
		s.setLink(now, alone)
	}
	if s.takesDown(want) && !s.leavesDown() {
		s.takeDown()
	}
	if now.Group != netstate.GroupOfNICs && want.Group != netstate.GroupOfNICs {
		want.Group = now.Group // another group is another program's
	}
	if !s.AllMulticast {
		want.AllMulticast = now.AllMulticast
	}
	if (want.AddrGen != netstate.AddrGenNone || now.AddrGen == netstate.AddrGenNoIPv6) && !s.makesLinkLocal(now, want) {
		want.AddrGen = now.AddrGen // bringUp sets others
	}
	want.QueueLength, want.Alias, want.Master, want.Up = now.QueueLength, now.Alias, now.Master, now.Up
	s.setLink(now, want)
}

// takeDown takes the NIC down for a moment.
func (s *stepper) takeDown() {
	nic, _ := s.link(s.Index)
	down := nic
	down.Up = false
	s.setLink(nic, down)
}

// setLink gives a link the properties of want in which it differs from have. A MAC, an MTU, a queue's length and an
// alias that want does not have stay.
func (s *stepper) setLink(have, want netstate.Link) {
	want.MAC, want.MTU = cmp.Or(want.MAC, have.MAC), cmp.Or(want.MTU, have.MTU)
	want.QueueLength, want.Alias = cmp.Or(want.QueueLength, have.QueueLength), cmp.Or(want.Alias, have.Alias)
	if set := (netstate.LinkSet{Have: have, Want: want, MasterName: s.newName(want.Master)}); len(set.Properties()) > 0 {
		s.add(set)
	}
}

// addLinks creates missing links, and sets the properties of all links of the wiring, except those that
// changeNIC sets.
func (s *stepper) addLinks() {
	for _, want := range s.want.Links {
		now, there := s.link(want.Index)
		if !there {
			now = netstate.Link{Index: want.Index, Name: want.Name, Kind: want.Kind, Tap: want.Tap, NoARP: want.NoARP}
			if want.Tap == nil {
				s.add(netstate.LinkAdd{Index: want.Index, Name: want.Name, Kind: want.Kind, MAC: want.MAC, MTU: want.MTU, Group: want.Group})
				now.MAC, now.MTU, now.Group = want.MAC, want.MTU, want.Group
			} else {
				now.MTU = newTapMTU
			}
		}
		if want.Index == s.Index {
			continue
		}
		// A link loses IPv6 with a small MTU and gets it back with a larger one: set the mode after that.
		if want.AddrGen == netstate.AddrGenNoIPv6 || now.AddrGen == netstate.AddrGenNoIPv6 {
			want.AddrGen = now.AddrGen
		}
		want.AllMulticast, want.Master, want.Up = now.AllMulticast, now.Master, now.Up
		s.setLink(now, want)
	}
	for _, want := range s.want.Links {
		now, _ := s.link(want.Index)
		own := want.Index != s.Index
		if have := now.Shape; want.Tap != nil && !have.Same(want.Shape) && (want.Shape.Rate != 0 || have.Other == "") {
			s.add(netstate.ShapeSet{Index: want.Index, Link: want.Name, Shape: want.Shape})
		}
		if d := now.Bridge.Differing(want.Bridge); d != nil {
			s.add(netstate.BridgeSet{Index: want.Index, Link: want.Name, Settings: d})
		}
		if now.Master != want.Master && (want.Master != 0 || own) {
			have := want
			have.Master = now.Master
			s.setLink(have, want)
			now.BridgePort = netstate.DefaultBridgePort
		}
		if d := now.BridgePort.Differing(want.BridgePort); d != nil {
			s.add(netstate.BridgePortSet{Index: want.Index, Link: want.Name, Settings: d})
		}
		for _, c := range []struct {
			name    string
			set, on bool
		}{
			// A new link has the namespace's default of forwarding, which may be on: that does no harm.
			{"forwarding", want.Forwarding4 && !now.Forwarding4 || !own && now.Forwarding4 != want.Forwarding4, want.Forwarding4},
			{"accept_local", own && want.AcceptLocal != now.AcceptLocal, want.AcceptLocal},
			{"accept_source_route", want.NoSourceRoutes && !now.NoSourceRoutes, false},
			{"arp_ignore", own && want.Forwarding4 && now.IgnoresARP, false}, // the guest asks for its gateway
			{"proxy_arp", own && want.ProxyARP != now.ProxyARP, want.ProxyARP},
			{"route_localnet", own && want.RouteLocalnet != now.RouteLocalnet, want.RouteLocalnet},
		} {
			if c.set {
				s.add(netstate.ConfSet{Index: want.Index, Link: want.Name, Name: c.name, On: c.on})
			}
		}
	}
}

// newTapMTU is the MTU of a new tap.
const newTapMTU = 1500

// setUpOrDown leaves a NIC down that was found down, unless the binding brought it up.
func (s *stepper) setUpOrDown(want netstate.Link) {
	have := want
	have.Up = s.isUp(want)
	if want.Index == s.Index && !s.ManageAddresses && !want.Up && !s.Raised {
		want.Up = have.Up || s.takesDown(want) // another program has brought it up
	}
	s.setLink(have, want)
}

// isUp reports whether the link is up before setUpOrDown: changeNIC may have taken the NIC down.
func (s *stepper) isUp(want netstate.Link) bool {
	now, there := s.link(want.Index)
	return there && now.Up && !s.takesDown(want)
}

func (s *stepper) comesUp(want netstate.Link) bool { return want.Up && !s.isUp(want) }
