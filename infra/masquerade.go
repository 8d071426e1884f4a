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
	v4, v6 := addressesOf(p.found, nic)
	if len(v4)+len(v6) == 0 {
		refused := &RefusedError{NIC: nic.Name, Binding: b.Kind(), Reason: "it has no address to hide a guest behind"}
		if bridgeable(nic) == nil {
			refused.Instead = Bridge{}.Kind()
		}
		return refused
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

	var guests []netip.Addr
	if len(v4) > 0 {
		gateway, err := p.network("binding.masquerade.ipv4", &b.IPv4, DefaultIPv4, 30)
		if err != nil {
			return err
		}
		guest := gateway.Next()
		guests = append(guests, guest)
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
		guests = append(guests, guest)
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
	for _, f := range []struct {
		field string
		set   bool
		have  bool
	}{{"IPv4", b.IPv4.IsValid(), len(v4) > 0}, {"IPv6", b.IPv6.IsValid(), len(v6) > 0}} {
		if f.set && !f.have {
			r.Warnings = append(r.Warnings, fmt.Sprintf("the guest gets no %s address: %s has none", f.field, nic.Name))
		}
	}
	p.keep(nic)
	p.wired.links = append(p.wired.links, nic, br)
	if !spec.Options.Disabled {
		p.serve(r, nic)
	}
	p.taps(nic, spec, *r)
	p.wired.tables = []firewall.Table{nat(p.names, append(v4, v6...), guests)}
	if len(v6) == 0 {
		p.wired.tables = append(p.wired.tables, withoutIPv6(p.names))
	}
	return nil
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

// forward6 switches IPv6 forwarding on, which the kernel has only for the whole namespace
// (net.ipv6.conf.DEVICE.forwarding is about router advertisements). That makes a NIC deaf to the
// advertisements of its router, unless it is told to keep listening.
func (p *Plan) forward6(nic Link) {
	learns := slices.ContainsFunc(p.found.Routes, func(r Route) bool { return r.Uses(nic.Index) && r.Protocol == ProtocolRA })
	if learns && p.found.Sysctls[forwarding6] == "0" && p.found.Sysctls[acceptRA(nic.Name)] == "1" {
		p.wired.sysctls[acceptRA(nic.Name)] = "2"
	}
	p.wired.sysctls[forwarding6] = "1"
}

// withoutIPv6 keeps a namespace that has no IPv6 for the guest from listening to the guest's: one
// router advertisement would give it a default route through the guest. (With IPv6 forwarding on,
// a link takes none.)
func withoutIPv6(n Names) firewall.Table {
	return firewall.Table{
		Family: firewall.Bridge,
		Name:   n.Table,
		Chains: []firewall.Chain{{
			Name: "input", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter,
			Rules: []firewall.Rule{{
				Matches: []firewall.Match{firewall.InInterface{Name: n.Tap}, firewall.IPv6{}}, Verdict: firewall.Drop{},
			}},
		}},
	}
}

// nat translates: what comes for the NIC's addresses goes to the guest, and a connection from the
// guest's link leaves under the address of the link it leaves by, whatever its source is. Packets
// that belong to no connection are not translated.
func nat(n Names, addresses []netip.Prefix, guests []netip.Addr) firewall.Table {
	in := firewall.Chain{Name: "in", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT}
	for _, a := range addresses {
		for _, guest := range guests {
			if a.Addr().Is4() == guest.Is4() {
				in.Rules = append(in.Rules, firewall.Rule{
					Matches: []firewall.Match{firewall.InInterface{Name: n.NIC}, firewall.Destination{Address: a.Addr()}},
					Verdict: firewall.DNAT{Address: guest},
				})
			}
		}
	}
	out := firewall.Chain{Name: "out", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT,
		Rules: []firewall.Rule{{
			Matches: []firewall.Match{firewall.InInterface{Name: n.Bridge}, firewall.OutInterface{Name: n.Bridge, Not: true}},
			Verdict: firewall.Masquerade{},
		}}}
	return firewall.Table{Family: firewall.Inet, Name: n.Table, Chains: []firewall.Chain{in, out}}
}
