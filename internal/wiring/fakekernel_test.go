package wiring_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// fakeKernel behaves as Linux does to the operations of a plan, with what Linux does on its own:
// routes come and go with addresses and links, a link that goes down loses its IPv6 addresses, a
// port gives its MTU to the bridge, and so on. What it does was compared with a kernel, by ip(8).
type fakeKernel struct {
	s netstate.Snapshot
	// forwarding4 and noIPv6 are what a new link gets.
	forwarding4 bool
	noIPv6      bool
	mtuChosen   map[int]bool // bridges whose MTU was set
}

func boot(found netstate.Snapshot) *fakeKernel {
	k := &fakeKernel{s: clone(found), mtuChosen: map[int]bool{}}
	for _, l := range found.Links {
		k.forwarding4 = k.forwarding4 || l.Forwarding4
		k.noIPv6 = k.noIPv6 || l.AddrGen == netstate.AddrGenNoIPv6 && l.MTU >= minMTU6 && !l.Loopback
	}
	return k
}

func (k *fakeKernel) copy() *fakeKernel {
	c := *k
	c.s, c.mtuChosen = clone(k.s), maps.Clone(k.mtuChosen)
	return &c
}

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
	minMTU6       = 1280
	prefAttribute = 20 // RTA_PREF
	kernelLL      = 3  // IFAPROT_KERNEL_LL
	forwarding6   = "net/ipv6/conf/all/forwarding"
)

func (k *fakeKernel) link(index int) (*netstate.Link, error) {
	i := slices.IndexFunc(k.s.Links, func(l netstate.Link) bool { return l.Index == index })
	if i < 0 {
		return nil, syscall.ENODEV
	}
	return &k.s.Links[i], nil
}

// apply carries one operation out, or nothing of it.
func (k *fakeKernel) apply(op netstate.Op) error {
	switch o := op.(type) {
	case netstate.TapAdd:
		tap := o.Tap
		return k.addLink(netstate.Link{Index: o.Index, Name: o.Link, Kind: "tun", MAC: cache.MAC{0x02, 0xff, 0, 0, 0, byte(len(o.Link))}, MTU: 1500, Tap: &tap})
	case netstate.TapReset:
		l, err := k.link(o.Index)
		if err == nil {
			l.Offloads = false
		}
		return err
	case netstate.LinkAdd:
		if o.Kind == "dummy" && !k.s.Dummy {
			return syscall.EOPNOTSUPP
		}
		l := netstate.Link{Index: o.Index, Name: o.Name, Kind: o.Kind, MAC: o.MAC, MTU: o.MTU, Group: o.Group, NoARP: o.Kind == "dummy"}
		if o.Kind == "bridge" {
			l.Bridge = netstate.Settings{"mcast_snooping": 0, "stp_state": 0, "vlan_filtering": 0}
		}
		return k.addLink(l)
	case netstate.BridgeSet:
		l, err := k.link(o.Index)
		if err != nil {
			return err
		}
		if l.Kind != "bridge" {
			return syscall.EOPNOTSUPP
		}
		return set(&l.Bridge, o.Settings)
	case netstate.LinkSet:
		return k.setLink(o)
	case netstate.LinkDel:
		return k.delLink(o.Index)
	case netstate.GroupDel:
		var members []int
		for _, l := range k.s.Links {
			if l.Group == o.Group {
				members = append(members, l.Index)
			}
		}
		if len(members) == 0 {
			return syscall.ENODEV
		}
		for _, m := range members {
			if err := k.delLink(m); err != nil {
				return err
			}
		}
		return nil
	case netstate.BridgePortSet:
		l, err := k.link(o.Index)
		if err != nil {
			return err
		}
		if l.Master == 0 {
			return syscall.EINVAL
		}
		return set(&l.BridgePort, o.Settings)
	case netstate.ConfSet:
		l, err := k.link(o.Index)
		if err != nil {
			return err
		}
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
		return nil
	case netstate.SysctlSet:
		return k.setSysctl(o)
	case netstate.AddressAdd:
		return k.addAddress(o.Address)
	case netstate.AddressDel:
		return k.delAddress(o.Address)
	case netstate.RouteAdd:
		return k.addRoute(o.Route)
	case netstate.RouteDel:
		return k.delRoute(o.Route)
	case netstate.NeighbourAdd:
		l, err := k.link(o.Neighbour.Link)
		if err != nil {
			return err
		}
		if !o.Neighbour.Address.IsValid() && l.Master == 0 {
			return syscall.EOPNOTSUPP
		}
		k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool {
			return n.Link == o.Neighbour.Link && n.Address == o.Neighbour.Address && (n.Address.IsValid() || n.MAC == o.Neighbour.MAC)
		})
		k.s.Neighbours = append(k.s.Neighbours, o.Neighbour)
		return nil
	case netstate.NeighbourDel:
		return remove(&k.s.Neighbours, syscall.ENOENT, func(n netstate.Neighbour) bool {
			return n.Link == o.Neighbour.Link && n.Address == o.Neighbour.Address && (n.Address.IsValid() || n.MAC == o.Neighbour.MAC)
		})
	case netstate.IngressAdd:
		if _, err := k.link(o.Index); err != nil {
			return err
		}
		if slices.Contains(k.s.Ingress, o.Index) || slices.Contains(k.s.Clsact, o.Index) {
			return syscall.EEXIST
		}
		if o.Clsact {
			k.s.Clsact = append(k.s.Clsact, o.Index)
		} else {
			k.s.Ingress = append(k.s.Ingress, o.Index)
		}
		return nil
	case netstate.IngressDel:
		k.s.Filters = slices.DeleteFunc(k.s.Filters, func(f netstate.Filter) bool { return f.Link == o.Index })
		k.s.Clsact = slices.DeleteFunc(k.s.Clsact, func(i int) bool { return i == o.Index })
		return remove(&k.s.Ingress, nil, func(i int) bool { return i == o.Index }) // or a foreign one
	case netstate.ShapeSet:
		l, err := k.link(o.Index)
		if err == nil && o.Shape == (netstate.Shape{}) && l.Shape == o.Shape {
			return syscall.ENOENT
		}
		if err == nil {
			l.Shape = o.Shape
		}
		return err
	case netstate.FilterAdd:
		if _, err := k.link(o.Filter.Target); err != nil && !o.Filter.Clears {
			return err
		}
		if !slices.Contains(k.s.Clsact, o.Filter.Link) && (o.Filter.Copies || !slices.Contains(k.s.Ingress, o.Filter.Link)) {
			return syscall.EINVAL
		}
		k.s.Filters = append(k.s.Filters, o.Filter)
		return nil
	case netstate.FilterDel:
		return remove(&k.s.Filters, syscall.ENOENT, func(f netstate.Filter) bool {
			return f.Link == o.Filter.Link && f.Priority == o.Filter.Priority && f.Protocol == o.Filter.Protocol
		})
	case netstate.TableSet:
		k.setTable(o.Table)
		return nil
	case netstate.TableChange:
		k.setTable(o.Table)
		return nil
	case netstate.TableDel:
		return remove(&k.s.Tables, syscall.ENOENT, func(i firewall.Image) bool { return i.Family == o.Family && i.Name == o.Name })
	}
	return fmt.Errorf("the fake kernel does not know %T", op)
}

func (k *fakeKernel) setTable(t firewall.Table) {
	image := t.Held() // whose rules text does not show: whoever compares asks for the steps that are left, too
	k.s.Tables = slices.DeleteFunc(k.s.Tables, func(i firewall.Image) bool { return i.Family == image.Family && i.Name == image.Name })
	k.s.Tables = append(k.s.Tables, image)
}

// set changes settings that the kernel has.
func set(settings *netstate.Settings, values netstate.Settings) error {
	changed := maps.Clone(*settings)
	for name, value := range values {
		if _, known := changed[name]; !known {
			return syscall.EOPNOTSUPP
		}
		changed[name] = value
	}
	*settings = changed
	return nil
}

// remove deletes what matches; none is the error.
func remove[T any](list *[]T, none error, match func(T) bool) error {
	n := len(*list)
	*list = slices.DeleteFunc(*list, match)
	if len(*list) == n {
		return none
	}
	return nil
}

func (k *fakeKernel) setSysctl(o netstate.SysctlSet) error {
	old, ok := k.s.Sysctls[o.Path]
	if link, ok := strings.CutPrefix(o.Path, "net/ipv6/conf/"); ok && strings.HasSuffix(link, "/disable_ipv6") {
		for i := range k.s.Links {
			if l := &k.s.Links[i]; l.Name == strings.TrimSuffix(link, "/disable_ipv6") {
				l.NoIPv6 = o.Value == "1"
				if l.NoIPv6 {
					k.lose6(l.Index)
				}
				return nil
			}
		}
	}
	ofLink := slices.ContainsFunc(k.s.Links, func(l netstate.Link) bool { return isOfLink(o.Path, l.Name) })
	if !ok && !ofLink {
		return syscall.ENOENT
	}
	k.s.Sysctls[o.Path] = o.Value
	if o.Path == forwarding6 && old == "0" && o.Value == "1" {
		k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool {
			l, err := k.link(r.Link)
			return err == nil && r.Protocol == netstate.ProtocolRA && k.s.Sysctls["net/ipv6/conf/"+l.Name+"/accept_ra"] == "1"
		})
	}
	return nil
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
