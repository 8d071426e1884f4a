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
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
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
	s.Ingress = slices.Clone(s.Ingress)
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
		if slices.Contains(k.s.Ingress, o.Index) {
			return syscall.EEXIST
		}
		k.s.Ingress = append(k.s.Ingress, o.Index)
		return nil
	case netstate.IngressDel:
		k.s.Filters = slices.DeleteFunc(k.s.Filters, func(f netstate.Filter) bool { return f.Link == o.Index })
		return remove(&k.s.Ingress, nil, func(i int) bool { return i == o.Index }) // or a foreign one
	case netstate.FilterAdd:
		if _, err := k.link(o.Filter.Target); err != nil && !o.Filter.Clears {
			return err
		}
		if !slices.Contains(k.s.Ingress, o.Filter.Link) {
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

func (k *fakeKernel) newAddrGen(mtu int) int {
	if k.noIPv6 || mtu < minMTU6 {
		return netstate.AddrGenNoIPv6
	}
	return 0
}

func (k *fakeKernel) addLink(l netstate.Link) error {
	for _, o := range k.s.Links {
		if o.Name == l.Name || o.Index == l.Index {
			return syscall.EEXIST
		}
	}
	l.Ethernet, l.Forwarding4, l.AddrGen = true, k.forwarding4, k.newAddrGen(l.MTU)
	k.s.Links = append(k.s.Links, l)
	return nil
}

// leavesBridge forgets what a bridge knows of a port.
func (k *fakeKernel) leavesBridge(port int) {
	k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == port && !n.Address.IsValid() })
}

func (k *fakeKernel) delLink(index int) error {
	l, err := k.link(index)
	if err != nil {
		return err
	}
	bridge, name := l.Master, l.Name
	if strings.HasSuffix(name, "-br") || strings.HasSuffix(name, "-tap") { // others share their names with the NIC
		maps.DeleteFunc(k.s.Sysctls, func(path, _ string) bool { return isOfLink(path, name) })
	}
	k.lose4(index, func(netstate.Address) bool { return true })
	k.lose6(index)
	k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool { return r.Uses(index) })
	k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == index })
	k.s.Filters = slices.DeleteFunc(k.s.Filters, func(f netstate.Filter) bool { return f.Link == index })
	k.s.Ingress = slices.DeleteFunc(k.s.Ingress, func(i int) bool { return i == index })
	for i := range k.s.Filters {
		if k.s.Filters[i].Target == index {
			k.s.Filters[i].Target = 0
		}
	}
	for i := range k.s.Links {
		if k.s.Links[i].Master == index {
			k.s.Links[i].Master, k.s.Links[i].BridgePort = 0, nil
			k.leavesBridge(k.s.Links[i].Index)
		}
	}
	k.s.Links = slices.DeleteFunc(k.s.Links, func(l netstate.Link) bool { return l.Index == index })
	k.leastMTU(bridge)
	return nil
}

// leastMTU gives a bridge the least MTU of its ports, unless its MTU was set.
func (k *fakeKernel) leastMTU(bridge int) {
	l, err := k.link(bridge)
	if err != nil || k.mtuChosen[bridge] {
		return
	}
	least := 0
	for _, port := range k.s.Links {
		if port.Master == bridge && (least == 0 || port.MTU < least) {
			least = port.MTU
		}
	}
	if least != 0 {
		k.setMTU(l, least)
	}
}

func (k *fakeKernel) setMTU(l *netstate.Link, mtu int) {
	l.MTU = mtu
	switch {
	case mtu < minMTU6:
		k.lose6(l.Index)
		l.AddrGen = netstate.AddrGenNoIPv6
	case l.AddrGen == netstate.AddrGenNoIPv6:
		l.AddrGen = k.newAddrGen(mtu)
		l.NoIPv6 = false
	}
}

func (k *fakeKernel) setLink(o netstate.LinkSet) error {
	l, err := k.link(o.Index)
	if err != nil {
		return err
	}
	if o.Name != "" {
		if l.Up {
			return syscall.EBUSY
		}
		if slices.ContainsFunc(k.s.Links, func(l netstate.Link) bool { return l.Name == o.Name }) {
			return syscall.EEXIST
		}
	}
	if !o.MAC.IsZero() && l.Up && l.Tap == nil && l.Kind != "bridge" && !netstate.ChangesMACUp(l.Kind) {
		return syscall.EBUSY
	}
	if o.AddrGen != nil && (l.AddrGen == netstate.AddrGenNoIPv6 || *o.AddrGen < 0) {
		return syscall.EAFNOSUPPORT
	}
	if o.Master != nil && *o.Master != 0 {
		bridge, err := k.link(*o.Master)
		if err != nil {
			return syscall.EINVAL
		}
		if bridge.Kind != "bridge" || l.Kind == "bridge" || l.Loopback {
			return syscall.EOPNOTSUPP
		}
	}

	if !o.MAC.IsZero() && o.MAC != l.MAC {
		l.MAC = o.MAC
		k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == l.Index && n.Address.IsValid() })
	}
	if o.MTU != 0 {
		k.setMTU(l, o.MTU)
		k.mtuChosen[l.Index] = true
		k.leastMTU(l.Master)
	}
	if o.Name != "" {
		k.relabel(l.Index, o.Name)
		l.Name = o.Name
	}
	if o.QueueLength != 0 {
		if l.Tap == nil {
			return syscall.EINVAL
		}
		l.QueueLength = o.QueueLength
	}
	if o.AllMulticast != nil {
		l.AllMulticast = *o.AllMulticast
	}
	if o.NoARP != nil {
		l.NoARP = *o.NoARP
	}
	if o.Group != nil {
		l.Group = *o.Group
	}
	if o.Alias != "" {
		l.Alias = o.Alias
	}
	if o.AddrGen != nil {
		l.AddrGen = *o.AddrGen
	}
	if o.Master != nil {
		old := l.Master
		k.leavesBridge(l.Index)
		l.Master, l.BridgePort = *o.Master, nil
		if l.Master != 0 {
			l.BridgePort = netstate.Settings{"learning": 1, "flood": 1, "isolated": 0}
		}
		k.leastMTU(old)
		k.leastMTU(l.Master)
	}
	if o.Up != nil && *o.Up != l.Up {
		l.Up = *o.Up
		if l.Up {
			k.cameUp(l)
		} else {
			k.wentDown(l)
		}
	}
	return nil
}

// relabel is inetdev_changename.
func (k *fakeKernel) relabel(link int, name string) {
	n := 0
	for i := range k.s.Addresses {
		a := &k.s.Addresses[i]
		if a.Link != link || !a.Prefix.Addr().Is4() {
			continue
		}
		if n++; n == 1 {
			a.Label = name
			continue
		}
		_, alias, ok := strings.Cut(a.Label, ":")
		if !ok {
			alias = fmt.Sprint(n)
		}
		a.Label = name + ":" + alias
	}
}

func (k *fakeKernel) cameUp(l *netstate.Link) {
	if l.AddrGen == 0 && !k.has(l.Index, eui64.LinkLocal(l.MAC)) {
		k.insert(netstate.Address{Link: l.Index, Prefix: netip.PrefixFrom(eui64.LinkLocal(l.MAC), 64), Scope: netstate.ScopeLink, Protocol: kernelLL,
			ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
	}
	for _, a := range k.s.Addresses {
		if a.Link == l.Index {
			k.onStack(a)
			k.connect(a)
		}
	}
}

// onStack makes the local route of an address.
func (k *fakeKernel) onStack(a netstate.Address) {
	k.s.OffStack = slices.DeleteFunc(k.s.OffStack, func(o netstate.OffStack) bool { return o.Link == a.Link && o.Address == a.Prefix.Addr() })
}

// isLocal reports whether the route is the local one of an address, which a Snapshot does not hold, and whether it is
// there.
func (k *fakeKernel) isLocal(r netstate.Route) (local, there bool) {
	if r.Table != netstate.TableLocal || r.Type != netstate.RouteLocal || r.Protocol != netstate.ProtocolKernel {
		return false, false
	}
	off := slices.Contains(k.s.OffStack, netstate.OffStack{Link: r.Link, Address: r.Destination.Addr()})
	return true, k.has(r.Link, r.Destination.Addr()) && !off
}

func (k *fakeKernel) has(link int, addr netip.Addr) bool {
	return slices.ContainsFunc(k.s.Addresses, func(a netstate.Address) bool { return a.Link == link && a.Prefix.Addr() == addr })
}

func (k *fakeKernel) wentDown(l *netstate.Link) {
	k.lose6(l.Index)
	down := func(index int) bool {
		link, err := k.link(index)
		return err != nil || !link.Up
	}
	k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool {
		if len(r.Hops) > 0 {
			return !slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return !down(h.Link) })
		}
		return r.Link == l.Index
	})
	k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == l.Index })
}

// lose6 takes all IPv6 addresses and routes.
func (k *fakeKernel) lose6(link int) {
	k.s.Addresses = slices.DeleteFunc(k.s.Addresses, func(a netstate.Address) bool { return a.Link == link && a.Prefix.Addr().Is6() })
	k.s.OffStack = slices.DeleteFunc(k.s.OffStack, func(o netstate.OffStack) bool { return o.Link == link && o.Address.Is6() })
	k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool { return r.Link == link && r.Destination.Addr().Is6() })
}

// lose4 takes the IPv4 addresses that match, with the routes that hang on them.
func (k *fakeKernel) lose4(link int, match func(netstate.Address) bool) {
	var gone []netstate.Address
	left := 0
	k.s.Addresses = slices.DeleteFunc(k.s.Addresses, func(a netstate.Address) bool {
		if a.Link != link || !a.Prefix.Addr().Is4() {
			return false
		}
		if match(a) {
			k.onStack(a) // there is nothing left to distinguish
			gone = append(gone, a)
			return true
		}
		left++
		return false
	})
	k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool {
		if !r.Destination.Addr().Is4() {
			return false
		}
		return len(gone) > 0 && left == 0 && r.Link == link ||
			slices.ContainsFunc(gone, func(a netstate.Address) bool {
				elsewhere := slices.ContainsFunc(k.s.Addresses, func(o netstate.Address) bool { return o.Prefix.Addr() == a.Prefix.Addr() })
				return r.PrefSrc == a.Prefix.Addr() && (r.Link == link || !elsewhere)
			})
	})
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

// connect adds the connected route of an address that is there.
func (k *fakeKernel) connect(a netstate.Address) {
	l, err := k.link(a.Link)
	if err != nil || !l.Up || a.Flags&netstate.AddrNoPrefixRoute != 0 {
		return
	}
	r := netstate.Route{Link: a.Link, Table: netstate.TableMain, Destination: network(a), Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel, Metric: a.Metric}
	if a.Prefix.Addr().Is4() {
		if k.secondary(a) || network(a) == netip.PrefixFrom(a.Prefix.Addr(), 32) {
			return
		}
		r.Scope, r.PrefSrc = netstate.ScopeLink, a.Prefix.Addr()
	} else {
		r.Metric = cmp.Or(r.Metric, 256)
		r.Other = medium
	}
	if !slices.ContainsFunc(k.s.Routes, func(o netstate.Route) bool { return reflect.DeepEqual(o, r) }) {
		k.s.Routes = append(k.s.Routes, r)
	}
}

// medium is what the kernel says of every IPv6 route.
var medium = []netstate.Attribute{{Type: prefAttribute, Data: []byte{0}}}

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

func (k *fakeKernel) addAddress(a netstate.Address) error {
	l, err := k.link(a.Link)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(k.s.Addresses, func(o netstate.Address) bool { return o.Link == a.Link && o.Prefix.Addr() == a.Prefix.Addr() })
	if a.Prefix.Addr().Is4() {
		if at >= 0 && network(k.s.Addresses[at]) == network(a) {
			return syscall.EEXIST
		}
		a.Label = cmp.Or(a.Label, l.Name)
		k.insert(a)
	} else {
		if l.AddrGen == netstate.AddrGenNoIPv6 || l.NoIPv6 {
			return syscall.EACCES
		}
		if at >= 0 {
			k.s.Addresses[at] = a
		} else {
			k.insert(a)
		}
	}
	k.connect(a)
	return nil
}

func (k *fakeKernel) delAddress(a netstate.Address) error {
	at := slices.IndexFunc(k.s.Addresses, func(o netstate.Address) bool {
		return o.Link == a.Link && o.Prefix == a.Prefix && o.Peer == a.Peer && (a.Label == "" || a.Label == o.Label)
	})
	if at < 0 {
		return syscall.EADDRNOTAVAIL
	}
	a = k.s.Addresses[at]
	if a.Prefix.Addr().Is4() {
		family := !k.secondary(a)
		k.lose4(a.Link, func(o netstate.Address) bool { return o.Prefix == a.Prefix || family && network(o) == network(a) })
		return nil
	}
	k.s.Addresses = slices.Delete(k.s.Addresses, at, at+1)
	k.onStack(a)
	shared := slices.ContainsFunc(k.s.Addresses, func(o netstate.Address) bool { return o.Link == a.Link && network(o) == network(a) })
	if !shared && a.ValidSeconds == netstate.Forever && a.Flags&netstate.AddrNoPrefixRoute == 0 {
		k.s.Routes = slices.DeleteFunc(k.s.Routes, func(r netstate.Route) bool {
			return r.Link == a.Link && r.Destination == network(a) && r.Protocol == netstate.ProtocolKernel && r.Table == netstate.TableMain
		})
	}
	return nil
}

func (k *fakeKernel) addRoute(r netstate.Route) error {
	if local, there := k.isLocal(r); local {
		switch {
		case there:
			return syscall.EEXIST
		case r.Destination.Addr().Is6(): // it would get another metric
			return fmt.Errorf("the local route to %v is no longer the kernel's", r.Destination)
		}
		k.onStack(netstate.Address{Link: r.Link, Prefix: r.Destination})
		return nil
	}
	for _, h := range append([]netstate.Hop{{Link: r.Link, Gateway: r.Gateway, OnLink: r.OnLink}}, r.Hops...) {
		if h.Link == 0 {
			continue
		}
		l, err := k.link(h.Link)
		if err != nil {
			return err
		}
		if !l.Up {
			return syscall.ENETDOWN
		}
		if r.Destination.Addr().Is6() && l.AddrGen == netstate.AddrGenNoIPv6 {
			return syscall.EACCES
		}
		linkLocal := h.Gateway.Is6() && h.Gateway.IsLinkLocalUnicast()
		if !h.Gateway.IsValid() || h.OnLink || linkLocal {
			continue
		}
		if !slices.ContainsFunc(k.s.Routes, func(o netstate.Route) bool {
			return (o.Table == netstate.TableMain || o.Table == netstate.TableLocal) && o.Link == h.Link && !o.Gateway.IsValid() && len(o.Hops) == 0 && o.Destination.Contains(h.Gateway)
		}) {
			return syscall.ENETUNREACH
		}
	}
	if r.PrefSrc.IsValid() && !slices.ContainsFunc(k.s.Addresses, func(a netstate.Address) bool {
		off := slices.Contains(k.s.OffStack, netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr()})
		return a.Prefix.Addr() == r.PrefSrc && (a.Prefix.Addr().Is6() || !off)
	}) {
		return syscall.EINVAL
	}
	if slices.ContainsFunc(k.s.Routes, func(o netstate.Route) bool { return reflect.DeepEqual(o, r) }) {
		return syscall.EEXIST
	}
	k.s.Routes = append(k.s.Routes, r)
	return nil
}

func (k *fakeKernel) delRoute(r netstate.Route) error {
	if local, there := k.isLocal(r); local {
		if !there {
			return syscall.ESRCH
		}
		k.s.OffStack = append(k.s.OffStack, netstate.OffStack{Link: r.Link, Address: r.Destination.Addr()})
		return nil
	}
	at := slices.IndexFunc(k.s.Routes, func(o netstate.Route) bool {
		return o.Table == r.Table && o.Destination == r.Destination && o.Type == r.Type && o.Scope == r.Scope && o.TOS == r.TOS &&
			(r.Link == 0 || o.Link == r.Link) && (r.Metric == 0 || o.Metric == r.Metric) && (r.Protocol == 0 || o.Protocol == r.Protocol) &&
			(!r.Gateway.IsValid() || o.Gateway == r.Gateway) && (!r.PrefSrc.IsValid() || o.PrefSrc == r.PrefSrc) &&
			(len(r.Hops) == 0 || reflect.DeepEqual(o.Hops, r.Hops))
	})
	if at < 0 {
		return syscall.ESRCH
	}
	k.s.Routes = slices.Delete(k.s.Routes, at, at+1)
	return nil
}

// setSysctl: a namespace that begins to forward forgets the routers that it has learned, but for
// links that keep listening. With accept_ra 0 it was not the kernel that learned them.
// isOfLink reports whether the sysctl is one of the link.
func isOfLink(path, link string) bool {
	return strings.HasPrefix(path, "net/ipv6/conf/"+link+"/") || strings.HasPrefix(path, "net/ipv4/neigh/"+link+"/")
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
	for _, i := range s.Ingress {
		add("ingress", name[i], nil)
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
