package wiring

import (
	"cmp"
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

// masquerade gives the guest a network of its own behind a bridge, and translates the guest's addresses. The
// NIC keeps all that it has.
type masquerade struct{ infra.Masquerade }

func (masquerade) asks(nic string) Questions {
	paths := append([]string{netstate.NoIPv6}, netstate.BridgeCalls()...)
	paths = append(paths, netstate.Forwarding6, netstate.AcceptRA(nic), netstate.ForceForwarding(nic))
	paths = append(paths, netstate.OfRouter(netstate.NamesFor(nic))...)
	paths = append(paths, netstate.PortRange, netstate.ReservedPorts)
	return Questions{Sysctls: paths, Listeners: true, Connections: true, Log: true, FlowTables: true}
}

func (masquerade) traits() traits { return traits{bridged: true, routes: true} }

func (b masquerade) wire(p *Plan, nic netstate.Link) error {
	if len(p.spec.Guard.EtherTypes)+len(p.spec.Guard.VLANs) > 0 { // infra.Auto is another binding, so Validate lets these fields pass
		return p.refuseMasquerade(nic, "it translates IPv4 and IPv6, and guard.etherTypes and guard.vlans are for other frames")
	}
	on := lease.Of(p.found, nic)
	v4, v6 := on.Addresses()
	if len(v4)+len(v6) == 0 {
		return p.refuseMasquerade(nic, "it has no address to hide a guest behind")
	}
	if b.MAC.IsZero() {
		b.MAC = p.guestMAC(nic)
	}
	p.Record = p.record(nic, b.MAC)
	br := p.newLink(nic, compare.NewBridge, p.names.Bridge, "bridge", p.linkMTU(nic))
	// The MAC does not depend on the NIC: a guest that moves to another namespace keeps what its neighbour tables say, and
	// the gateway's link-local address.
	br.MAC = cmp.Or(b.GatewayMAC, infra.DefaultGatewayMAC)
	p.Record.GatewayMAC = br.MAC

	var ends []end
	if len(v4) > 0 {
		e, err := b.wire4(p, br)
		if err != nil {
			return err
		}
		ends = append(ends, e)
		nic.Forwarding4, br.Forwarding4 = true, true
	}
	if len(v6) > 0 {
		e, err := b.wire6(p, br, nic)
		if err != nil {
			return err
		}
		ends = append(ends, e)
	}
	for _, e := range ends {
		own := v4
		if e.guest.Is6() {
			own = v6
		}
		if hidden := own[0].Addr(); !slices.Equal(on.NextHops(hidden), on.NextHops(e.guest)) {
			return p.refuseMasquerade(nic, fmt.Sprintf("policy rules give other routes to what comes from %v than to what comes from a guest behind it", hidden))
		}
	}
	if b.IPv4.IsValid() && len(v4) == 0 {
		p.warn("the guest gets no IPv4 address: %s has none", nic.Name)
	}
	if b.IPv6.IsValid() && len(v6) == 0 {
		p.warn("the guest gets no IPv6 address: %s has none", nic.Name)
	}
	if p.routedByEBPF(nic, v4) {
		p.warn("%s looks like a NIC of Cilium: with eBPF host routing, answers to packets that the namespace forwards are lost; then choose redirect or bridge", nic.Name)
	}
	if b.Loopback || b.Sidecar != nil {
		p.answerLoopback(&br, len(v6) > 0)
	}
	if err := p.routeGuardPrefixes(br, ends); err != nil {
		return err
	}
	p.warnDown(nic)
	p.keepNIC(nic)
	p.wanted.Links = append(p.wanted.Links, nic, br)
	if !p.spec.Options.NoResponder {
		p.addResponder(&p.Record, nic)
	}
	p.addTaps(nic)
	for _, path := range netstate.BridgeCalls() {
		p.wanted.Sysctls[path] = "0" // otherwise iptables would see a packet twice, and translate it twice
	}
	t := translation{forwarding: p.forwarding(nic, br.Name, ends, b.MaxConnections), Masquerade: b.Masquerade, addresses: slices.Concat(v4, v6),
		ports: choosePorts(b.Masquerade, p.spec.Guard.Open, p.found)}
	for _, name := range []string{"tcp", "udp"} {
		if n := t.ports.others[name].len(); n < enoughPorts {
			p.warn("%d ports are left for the guest's %s connections: sockets of the namespace have the ports between", n, name)
		}
	}
	if err := t.checkSources(b.Sidecar, b.Kind()); err != nil {
		return err
	}
	if t.ports.reserve {
		p.wanted.Sysctls[netstate.ReservedPorts] = reserved(p.found.Sysctls[netstate.ReservedPorts])
	}
	if b.Sidecar == nil { // whose proxies take what the network sends
		p.older = untranslated(t.taken(), forwardedUDP(b.Masquerade))
	}
	p.own = ofNetworks(guestNetworks(br, p.wanted.Addresses, p.wanted.Routes))
	p.Record.Warnings = append(p.Record.Warnings, warnTakenPorts(b.Masquerade, p.found.Listeners, t.addresses)...)
	if err := p.addTranslation(t, b.Firewall, len(v6) > 0); err != nil {
		return err
	}
	return p.addGuest(ends, br, nic)
}

// guestNetworks are those of the guest behind the bridge, and its other addresses to which a route leads.
func guestNetworks(br netstate.Link, addresses []netstate.Address, routes []netstate.Route) []netip.Prefix {
	var networks []netip.Prefix
	for _, a := range addresses {
		if a.Link == br.Index && !a.Prefix.Addr().IsLinkLocalUnicast() {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	for _, r := range routes {
		if r.Link == br.Index && r.Gateway.IsValid() {
			networks = append(networks, r.Destination)
		}
	}
	return networks
}

// wire4 gives the guest and the bridge their IPv4 addresses.
func (b masquerade) wire4(p *Plan, br netstate.Link) (end, error) {
	network, err := p.checkNetwork("binding.masquerade.ipv4", b.IPv4, infra.DefaultIPv4, 30)
	if err != nil {
		return end{}, err
	}
	gateway := network.Addr().Next()
	guest := gateway.Next()
	p.Record.IPv4 = &cache.IPv4{
		Address: netip.PrefixFrom(guest, network.Bits()),
		Server:  gateway,
		Routes:  []cache.Route{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: gateway}},
	}
	p.addAddress(br, netip.PrefixFrom(gateway, network.Bits()), netstate.ScopeUniverse)
	return end{guest, gateway}, nil
}

// wire6 gives the guest and the bridge their IPv6 addresses, and makes the bridge the guest's router.
func (b masquerade) wire6(p *Plan, br, nic netstate.Link) (end, error) {
	if br.AddrGen == netstate.AddrGenNoIPv6 {
		return end{}, &infra.RefusedError{NIC: nic.Name, Binding: b.Kind(), Reason: fmt.Sprintf("it has IPv6 addresses, and with its MTU of %d the guest's link could have none", nic.MTU), Instead: cache.BindingBridge}
	}
	network, err := p.checkNetwork("binding.masquerade.ipv6", b.IPv6, infra.DefaultIPv6, 126)
	if err != nil {
		return end{}, err
	}
	gateway := network.Addr().Next()
	guest := gateway.Next()
	p.Record.IPv6 = &cache.IPv6{
		Address: guest,
		OnLink:  []netip.Prefix{network},
		Router:  &cache.Router{Address: br.MAC.LinkLocal(), MAC: br.MAC, Default: true},
	}
	p.addAddress(br, netip.PrefixFrom(gateway, network.Bits()), netstate.ScopeUniverse)
	p.addAddress(br, netip.PrefixFrom(br.MAC.LinkLocal(), 64), netstate.ScopeLink)
	p.enableIPv6()
	p.enableForwarding6(nic, br.Name)
	return end{guest, gateway}, nil
}

// routeGuardPrefixes leads to the guest's other addresses by way of the guest, which then needs to answer for none of
// them. Where the namespace has a route of its own, the answers to these addresses would not come to the guest.
func (p *Plan) routeGuardPrefixes(br netstate.Link, ends []end) error {
	for i, prefix := range p.spec.Guard.Prefixes {
		at := slices.IndexFunc(ends, func(e end) bool { return version(e.guest) == version(prefix.Addr()) })
		switch {
		case prefix.Addr().IsLinkLocalUnicast():
			continue // on the link
		case at < 0:
			p.warn("no route leads to guard.prefixes[%d], %v: the guest has no IPv%d address", i, prefix, version(prefix.Addr()))
			continue
		case prefix.Bits() < minNetwork:
			p.warn("no route leads to guard.prefixes[%d], %v: it is part of a default route, so only what the guest opens is answered", i, prefix)
			continue
		}
		r := netstate.Route{
			Link: br.Index, Table: netstate.TableMain, Destination: prefix, Gateway: ends[at].guest,
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
		}
		if p.binding.traits().offStack {
			r.PrefSrc = ends[at].gateway // the kernel would choose the guest's address
			if prefix.Addr().Is6() {
				r.Gateway = p.Record.MAC.LinkLocal() // an address of the namespace can be no gateway
			}
		}
		if prefix.Addr().Is6() {
			r.Metric, r.Other = metricPrefix, []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}
		}
		for _, f := range p.found.Routes {
			if f.Destination.Bits() >= minNetwork && f.Destination.Overlaps(prefix) {
				return fmt.Errorf("guard.prefixes[%d]: %v overlaps the route to %v of the namespace: %w, leave the prefix out", i, prefix, f.Destination, infra.ErrCollision)
			}
		}
		onLink := slices.ContainsFunc(p.wanted.Addresses, func(a netstate.Address) bool {
			return a.Link == br.Index && a.Prefix.Bits() <= prefix.Bits() && a.Prefix.Contains(prefix.Addr())
		})
		known := slices.ContainsFunc(p.wanted.Routes, func(o netstate.Route) bool { return o.Table == r.Table && o.Destination == r.Destination })
		if !onLink && !known {
			p.wanted.Routes = append(p.wanted.Routes, r)
		}
	}
	return nil
}

// metricPrefix is the metric that the kernel gives to an IPv6 route without one.
const metricPrefix = 1024

// addGuest makes the guest a permanent neighbour of the bridge, and adds the guest filter.
func (p *Plan) addGuest(ends []end, br, nic netstate.Link) error {
	var own []netip.Addr
	v6 := false
	for _, e := range ends {
		own = append(own, e.guest)
		v6 = v6 || e.guest.Is6()
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: compare.NewBridge, Address: e.guest, MAC: p.Record.MAC, Permanent: true})
	}
	if !v6 && p.found.NoNFTables && br.AddrGen != netstate.AddrGenNoIPv6 {
		p.wanted.Tables = append(p.wanted.Tables, deafToIPv6Legacy(p.names))
	}
	return p.addFilter(nic, guestfilter.Guest{Addresses: own})
}

// deafToIPv6Legacy keeps the guest's IPv6 from a namespace that has none for the guest, on a kernel without nf_tables.
func deafToIPv6Legacy(n netstate.Names) firewall.Table {
	return firewall.Table{Family: firewall.Inet, Chains: []firewall.Chain{
		{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Rules: []firewall.Rule{rule(firewall.Drop{}, firewall.InInterface{Name: n.Bridge})}},
	}}.IPTables(firewall.IP6TablesLegacy, n.Chains())
}

// refuseMasquerade is a refusal that names a binding that works, if there is one.
func (p *Plan) refuseMasquerade(nic netstate.Link, reason string) error {
	return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingMasquerade, Reason: reason, Instead: p.insteadOfRouter(nic)}
}

// routedByEBPF says whether the NIC looks like one of Cilium's: a single address, a gateway outside of its
// network that has a route of its own, and a default route with an MTU.
func (p *Plan) routedByEBPF(nic netstate.Link, v4 []netip.Prefix) bool {
	if len(v4) != 1 || !v4[0].IsSingleIP() {
		return false
	}
	routes := lease.Of(p.found, nic).Routes(true)
	onLink := func(a netip.Addr) bool {
		return slices.ContainsFunc(routes, func(r netstate.Route) bool { return r.Destination == single(a) && !r.Gateway.IsValid() })
	}
	return slices.ContainsFunc(routes, func(r netstate.Route) bool {
		return r.Default() && r.MTU != 0 && r.Gateway.IsValid() && !r.Gateway.IsLinkLocalUnicast() && onLink(r.Gateway)
	})
}

// minNetwork is the shortest prefix of a network. A route with a shorter prefix is part of a default route.
const minNetwork = 8

// checkNetwork returns the guest's network, whose first address is the gateway's. A zero network becomes the
// default one.
func (p *Plan) checkNetwork(field string, n, otherwise netip.Prefix, maxBits int) (netip.Prefix, error) {
	if !n.IsValid() {
		n = otherwise
	}
	refuse := func(format string, args ...any) (netip.Prefix, error) {
		return netip.Prefix{}, &cache.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if n.Addr().Is4() != otherwise.Addr().Is4() || n.Addr().Is4In6() || n.Addr().Zone() != "" {
		return refuse("%v is of another family, want one like %v", n, otherwise)
	}
	if n != n.Masked() {
		return refuse("%v has host bits, want %v", n, n.Masked())
	}
	if n.Bits() > maxBits {
		return refuse("%v is too small: network, gateway, guest and broadcast need at least a /%d", n, maxBits)
	}
	if a := n.Addr(); n.Bits() < minNetwork || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
		return refuse("%v is no network for hosts, want one like %v", n, otherwise)
	}
	for _, r := range p.found.Routes {
		if r.Destination.Bits() >= minNetwork && r.Destination.Overlaps(n) {
			return netip.Prefix{}, fmt.Errorf("%s: %v overlaps the route to %v of the namespace: %w, choose another network", field, n, r.Destination, infra.ErrCollision)
		}
	}
	for _, a := range p.found.Addresses {
		if n.Contains(a.Prefix.Addr()) {
			return netip.Prefix{}, fmt.Errorf("%s: %v contains the namespace's address %v: %w, choose another network", field, n, a.Prefix.Addr(), infra.ErrCollision)
		}
	}
	return n, nil
}

// answerLoopback lets the guest's answers to a loopback address into the namespace. They arrive for the
// gateway, and are translated back to the loopback address. For ::1 the kernel needs a route through the
// bridge itself (ip6_route_input looks the route up by the incoming link).
func (p *Plan) answerLoopback(br *netstate.Link, v6 bool) {
	br.RouteLocalnet = true
	if v6 {
		p.wanted.Routes = append(p.wanted.Routes, netstate.Route{
			Link: br.Index, Table: netstate.TableLocal, Destination: loopback6,
			Type: netstate.RouteLocal, Protocol: netstate.ProtocolStatic, Metric: metricLocal,
			Other: []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}, // medium, as the kernel reports it
		})
	}
}

// routePreference is RTA_PREF (linux/rtnetlink.h).
const routePreference = 20

// metricLocal is larger than the metric of the kernel's own route to ::1, 0.
const metricLocal = 1024

// unforwarded are the IP versions that the NIC did not forward before Setup.
func (p *Plan) unforwarded(nic int) []int {
	var list []int
	if l, _ := p.found.Link(nic); !l.Forwarding4 {
		list = append(list, 4)
	}
	if p.found.Sysctls[netstate.Forwarding6] != "1" && p.found.Sysctls[netstate.ForceForwarding(p.names.NIC)] != "1" {
		list = append(list, 6)
	}
	return list
}

// enableForwarding6 enables IPv6 forwarding for the NIC and the guest's router, a link of the wiring, where the kernel can (force_forwarding),
// and else for the whole namespace. Either way the kernel removes the routes that routers have advertised. With
// forwarding for the whole namespace, a link takes no more advertisements unless its accept_ra is 2.
func (p *Plan) enableForwarding6(nic netstate.Link, router string) {
	learns := slices.ContainsFunc(p.found.Routes, func(r netstate.Route) bool { return r.Uses(nic.Index) && r.Protocol == netstate.ProtocolRA })
	if learns && p.found.Sysctls[netstate.Forwarding6] == "0" && p.found.Sysctls[netstate.AcceptRA(nic.Name)] == "1" {
		p.wanted.Sysctls[netstate.AcceptRA(nic.Name)] = "2"
	}
	// Where sysctls cannot be written, those of the bridge that is to come cannot either.
	force := netstate.ForceForwarding(nic.Name)
	if _, can := p.found.Sysctls[force]; !can || slices.Contains(p.found.ReadOnly, force) {
		p.wanted.Sysctls[netstate.Forwarding6] = "1"
		return
	}
	p.wanted.Sysctls[force] = "1"
	p.wanted.Sysctls[netstate.ForceForwarding(router)] = "1"
	p.wanted.Sysctls[netstate.Forwards6(router)] = "1"
}

// offloads says whether established connections are to pass by a flow table. Before them no rules pass but those at the
// ingress of NIC and tap, so limits of what goes to the guest, which are counted at the bridge, need each packet. A link
// without Ethernet has no room for the header that the flow table writes.
func (p *Plan) offloads() bool {
	return p.found.FlowTables && p.nic().Ethernet && p.spec.Limits.ToGuest == (cache.Limit{})
}

// addTranslation wants the NAT table, in the form of the program that translates, and names the program in the
// record.
func (p *Plan) addTranslation(t translation, by string, v6 bool) error {
	const legacy = cache.FirewallIPTablesLegacy
	if p.found.NoNFTables && by != "" && by != legacy {
		return &cache.FieldError{Field: "binding.masquerade.firewall", Reason: fmt.Sprintf("this kernel has no nf_tables, which %s needs: want %s", by, legacy)}
	}
	families := []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT}
	switch {
	case by == legacy || by == "" && p.found.NoNFTables:
		by, families = legacy, []firewall.Family{firewall.IPTablesLegacy, firewall.IP6TablesLegacy}
	case by == "" || by == cache.FirewallNFTables:
		by, families = cache.FirewallNFTables, nil
		t.flows = p.offloads()
		p.wanted.Tables = append(p.wanted.Tables, t.table())
	}
	p.Record.Firewall = by
	if t.iptables = by != cache.FirewallNFTables; t.iptables && !p.found.NoNFTables {
		p.wanted.Tables = append(p.wanted.Tables, t.beside())
	}
	for _, f := range families {
		if f.IPTables() == 4 || v6 {
			p.wanted.Tables = append(p.wanted.Tables, t.table().IPTables(f, p.names.Chains()))
		}
	}
	return nil
}
