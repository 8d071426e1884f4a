package wiring_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netstate"
)

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
	k.s.Clsact = slices.DeleteFunc(k.s.Clsact, func(i int) bool { return i == index })
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
	have, want := o.Have, o.Want
	l, err := k.link(want.Index)
	if err != nil {
		return err
	}
	if have.Name != want.Name {
		if l.Up {
			return syscall.EBUSY
		}
		if slices.ContainsFunc(k.s.Links, func(l netstate.Link) bool { return l.Name == want.Name }) {
			return syscall.EEXIST
		}
	}
	if have.MAC != want.MAC && l.Up && l.Tap == nil && l.Kind != "bridge" && !netstate.ChangesMACUp(l.Kind) {
		return syscall.EBUSY
	}
	if have.AddrGen != want.AddrGen && (l.AddrGen == netstate.AddrGenNoIPv6 || want.AddrGen < 0) {
		return syscall.EAFNOSUPPORT
	}
	if have.Master != want.Master && want.Master != 0 {
		bridge, err := k.link(want.Master)
		if err != nil {
			return syscall.EINVAL
		}
		if bridge.Kind != "bridge" || l.Kind == "bridge" || l.Loopback {
			return syscall.EOPNOTSUPP
		}
	}

	if have.MAC != want.MAC && want.MAC != l.MAC {
		l.MAC = want.MAC
		k.s.Neighbours = slices.DeleteFunc(k.s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == l.Index && n.Address.IsValid() })
	}
	if have.MTU != want.MTU {
		k.setMTU(l, want.MTU)
		k.mtuChosen[l.Index] = true
		k.leastMTU(l.Master)
	}
	if have.Name != want.Name {
		k.relabel(l.Index, want.Name)
		l.Name = want.Name
	}
	if have.QueueLength != want.QueueLength {
		if l.Tap == nil {
			return syscall.EINVAL
		}
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
		old := l.Master
		k.leavesBridge(l.Index)
		l.Master, l.BridgePort = want.Master, nil
		if l.Master != 0 {
			l.BridgePort = netstate.Settings{"learning": 1, "flood": 1, "isolated": 0}
		}
		k.leastMTU(old)
		k.leastMTU(l.Master)
	}
	if have.Up != want.Up && want.Up != l.Up {
		l.Up = want.Up
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
