package wiring_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

// fakeKernel carries operations out, each for itself: without what a kernel does because of it, and without a kernel's
// refusals, which phase1's tests have.
type fakeKernel struct{ s netstate.Snapshot }

func boot(found netstate.Snapshot) *fakeKernel { return &fakeKernel{clone(found)} }

// clone copies what the fake changes in place.
func clone(s netstate.Snapshot) netstate.Snapshot {
	s.Links = slices.Clone(s.Links)
	s.Addresses = slices.Clone(s.Addresses)
	s.OffStack = slices.Clone(s.OffStack)
	s.Routes = slices.Clone(s.Routes)
	s.Neighbours = slices.Clone(s.Neighbours)
	s.Filters = slices.Clone(s.Filters)
	s.Ingress, s.Clsact = slices.Clone(s.Ingress), slices.Clone(s.Clsact)
	s.Tables = slices.Clone(s.Tables)
	s.Sysctls = maps.Clone(s.Sysctls)
	return s
}

func (k *fakeKernel) snapshot() netstate.Snapshot { return clone(k.s) }

const (
	kernelLL    = 3 // IFAPROT_KERNEL_LL
	forwarding6 = "net/ipv6/conf/all/forwarding"
)

// medium is what the kernel says of every IPv6 route: RTA_PREF.
var medium = []netstate.Attribute{{Type: 20, Data: []byte{0}}}

func (k *fakeKernel) link(index int) *netstate.Link {
	i := slices.IndexFunc(k.s.Links, func(l netstate.Link) bool { return l.Index == index })
	if i < 0 {
		return &netstate.Link{} // gone
	}
	return &k.s.Links[i]
}

func (k *fakeKernel) apply(op netstate.Op) {
	s := &k.s
	add := func(l netstate.Link) {
		l.Ethernet = true
		s.Links = append(s.Links, l)
	}
	table := func(family firewall.Family, name string) {
		s.Tables = slices.DeleteFunc(s.Tables, func(i firewall.Image) bool { return i.Family == family && i.Name == name })
	}
	neighbour := func(n netstate.Neighbour) {
		s.Neighbours = slices.DeleteFunc(s.Neighbours, func(o netstate.Neighbour) bool {
			return o.Link == n.Link && o.Address == n.Address && (o.Address.IsValid() || o.MAC == n.MAC)
		})
	}
	qdisc := func(index int) {
		s.Clsact = slices.DeleteFunc(s.Clsact, func(i int) bool { return i == index })
		s.Ingress = slices.DeleteFunc(s.Ingress, func(i int) bool { return i == index })
		s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool { return f.Link == index })
	}
	local := func(r netstate.Route) bool {
		return r.Table == netstate.TableLocal && r.Type == netstate.RouteLocal && r.Protocol == netstate.ProtocolKernel
	}
	switch o := op.(type) {
	case netstate.TapAdd:
		add(netstate.Link{Index: o.Index, Name: o.Link, Kind: "tun", MAC: cache.MAC{0x02, 0xff, 0, 0, 0, byte(len(o.Link))}, MTU: 1500, Tap: &o.Tap})
	case netstate.TapReset:
		k.link(o.Index).Offloads = false
	case netstate.LinkAdd:
		l := netstate.Link{Index: o.Index, Name: o.Name, Kind: o.Kind, MAC: o.MAC, MTU: o.MTU, Group: o.Group, NoARP: o.Kind == "dummy"}
		if o.Kind == "bridge" {
			l.Bridge = netstate.Settings{"mcast_snooping": 0, "stp_state": 0, "vlan_filtering": 0}
		}
		add(l)
	case netstate.BridgeSet:
		l := k.link(o.Index)
		l.Bridge = l.Bridge.With(o.Settings)
	case netstate.BridgePortSet:
		l := k.link(o.Index)
		l.BridgePort = l.BridgePort.With(o.Settings)
	case netstate.LinkSet:
		k.setLink(o.Have, o.Want)
	case netstate.LinkDel:
		k.delLink(o.Index)
	case netstate.GroupDel:
		for _, l := range slices.Clone(s.Links) {
			if l.Group == o.Group {
				k.delLink(l.Index)
			}
		}
	case netstate.ConfSet:
		l := k.link(o.Index)
		switch o.Name {
		case "forwarding":
			l.Forwarding4 = o.On
		case "accept_local":
			l.AcceptLocal = o.On
		case "accept_source_route":
			l.NoSourceRoutes = !o.On
		case "arp_ignore":
			l.IgnoresARP = o.On
		case "proxy_arp":
			l.ProxyARP = o.On
		default:
			l.RouteLocalnet = o.On
		}
	case netstate.SysctlSet:
		s.Sysctls[o.Path] = o.Value
		if link, ok := strings.CutPrefix(o.Path, "net/ipv6/conf/"); ok {
			for i := range s.Links {
				if s.Links[i].Name+"/disable_ipv6" == link {
					s.Links[i].NoIPv6 = o.Value == "1"
					delete(s.Sysctls, o.Path)
				}
			}
		}
	case netstate.AddressAdd:
		if o.Address.Prefix.Addr().Is4() {
			o.Address.Label = cmp.Or(o.Address.Label, k.link(o.Address.Link).Name)
		}
		if at := slices.IndexFunc(s.Addresses, func(a netstate.Address) bool { return a.Link == o.Address.Link && a.Prefix == o.Address.Prefix }); at >= 0 {
			s.Addresses[at] = o.Address
		} else {
			k.insert(o.Address)
		}
	case netstate.AddressDel:
		s.OffStack = slices.DeleteFunc(s.OffStack, func(a netstate.OffStack) bool {
			return a.Link == o.Address.Link && a.Address == o.Address.Prefix.Addr()
		})
		s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Link == o.Address.Link && a.Prefix == o.Address.Prefix })
	case netstate.RouteAdd:
		if local(o.Route) {
			s.OffStack = slices.DeleteFunc(s.OffStack, func(a netstate.OffStack) bool {
				return a.Link == o.Route.Link && a.Address == o.Route.Destination.Addr()
			})
		} else {
			s.Routes = append(s.Routes, o.Route)
		}
	case netstate.RouteDel:
		if local(o.Route) {
			s.OffStack = append(s.OffStack, netstate.OffStack{Link: o.Route.Link, Address: o.Route.Destination.Addr()})
		} else {
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return reflect.DeepEqual(r, o.Route) })
		}
	case netstate.NeighbourAdd:
		neighbour(o.Neighbour)
		s.Neighbours = append(s.Neighbours, o.Neighbour)
	case netstate.NeighbourDel:
		neighbour(o.Neighbour)
	case netstate.IngressAdd:
		if o.Clsact {
			s.Clsact = append(s.Clsact, o.Index)
		} else {
			s.Ingress = append(s.Ingress, o.Index)
		}
	case netstate.IngressDel:
		qdisc(o.Index)
	case netstate.ShapeSet:
		k.link(o.Index).Shape = o.Shape
	case netstate.FilterAdd:
		s.Filters = append(s.Filters, o.Filter)
	case netstate.FilterDel:
		s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool {
			return f.Link == o.Filter.Link && f.Priority == o.Filter.Priority && f.Protocol == o.Filter.Protocol
		})
	case netstate.TableSet:
		table(o.Table.Family, o.Table.Name)
		s.Tables = append(s.Tables, o.Table.Held())
	case netstate.TableChange:
		table(o.Table.Family, o.Table.Name)
		s.Tables = append(s.Tables, o.Table.Held())
	case netstate.TableDel:
		table(o.Family, o.Name)
	default:
		panic(fmt.Sprintf("the fake kernel does not know %T", op))
	}
}

func (k *fakeKernel) setLink(have, want netstate.Link) {
	l := k.link(want.Index)
	if have.Name != want.Name {
		l.Name = want.Name
	}
	if have.MAC != want.MAC {
		l.MAC = want.MAC
	}
	if have.MTU != want.MTU {
		l.MTU = want.MTU
	}
	if have.QueueLength != want.QueueLength {
		l.QueueLength = want.QueueLength
	}
	if have.AllMulticast != want.AllMulticast {
		l.AllMulticast = want.AllMulticast
	}
	if have.NoARP != want.NoARP {
		l.NoARP = want.NoARP
	}
	if have.Group != want.Group {
		l.Group = want.Group
	}
	if have.Alias != want.Alias {
		l.Alias = want.Alias
	}
	if have.AddrGen != want.AddrGen {
		l.AddrGen = want.AddrGen
	}
	if have.Master != want.Master {
		if l.Master, l.BridgePort = want.Master, nil; l.Master != 0 {
			l.BridgePort = netstate.Settings{"learning": 1, "flood": 1, "isolated": 0}
		}
	}
	if have.Up != want.Up {
		l.Up = want.Up
	}
	if have.Up && !want.Up { // the rest of what goes comes back in later rounds
		k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool { return r.Link == l.Index })
	}
}

// delLink deletes a link with all that is of it.
func (k *fakeKernel) delLink(index int) {
	s := &k.s
	if name := k.link(index).Name; strings.HasSuffix(name, "-br") || strings.HasSuffix(name, "-tap") { // others share their names with the NIC
		maps.DeleteFunc(s.Sysctls, func(path, _ string) bool { return strings.Contains(path, "/"+name+"/") })
	}
	s.Links = slices.DeleteFunc(s.Links, func(l netstate.Link) bool { return l.Index == index })
	s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Link == index })
	s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Uses(index) })
	s.Neighbours = slices.DeleteFunc(s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == index })
	s.Filters = slices.DeleteFunc(s.Filters, func(f netstate.Filter) bool { return f.Link == index })
	s.Ingress = slices.DeleteFunc(s.Ingress, func(i int) bool { return i == index })
	s.Clsact = slices.DeleteFunc(s.Clsact, func(i int) bool { return i == index })
	for i := range s.Links {
		if s.Links[i].Master == index {
			s.Links[i].Master, s.Links[i].BridgePort = 0, nil
		}
	}
}

func network(a netstate.Address) netip.Prefix {
	switch {
	case a.Peer.IsValid() && a.Peer.Addr().Is6():
		return netip.PrefixFrom(a.Peer.Addr(), 128)
	case a.Peer.IsValid():
		return a.Peer.Masked()
	}
	return a.Prefix.Masked()
}

// secondary says that an earlier IPv4 address of the link has the same network.
func (k *fakeKernel) secondary(a netstate.Address) bool {
	for _, o := range k.s.Addresses {
		if o.Link == a.Link && o.Prefix.Addr() == a.Prefix.Addr() {
			return false
		}
		if o.Link == a.Link && o.Prefix.Addr().Is4() && network(o) == network(a) {
			return true
		}
	}
	return false
}

// insert puts an address where the kernel lists it: IPv4 before IPv6, primary IPv4 addresses before
// secondary ones, an IPv6 address before those of its scope and the narrower ones.
func (k *fakeKernel) insert(a netstate.Address) {
	list := k.s.Addresses
	at := len(list)
	switch {
	case a.Prefix.Addr().Is6():
		width := func(a netstate.Address) int { return -int(a.Scope) }
		if i := slices.IndexFunc(list, func(o netstate.Address) bool {
			return o.Link == a.Link && o.Prefix.Addr().Is6() && width(a) >= width(o)
		}); i >= 0 {
			at = i
		}
	default:
		k.s.Addresses = append(list, a) // for secondary
		secondary := k.secondary(a)
		k.s.Addresses = list
		at = 0
		for i, o := range list {
			if o.Link == a.Link && o.Prefix.Addr().Is4() && (secondary || !k.secondary(o) && a.Scope <= o.Scope) {
				at = i + 1
			}
		}
	}
	k.s.Addresses = slices.Insert(list, at, a)
}

// text is a snapshot a line an object, with names instead of indices, so that two of them can be
// compared. Entries that come and go by themselves are left out.
func text(t *testing.T, s netstate.Snapshot) string {
	t.Helper()
	name := map[int]string{0: "-"}
	ours := map[int]bool{}
	for _, l := range s.Links {
		name[l.Index] = l.Name
		ours[l.Index] = strings.HasPrefix(l.Alias, netstate.Mark(""))
	}
	var lines []string
	add := func(what, on string, v any) {
		var b bytes.Buffer
		if err := json.NewEncoder(&b).Encode(v); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, what+" "+on+" "+strings.TrimSpace(b.String()))
	}
	for _, l := range s.Links {
		master := name[l.Master]
		l.Index, l.Master = 0, 0
		add("link", l.Name+" master "+master, l)
	}
	count := map[string]int{}
	for _, a := range s.Addresses {
		on := name[a.Link]
		if !ours[a.Link] {
			family := fmt.Sprintf("%s %d", on, a.Prefix.Addr().BitLen())
			on = fmt.Sprintf("%s #%d", family, count[family])
			count[family]++
		}
		a.Link = 0
		add("address", on, a)
	}
	for _, o := range s.OffStack {
		add("off-stack", name[o.Link], o.Address)
	}
	for _, r := range s.Routes {
		on := name[r.Link]
		r.Link = 0
		hops := r.Hops
		r.Hops = nil
		for _, h := range hops {
			on += " " + name[h.Link]
			h.Link = 0
			r.Hops = append(r.Hops, h)
		}
		add("route", on, r)
	}
	for _, r := range s.Rules {
		add("rule", "", r)
	}
	for _, n := range s.Neighbours {
		if n.Permanent {
			on := name[n.Link]
			n.Link = 0
			add("neighbour", on, n)
		}
	}
	for _, l := range s.Links {
		if l.Shape != (netstate.Shape{}) {
			add("shape", l.Name, l.Shape)
		}
	}
	for _, i := range s.Ingress {
		add("ingress", name[i], nil)
	}
	for _, i := range s.Clsact {
		add("clsact", name[i], nil)
	}
	for _, f := range s.Filters {
		on := name[f.Link] + " to " + name[f.Target]
		f.Link, f.Target = 0, 0
		add("filter", on, f)
	}
	for _, i := range s.Tables {
		add("table", i.Name, i)
	}
	for path, value := range s.Sysctls {
		add("sysctl", path, value)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// rounds is how often what is to do is computed and carried out.
const rounds = 4

func newPlan(t *testing.T, found netstate.Snapshot, spec asked) *wiring.Plan {
	t.Helper()
	plan, err := tryPlan(found, spec)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func mustSteps(t *testing.T, plan *wiring.Plan, k *fakeKernel) []netstate.Op {
	t.Helper()
	ops, err := plan.Steps(k.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

// undoOf is the way back from the plan.
func undoOf(plan *wiring.Plan, now netstate.Snapshot) ([]netstate.Op, error) {
	return undo.Steps(plan.Journal().Found, now, plan.Made())
}

func mustUndo(t *testing.T, plan *wiring.Plan, k *fakeKernel) []netstate.Op {
	t.Helper()
	ops, err := undoOf(plan, k.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func (k *fakeKernel) applyAll(ops []netstate.Op) {
	for _, op := range ops {
		k.apply(op)
	}
}

func same(t *testing.T, what, want, have string) {
	t.Helper()
	if want != have {
		t.Fatalf("%s:\n%s", what, golden.Diff(want, have))
	}
}

// wire carries the plan out undisturbed and returns the namespace.
func wire(t *testing.T, plan *wiring.Plan, found netstate.Snapshot) *fakeKernel {
	t.Helper()
	k := boot(found)
	settle(t, k, mustSteps, plan)
	return k
}

// settle carries out what is to do until there is nothing left: what a kernel does by itself takes rounds here.
func settle(t *testing.T, k *fakeKernel, next func(*testing.T, *wiring.Plan, *fakeKernel) []netstate.Op, plan *wiring.Plan) {
	t.Helper()
	for range rounds {
		k.applyAll(next(t, plan, k))
	}
	if ops := next(t, plan, k); len(ops) > 0 {
		t.Fatalf("after %d rounds there is something to do:\n%s", rounds, netstate.Text(ops))
	}
}

// finish goes on to wire, which must take one round.
func finish(t *testing.T, plan *wiring.Plan, k *fakeKernel, want string) {
	t.Helper()
	settle(t, k, mustSteps, plan)
	same(t, "finished, but not as an undisturbed run", want, text(t, k.s))
}

// giveBack goes back to the namespace as it was found.
func giveBack(t *testing.T, plan *wiring.Plan, k *fakeKernel, want string) {
	t.Helper()
	settle(t, k, mustUndo, plan)
	same(t, "given back, but not as found", want, text(t, k.s))
}
