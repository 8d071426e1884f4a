// Package guestconfig writes the network configuration of a guest that runs no DHCP client, from the records of Phase1.
//
//	NoCloud   cloud-init
//	Networkd  systemd-networkd
//	KernelIP  the kernel's command line
//	FlatIPv4  a unikernel, or another guest without routes
//
// The guest gets what the namespace's NIC had (cache.Static). If the record does not have that, it gets what its lease
// has. Print the warnings: they name what a format leaves out. An error: the guest would have no network.
package guestconfig

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/servers"
)

// Numbers of rtnetlink(7), as in cache.Static.
const (
	scopeGlobal = 0
	scopeLink   = 253
	tableMain   = 254
)

// Guest is what a configuration is made of.
type Guest struct {
	// Records are the guest's interfaces, as VM.Records of package phase2 returns them.
	Records []cache.Record

	// DNS is for the interfaces whose record has none. Zero: they get none.
	DNS cache.DNS
}

// Files is a configuration of several files.
type Files struct {
	// Contents are the files' contents by their names.
	Contents map[string]string

	// Warnings name what the guest does not get, or gets in another form, a sentence each.
	Warnings []string
}

// formatError reports that a format cannot configure an interface at all.
type formatError struct {
	Format string // "cloud-init", "networkd", "kernel"
	NIC    string // empty: the guest
	Reason string
}

func (e *formatError) Error() string {
	if e.NIC == "" {
		return fmt.Sprintf("%s configuration of the guest: %s", e.Format, e.Reason)
	}
	return fmt.Sprintf("%s configuration of %s: %s", e.Format, e.NIC, e.Reason)
}

// nic is one interface, as all formats need it.
type nic struct {
	cache.Record
	was   cache.Static // the configuration
	dns   cache.DNS    // what the guest can use
	ntp   []netip.Addr // the same
	warns []string
}

// warn adds a sentence, which names the interface.
func (n *nic) warn(format string, args ...any) {
	n.warns = append(n.warns, n.Name+": "+fmt.Sprintf(format, args...))
}

// nics returns the guest's interfaces. A route that leads through none of them, and a rule, are in the records of
// several: only the first interface gets them.
func (g Guest) nics(format string) ([]*nic, error) {
	if len(g.Records) == 0 {
		return nil, &formatError{Format: format, Reason: "it has no record"}
	}
	var all []*nic
	seen := map[string]bool{}
	again := func(value any) bool {
		key := fmt.Sprintf("%+v", value)
		was := seen[key]
		seen[key] = true
		return was
	}
	for _, r := range g.Records {
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("record of interface %q: %w", r.Name, err)
		}
		n := &nic{Record: r, dns: g.DNS}
		switch {
		case r.Static != nil:
			n.was = *r.Static
			for _, w := range n.was.Warnings {
				n.warn("%s", w)
			}
		case r.IPv4 != nil || r.IPv6 != nil:
			n.was = ofLease(r)
			for _, l := range r.Losses {
				n.warn("lost: %v", l)
			}
			for _, w := range r.Warnings {
				n.warn("%s", w)
			}
		default:
			return nil, &formatError{Format: format, NIC: r.Name, Reason: "its record has no addresses: set the guest up by other means, or to use DHCP"}
		}
		n.was.Routes = slices.DeleteFunc(slices.Clone(n.was.Routes), func(r cache.StaticRoute) bool { return r.Type != "" && again(r) })
		n.was.Rules = slices.DeleteFunc(slices.Clone(n.was.Rules), func(r cache.StaticRule) bool { return again(r) })
		if r.DNS != nil {
			n.dns = *r.DNS
		}
		n.choose()
		all = append(all, n)
	}
	for _, v := range ip.Both {
		warnSourceless(all, v)
	}
	return all, nil
}

// warnSourceless warns of a guest whose routes are all in tables for its own addresses, as the second NIC of a
// namespace can be: where a program does not choose the source, the kernel looks for a route without one.
func warnSourceless(all []*nic, v ip.Version) {
	elsewhere := (*nic)(nil)
	for _, n := range all {
		for _, a := range n.was.Addresses {
			own := a.Address.Addr()
			if ip.Of(own) == v && !own.IsLinkLocalUnicast() && !a.NoPrefixRoute && !a.Address.IsSingleIP() {
				return
			}
		}
		for _, r := range n.was.Routes {
			if ip.Of(r.Destination.Addr()) != v || r.Type != "" {
				continue
			}
			if r.Table == tableMain {
				return
			}
			elsewhere = n
		}
	}
	if elsewhere != nil {
		elsewhere.warn("the table main has no %v route, as in the namespace: a program in the guest has to bind its own address, or the guest needs the namespace's other interfaces too", v)
	}
}

// ofLease is what DHCP and router advertisements give the guest.
func ofLease(r cache.Record) cache.Static {
	var s cache.Static
	if v := r.IPv4; v != nil {
		s.Addresses = append(s.Addresses, cache.StaticAddress{Address: v.Address, Broadcast: broadcast(v.Address)})
		for _, route := range v.Routes {
			to := cache.StaticRoute{Destination: route.Destination, Gateway: route.Gateway, Table: tableMain}
			if !route.Gateway.IsValid() {
				to.Scope = scopeLink
			}
			s.Routes = append(s.Routes, to)
		}
	}
	if v := r.IPv6; v != nil {
		var implied []netip.Prefix
		for _, a := range v.Addresses() {
			own := netip.PrefixFrom(a, 128)
			for _, p := range v.OnLink {
				if p.Contains(a) {
					own = netip.PrefixFrom(a, min(own.Bits(), p.Bits()))
				}
			}
			s.Addresses = append(s.Addresses, cache.StaticAddress{Address: own, Deprecated: slices.Contains(v.Deprecated, a)})
			implied = append(implied, own.Masked())
		}
		add := func(to netip.Prefix, gateway netip.Addr) {
			s.Routes = append(s.Routes, cache.StaticRoute{Destination: to, Gateway: gateway, Table: tableMain, Metric: metric6})
		}
		for _, p := range v.OnLink {
			if !slices.Contains(implied, p) {
				add(p, netip.Addr{})
			}
		}
		if v.Router != nil {
			for _, p := range v.Router.Routes {
				add(p, v.Router.Address)
			}
			if v.Router.Default {
				add(netip.PrefixFrom(netip.IPv6Unspecified(), 0), v.Router.Address)
			}
		}
	}
	isHop := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Routes, func(r cache.StaticRoute) bool { return r.Gateway == a })
	}
	for _, n := range r.Neighbours {
		if isHop(n.Address) {
			s.Neighbours = append(s.Neighbours, n)
		}
	}
	return s
}

// broadcast is the last address of an IPv4 network, which DHCP clients take; zero: the network has none.
func broadcast(p netip.Prefix) netip.Addr {
	if p.Bits() > 30 {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|^uint32(0)>>p.Bits())
	return netip.AddrFrom4(b)
}

// metric6 is the kernel's metric of an IPv6 route (IP6_RT_PRIO_USER).
const metric6 = 1024

// given are the addresses that the guest has to be given: it makes the link-local address of its MAC by itself. The
// kernel lists the IPv6 address that was added last first, so they come in reverse.
func (n *nic) given() []cache.StaticAddress {
	var v4, v6 []cache.StaticAddress
	for _, a := range n.was.Addresses {
		switch own := a.Address.Addr(); {
		case own == eui64.LinkLocal(n.MAC):
		case own.Is4():
			v4 = append(v4, a)
		default:
			v6 = append(v6, a)
		}
	}
	slices.Reverse(v6)
	return append(v4, v6...)
}

// hasIPv6 reports whether the NIC had an IPv6 address.
func (n *nic) hasIPv6() bool {
	return slices.ContainsFunc(n.was.Addresses, func(a cache.StaticAddress) bool { return a.Address.Addr().Is6() })
}

// choose sets the servers and search domains that the guest can use, and warns of others. A domain's name with other
// characters could become another setting in the guest.
func (n *nic) choose() {
	by := servers.Configured(&n.Record, n.was)
	var left [3][]cache.Finding
	n.dns.Servers, left[0] = by.Resolvers(n.dns.Servers)
	n.ntp, left[1] = by.Reachable(n.Options.NTP)
	n.dns.Search, left[2] = servers.Search(&n.Options, n.dns.Search)
	for _, l := range slices.Concat(left[:]...) {
		if text := fmt.Sprintf("lost: %v", l); !slices.Contains(n.warns, n.Name+": "+text) { // it may be the record's too
			n.warn("%s", text)
		}
	}
}

// answered says who else answers for a neighbour that the format leaves out.
func (n *nic) answered(address netip.Addr) string {
	if n.ResponderTap != "" && slices.ContainsFunc(n.Neighbours, func(o cache.Neighbour) bool { return o.Address == address }) {
		return "guestwire's responder answers for it while the launcher serves"
	}
	return "the guest reaches it only if a station answers for it"
}

// collect are the warnings of all interfaces.
func collect(nics []*nic) []string {
	var all []string
	for _, n := range nics {
		all = append(all, n.warns...)
	}
	return all
}

// onLink reports whether a route is written with a gateway that is on the link. In another table than main, the guest
// may add the route before the one that leads to the gateway, and the kernel then refuses the gateway.
func onLink(r cache.StaticRoute) bool {
	return r.OnLink || r.Gateway.IsValid() && r.Table != tableMain
}
