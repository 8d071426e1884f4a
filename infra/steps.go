package infra

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// String is the whole plan as an administrator would type it, from the namespace as it was found.
func (p *Plan) String() string {
	ops, err := p.Steps(p.found)
	if err != nil {
		return err.Error() // cannot be: the NIC was found
	}
	return Text(ops)
}

// Text is one command a line.
func Text(ops []Op) string {
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Steps are what is left to do to wire the NIC, in order, given the namespace as it is now: as it
// was found, half wired, damaged, or wired; then there are none. The error is ErrNoNIC if the NIC
// has gone.
func (p *Plan) Steps(now Snapshot) ([]Op, error) {
	return p.stepper(now, p.wired, true).steps()
}

// Undo are the steps back to the namespace as it was found. The error is ErrNoNIC if the NIC has
// gone; then the steps are those that remove what we created.
func (p *Plan) Undo(now Snapshot) ([]Op, error) {
	nic := p.nic()
	want := wiring{sysctls: map[string]string{}}
	if len(p.wired.links) > 0 {
		want.links = []Link{nic}
	}
	own := ofBridge(p.names.Bridge)
	for path := range p.wired.sysctls {
		if !slices.Contains(own, path) && !slices.Contains(now.Needed, path) {
			want.sysctls[path] = cmp.Or(p.found.Sysctls[path], newBridgeCall)
		}
	}
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			want.addresses = append(want.addresses, a)
		}
	}
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) || sourced(r, nic.Index, p.found.Addresses) {
			want.routes = append(want.routes, r)
		}
	}
	for _, n := range p.found.Neighbours {
		if n.Link == nic.Index && n.Permanent {
			want.neighbours = append(want.neighbours, n)
		}
	}
	// A NIC that listens to nobody could not have what it lost meanwhile anew, and one that goes down again
	// loses its addresses by that.
	mend := p.spec.Binding.Kind() == cache.BindingRedirect || p.spec.Binding.Kind() == cache.BindingMacvtap
	return p.stepper(now, want, mend).steps()
}

// stepper compares a namespace with what is wanted of it. A NIC behind which a guest is hidden
// keeps what others gave it meanwhile; what it lacks is mended only for the guest's sake.
func (p *Plan) stepper(now Snapshot, want wiring, mend bool) *stepper {
	now.Links = slices.DeleteFunc(slices.Clone(now.Links), p.isAnother)
	nic := p.nic()
	s := &stepper{
		now: now, names: p.names, nic: nic.Index, mend: mend, direct: Direct(p.spec.Binding),
		whole: p.Record.Binding == cache.BindingBridge, leaves: p.Record.Binding == cache.BindingSRIOV,
	}
	for _, l := range p.wired.links {
		if l.Index == nic.Index {
			s.groups = l.AllMulticast && !nic.AllMulticast
			s.raised = l.Up && !nic.Up
		}
	}
	s.want = place(want, now, s.ours())
	return s
}

// isAnother says whether a link has come under the index of a NIC that has gone.
func (p *Plan) isAnother(l Link) bool {
	nic := p.nic()
	named := l.Name == nic.Name || l.Name == p.names.Moved
	return l.Index == nic.Index && !named && l.MAC != nic.MAC && l.MAC != deriveMAC(nic, "moved")
}

// nic is the NIC as it was found.
func (p *Plan) nic() Link {
	nic, _ := p.found.Named(p.names.NIC) // NewPlan has seen it
	return nic
}

// stepper collects the operations that lead from one state of a namespace to another.
type stepper struct {
	now   Snapshot
	want  wiring
	names Names
	nic   int
	// whole says that the NIC's addresses, routes and neighbours are ours to change as well, mend
	// that those which are wanted come back at least.
	whole, mend bool
	// leaves says that the NIC can go: then the guest has it.
	leaves bool
	// direct says that no link and no table is ours.
	direct bool
	// groups says that the NIC hears all groups for our sake, raised that it is up for it.
	groups, raised bool
	ops            []Op
	// routes of now by what same compares first; made when it is needed.
	known map[routeKey][]Route
}

// steps compares what is with what is wanted. The order serves both ways: rules are in force
// before anything they guard, routes leave before addresses and come after them, a name is free
// before it is taken, and the guest's tap comes up last.
func (s *stepper) steps() ([]Op, error) {
	now := s.now
	s.dropLinks()
	s.newTaps()
	s.tables()
	// Forwarding comes last: switching it on deletes the routes that came by router advertisement,
	// unless accept_ra is 2 already.
	s.sysctls(append([]string{portStart, pingGroups, noIPv6, acceptRA(s.names.NIC), forwarding6, forceForwarding(s.names.NIC)}, bridgeCalls...), false)
	s.allowIPv6()
	var err error
	if _, there := now.link(s.nic); there && len(s.want.links) > 0 {
		s.strip()
		s.moveNIC()
		s.newLinks()
		s.settle()
		s.sysctls(ofBridge(s.names.Bridge), true) // it has to be there
	} else if !there && !s.leaves {
		err = fmt.Errorf("NIC %s: %w any more in this namespace", s.names.NIC, ErrNoNIC)
	}
	for _, i := range now.Tables {
		if !s.direct && !slices.ContainsFunc(s.want.tables, func(t firewall.Table) bool { return t.Family == i.Family && t.Name == i.Name }) {
			s.add(TableDel{i.Family, i.Name})
		}
	}
	return s.ops, err
}

// tables come before the links that they guard are up, and after the taps, as a filter hangs on one.
func (s *stepper) tables() {
	for _, t := range s.want.tables {
		at := slices.IndexFunc(s.now.Tables, func(i firewall.Image) bool { return i.Family == t.Family && i.Name == t.Name })
		if at >= 0 && reflect.DeepEqual(s.now.Tables[at], t.Image()) && !s.loses(t) {
			continue
		}
		// One that is there is replaced, in one transaction. Not deleting what is not there matters:
		// the kernel would wait for the deletion's end when the socket is closed, 2 to 20 ms.
		if at >= 0 {
			s.add(TableDel{t.Family, t.Name})
		}
		s.add(TableSet{t.Resolve(s.indexOf)})
	}
}

// indexOf is that of a link of the wiring; 0: there is none.
func (s *stepper) indexOf(name string) int {
	for _, l := range s.want.links {
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
		return slices.ContainsFunc(s.want.links, func(l Link) bool {
			_, there := s.now.link(l.Index)
			return l.Name == c.Device && !there
		})
	})
}

// sysctls sets those that the kernel has, or is about to have.
func (s *stepper) sysctls(paths []string, coming bool) {
	for _, path := range paths {
		value, wanted := s.want.sysctls[path]
		if have, there := s.now.Sysctls[path]; wanted && (there || coming) && have != value {
			s.add(SysctlSet{path, value})
		}
	}
}

func (s *stepper) add(op Op) { s.ops = append(s.ops, op) }

// ours are the links that we created: marked, or a tap that was made and not yet marked. Of the two
// marks one is enough if somebody changed the other; the group, if the name is ours as well.
func (s *stepper) ours() []Link {
	if s.direct {
		return nil
	}
	var ours []Link
	for _, l := range s.now.Links {
		if l.Index == s.nic {
			continue
		}
		grouped := l.Group == Group(s.nic) && (l.Alias == "" || l.Name == s.names.NIC || slices.Contains(s.names.created(), l.Name))
		marked := l.Alias == Mark(s.names.NIC) || grouped
		fresh := l.Tap != nil && l.Alias == "" && (l.Name == s.names.Tap || l.Name == s.names.Port)
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
func place(want wiring, now Snapshot, ours []Link) wiring {
	next := firstIndex
	free := func() int {
		for slices.ContainsFunc(now.Links, func(l Link) bool { return l.Index == next }) {
			next++
		}
		next++
		return next - 1
	}
	index := map[int]int{}
	placed := want
	placed.links = slices.Clone(want.links)
	for i, l := range want.links {
		if l.Index > 0 {
			continue
		}
		at := slices.IndexFunc(ours, func(o Link) bool {
			return o.Name == l.Name && o.Kind == l.Kind && reflect.DeepEqual(o.Tap, l.Tap)
		})
		if at >= 0 {
			index[l.Index] = ours[at].Index
		} else {
			index[l.Index] = free()
		}
		placed.links[i].Index = index[l.Index]
	}
	resolve := func(i int) int {
		if i < 0 {
			return index[i]
		}
		return i
	}
	for i := range placed.links {
		placed.links[i].Master = resolve(placed.links[i].Master)
	}
	placed.addresses = slices.Clone(want.addresses)
	for i := range placed.addresses {
		placed.addresses[i].Link = resolve(placed.addresses[i].Link)
	}
	placed.routes = slices.Clone(want.routes)
	for i := range placed.routes {
		placed.routes[i].Link = resolve(placed.routes[i].Link)
	}
	placed.neighbours = slices.Clone(want.neighbours)
	for i := range placed.neighbours {
		placed.neighbours[i].Link = resolve(placed.neighbours[i].Link)
	}
	placed.filters = slices.Clone(want.filters)
	for i := range placed.filters {
		placed.filters[i].Link = resolve(placed.filters[i].Link)
		placed.filters[i].Target = resolve(placed.filters[i].Target)
	}
	return placed
}

func (s *stepper) wanted(index int) (Link, bool) {
	i := slices.IndexFunc(s.want.links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return Link{}, false
	}
	return s.want.links[i], true
}

// newTaps come first, as they are made by ioctl and not by netlink.
func (s *stepper) newTaps() {
	for _, l := range s.want.links {
		if _, there := s.now.link(l.Index); !there && l.Tap != nil {
			s.add(TapAdd{l.Index, l.Name, *l.Tap, l.Name == s.names.Tap})
		}
	}
}

// dropLinks takes away what is ours and not wanted: the whole group in one go, which the kernel
// does in a third of the time.
func (s *stepper) dropLinks() {
	var grouped, single []Link
	for _, l := range s.ours() {
		if _, wanted := s.wanted(l.Index); wanted {
			continue
		}
		if l.Group == Group(s.nic) {
			grouped = append(grouped, l)
		} else {
			single = append(single, l)
		}
	}
	members := 0
	for _, l := range s.now.Links {
		if l.Group == Group(s.nic) {
			members++
		}
	}
	if len(grouped) > 0 && len(grouped) == members {
		s.add(GroupDel{Group(s.nic)})
	} else {
		single = append(single, grouped...)
	}
	for _, l := range single {
		s.add(LinkDel{l.Index, l.Name})
	}
}

// dropped says whether the link goes in dropLinks.
func (s *stepper) dropped(index int) bool {
	_, wanted := s.wanted(index)
	return !wanted && slices.ContainsFunc(s.ours(), func(l Link) bool { return l.Index == index })
}

// inScope says whether what hangs on the link is ours to change.
func (s *stepper) inScope(index int) bool {
	if index == s.nic {
		return s.whole
	}
	_, wanted := s.wanted(index)
	return wanted
}

// allowIPv6 lets links that are there have the IPv6 addresses that they shall have.
func (s *stepper) allowIPv6() {
	for _, want := range s.want.links {
		now, there := s.now.link(want.Index)
		wanted := func(a Address) bool { return a.Link == want.Index && a.Prefix.Addr().Is6() }
		if there && now.NoIPv6 && s.adds(want.Index) && slices.ContainsFunc(s.want.addresses, wanted) {
			s.add(SysctlSet{"net/ipv6/conf/" + now.Name + "/disable_ipv6", "0"})
		}
	}
}

// adds says whether what is missing at the link is to be added.
func (s *stepper) adds(index int) bool { return s.inScope(index) || s.mend && index == s.nic }

// strip removes routes, addresses and neighbours that are not wanted, by name: they would go with
// the link's state as well, but then nobody could see it in the plan.
func (s *stepper) strip() {
	var leaving []Address
	for _, a := range s.now.Addresses {
		if s.whole && a.Link == s.nic && !s.stays(a) {
			leaving = append(leaving, a)
		}
	}
	for _, r := range s.now.Routes {
		// The kernel's own go with their addresses; one whose address stays does not.
		if (r.Protocol != ProtocolKernel || s.implied(r)) && (s.routeInScope(r) || sourced(r, s.nic, leaving)) && !s.wantsRoute(r) {
			s.add(RouteDel{s.linkName(r.Link), r, hopNames(r, s.linkName)})
		}
	}
	for _, n := range s.now.Neighbours {
		if n.Permanent && s.inScope(n.Link) && !slices.Contains(s.want.neighbours, n) {
			s.add(NeighbourDel{s.linkName(n.Link), n})
		}
	}
	// The last one first: an IPv4 address takes those of its network that came after it along.
	for _, a := range slices.Backward(s.now.Addresses) {
		if s.inScope(a.Link) && !s.stays(a) {
			s.add(AddressDel{s.linkName(a.Link), a})
		}
	}
}

// stays says whether an address that is there is as wanted. Where one is missing, the others of its
// link and family are added anew with it, as the kernel lists them in the order of their coming.
func (s *stepper) stays(a Address) bool {
	var now, want []Address
	like := func(b Address) bool { return b.Link == a.Link && b.Prefix.Addr().Is4() == a.Prefix.Addr().Is4() }
	for _, b := range s.want.addresses {
		if like(b) {
			want = append(want, b)
		}
	}
	for _, b := range s.now.Addresses {
		if like(b) && slices.ContainsFunc(want, b.same) {
			now = append(now, b)
		}
	}
	return slices.ContainsFunc(now, a.same) && slices.EqualFunc(now, want, Address.same)
}

func (s *stepper) routeInScope(r Route) bool {
	return s.inScope(r.Link) || slices.ContainsFunc(r.Hops, func(h Hop) bool { return s.inScope(h.Link) })
}

// sourced says whether the route asks for one of the link's addresses as the source: with that
// address it goes, wherever it leads.
func sourced(r Route, link int, addresses []Address) bool {
	return r.PrefSrc.IsValid() && slices.ContainsFunc(addresses, func(a Address) bool { return a.Link == link && a.Prefix.Addr() == r.PrefSrc })
}

func (s *stepper) wantsRoute(r Route) bool { return slices.ContainsFunc(s.want.routes, r.same) }

// linkName is the link's name before anything is changed; newName the one it will have.
func (s *stepper) linkName(index int) string {
	l, _ := s.now.link(index)
	return l.Name
}

func (s *stepper) newName(index int) string {
	if l, ok := s.wanted(index); ok {
		return l.Name
	}
	return s.linkName(index)
}

func hopNames(r Route, name func(index int) string) []string {
	var names []string
	for _, h := range r.Hops {
		names = append(names, name(h.Link))
	}
	return names
}

// moveNIC gives the NIC its name and MAC, for which it has to be down.
func (s *stepper) moveNIC() {
	now, _ := s.now.link(s.nic)
	want, _ := s.wanted(s.nic)
	set := LinkSet{Index: s.nic, Link: now.Name}
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
	if s.groups && now.AllMulticast != want.AllMulticast {
		set.AllMulticast = &want.AllMulticast
	}
	if want.AddrGen == AddrGenNone && now.AddrGen != AddrGenNone && now.AddrGen != AddrGenNoIPv6 {
		set.AddrGen = &want.AddrGen
	}
	master := LinkSet{Index: s.nic, Link: now.Name}
	if now.Master != 0 && now.Master != want.Master && !s.dropped(now.Master) {
		master.Master = new(int)
		s.add(master)
	}
	if set.Name != "" || !set.MAC.IsZero() {
		if now.Up {
			s.add(LinkSet{Index: s.nic, Link: now.Name, Up: new(bool)})
		}
	}
	if !set.empty() {
		s.add(set)
	}
}

// newLinks creates what is missing and gives every link of the wiring what it shall have, but for
// the NIC's name and MAC.
func (s *stepper) newLinks() {
	for _, want := range s.want.links {
		now, there := s.now.link(want.Index)
		if !there {
			now = Link{Index: want.Index, Name: want.Name, Kind: want.Kind, Tap: want.Tap, NoARP: want.NoARP}
			if want.Tap == nil {
				s.add(LinkAdd{Index: want.Index, Name: want.Name, Kind: want.Kind, MAC: want.MAC, MTU: want.MTU, Group: want.Group})
				now.MAC, now.MTU, now.Group = want.MAC, want.MTU, want.Group
			} else {
				now.MTU = newTapMTU
			}
			if want.AddrGen == AddrGenNoIPv6 {
				now.AddrGen = AddrGenNoIPv6
			}
		}
		if want.Index == s.nic {
			continue
		}
		set := LinkSet{Index: want.Index, Link: want.Name}
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
		if now.AddrGen != want.AddrGen && want.AddrGen != AddrGenNoIPv6 && !(there && now.AddrGen == AddrGenNoIPv6) {
			set.AddrGen = &want.AddrGen
		}
		if !set.empty() {
			s.add(set)
		}
	}
	for _, want := range s.want.links {
		now, there := s.now.link(want.Index)
		if d := now.Bridge.differing(want.Bridge); d != nil {
			s.add(BridgeSet{want.Index, want.Name, d})
		}
		if want.Master != 0 && (!there || now.Master != want.Master) {
			s.add(LinkSet{Index: want.Index, Link: want.Name, Master: &want.Master, MasterName: s.newName(want.Master)})
			now.Port = newPortSettings
		}
		if want.Master == 0 && want.Index != s.nic && now.Master != 0 {
			s.add(LinkSet{Index: want.Index, Link: want.Name, Master: new(int)})
		}
		if d := now.Port.differing(want.Port); d != nil {
			s.add(PortSet{want.Index, want.Name, d})
		}
		// A link of ours has the namespace's default where it is not told; that does no harm.
		if want.Forwarding4 && !now.Forwarding4 || want.Index == s.nic && now.Forwarding4 != want.Forwarding4 {
			s.add(ConfSet{want.Index, want.Name, "forwarding", want.Forwarding4})
		}
		if want.Index != s.nic && want.RouteLocalnet != now.RouteLocalnet {
			s.add(ConfSet{want.Index, want.Name, "route_localnet", want.RouteLocalnet})
		}
	}
}

// newTapMTU is what a new tap has.
const newTapMTU = 1500

// settle brings the links up and puts addresses and routes on them. Before a tap is up its filters
// are there, and the guest's tap, the last of the links, is up only when all else is.
func (s *stepper) settle() {
	last := len(s.want.links) - 1
	if s.want.links[last].Name != s.names.Tap {
		last++
	}
	s.filters()
	for _, want := range s.want.links[:last] {
		s.up(want)
	}
	s.addresses()
	s.routes()
	for _, n := range s.want.neighbours {
		if s.inScope(n.Link) && !slices.Contains(s.now.Neighbours, n) {
			s.add(NeighbourAdd{s.newName(n.Link), n})
		}
	}
	for _, want := range s.want.links[last:] {
		s.up(want)
	}
	now, _ := s.now.link(s.nic)
	if want, _ := s.wanted(s.nic); want.AddrGen != AddrGenNone && now.AddrGen != want.AddrGen {
		s.add(LinkSet{Index: s.nic, Link: want.Name, AddrGen: &want.AddrGen})
	}
}

// up leaves a NIC that was found down to whoever brings it up, unless the binding does.
func (s *stepper) up(want Link) {
	if want.Index == s.nic && !s.whole && !want.Up && !s.raised {
		return
	}
	if s.isUp(want) != want.Up {
		s.add(LinkSet{Index: want.Index, Link: want.Name, Up: &want.Up})
	}
}

// isUp says whether a link is up before up is called.
func (s *stepper) isUp(want Link) bool {
	now, there := s.now.link(want.Index)
	wasDowned := want.Index == s.nic && there && now.Up && (now.Name != want.Name || now.MAC != want.MAC)
	return there && now.Up && !wasDowned
}

func (s *stepper) rises(want Link) bool { return want.Up && !s.isUp(want) }

// addresses are added without duplicate address detection: the namespace had them a moment ago,
// and a second of silence would be a difference.
func (s *stepper) addresses() {
	for _, i := range addingOrder(s.want.addresses) {
		a := s.want.addresses[i]
		if !s.adding(a) {
			continue
		}
		name := s.newName(a.Link)
		link, _ := s.wanted(a.Link)
		if a.Prefix.Addr().Is6() && link.Up && a.Flags&AddrNoDAD == 0 {
			quick := a
			quick.Flags |= AddrNoDAD
			s.add(AddressAdd{name, quick})
		}
		s.add(AddressAdd{name, a})
		for _, r := range connected(a, link, s.want.addresses[:i]) {
			if !s.wantsRoute(r) {
				s.add(RouteDel{name, r, nil})
			}
		}
	}
}

// adding says whether an address that is wanted is missing, or is to come anew. At a NIC that is not
// ours it is enough that the address is there.
func (s *stepper) adding(a Address) bool {
	if s.inScope(a.Link) {
		return !s.stays(a)
	}
	return s.adds(a.Link) && !slices.ContainsFunc(s.now.Addresses, func(o Address) bool { return o.Link == a.Link && o.Prefix.Addr() == a.Prefix.Addr() })
}

// addingOrder is the order in which addresses are to be added, so that the kernel lists them as they
// are listed, and chooses among them as it did: IPv4 addresses go to the end of its list, IPv6
// addresses to the beginning.
func addingOrder(list []Address) []int {
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
	var own, onLink, behind []Route
	for _, r := range s.want.routes {
		switch {
		case !s.routeAdds(r) && !(s.whole && sourced(r, s.nic, s.want.addresses)) || s.knows(r) || s.comes(r):
		case r.Type == routeLocal && !r.PrefSrc.IsValid():
			own = append(own, r) // others may have a source in it
		case !r.Gateway.IsValid() && len(r.Hops) == 0:
			onLink = append(onLink, r)
		default:
			behind = append(behind, r)
		}
	}
	for _, r := range append(own, onLink...) {
		s.add(RouteAdd{s.newName(r.Link), r, nil})
	}
	for _, r := range behind {
		var scaffold []Route
		for _, h := range append([]Hop{{Link: r.Link, Gateway: r.Gateway, OnLink: r.OnLink}}, r.Hops...) {
			if h.Gateway.IsValid() && !h.OnLink && !s.reaches(h) {
				scaffold = append(scaffold, hostRoute(h))
			}
		}
		for _, h := range scaffold {
			s.add(RouteAdd{s.newName(h.Link), h, nil})
		}
		s.add(RouteAdd{s.newName(r.Link), r, hopNames(r, s.newName)})
		for _, h := range scaffold {
			s.add(RouteDel{s.newName(h.Link), h, nil})
		}
	}
}

// reaches says whether a route that is wanted leads to the next hop on its link.
func (s *stepper) reaches(h Hop) bool {
	if h.Gateway.IsLinkLocalUnicast() && h.Gateway.Is6() {
		return true
	}
	return slices.ContainsFunc(s.want.routes, func(r Route) bool {
		return r.Link == h.Link && r.Table == TableMain && r.Type == RouteUnicast &&
			!r.Gateway.IsValid() && len(r.Hops) == 0 && r.Destination.Contains(h.Gateway)
	})
}

func hostRoute(h Hop) Route {
	r := Route{
		Link: h.Link, Table: TableMain, Destination: netip.PrefixFrom(h.Gateway, h.Gateway.BitLen()),
		Type: RouteUnicast, Protocol: ProtocolStatic,
	}
	if h.Gateway.Is4() {
		r.Scope = ScopeLink
	}
	return r
}

func (s *stepper) routeAdds(r Route) bool {
	return s.adds(r.Link) || slices.ContainsFunc(r.Hops, func(h Hop) bool { return s.adds(h.Link) })
}

// routeKey is what most routes differ in.
type routeKey struct {
	destination netip.Prefix
	table       uint32
}

// knows says whether the route is there. A namespace can have many.
func (s *stepper) knows(r Route) bool {
	if s.known == nil {
		s.known = map[routeKey][]Route{}
		for _, o := range s.now.Routes {
			key := routeKey{o.Destination, o.Table}
			s.known[key] = append(s.known[key], o)
		}
	}
	return slices.ContainsFunc(s.known[routeKey{r.Destination, r.Table}], r.same)
}

// comes says whether the kernel makes the route of an address that is added, or when a link comes up.
func (s *stepper) comes(r Route) bool {
	for i, a := range s.want.addresses {
		l, _ := s.wanted(a.Link)
		if slices.ContainsFunc(connected(a, l, s.want.addresses[:i]), r.same) && (s.adding(a) || s.rises(l)) {
			return true
		}
	}
	return false
}

// implied says whether the kernel makes the route of an address that is wanted.
func (s *stepper) implied(r Route) bool {
	for i, a := range s.want.addresses {
		l, _ := s.wanted(a.Link)
		if slices.ContainsFunc(connected(a, l, s.want.addresses[:i]), r.same) {
			return true
		}
	}
	return false
}

// filters adds those that are missing at the ingress of each link. What else is there leaves, by its
// preference, or where that does not tell it with all the others.
func (s *stepper) filters() {
	for _, l := range s.want.links {
		now, want := filtersOf(s.now.Filters, l.Index), filtersOf(s.want.filters, l.Index)
		if len(want) == 0 {
			continue
		}
		ingress := slices.Contains(s.now.Ingress, l.Index)
		if slices.ContainsFunc(now, func(f Filter) bool { return f.Foreign != "" }) {
			s.add(IngressDel{l.Index, l.Name})
			ingress, now = false, nil
		}
		if !ingress {
			s.add(IngressAdd{l.Index, l.Name})
		}
		var left []Filter // by preference and protocol
		for _, f := range now {
			if !slices.ContainsFunc(want, f.equal) && !slices.ContainsFunc(left, f.beside) {
				s.add(FilterDel{l.Name, f})
				left = append(left, f)
			}
		}
		for _, f := range want {
			if !slices.ContainsFunc(now, f.equal) || slices.ContainsFunc(left, f.beside) {
				s.add(FilterAdd{l.Name, f, s.newName(f.Target)})
			}
		}
	}
}

func filtersOf(list []Filter, link int) []Filter {
	var filters []Filter
	for _, f := range list {
		if f.Link == link {
			filters = append(filters, f)
		}
	}
	return filters
}

func (f Filter) equal(o Filter) bool { return reflect.DeepEqual(f, o) }

// beside says whether deleting one of the filters deletes the other.
func (f Filter) beside(o Filter) bool {
	return f.Link == o.Link && f.Priority == o.Priority && f.Protocol == o.Protocol
}

// same says whether two addresses are one, whatever is left of their lifetimes.
func (a Address) same(b Address) bool {
	if (a.ValidSeconds == Forever) == (b.ValidSeconds == Forever) {
		b.ValidSeconds = a.ValidSeconds
	}
	if (a.PreferredSeconds == Forever) == (b.PreferredSeconds == Forever) {
		b.PreferredSeconds = a.PreferredSeconds
	}
	return a == b
}

// same says whether two routes are one. One that the kernel made of an address is known by what
// the address tells.
func (r Route) same(o Route) bool {
	if r.Destination != o.Destination || r.Table != o.Table || r.Link != o.Link {
		return false // and quickly: a namespace can have many
	}
	if r.Protocol == ProtocolKernel && o.Protocol == ProtocolKernel {
		return r.Link == o.Link && r.Table == o.Table && r.Destination == o.Destination && r.Metric == o.Metric && r.PrefSrc == o.PrefSrc
	}
	if (r.ExpiresSeconds == 0) == (o.ExpiresSeconds == 0) {
		o.ExpiresSeconds = r.ExpiresSeconds
	}
	return reflect.DeepEqual(r, o)
}

// connected are the routes that the kernel makes of an address when its link is up: one to its
// network, and for an IPv6 address with a peer one to each. Of several IPv4 addresses in one network
// only the first makes one.
func connected(a Address, l Link, earlier []Address) []Route {
	if !l.Up || a.Flags&AddrNoPrefixRoute != 0 {
		return nil
	}
	network := a.Prefix.Masked()
	if a.Peer.IsValid() {
		network = a.Peer.Masked()
	}
	r := Route{
		Link: a.Link, Table: TableMain, Destination: network, Metric: a.Metric,
		Type: RouteUnicast, Protocol: ProtocolKernel,
	}
	if a.Prefix.Addr().Is4() {
		if network.Bits() == 32 && network.Addr() == a.Prefix.Addr() {
			return nil
		}
		if slices.ContainsFunc(earlier, func(e Address) bool { return e.Link == a.Link && e.Prefix.Masked() == a.Prefix.Masked() }) {
			return nil
		}
		r.Scope, r.PrefSrc = ScopeLink, a.Prefix.Addr()
		return []Route{r}
	}
	if r.Metric == 0 {
		r.Metric = metricIPv6
	}
	if !a.Peer.IsValid() {
		return []Route{r}
	}
	own := r
	own.Destination = netip.PrefixFrom(a.Prefix.Addr(), a.Peer.Bits()).Masked()
	return []Route{own, r}
}

// metricIPv6 is what the kernel gives to routes of addresses (IP6_RT_PRIO_ADDRCONF).
const metricIPv6 = 256

// Default networks are spelled out where they are printed.
func networkText(p netip.Prefix) string {
	if p.Bits() == 0 {
		return "default"
	}
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
