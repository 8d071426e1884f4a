package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// routed makes the namespace the router between the NIC and the guest, which has the NIC's addresses. The NIC keeps
// them, and everything else but the sources of its routes. The namespace has addresses of its own too, at the NIC and
// the tap.
type routed struct{ infra.Routed }

func (routed) asks(n netstate.Names) Questions {
	return Questions{Sysctls: sysctlsOfRouter(n), Hinders: hinders(), Listeners: true, Log: true}
}

// sameGuest: the guest's addresses and MAC come from the NIC, and what the namespace does with packets can change under
// a running guest.
func (routed) sameGuest(infra.Binding) bool { return true }
func (routed) wiredAs() string              { return "" }

// makesMAC: that of a guest behind a NIC without Ethernet.
func (routed) makesMAC() bool { return true }

func (routed) takeOver(string, cache.Record) (infra.Binding, error) {
	return nil, &cache.FieldError{Field: "binding", Reason: "a guest of the routed binding cannot move: want another binding, or a guest without From"}
}

func (b routed) wire(p *Plan) error {
	if reason := p.whyNotRouted(); reason != "" {
		return p.refuse(reason)
	}
	guest, gateway := p.routedMAC(), defaultGatewayMAC
	if guest == gateway {
		gateway = netstate.DeriveMAC(p.nic, "router")
	}
	p.Record = p.routerRecord(guest, gateway)
	p.on.FillRouted(&p.Record)
	r := router.Routed{Sidecar: b.Sidecar, Excluded: b.Excluded, Own: p.own}
	var ends router.Ends
	for _, v := range ip.Both {
		if own := p.on.Own(v); len(own) > 0 {
			ends = append(ends, router.End{Guest: own[0], Gateway: ip.Pick(v, lease.Hop(own[0]), lease.RoutedIPv6)})
		}
	}
	p.warnRoutedPorts(b.Routed, p.own)
	p.addWarnings(p.warnSourceRules()...)

	if err := p.addDiverts(ends); err != nil {
		return err
	}
	tap := p.gatewayTap(ends)
	p.addRouter(tap, ends, b.Sidecar != nil)
	p.handOver(tap, ends)
	if err := p.addRoutesToGuest(tap, ends); err != nil {
		return err
	}
	var err error
	if r.Router, err = p.forwarding(ends, b.MaxConnections, nil); err != nil {
		return err
	}
	r.Further = slices.DeleteFunc(slices.Clone(p.own), func(a netip.Addr) bool { return slices.Contains(ends.Guests(), a) })
	if err := p.checkSources(b.Sidecar, ends); err != nil {
		return err
	}
	r.Sources = map[ip.Version][]fib.Choice{}
	for _, e := range ends {
		r.Sources[ip.Of(e.Guest)] = p.on.Sources(e.Gateway)
	}
	p.guests = router.GuestNetworks(tap, p.wanted.Addresses, p.wanted.Routes, true)
	p.olderExchanges, p.translated = r.Older(), r.Translated()
	p.described = append(p.described, r)
	g := guestfilter.Guest{Addresses: p.own, Hop: ends.Gateway(ip.V4)}
	if p.nic.Ethernet && !p.nic.NoARP {
		g.Announced = p.on.Own(ip.V4)
	}
	return p.addFilter(g)
}

// whyNotRouted is why the namespace cannot route the NIC's addresses to a guest; empty: it can.
func (s *seen) whyNotRouted() string {
	v4, v6, nic := s.v4, s.v6, s.nic
	switch {
	case len(s.spec.Guard.EtherTypes)+len(s.spec.Guard.VLANs) > 0: // infra.Auto is another binding, so Validate lets these fields pass
		return "it carries IPv4 and IPv6, and guard.etherTypes and guard.vlans are for other frames"
	case s.found.NoNFTables:
		return "this kernel has no nf_tables, which would distinguish the guest's packets from the namespace's; load them (modprobe nf_tables), or choose masquerade with guard.off"
	case len(v4)+len(v6) == 0:
		return "it has no address that the guest could get"
	case len(v4) > 0 && !nic.Ethernet && !nic.NoARP:
		return "it has ARP of another kind than Ethernet's, and the guest, which has Ethernet, could not answer it"
	case nic.Mode == netstate.ModeActive:
		return whyPortsMAC(nic)
	case len(v6) > 0 && s.lacksIPv6() != "":
		return s.lacksIPv6()
	}
	for _, a := range s.found.Addresses {
		own := a.Prefix.Addr()
		if hop4 := len(v4) > 0 && own == lease.Hop(v4[0].Addr()); hop4 || len(v6) > 0 && own == lease.RoutedIPv6 {
			if l := s.links.at(a.Link); !s.links.isWired(l) {
				return fmt.Sprintf("%v, which the routed binding gives to the namespace, is an address of %s already", own, l.Name)
			}
		}
	}
	return ""
}

// routedMAC is the guest's: the NIC's, so that the guest's answers to ARP requests at the NIC name the NIC.
func (s *seen) routedMAC() cache.MAC {
	if s.nic.Ethernet && !s.nic.NoARP && s.nic.MAC.Unicast() {
		return s.nic.MAC
	}
	return s.guestMAC()
}

// warnSourceRules warns of policy rules that chose routes by the NIC's addresses, which the namespace's own packets do
// not have any more when their route is chosen.
func (s *seen) warnSourceRules() (list texts) {
	all := fib.Sorted(s.own)
	for _, r := range s.found.Rules {
		if r.Source.IsValid() && r.Source.Bits() > 0 && all.MeetIn(r.Source) {
			list.add("a policy rule for packets from %v is in force for the guest's packets, and not for the namespace's own", r.Source)
		}
	}
	return list
}

// handOver wants the NIC's addresses to lead to the guest, and gives the namespace others.
//
// In the table local the routes to the guest take the place of the kernel's: so they come before all policy rules. An
// IPv4 address with the scope host is before others in the kernel's list, and an IPv6 address is if it was added last.
// So REDIRECT, which takes the first one of the link by which a packet came in, chooses the namespace's address. No ARP
// request has a sender of the scope host.
//
// The namespace's own sockets get their IPv4 source from the routes. An IPv6 address that is deprecated is not chosen
// if there is another one.
func (p *Plan) handOver(tap netstate.Link, ends router.Ends) {
	nic := p.nic
	for _, e := range ends {
		hop := e.Gateway
		a := netstate.Address{Link: nic.Index, Prefix: firewall.HostPrefix(hop), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
		if hop.Is4() {
			a.Scope, a.Label = netstate.ScopeHost, nic.Name
		} else {
			a.Flags = netstate.AddrNoDAD | netstate.AddrNoPrefixRoute
		}
		p.added.Addresses = append(p.added.Addresses, a)
		at := a
		at.Link, at.Scope = tap.Index, netstate.ScopeUniverse
		if hop.Is4() {
			at.Label = tap.Name
		}
		p.wanted.Addresses = append(p.wanted.Addresses, a, at)
	}
	for _, a := range p.found.Addresses {
		if a.Link != nic.Index {
			continue
		}
		addr := a.Prefix.Addr()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			p.wanted.Addresses = append(p.wanted.Addresses, a)
			continue // the NIC's own, for neighbour discovery
		}
		if addr.Is6() {
			a.PreferredSeconds = 0
		}
		p.wanted.Addresses = append(p.wanted.Addresses, a)
		p.wanted.OffStack = append(p.wanted.OffStack, netstate.OffStack{Link: nic.Index, Address: addr})
		to := netstate.Route{Link: tap.Index, Table: netstate.TableLocal, Destination: firewall.HostPrefix(addr), PrefSrc: ends.Gateway(ip.Of(addr)),
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic}
		if addr.Is4() {
			to.Scope, to.Metric = netstate.ScopeLink, metricTap
		} else {
			to.Metric, to.Other = metricPrefix, []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}
		}
		p.wanted.Routes = append(p.wanted.Routes, to)
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, Address: addr, MAC: p.Record.MAC, Permanent: true})
	}
	routes := routesIn(p.found)
	own := fib.Sorted(p.own)
	for _, route := range p.found.Routes {
		if route.Uses(nic.Index) && route.Type == netstate.RouteUnicast {
			p.resource(route, ends.Gateway(ip.Of(route.Destination.Addr())), routes, own.Has(route.PrefSrc))
		}
	}
}

// metricTap is larger than that of the kernel's own route to an IPv4 address, 0. When the kernel adds the address
// again, it adds its own route, and then others with the address as their source, if its own route is the first.
const metricTap = 1

// resource wants the route of the NIC with a source that is the namespace's, also if its source is the guest's now.
// Routes that change by themselves are left alone, and so are those that the kernel would not add again.
func (p *Plan) resource(route netstate.Route, hop netip.Addr, routes routesOf, fromGuest bool) {
	v4 := route.Destination.Addr().Is4()
	lost := routes.whyLost(route, p.nic)
	if slices.ContainsFunc(route.Hops, func(h netstate.Hop) bool { return h.Link != p.nic.Index }) {
		lost = "leads through other links too"
	}
	switch {
	case lost != "" && (fromGuest || v4):
		p.warn("the route to %v %s, and stays as it is: the namespace's own packets get the guest's address there, and no answers", route.Destination, lost)
	case fromGuest || v4 && !route.PrefSrc.IsValid() && hop.IsValid():
		p.wanted.Unwanted.Routes = append(p.wanted.Unwanted.Routes, route)
		route.PrefSrc = hop
		p.added.Routes = append(p.added.Routes, route)
		p.wanted.Routes = append(p.wanted.Routes, route)
	case lost == "" && route.Protocol != netstate.ProtocolRA && route.ExpiresSeconds == 0:
		p.wanted.Routes = append(p.wanted.Routes, route)
	}
}
