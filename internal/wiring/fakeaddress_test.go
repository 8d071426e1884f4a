package wiring_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/internal/netstate"
)

func (k *fakeKernel) has(link int, addr netip.Addr) bool {
	return slices.ContainsFunc(k.s.Addresses, func(a netstate.Address) bool { return a.Link == link && a.Prefix.Addr() == addr })
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
