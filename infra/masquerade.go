package infra

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// masquerade gives the guest a network of its own behind a bridge, and translates. The NIC stays
// as it is.
func (p *Plan) masquerade(nic Link, spec Spec, b Masquerade) error {
	if err := b.validate(); err != nil {
		return err
	}
	v4, v6 := addressesOf(p.found, nic)
	if len(v4)+len(v6) == 0 {
		return p.insteadOfMasquerade(nic, "it has no address to hide a guest behind")
	}
	if !b.MAC.IsZero() && !b.MAC.Unicast() {
		return &cache.FieldError{Field: "binding.masquerade.mac", Reason: fmt.Sprintf("%v is no station's address", b.MAC)}
	}
	if b.MAC.IsZero() {
		b.MAC = deriveMAC(nic, "guest")
	}
	p.Record = p.record(nic, spec, b.MAC)
	r := &p.Record

	br := p.created(nic, newBridge, p.names.Bridge, "bridge", min(nic.MTU, cache.MaxMTU))
	br.MAC = deriveMAC(nic, "bridge")

	var ends []end
	if len(v4) > 0 {
		gateway, err := p.network("binding.masquerade.ipv4", &b.IPv4, DefaultIPv4, 30)
		if err != nil {
			return err
		}
		guest := gateway.Next()
		ends = append(ends, end{guest, gateway})
		r.IPv4 = &cache.IPv4{
			Address: netip.PrefixFrom(guest, b.IPv4.Bits()),
			Server:  gateway,
			Gateway: gateway,
			Routes:  []cache.Route{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: gateway}},
		}
		p.address(br, netip.PrefixFrom(gateway, b.IPv4.Bits()), ScopeUniverse)
		nic.Forwarding4, br.Forwarding4 = true, true
	}
	if len(v6) > 0 {
		if br.AddrGen == AddrGenNoIPv6 {
			return &RefusedError{NIC: nic.Name, Binding: b.Kind(), Reason: fmt.Sprintf("it has IPv6 addresses, and with its MTU of %d the guest's link could have none", nic.MTU), Instead: Bridge{}.Kind()}
		}
		gateway, err := p.network("binding.masquerade.ipv6", &b.IPv6, DefaultIPv6, 126)
		if err != nil {
			return err
		}
		guest := gateway.Next()
		ends = append(ends, end{guest, gateway})
		r.IPv6 = &cache.IPv6{
			Address: guest,
			OnLink:  []netip.Prefix{b.IPv6.Masked()},
			Router:  &cache.Router{Address: br.MAC.LinkLocal(), MAC: br.MAC, Default: true},
		}
		p.address(br, netip.PrefixFrom(gateway, b.IPv6.Bits()), ScopeUniverse)
		p.address(br, netip.PrefixFrom(br.MAC.LinkLocal(), 64), ScopeLink)
		p.enableIPv6()
		p.forward6(nic)
	}
	for _, e := range ends {
		own := v4
		if e.guest.Is6() {
			own = v6
		}
		if hidden := own[0].Addr(); !slices.Equal(p.nextHops(nic, hidden), p.nextHops(nic, e.guest)) {
			return p.insteadOfMasquerade(nic, fmt.Sprintf("policy rules give other routes to what comes from %v than to what comes from a guest behind it", hidden))
		}
	}
	for _, f := range []struct {
		field string
		set   bool
		have  bool
	}{{"IPv4", b.IPv4.IsValid(), len(v4) > 0}, {"IPv6", b.IPv6.IsValid(), len(v6) > 0}} {
		if f.set && !f.have {
			r.Warnings = append(r.Warnings, fmt.Sprintf("the guest gets no %s address: %s has none", f.field, nic.Name))
		}
	}
	if p.routedByEBPF(nic, v4) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s has what Cilium gives: with its eBPF host routing nothing comes back that the namespace forwards; then want redirect or bridge", nic.Name))
	}
	if b.Loopback || b.Sidecar != nil {
		p.answerLoopback(&br, len(v6) > 0)
	}
	p.down(nic)
	p.keep(nic)
	p.wired.links = append(p.wired.links, nic, br)
	if !spec.Options.Disabled {
		p.serve(r, nic)
	}
	p.taps(nic, spec, *r)
	for _, path := range bridgeCalls {
		p.wired.sysctls[path] = "0" // where the kernel has them: a packet is to be translated once
	}
	t := translation{names: p.names, fenced: p.fenced(nic.Index), addresses: slices.Concat(v4, v6), ends: ends, Masquerade: b, guard: spec.Guard}
	if err := t.checkSources(); err != nil {
		return err
	}
	r.Warnings = append(r.Warnings, b.taken(p.found.Listeners, t.addresses)...)
	if err := p.translate(t.table(), b.Firewall, len(v6) > 0); err != nil {
		return err
	}
	var own []netip.Prefix
	for _, e := range ends {
		own = append(own, single(e.guest))
		p.wired.neighbours = append(p.wired.neighbours, Neighbour{Link: newBridge, Address: e.guest, MAC: b.MAC, Permanent: true})
	}
	g := p.guest(own)
	if len(v6) == 0 && p.found.NoNFTables && br.AddrGen != AddrGenNoIPv6 {
		p.wired.tables = append(p.wired.tables, deaf6Legacy(p.names))
	} else if len(v6) == 0 && !p.found.NoNFTables {
		p.wired.tables = append(p.wired.tables, g.behind(p.names, spec.Guard, deaf6(p.names.Tap)))
	}
	return p.guard(g)
}

// routedByEBPF says whether the NIC looks like one of Cilium's: a single address, whose gateway is a
// router's of the cluster, on the link by a route of its own, and a default route with an MTU.
func (p *Plan) routedByEBPF(nic Link, v4 []netip.Prefix) bool {
	if len(v4) != 1 || !v4[0].IsSingleIP() {
		return false
	}
	routes := routesOf(p.found, nic, true)
	onLink := func(a netip.Addr) bool {
		return slices.ContainsFunc(routes, func(r Route) bool { return r.Destination == single(a) && !r.Gateway.IsValid() })
	}
	return slices.ContainsFunc(routes, func(r Route) bool {
		return r.Default() && r.MTU != 0 && r.Gateway.IsValid() && !r.Gateway.IsLinkLocalUnicast() && onLink(r.Gateway)
	})
}

// insteadOfMasquerade is a refusal, with what works.
func (p *Plan) insteadOfMasquerade(nic Link, reason string) error {
	refused := &RefusedError{NIC: nic.Name, Binding: Masquerade{}.Kind(), Reason: reason}
	if p.bridgeable(nic) == nil {
		refused.Instead = Bridge{}.Kind()
	} else if p.redirectable(nic) == nil {
		refused.Instead = Redirect{}.Kind()
	}
	return refused
}

// nextHops are those through the NIC of what comes from an address.
func (p *Plan) nextHops(nic Link, from netip.Addr) []cache.Route {
	routes, _ := guestRoutes(routesBy(p.found, nic, from.Is4(), p.found.lookups(from)...))
	return routes
}

// keep wants the NIC to have what the guest is hidden behind: its addresses and routes, of a family
// in which none of them comes by an advertisement or a lease, as those change by themselves.
func (p *Plan) keep(nic Link) {
	for _, v4 := range []bool{true, false} {
		var addresses []Address
		for _, a := range p.found.Addresses {
			if a.Link == nic.Index && a.Prefix.Addr().Is4() == v4 {
				addresses = append(addresses, a)
			}
		}
		var routes []Route
		for _, r := range p.found.Routes {
			if r.Uses(nic.Index) && r.Destination.Addr().Is4() == v4 {
				routes = append(routes, r)
			}
		}
		if slices.ContainsFunc(addresses, func(a Address) bool { return a.ValidSeconds != Forever }) ||
			slices.ContainsFunc(routes, func(r Route) bool { return r.Protocol == ProtocolRA || r.ExpiresSeconds != 0 }) {
			continue
		}
		elsewhere := func(r Route) bool {
			return r.nexthopObject() || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Link != nic.Index })
		}
		p.wired.addresses = append(p.wired.addresses, addresses...)
		p.wired.routes = append(p.wired.routes, slices.DeleteFunc(routes, elsewhere)...)
	}
}

// minNetwork is the shortest prefix of a network; what is shorter is a part of a default route.
const minNetwork = 8

// network checks the guest's network and returns the first address in it, the gateway's. A zero
// network becomes the default one.
func (p *Plan) network(field string, network *netip.Prefix, otherwise netip.Prefix, maxBits int) (netip.Addr, error) {
	if !network.IsValid() {
		*network = otherwise
	}
	n := *network
	if n.Addr().Is4() != otherwise.Addr().Is4() || n.Addr().Is4In6() || n.Addr().Zone() != "" {
		return netip.Addr{}, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is of another family, want one like %v", n, otherwise)}
	}
	if n != n.Masked() {
		return netip.Addr{}, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v has host bits, want %v", n, n.Masked())}
	}
	if n.Bits() > maxBits {
		return netip.Addr{}, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is too small: network, gateway, guest and broadcast need at least a /%d", n, maxBits)}
	}
	if a := n.Addr(); n.Bits() < minNetwork || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
		return netip.Addr{}, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is no network for hosts, want one like %v", n, otherwise)}
	}
	for _, r := range p.found.Routes {
		if r.Destination.Bits() >= minNetwork && r.Destination.Overlaps(n) {
			return netip.Addr{}, fmt.Errorf("%s: %v overlaps the route to %v of the namespace: %w, choose another network", field, n, r.Destination, ErrCollision)
		}
	}
	for _, a := range p.found.Addresses {
		if n.Contains(a.Prefix.Addr()) {
			return netip.Addr{}, fmt.Errorf("%s: %v contains the namespace's address %v: %w, choose another network", field, n, a.Prefix.Addr(), ErrCollision)
		}
	}
	return n.Addr().Next(), nil
}

// address puts one on a link of ours, with the route that the kernel makes of it.
func (p *Plan) address(l Link, prefix netip.Prefix, scope uint8) {
	a := Address{Link: l.Index, Prefix: prefix, Scope: scope, ValidSeconds: Forever, PreferredSeconds: Forever}
	if prefix.Addr().Is6() {
		a.Flags = AddrNoDAD
	} else {
		a.Label = l.Name // the kernel's default
	}
	p.wired.addresses = append(p.wired.addresses, a)
	p.wired.routes = append(p.wired.routes, connected(a, l, p.wired.addresses[:len(p.wired.addresses)-1])...)
}

// answerLoopback lets the answers of the guest to a loopback address in: they are for the gateway when
// they come, and for that address when they are translated back. For ::1 the kernel wants a route
// by the link itself (ip6_route_input asks for it strictly).
func (p *Plan) answerLoopback(br *Link, v6 bool) {
	br.RouteLocalnet = true
	if v6 {
		p.wired.routes = append(p.wired.routes, Route{
			Link: br.Index, Table: TableLocal, Destination: loopback6,
			Type: routeLocal, Protocol: ProtocolStatic, Metric: metricLocal,
			Other: []Attribute{{Type: routePreference, Data: []byte{0}}}, // medium, as the kernel says it
		})
	}
}

// routePreference is RTA_PREF (linux/rtnetlink.h).
const routePreference = 20

// metricLocal is above that of the kernel's own route to ::1, 0.
const metricLocal = 1024

// fenced are the versions of IP that the NIC did not forward before.
func (p *Plan) fenced(nic int) []int {
	var list []int
	if l, _ := p.found.link(nic); !l.Forwarding4 {
		list = append(list, 4)
	}
	if p.found.Sysctls[forwarding6] != "1" && p.found.Sysctls[forceForwarding(p.names.NIC)] != "1" {
		list = append(list, 6)
	}
	return list
}

// forward6 switches IPv6 forwarding on, for the NIC and the bridge where the kernel can, and else for the
// whole namespace. Either way the kernel forgets what routers have advertised, even if it is the
// bridge that becomes a router, and in the latter case does not listen to them any more; but for a
// link whose accept_ra is 2.
func (p *Plan) forward6(nic Link) {
	learns := slices.ContainsFunc(p.found.Routes, func(r Route) bool { return r.Uses(nic.Index) && r.Protocol == ProtocolRA })
	if learns && p.found.Sysctls[forwarding6] == "0" && p.found.Sysctls[acceptRA(nic.Name)] == "1" {
		p.wired.sysctls[acceptRA(nic.Name)] = "2"
	}
	if _, can := p.found.Sysctls[forceForwarding(nic.Name)]; !can {
		p.wired.sysctls[forwarding6] = "1"
		return
	}
	p.wired.sysctls[forceForwarding(nic.Name)] = "1"
	for _, path := range ofBridge(p.names.Bridge) {
		p.wired.sysctls[path] = "1"
	}
}

// translate wants the table, for what translates, and notes that in the record.
func (p *Plan) translate(t firewall.Table, by string, v6 bool) error {
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
		p.wired.tables = append(p.wired.tables, t)
	}
	p.Record.Firewall = by
	for _, f := range families {
		if f.IPTables() == 4 || v6 {
			p.wired.tables = append(p.wired.tables, t.IPTables(f, p.names.chains()))
		}
	}
	return nil
}
