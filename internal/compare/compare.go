// Package compare finds the operations that lead from a namespace as it is to a namespace as it is wanted,
// and says in words what differs. So one comparison is Setup, a repeated Setup, repair, Check, Teardown and
// the recovery from a kill. It is pure.
package compare

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// State is how a namespace shall look: the links of one NIC's wiring and what hangs on them, and nothing
// else. A link that is to be created has a negative index, one of those below, until the comparison gives it
// one.
type State struct {
	// Links end with the guest's tap, if there is one: it comes up when everything else is there.
	Links      []netstate.Link
	Addresses  []netstate.Address
	Routes     []netstate.Route
	Neighbours []netstate.Neighbour
	Filters    []netstate.Filter
	Tables     []firewall.Table
	Sysctls    map[string]string
}

// Indices of links that are to be created.
const (
	NewHolder = -1 - iota
	NewBridge
	NewTap
	NewResponder
)

// NIC is the NIC of a wiring, and what of it the wiring may change.
type NIC struct {
	Names netstate.Names
	Index int // as found
	// Whole: the NIC's addresses, routes and neighbours are the wiring's to add and to remove.
	Whole bool
	// Mend: the NIC's addresses and routes that are missing are added, even if the NIC is not Whole.
	Mend bool
	// Leaves: the NIC can go away, because the guest has it.
	Leaves bool
	// Direct: the wiring creates no link and no table.
	Direct bool
	// AllMulticast: the wiring made the NIC receive all multicast groups. Raised: the wiring brought it up.
	AllMulticast, Raised bool
}

// Steps returns the operations that lead from the namespace as it is now to the state, in order. There are
// none if nothing differs. The error is infra.ErrNoNIC if the NIC has gone; then the operations are those
// that do not need the NIC.
func Steps(now netstate.Snapshot, want State, nic NIC) ([]netstate.Op, error) {
	s := &stepper{now: now, NIC: nic}
	s.want = place(want, now, s.created())
	return s.steps()
}

// stepper collects the operations that lead from one state of a namespace to another.
type stepper struct {
	NIC
	now  netstate.Snapshot
	want State
	ops  []netstate.Op
	// known are the routes of now by what Route.Same compares first; made when they are needed.
	known map[routeKey][]netstate.Route
}

// steps compares what is with what is wanted. The order serves both ways: rules are in force
// before anything they guard, routes leave before addresses and come after them, a name is free
// before it is taken, and the guest's tap comes up last.
func (s *stepper) steps() ([]netstate.Op, error) {
	now := s.now
	s.dropLinks()
	s.newTaps()
	s.tables()
	s.sysctls(netstate.SysctlOrder(s.Names.NIC), false)
	s.allowIPv6()
	var err error
	if _, there := now.Link(s.Index); there && len(s.want.Links) > 0 {
		s.strip()
		s.moveNIC()
		s.newLinks()
		s.settle()
		s.sysctls(netstate.OfBridge(s.Names.Bridge), true) // it has to be there
	} else if !there && !s.Leaves {
		err = fmt.Errorf("NIC %s: %w any more in this namespace", s.Names.NIC, infra.ErrNoNIC)
	}
	for _, i := range now.Tables {
		if !s.Direct && !slices.ContainsFunc(s.want.Tables, func(t firewall.Table) bool { return t.Family == i.Family && t.Name == i.Name }) {
			s.add(netstate.TableDel{Family: i.Family, Name: i.Name})
		}
	}
	return s.ops, err
}

// tables come before the links that they guard are up, and after the taps, as a filter hangs on one.
func (s *stepper) tables() {
	for _, t := range s.want.Tables {
		at := slices.IndexFunc(s.now.Tables, func(i firewall.Image) bool { return i.Family == t.Family && i.Name == t.Name })
		if at >= 0 && reflect.DeepEqual(s.now.Tables[at], t.Image()) && !s.loses(t) {
			continue
		}
		// One that is there is replaced, in one transaction. Not deleting what is not there matters:
		// the kernel would wait for the deletion's end when the socket is closed, 2 to 20 ms.
		if at >= 0 {
			s.add(netstate.TableDel{Family: t.Family, Name: t.Name})
		}
		s.add(netstate.TableSet{Table: t.Resolve(s.indexOf)})
	}
}

// indexOf is that of a link of the wiring; 0: there is none.
func (s *stepper) indexOf(name string) int {
	for _, l := range s.want.Links {
		if l.Name == name {
			return l.Index
		}
	}
	return 0
}

// loses says whether a chain of the table hangs on a link that is made anew: before Linux 6.16 it goes
// with the old one, and the new one would be up without it until the namespace is looked at again.
func (s *stepper) loses(t firewall.Table) bool {
	return slices.ContainsFunc(t.Chains, func(c firewall.Chain) bool {
		return slices.ContainsFunc(s.want.Links, func(l netstate.Link) bool {
			_, there := s.now.Link(l.Index)
			return l.Name == c.Device && !there
		})
	})
}

// sysctls sets those that the kernel has, or is about to have.
func (s *stepper) sysctls(paths []string, coming bool) {
	for _, path := range paths {
		value, wanted := s.want.Sysctls[path]
		if have, there := s.now.Sysctls[path]; wanted && (there || coming) && have != value {
			s.add(netstate.SysctlSet{Path: path, Value: value})
		}
	}
}

func (s *stepper) add(op netstate.Op) { s.ops = append(s.ops, op) }

// ours are the links that we created: marked, or a tap that was made and not yet marked. Of the two
// marks one is enough if somebody changed the other; the group, if the name is ours as well.
func (s *stepper) created() []netstate.Link {
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
		fresh := l.Tap != nil && l.Alias == "" && (l.Name == s.Names.Tap || l.Name == s.Names.Responder)
		if marked || fresh {
			ours = append(ours, l)
		}
	}
	return ours
}

// firstIndex is far from those that the kernel gives by itself, so that no link that somebody else
// makes meanwhile is taken for one of ours.
const firstIndex = 1 << 20

// place gives the links that are to be created their indices: those that they have already, or
// the first free ones. So a link that is made anew comes where an undisturbed run puts it.
func place(want State, now netstate.Snapshot, ours []netstate.Link) State {
	next := firstIndex
	free := func() int {
		for slices.ContainsFunc(now.Links, func(l netstate.Link) bool { return l.Index == next }) {
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
		at := slices.IndexFunc(ours, func(o netstate.Link) bool {
			return o.Name == l.Name && o.Kind == l.Kind && reflect.DeepEqual(o.Tap, l.Tap)
		})
		if at >= 0 {
			index[l.Index] = ours[at].Index
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
	for i := range placed.Links {
		placed.Links[i].Master = resolve(placed.Links[i].Master)
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

func (s *stepper) wanted(index int) (netstate.Link, bool) {
	i := slices.IndexFunc(s.want.Links, func(l netstate.Link) bool { return l.Index == index })
	if i < 0 {
		return netstate.Link{}, false
	}
	return s.want.Links[i], true
}

// newTaps come first, as they are made by ioctl and not by netlink.
func (s *stepper) newTaps() {
	for _, l := range s.want.Links {
		if _, there := s.now.Link(l.Index); !there && l.Tap != nil {
			s.add(netstate.TapAdd{Index: l.Index, Link: l.Name, Tap: *l.Tap, VNetHeader: l.Name == s.Names.Tap})
		}
	}
}

// dropLinks takes away what is ours and not wanted: the whole group in one go, which the kernel
// does in a third of the time.
func (s *stepper) dropLinks() {
	var grouped, single []netstate.Link
	for _, l := range s.created() {
		if _, wanted := s.wanted(l.Index); wanted {
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

// dropped says whether the link goes in dropLinks.
func (s *stepper) dropped(index int) bool {
	_, wanted := s.wanted(index)
	return !wanted && slices.ContainsFunc(s.created(), func(l netstate.Link) bool { return l.Index == index })
}

// inScope says whether what hangs on the link is ours to change.
func (s *stepper) inScope(index int) bool {
	if index == s.Index {
		return s.Whole
	}
	_, wanted := s.wanted(index)
	return wanted
}

// allowIPv6 lets links that are there have the IPv6 addresses that they shall have.
func (s *stepper) allowIPv6() {
	for _, want := range s.want.Links {
		now, there := s.now.Link(want.Index)
		wanted := func(a netstate.Address) bool { return a.Link == want.Index && a.Prefix.Addr().Is6() }
		if there && now.NoIPv6 && s.adds(want.Index) && slices.ContainsFunc(s.want.Addresses, wanted) {
			s.add(netstate.SysctlSet{Path: netstate.DisableIPv6(now.Name), Value: "0"})
		}
	}
}

// adds says whether what is missing at the link is to be added.
func (s *stepper) adds(index int) bool { return s.inScope(index) || s.Mend && index == s.Index }

// strip removes routes, addresses and neighbours that are not wanted, by name: they would go with
// the link's state as well, but then nobody could see it in the plan.
func (s *stepper) strip() {
	var leaving []netstate.Address
	for _, a := range s.now.Addresses {
		if s.Whole && a.Link == s.Index && !s.stays(a) {
			leaving = append(leaving, a)
		}
	}
	for _, r := range s.now.Routes {
		// The kernel's own go with their addresses; one whose address stays does not.
		if (r.Protocol != netstate.ProtocolKernel || s.implied(r)) && (s.routeInScope(r) || Sourced(r, s.Index, leaving)) && !s.wantsRoute(r) {
			s.add(netstate.RouteDel{Link: s.linkName(r.Link), Route: r, Hops: hopNames(r, s.linkName)})
		}
	}
	for _, n := range s.now.Neighbours {
		if n.Permanent && s.inScope(n.Link) && !slices.Contains(s.want.Neighbours, n) {
			s.add(netstate.NeighbourDel{Link: s.linkName(n.Link), Neighbour: n})
		}
	}
	// The last one first: an IPv4 address takes those of its network that came after it along.
	for _, a := range slices.Backward(s.now.Addresses) {
		if s.inScope(a.Link) && !s.stays(a) {
			s.add(netstate.AddressDel{Link: s.linkName(a.Link), Address: a})
		}
	}
}

// stays says whether an address that is there is as wanted. Where one is missing, the others of its
// link and family are added anew with it, as the kernel lists them in the order of their coming.
func (s *stepper) stays(a netstate.Address) bool {
	var now, want []netstate.Address
	like := func(b netstate.Address) bool {
		return b.Link == a.Link && b.Prefix.Addr().Is4() == a.Prefix.Addr().Is4()
	}
	for _, b := range s.want.Addresses {
		if like(b) {
			want = append(want, b)
		}
	}
	for _, b := range s.now.Addresses {
		if like(b) && slices.ContainsFunc(want, b.Same) {
			now = append(now, b)
		}
	}
	return slices.ContainsFunc(now, a.Same) && slices.EqualFunc(now, want, netstate.Address.Same)
}

func (s *stepper) routeInScope(r netstate.Route) bool {
	return s.inScope(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.inScope(h.Link) })
}

// Sourced says whether the route asks for one of the link's addresses as the source: with that
// address it goes, wherever it leads.
func Sourced(r netstate.Route, link int, addresses []netstate.Address) bool {
	return r.PrefSrc.IsValid() && slices.ContainsFunc(addresses, func(a netstate.Address) bool { return a.Link == link && a.Prefix.Addr() == r.PrefSrc })
}

func (s *stepper) wantsRoute(r netstate.Route) bool {
	return slices.ContainsFunc(s.want.Routes, r.Same)
}

// linkName is the link's name before anything is changed; newName the one it will have.
func (s *stepper) linkName(index int) string {
	l, _ := s.now.Link(index)
	return l.Name
}

func (s *stepper) newName(index int) string {
	if l, ok := s.wanted(index); ok {
		return l.Name
	}
	return s.linkName(index)
}

func hopNames(r netstate.Route, name func(index int) string) []string {
	var names []string
	for _, h := range r.Hops {
		names = append(names, name(h.Link))
	}
	return names
}

// moveNIC gives the NIC its name and MAC, for which it has to be down.
func (s *stepper) moveNIC() {
	now, _ := s.now.Link(s.Index)
	want, _ := s.wanted(s.Index)
	set := netstate.LinkSet{Index: s.Index, Link: now.Name}
	if now.Name != want.Name {
		set.Name = want.Name
	}
	if now.MAC != want.MAC {
		set.MAC = want.MAC
	}
	if now.MTU != want.MTU {
		set.MTU = want.MTU
	}
	if now.NoARP != want.NoARP {
		set.NoARP = &want.NoARP
	}
	if s.AllMulticast && now.AllMulticast != want.AllMulticast {
		set.AllMulticast = &want.AllMulticast
	}
	if want.AddrGen == netstate.AddrGenNone && now.AddrGen != netstate.AddrGenNone && now.AddrGen != netstate.AddrGenNoIPv6 {
		set.AddrGen = &want.AddrGen
	}
	master := netstate.LinkSet{Index: s.Index, Link: now.Name}
	if now.Master != 0 && now.Master != want.Master && !s.dropped(now.Master) {
		master.Master = new(int)
		s.add(master)
	}
	if set.Name != "" || !set.MAC.IsZero() {
		if now.Up {
			s.add(netstate.LinkSet{Index: s.Index, Link: now.Name, Up: new(bool)})
		}
	}
	if !set.Empty() {
		s.add(set)
	}
}

// newLinks creates what is missing and gives every link of the wiring what it shall have, but for
// the NIC's name and MAC.
func (s *stepper) newLinks() {
	for _, want := range s.want.Links {
		now, there := s.now.Link(want.Index)
		if !there {
			now = netstate.Link{Index: want.Index, Name: want.Name, Kind: want.Kind, Tap: want.Tap, NoARP: want.NoARP}
			if want.Tap == nil {
				s.add(netstate.LinkAdd{Index: want.Index, Name: want.Name, Kind: want.Kind, MAC: want.MAC, MTU: want.MTU, Group: want.Group})
				now.MAC, now.MTU, now.Group = want.MAC, want.MTU, want.Group
			} else {
				now.MTU = newTapMTU
			}
			if want.AddrGen == netstate.AddrGenNoIPv6 {
				now.AddrGen = netstate.AddrGenNoIPv6
			}
		}
		if want.Index == s.Index {
			continue
		}
		set := netstate.LinkSet{Index: want.Index, Link: want.Name}
		if !want.MAC.IsZero() && now.MAC != want.MAC {
			set.MAC = want.MAC
		}
		if now.MTU != want.MTU {
			set.MTU = want.MTU
		}
		if now.NoARP != want.NoARP {
			set.NoARP = &want.NoARP
		}
		if now.Group != want.Group {
			set.Group = want.Group
		}
		if now.Alias != want.Alias {
			set.Alias = want.Alias
		}
		// IPv6 goes and comes with the MTU; what has none yet is told when it has.
		if now.AddrGen != want.AddrGen && want.AddrGen != netstate.AddrGenNoIPv6 && !(there && now.AddrGen == netstate.AddrGenNoIPv6) {
			set.AddrGen = &want.AddrGen
		}
		if !set.Empty() {
			s.add(set)
		}
	}
	for _, want := range s.want.Links {
		now, there := s.now.Link(want.Index)
		if d := now.Bridge.Differing(want.Bridge); d != nil {
			s.add(netstate.BridgeSet{Index: want.Index, Link: want.Name, Settings: d})
		}
		if want.Master != 0 && (!there || now.Master != want.Master) {
			s.add(netstate.LinkSet{Index: want.Index, Link: want.Name, Master: &want.Master, MasterName: s.newName(want.Master)})
			now.BridgePort = netstate.DefaultBridgePort
		}
		if want.Master == 0 && want.Index != s.Index && now.Master != 0 {
			s.add(netstate.LinkSet{Index: want.Index, Link: want.Name, Master: new(int)})
		}
		if d := now.BridgePort.Differing(want.BridgePort); d != nil {
			s.add(netstate.BridgePortSet{Index: want.Index, Link: want.Name, Settings: d})
		}
		// A link of ours has the namespace's default where it is not told; that does no harm.
		if want.Forwarding4 && !now.Forwarding4 || want.Index == s.Index && now.Forwarding4 != want.Forwarding4 {
			s.add(netstate.ConfSet{Index: want.Index, Link: want.Name, Name: "forwarding", On: want.Forwarding4})
		}
		if want.Index != s.Index && want.RouteLocalnet != now.RouteLocalnet {
			s.add(netstate.ConfSet{Index: want.Index, Link: want.Name, Name: "route_localnet", On: want.RouteLocalnet})
		}
	}
}

// newTapMTU is what a new tap has.
const newTapMTU = 1500

// settle brings the links up and puts addresses and routes on them. Before a tap is up its filters
// are there, and the guest's tap, the last of the links, is up only when all else is.
func (s *stepper) settle() {
	last := len(s.want.Links) - 1
	if s.want.Links[last].Name != s.Names.Tap {
		last++
	}
	s.filters()
	for _, want := range s.want.Links[:last] {
		s.up(want)
	}
	s.addresses()
	s.routes()
	for _, n := range s.want.Neighbours {
		if s.inScope(n.Link) && !slices.Contains(s.now.Neighbours, n) {
			s.add(netstate.NeighbourAdd{Link: s.newName(n.Link), Neighbour: n})
		}
	}
	for _, want := range s.want.Links[last:] {
		s.up(want)
	}
	now, _ := s.now.Link(s.Index)
	if want, _ := s.wanted(s.Index); want.AddrGen != netstate.AddrGenNone && now.AddrGen != want.AddrGen {
		s.add(netstate.LinkSet{Index: s.Index, Link: want.Name, AddrGen: &want.AddrGen})
	}
}

// up leaves a NIC that was found down to whoever brings it up, unless the binding does.
func (s *stepper) up(want netstate.Link) {
	if want.Index == s.Index && !s.Whole && !want.Up && !s.Raised {
		return
	}
	if s.isUp(want) != want.Up {
		s.add(netstate.LinkSet{Index: want.Index, Link: want.Name, Up: &want.Up})
	}
}

// isUp says whether a link is up before up is called.
func (s *stepper) isUp(want netstate.Link) bool {
	now, there := s.now.Link(want.Index)
	wasDowned := want.Index == s.Index && there && now.Up && (now.Name != want.Name || now.MAC != want.MAC)
	return there && now.Up && !wasDowned
}

func (s *stepper) rises(want netstate.Link) bool { return want.Up && !s.isUp(want) }

// addresses are added without duplicate address detection: the namespace had them a moment ago,
// and a second of silence would be a difference.
func (s *stepper) addresses() {
	for _, i := range addingOrder(s.want.Addresses) {
		a := s.want.Addresses[i]
		if !s.adding(a) {
			continue
		}
		name := s.newName(a.Link)
		link, _ := s.wanted(a.Link)
		if a.Prefix.Addr().Is6() && link.Up && a.Flags&netstate.AddrNoDAD == 0 {
			quick := a
			quick.Flags |= netstate.AddrNoDAD
			s.add(netstate.AddressAdd{Link: name, Address: quick})
		}
		s.add(netstate.AddressAdd{Link: name, Address: a})
		for _, r := range netstate.Connected(a, link, s.want.Addresses[:i]) {
			if !s.wantsRoute(r) {
				s.add(netstate.RouteDel{Link: name, Route: r, Hops: nil})
			}
		}
	}
}

// adding says whether an address that is wanted is missing, or is to come anew. At a NIC that is not
// ours it is enough that the address is there.
func (s *stepper) adding(a netstate.Address) bool {
	if s.inScope(a.Link) {
		return !s.stays(a)
	}
	return s.adds(a.Link) && !slices.ContainsFunc(s.now.Addresses, func(o netstate.Address) bool { return o.Link == a.Link && o.Prefix.Addr() == a.Prefix.Addr() })
}

// addingOrder is the order in which addresses are to be added, so that the kernel lists them as they
// are listed, and chooses among them as it did: IPv4 addresses go to the end of its list, IPv6
// addresses to the beginning.
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

// routes that the kernel makes of addresses come by themselves. A next hop that no other route
// reaches any more gets one while its own route is added, or the kernel would refuse that.
func (s *stepper) routes() {
	var own, onLink, behind []netstate.Route
	for _, r := range s.want.Routes {
		switch {
		case !s.routeAdds(r) && !(s.Whole && Sourced(r, s.Index, s.want.Addresses)) || s.knows(r) || s.comes(r):
		case r.Type == netstate.RouteLocal && !r.PrefSrc.IsValid():
			own = append(own, r) // others may have a source in it
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

// reaches says whether a route that is wanted leads to the next hop on its link.
func (s *stepper) reaches(h netstate.Hop) bool {
	if h.Gateway.IsLinkLocalUnicast() && h.Gateway.Is6() {
		return true
	}
	return slices.ContainsFunc(s.want.Routes, func(r netstate.Route) bool {
		return r.Link == h.Link && r.Table == netstate.TableMain && r.Type == netstate.RouteUnicast &&
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

func (s *stepper) routeAdds(r netstate.Route) bool {
	return s.adds(r.Link) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return s.adds(h.Link) })
}

// routeKey is what most routes differ in.
type routeKey struct {
	destination netip.Prefix
	table       uint32
}

// knows says whether the route is there. A namespace can have many.
func (s *stepper) knows(r netstate.Route) bool {
	if s.known == nil {
		s.known = map[routeKey][]netstate.Route{}
		for _, o := range s.now.Routes {
			key := routeKey{o.Destination, o.Table}
			s.known[key] = append(s.known[key], o)
		}
	}
	return slices.ContainsFunc(s.known[routeKey{r.Destination, r.Table}], r.Same)
}

// comes says whether the kernel makes the route of an address that is added, or when a link comes up.
func (s *stepper) comes(r netstate.Route) bool {
	for i, a := range s.want.Addresses {
		l, _ := s.wanted(a.Link)
		if slices.ContainsFunc(netstate.Connected(a, l, s.want.Addresses[:i]), r.Same) && (s.adding(a) || s.rises(l)) {
			return true
		}
	}
	return false
}

// implied says whether the kernel makes the route of an address that is wanted.
func (s *stepper) implied(r netstate.Route) bool {
	for i, a := range s.want.Addresses {
		l, _ := s.wanted(a.Link)
		if slices.ContainsFunc(netstate.Connected(a, l, s.want.Addresses[:i]), r.Same) {
			return true
		}
	}
	return false
}

// filters adds those that are missing at the ingress of each link. What else is there leaves, by its
// preference, or where that does not tell it with all the others.
func (s *stepper) filters() {
	for _, l := range s.want.Links {
		now, want := netstate.FiltersOf(s.now.Filters, l.Index), netstate.FiltersOf(s.want.Filters, l.Index)
		if len(want) == 0 {
			continue
		}
		ingress := slices.Contains(s.now.Ingress, l.Index)
		if slices.ContainsFunc(now, func(f netstate.Filter) bool { return f.Foreign != "" }) {
			s.add(netstate.IngressDel{Index: l.Index, Link: l.Name})
			ingress, now = false, nil
		}
		if !ingress {
			s.add(netstate.IngressAdd{Index: l.Index, Link: l.Name})
		}
		var left []netstate.Filter // by preference and protocol
		for _, f := range now {
			if !slices.ContainsFunc(want, f.Equal) && !slices.ContainsFunc(left, f.Beside) {
				s.add(netstate.FilterDel{Link: l.Name, Filter: f})
				left = append(left, f)
			}
		}
		for _, f := range want {
			if !slices.ContainsFunc(now, f.Equal) || slices.ContainsFunc(left, f.Beside) {
				s.add(netstate.FilterAdd{Link: l.Name, Filter: f, Target: s.newName(f.Target)})
			}
		}
	}
}
