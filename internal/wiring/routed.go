package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// routed makes the namespace the router between the NIC and the guest, which has the NIC's addresses. The NIC keeps
// them, and everything else but the sources of its routes. The namespace has addresses of its own too, at the NIC and
// the tap.
type routed struct{ infra.Routed }

func (routed) asks(n netstate.Names) Questions {
	return Questions{Sysctls: sysctlsOfRouter(n), Listeners: true, Log: true}
}

func (routed) traits() traits {
	return traits{
		restoresAddresses: true, routes: true, offStack: true,
		unseen: "the preferred source (src) of routes, and the preferred lifetime of IPv6 addresses",
	}
}

// sameGuest: the guest's addresses and MAC come from the NIC, and what the namespace does with packets can change under
// a running guest.
func (routed) sameGuest(infra.Binding) bool { return true }
func (routed) wiredAs() string              { return "" }

// makesMAC: that of a guest behind a NIC without Ethernet.
func (routed) makesMAC() bool      { return true }
func (routed) givenMAC() cache.MAC { return cache.MAC{} }

func (routed) takeOver(string, cache.Record) (infra.Binding, error) {
	return nil, &cache.FieldError{Field: "binding", Reason: "a guest of the routed binding cannot move: want another binding, or a guest without From"}
}

func (b routed) wire(p *Plan, nic netstate.Link) error {
	on := lease.Of(p.found, nic)
	v4, v6 := on.Addresses()
	if err := p.checkRouted(nic); err != nil {
		return err
	}
	guest, gateway := p.routedMAC(nic), defaultGatewayMAC
	if guest == gateway {
		gateway = netstate.DeriveMAC(nic, "router")
	}
	p.newRouterRecord(nic, guest, gateway)
	on.FillRouted(&p.Record)
	r := Routed{Own4: addressesIn(v4), Own6: addressesIn(v6), Sidecar: b.Sidecar, Excluded: b.Excluded}
	if len(v4) > 0 {
		r.Hop4 = p.Record.IPv4.Server
		r.Ends = append(r.Ends, End{v4[0].Addr(), r.Hop4})
	}
	if len(v6) > 0 {
		r.Hop6 = lease.RoutedIPv6
		r.Ends = append(r.Ends, End{v6[0].Addr(), r.Hop6})
	}
	all := slices.Concat(r.Own4, r.Own6)
	p.Record.Warnings = append(p.Record.Warnings, warnRoutedPorts(b.Routed, p.found.Listeners, all)...)
	p.warnSourceRules(slices.Concat(v4, v6))

	tap := p.addRouter(nic, r.Ends, b.Sidecar != nil)
	p.handOver(nic, tap, r)
	if err := p.addRoutesToGuest(tap, r.Ends); err != nil {
		return err
	}
	p.olderExchanges, p.ownConnections = r.Older(), r.Own()

	var err error
	if r.Router, err = p.forwarding(nic, r.Ends, b.MaxConnections, nil); err != nil {
		return err
	}
	r.Further = slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return slices.Contains(r.Ends.Guests(), a) })
	r.Sources = map[int][]Source{}
	for _, e := range r.Ends {
		for _, s := range on.Sources(e.Gateway) {
			r.Sources[version(e.Guest)] = append(r.Sources[version(e.Guest)], Source(s))
		}
	}
	if err := checkSources(b.Sidecar, b.Kind(), nic, r.Ends); err != nil {
		return err
	}
	p.makeTables = append(p.makeTables, r.Tables)
	g := guestfilter.Guest{Addresses: all, Hop: r.Hop4}
	if nic.Ethernet && !nic.NoARP {
		g.Announced = r.Own4
	}
	return p.addFilter(nic, g)
}

// checkRouted refuses a NIC whose addresses the namespace cannot route to a guest.
func (p *Plan) checkRouted(nic netstate.Link) error {
	if reason := p.whyNotRouted(nic); reason != "" {
		return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingRouted, Reason: reason}
	}
	return nil
}

// whyNotRouted is why the namespace cannot route the NIC's addresses to a guest; empty: it can.
func (p *Plan) whyNotRouted(nic netstate.Link) string {
	v4, v6 := lease.Of(p.found, nic).Addresses()
	switch {
	case len(p.spec.Guard.EtherTypes)+len(p.spec.Guard.VLANs) > 0: // infra.Auto is another binding, so Validate lets these fields pass
		return "it carries IPv4 and IPv6, and guard.etherTypes and guard.vlans are for other frames"
	case p.found.NoNFTables:
		return "this kernel has no nf_tables, which would distinguish the guest's packets from the namespace's; load them (modprobe nf_tables), or choose masquerade with guard.off"
	case len(v4)+len(v6) == 0:
		return "it has no address that the guest could get"
	case len(v6) > 0 && p.lacksIPv6(nic) != "":
		return p.lacksIPv6(nic)
	}
	for _, a := range p.found.Addresses {
		own := a.Prefix.Addr()
		if hop4 := len(v4) > 0 && own == lease.Hop(v4[0].Addr()); hop4 || len(v6) > 0 && own == lease.RoutedIPv6 {
			if l, _ := p.found.Link(a.Link); !p.isWired(l) {
				return fmt.Sprintf("%v, which the routed binding gives to the namespace, is an address of %s already", own, l.Name)
			}
		}
	}
	return ""
}

// routedMAC is the guest's: the NIC's, so that the guest's answers to ARP requests at the NIC name the NIC.
func (p *Plan) routedMAC(nic netstate.Link) cache.MAC {
	if nic.Ethernet && !nic.NoARP && nic.MAC.Unicast() {
		return nic.MAC
	}
	return p.guestMAC(nic)
}

// warnSourceRules warns of policy rules that chose routes by the NIC's addresses, which the namespace's own packets do
// not have any more when their route is chosen.
func (p *Plan) warnSourceRules(own []netip.Prefix) {
	for _, r := range p.found.Rules {
		if r.Source.IsValid() && r.Source.Bits() > 0 && slices.ContainsFunc(own, func(a netip.Prefix) bool { return r.Source.Contains(a.Addr()) }) {
			p.warn("a policy rule for packets from %v is in force for the guest's packets, and not for the namespace's own", r.Source)
		}
	}
}

func addressesIn(prefixes []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range prefixes {
		list = append(list, p.Addr())
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
func (p *Plan) handOver(nic, tap netstate.Link, r Routed) {
	for _, hop := range []netip.Addr{r.Hop4, r.Hop6} {
		if !hop.IsValid() {
			continue
		}
		a := netstate.Address{Link: nic.Index, Prefix: single(hop), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
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
		to := netstate.Route{Link: tap.Index, Table: netstate.TableLocal, Destination: single(addr), PrefSrc: r.Hop(addr),
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic}
		if addr.Is4() {
			to.Scope, to.Metric = netstate.ScopeLink, metricTap
		} else {
			to.Metric, to.Other = metricPrefix, []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}
		}
		p.wanted.Routes = append(p.wanted.Routes, to)
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, Address: addr, MAC: p.Record.MAC, Permanent: true})
	}
	special := p.specialRoutes()
	for _, route := range p.found.Routes {
		if route.Uses(nic.Index) && route.Type == netstate.RouteUnicast {
			p.resource(nic, route, r, special)
		}
	}
}

// metricTap is larger than that of the kernel's own route to an IPv4 address, 0. When the kernel adds the address
// again, it adds its own route, and then others with the address as their source, if its own route is the first.
const metricTap = 1

// resource wants the route of the NIC with a source that is the namespace's. Routes that change by themselves are left
// alone, and so are those that the kernel would not add again.
func (p *Plan) resource(nic netstate.Link, route netstate.Route, r Routed, special special) {
	v4 := route.Destination.Addr().Is4()
	fromGuest := slices.Contains(r.Own4, route.PrefSrc) || slices.Contains(r.Own6, route.PrefSrc)
	lost := p.whyLost(route, nic, special)
	if slices.ContainsFunc(route.Hops, func(h netstate.Hop) bool { return h.Link != nic.Index }) {
		lost = "leads through other links too"
	}
	switch {
	case lost != "" && (fromGuest || v4):
		p.warn("the route to %v %s, and stays as it is: the namespace's own packets get the guest's address there, and no answers", route.Destination, lost)
	case fromGuest || v4 && !route.PrefSrc.IsValid() && r.Hop4.IsValid():
		p.wanted.Unwanted.Routes = append(p.wanted.Unwanted.Routes, route)
		route.PrefSrc = r.Hop(route.Destination.Addr())
		p.added.Routes = append(p.added.Routes, route)
		p.wanted.Routes = append(p.wanted.Routes, route)
	case lost == "" && route.Protocol != netstate.ProtocolRA && route.ExpiresSeconds == 0:
		p.wanted.Routes = append(p.wanted.Routes, route)
	}
}

// Routed is a router whose guest has the NIC's addresses.
type Routed struct {
	Router
	Sidecar  *infra.Sidecar
	Excluded []infra.Ports
	// Own4 and Own6 are the NIC's addresses, which are the guest's.
	Own4, Own6 []netip.Addr
	// Hop4 and Hop6 are the namespace's addresses; zero: the NIC has no address of the family.
	Hop4, Hop6 netip.Addr
	// Sources are what Hop4 and Hop6 become at the NIC, by the version of IP.
	Sources map[int][]Source
}

// Source is the address that the namespace's own packets get when they leave by the NIC.
type Source struct {
	To      netip.Prefix // zero: all other destinations of the family
	Address netip.Addr
}

// Hop is the namespace's address of the same family.
func (t Routed) Hop(a netip.Addr) netip.Addr {
	if a.Is4() {
		return t.Hop4
	}
	return t.Hop6
}

// Tables are those of nftables.
func (t Routed) Tables() []firewall.Table { return append(t.completeChecksums(), t.table()) }

func (t Routed) table() firewall.Table {
	chains := []firewall.Chain{
		{Name: "first", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: t.first()},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: t.through()},
		{Name: "output", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter, Rules: t.output()},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: t.source()},
		{Name: "last", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.SrcNAT + 1, Rules: t.last()},
		{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: t.toNamespace(t.toProxies()...)},
	}
	if !t.Guard.Off {
		chains = append(chains, firewall.Chain{Name: "errors", Rules: t.errors()})
	}
	chains = append(chains,
		firewall.Chain{Name: "accepted", Rules: t.accepted()},
		firewall.Chain{Name: "opening", Rules: t.opening()},
		firewall.Chain{Name: "opened", Rules: append(t.resumed(firewall.Unconfirmed{}), rule(firewall.Jump{Chain: "incoming"}, firewall.Unconfirmed{}))},
		firewall.Chain{Name: "related", Rules: t.related()},
		firewall.Chain{Name: "outgoing", Rules: t.limit()},
		firewall.Chain{Name: "incoming", Rules: t.limit()})
	if len(t.Excluded) > 0 {
		chains = append(chains,
			firewall.Chain{Name: "excluded", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: t.ownPorts(firewall.InInterface{Name: t.Names.NIC})},
			firewall.Chain{Name: "own-excluded", Type: "nat", Hook: firewall.Output, Priority: firewall.DstNAT, Rules: t.ownPorts()})
	}
	chains = append(chains, t.loopbacks()...)
	chains = append(chains, t.completedSources()...)
	table := firewall.Table{Family: firewall.Inet, Name: t.Names.Table, Chains: chains}
	t.limitNeighbours(&table)
	t.addEgress(&table)
	t.addOtherLinks(&table)
	return table
}

// toProxies accepts what a proxy's rule has sent to the namespace. The proxy's own connections are not the guest's, so
// Spec.Egress could not check them, and with it no proxy is reached.
func (t Routed) toProxies() []firewall.Rule {
	if len(t.Allowed) > 0 {
		return nil
	}
	return []firewall.Rule{rule(firewall.Goto{Chain: "accepted"}, t.fromGuest(), firewall.Translated{})}
}

// first is before connections are tracked and packets are routed. The gateway's addresses are for the guest and the
// namespace's own processes, as in Masquerade.toNamespace: no link but the tap and the loopback brings packets for
// them. Neighbour discovery for the NIC is the namespace's, and would be routed to the guest.
func (t Routed) first() []firewall.Rule {
	nic := firewall.InInterface{Name: t.Names.NIC}
	rules := t.loopback()
	for _, e := range t.Ends {
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.InInterface{Name: t.Names.Tap, Inverted: true}, firewall.InInterface{Name: "lo", Inverted: true},
			firewall.IP{Version: version(e.Guest)}, firewall.Destination{Prefix: single(e.Gateway)}))
	}
	rules = append(rules, t.completed()...)
	if t.NoARP {
		return rules
	}
	if t.Hop6.IsValid() { // as in asked
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: 6}, firewall.Protocol{Number: firewall.ProtocolICMPv6},
			firewall.ICMP{Version: 6, Type: firewall.ICMP6Solicitation}, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: t.Hop6.AsSlice()}))
	}
	for _, a := range t.Own6 {
		for _, kind := range []uint8{firewall.ICMP6Solicitation, firewall.ICMP6Advertisement} {
			rules = append(rules, rule(firewall.SetDestination{Address: t.Hop6}, nic, firewall.IP{Version: 6}, firewall.Destination{Prefix: single(a)},
				firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: kind}))
		}
	}
	return rules
}

// completed checks the sources of the guest's packets once more, in a chain for each family. Where the kernel completes
// checksums before this chain, it may have written into the source, after the guest filter has seen it.
func (t Routed) completed() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range t.completes() {
		v := version(e.Guest)
		rules = append(rules, rule(firewall.Jump{Chain: sourceChain(v)}, t.fromGuest(), firewall.IP{Version: v}))
	}
	return rules
}

// completes are the ends whose packets' sources are checked once more.
func (t Routed) completes() Ends {
	if len(t.Allowed) == 0 || t.Guard.Off {
		return nil
	}
	return t.Ends
}

func sourceChain(version int) string { return fmt.Sprintf("source-%d", version) }

// completedSources are the chains of completed. What is not forwarded passes: packets without a source, and those of
// link-local addresses, of which the guest filter knows more.
func (t Routed) completedSources() []firewall.Chain {
	local := map[int][]netip.Prefix{4: {single(netip.IPv4Unspecified())}, 6: {single(netip.IPv6Unspecified()), linkLocal6}}
	var chains []firewall.Chain
	for _, e := range t.completes() {
		v := version(e.Guest)
		c := firewall.Chain{Name: sourceChain(v)}
		for _, p := range slices.Concat(t.Router.sources(), local[v]) {
			if version(p.Addr()) == v && !(v == 6 && p.Addr().IsLinkLocalUnicast() && p != linkLocal6) {
				c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.Source{Prefix: p}))
			}
		}
		c.Rules = append(c.Rules, rule(drop(firewall.IPSpoof)))
		chains = append(chains, c)
	}
	return chains
}

var linkLocal6 = netip.MustParsePrefix("fe80::/10")

// through limits the connections of the guest and to the guest. What else comes in by the NIC is dropped, if the NIC
// did not forward before Setup.
//
// A segment that connection tracking does not know may be one of the namespace's own connections: such a segment is not
// translated back to the namespace's address. The guest would receive it, and its answer would reset the connection.
// Neither passes.
func (t Routed) through() []firewall.Rule {
	nic := firewall.InInterface{Name: t.Names.NIC}
	invalid := []firewall.Match{firewall.State{States: firewall.Invalid}, firewall.Protocol{Number: firewall.ProtocolTCP}}
	rules := append(answered(),
		rule(drop(firewall.NoConnection), slices.Concat([]firewall.Match{t.toTap(), firewall.InInterface{Name: t.Names.Tap, Inverted: true}}, invalid)...),
		rule(drop(firewall.NoConnection), t.strays(invalid)...))
	rules = append(rules, t.reopened()...)
	rules = append(rules,
		rule(firewall.Jump{Chain: "opening"}, t.fromGuest(), firewall.State{States: firewall.New | firewall.Related}),
		t.toOtherLinks(t.fromGuest(), firewall.State{States: firewall.Untracked}),
		rule(firewall.Jump{Chain: "opened"}, t.toTap(), firewall.InInterface{Name: t.Names.Tap, Inverted: true}, firewall.State{States: firewall.New}),
		rule(firewall.ClampMSS{}, t.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, t.toTap(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, t.fromGuest()),
		rule(firewall.Accept{}, t.toTap()),
		rule(firewall.Accept{}, nic, firewall.State{States: firewall.Established | firewall.Related}))
	for _, v := range t.Unforwarded {
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: v}))
	}
	return rules
}

// strays matches the guest's packets without a connection that must not pass: those that could reset one, and with
// Spec.Egress, which checks connections alone, all.
func (t Routed) strays(invalid []firewall.Match) []firewall.Match {
	if len(t.Allowed) > 0 {
		return []firewall.Match{t.fromGuest(), firewall.State{States: firewall.Invalid | firewall.Untracked}}
	}
	return slices.Concat([]firewall.Match{t.fromGuest()}, invalid, []firewall.Match{reset})
}

// reset matches a TCP segment with RST (RFC 9293 section 3.1), in a rule that matches TCP.
var reset = firewall.Bytes{Header: firewall.Transport, Offset: 13, Value: []byte{0}, Mask: []byte{4}, Inverted: true}

// opening is what the guest sends that belongs to no established connection.
func (t Routed) opening() []firewall.Rule {
	rules := append(t.checked(), rule(firewall.Goto{Chain: "related"}, firewall.State{States: firewall.Related}))
	rules = append(append(rules, t.toOtherLinks()), t.toNeighbours()...)
	return append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))
}

// source gives the namespace's own connections the NIC's addresses. Connection tracking keeps them apart from the
// guest's. A proxy's connection from a loopback address gets a source that the guest can answer.
func (t Routed) source() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range t.Ends {
		for _, s := range t.Sources[version(e.Guest)] {
			rules = append(rules, rule(firewall.SNAT{Address: s.Address}, t.toNIC(e, s)...))
		}
		if t.Sidecar == nil {
			continue
		}
		for _, a := range t.Sidecar.Sources {
			if version(a) == version(e.Guest) {
				rules = append(rules, rule(firewall.SNAT{Address: e.Gateway}, t.toTap(), firewall.IP{Version: version(a)}, firewall.Source{Prefix: single(a)}))
			}
		}
	}
	return rules
}

// ownPorts sends what comes to the excluded ports of the NIC's addresses to the namespace's own address.
func (t Routed) ownPorts(where ...firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range slices.Concat(t.Own4, t.Own6) {
		to := append(slices.Clone(where), firewall.IP{Version: version(a)}, firewall.Destination{Prefix: single(a)})
		for _, p := range t.Excluded {
			rules = append(rules, rule(firewall.DNAT{Address: t.Hop(a)}, append(slices.Clone(to), matchPorts(p)...)...))
		}
	}
	return rules
}

// last gives the NIC's addresses to what leaves untranslated, such as the namespace's ICMP errors about packets of the
// guest.
func (t Routed) last() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range t.Ends {
		for _, s := range t.Sources[version(e.Guest)] {
			rules = append(rules, rule(firewall.SetSource{Address: s.Address}, t.toNIC(e, s)...))
		}
	}
	return rules
}

// toNIC matches the namespace's own packets that leave by the NIC and get the source.
func (t Routed) toNIC(e End, s Source) []firewall.Match {
	m := []firewall.Match{firewall.OutInterface{Name: t.Names.NIC}, firewall.IP{Version: version(e.Guest)}, firewall.Source{Prefix: single(e.Gateway)}}
	if s.To.IsValid() {
		m = append(m, firewall.Destination{Prefix: s.To})
	}
	return m
}

// isHop reports whether a routed binding has put the address at the NIC.
func isHop(a netstate.Address) bool {
	switch a.Prefix.Addr() {
	case lease.RoutedIPv4, lease.RoutedIPv4.Next():
		return a.Scope == netstate.ScopeHost && a.Prefix.IsSingleIP()
	case lease.RoutedIPv6:
		return a.Prefix.IsSingleIP() && a.Flags&netstate.AddrNoPrefixRoute != 0
	}
	return false
}

// takeBack removes from the Snapshot of a NIC whose journal is lost what a routed binding has added.
func takeBack(found *netstate.Snapshot, nic netstate.Link) {
	var hops []netip.Addr
	var addresses []netstate.Address
	sources := map[netip.Prefix]netip.Addr{} // of the kernel's own routes
	for _, a := range found.Addresses {
		if a.Link == nic.Index && isHop(a) {
			hops = append(hops, a.Prefix.Addr())
			continue
		}
		if a.Link == nic.Index {
			if a.PreferredSeconds == 0 {
				a.PreferredSeconds = a.ValidSeconds
			}
			for _, r := range netstate.Connected(a, nic, addresses) {
				sources[r.Destination] = r.PrefSrc
			}
		}
		addresses = append(addresses, a)
	}
	found.Addresses, found.Routes = addresses, slices.Clone(found.Routes)
	for i := range found.Routes {
		if r := &found.Routes[i]; r.Uses(nic.Index) && slices.Contains(hops, r.PrefSrc) {
			r.PrefSrc = netip.Addr{}
			if r.Protocol == netstate.ProtocolKernel {
				r.PrefSrc = sources[r.Destination]
			}
		}
	}
}

// addedByRouted is what a routed binding may have added to a NIC whose journal is lost.
func addedByRouted(found netstate.Snapshot, nic netstate.Link) (added compare.Gone) {
	for _, hop := range []netip.Addr{lease.RoutedIPv4, lease.RoutedIPv4.Next(), lease.RoutedIPv6} {
		added.Addresses = append(added.Addresses, netstate.Address{Link: nic.Index, Prefix: single(hop)})
		for _, r := range found.Routes {
			if r.Uses(nic.Index) && r.Destination.Addr().Is4() == hop.Is4() {
				r.PrefSrc = hop
				added.Routes = append(added.Routes, r)
			}
		}
	}
	return added
}

// addedConnections are the connections between the NIC's addresses and those that the plan has added.
func (p *Plan) addedConnections() (ops []netstate.Op) {
	for _, a := range p.found.Addresses {
		for _, hopAddress := range p.added.Addresses {
			if own, hop := a.Prefix.Addr(), hopAddress.Prefix.Addr(); a.Link == p.nic().Index && own.Is4() == hop.Is4() {
				ops = append(ops, HopConnections(own, hop)...)
			}
		}
	}
	return ops
}
