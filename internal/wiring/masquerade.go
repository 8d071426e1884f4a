package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/privatenet"
	"github.com/guestwire/guestwire/internal/router"
)

// masquerade gives the guest a network of its own at the tap, and translates the guest's addresses. The NIC keeps all
// that it has.
type masquerade struct{ infra.Masquerade }

func (b masquerade) asks(n netstate.Names) Questions {
	sysctls := append(sysctlsOfRouter(n), netstate.PortRange, netstate.ReservedPorts)
	if len(b.Guest) > 0 { // else it lies in no network of the namespace
		sysctls = append(sysctls, netstate.ProxyARP, netstate.ProxyDelay(n.NIC))
	}
	return Questions{Sysctls: sysctls, Hinders: hinders(), Listeners: true, Connections: true, Log: true, FlowTables: true}
}

// sameGuest compares the guest's addresses and MAC, those of the gateway, and what translates. What is forwarded can
// change under a running guest.
func (b masquerade) sameGuest(other infra.Binding) bool {
	o, ok := other.(infra.Masquerade)
	for _, version := range ip.Both {
		guest, gateway := networkOfGuest(b.Masquerade).Ends(version)
		otherGuest, otherGateway := networkOfGuest(o).Ends(version)
		ok = ok && guest == otherGuest && gateway == otherGateway
	}
	return ok && b.MAC == o.MAC && b.NICMAC == o.NICMAC && b.GatewayMAC == o.GatewayMAC && b.Firewall == o.Firewall
}

// networkOfGuest is the network between the guest and its gateway.
func networkOfGuest(b infra.Masquerade) privatenet.Network {
	return privatenet.Network{IPv4: b.IPv4, IPv6: b.IPv6, Guest: b.Guest, Gateway: b.Gateway}
}

func (b masquerade) wiredAs() string {
	var set []string
	add := func(field string, is bool, value any) {
		if is {
			set = append(set, field+" "+strings.Trim(fmt.Sprint(value), "[]"))
		}
	}
	add("ipv4", b.IPv4.IsValid(), b.IPv4)
	add("ipv6", b.IPv6.IsValid(), b.IPv6)
	add("guest", len(b.Guest) > 0, b.Guest)
	add("gateway", len(b.Gateway) > 0, b.Gateway)
	add("mac", !b.MAC.IsZero(), b.MAC)
	add("nicMAC", b.NICMAC, true)
	add("gatewayMAC", !b.GatewayMAC.IsZero(), b.GatewayMAC)
	add("firewall", b.Firewall != "", b.Firewall)
	if len(set) == 0 {
		return ""
	}
	return "(" + strings.Join(set, ", ") + ")"
}

func (b masquerade) makesMAC() bool { return b.MAC.IsZero() && !b.NICMAC }

// takeOver also takes the networks, the addresses in them and the gateway's MAC, if the guest had a masquerade.
func (b masquerade) takeOver(prefix string, from cache.Record) (infra.Binding, error) {
	if err := takeMAC(prefix+"mac", &b.MAC, from.MAC); err != nil {
		return nil, err
	}
	b.NICMAC = false // of another NIC
	if from.Binding != cache.BindingMasquerade {
		return b.Masquerade, nil
	}
	if v4 := from.IPv4; v4 != nil {
		b.IPv4 = cmp.Or(b.IPv4, v4.Address.Masked())
		b.takeEnds(v4.Address.Addr(), v4.Server)
	}
	if v6 := from.IPv6; v6 != nil {
		b.IPv6 = cmp.Or(b.IPv6, networkOf(v6))
		b.takeEnds(v6.Address, v6.Gateway)
	}
	if from.GatewayMAC.IsZero() {
		return b.Masquerade, nil
	}
	err := takeMAC(prefix+"gatewayMAC", &b.GatewayMAC, from.GatewayMAC)
	return b.Masquerade, err
}

// takeEnds sets the missing addresses of one version of IP, unless the guest gets another network. Defaults stay unset:
// a guest whose address the caller names may have one of a network that the namespace reaches.
func (b *masquerade) takeEnds(guest, gateway netip.Addr) {
	version := ip.Of(guest)
	own, ownGateway := networkOfGuest(b.Masquerade).Ends(version)
	if own.Addr() == guest && ownGateway == gateway {
		return
	}
	for _, end := range []struct {
		list *[]netip.Addr
		have netip.Addr
	}{{&b.Guest, guest}, {&b.Gateway, gateway}} {
		if !privatenet.OfVersion(*end.list, version).IsValid() && own.Masked().Contains(end.have) {
			*end.list = append(slices.Clone(*end.list), end.have)
		}
	}
}

// networkOf is the network of a guest behind a masquerade; zero: the record does not have it.
func networkOf(v6 *cache.IPv6) netip.Prefix {
	for _, p := range v6.OnLink {
		if p.Contains(v6.Address) {
			return p
		}
	}
	return netip.Prefix{}
}

func (b masquerade) wire(p *Plan) error {
	if err := p.checkMasquerade(); err != nil {
		return err
	}
	guest := cmp.Or(b.MAC, p.guestMAC())
	if b.NICMAC {
		guest = p.nic.MAC
	}
	if !guest.Unicast() {
		return &cache.FieldError{Field: "binding.masquerade.nicMAC", Reason: fmt.Sprintf("%s has no MAC that a guest can have: leave this field out", p.nic.Name)}
	}
	// The gateway's MAC does not depend on the NIC: a guest that moves to another namespace keeps what its neighbour
	// tables say, and the gateway's link-local address.
	p.Record = p.routerRecord(guest, cmp.Or(b.GatewayMAC, defaultGatewayMAC))
	networks, err := b.networks(&p.seen)
	if err != nil {
		return err
	}
	p.addWarnings(fillMasqueraded(&p.Record, networks)...)
	var ends router.Ends
	for _, n := range networks {
		ends = append(ends, n.End)
	}
	ahead, err := p.checkNextHops(ends)
	if err != nil {
		return err
	}
	p.addLosses(ahead...)
	p.addWarnings(b.warnings(&p.seen)...)
	p.addLosses(p.hiddenLosses()...)

	p.keepNIC()
	if err := p.addDiverts(ends); err != nil {
		return err
	}
	tap := p.gatewayTap(ends)
	tap.ProxyARP = slices.ContainsFunc(networks, func(n inner) bool { return n.within })
	p.addRouter(tap, ends, b.Loopback || b.Sidecar != nil)
	for _, n := range networks {
		if n.within {
			p.addWithin(tap, n)
		} else {
			p.addAddress(tap, netip.PrefixFrom(n.Gateway, n.bits), netstate.ScopeUniverse)
		}
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, Address: n.Guest, MAC: p.Record.MAC, Permanent: true})
	}
	if err := p.addRoutesToGuest(tap, ends); err != nil {
		return err
	}
	p.guests = router.GuestNetworks(tap, p.wanted.Addresses, p.wanted.Routes, false)

	forwarding, err := p.forwarding(ends, b.MaxConnections, unreached(networks))
	if err != nil {
		return err
	}
	if err := p.checkSources(b.Sidecar, ends); err != nil {
		return err
	}
	by, families, err := chooseFirewall(b.Firewall, p.found)
	if err != nil {
		return err
	}
	t := router.Masquerade{
		Router: forwarding, Masquerade: b.Masquerade, Addresses: p.own,
		SourcePorts: router.ChoosePorts(b.Masquerade, p.spec.Guard.Open, p.portsInUse()),
		Flows:       len(families) == 0 && p.offloads(),
		Counts:      p.spec.Flows,
		Families:    families, NoNFTables: p.found.NoNFTables, NoIPv6AtTap: p.lacksIPv6() != "",
	}
	t.Hidden, t.Linked = hiddenBehind(p.on, ends)
	p.Record.Firewall, p.programs = by, t.Programs()
	p.addWarnings(p.reservePorts(t)...)
	p.warnTakenPorts(t.Masquerade, t.Addresses)
	p.olderExchanges = t.Older()
	p.described = append(p.described, t)
	return p.addFilter(guestfilter.Guest{Addresses: ends.Guests()})
}

// hiddenBehind are the addresses that the default routes name, and the networks to which the namespace sends from other
// ones.
func hiddenBehind(on lease.NIC, ends router.Ends) (hidden []netip.Addr, linked []netip.Prefix) {
	for _, e := range ends {
		named := on.RouteSource(ip.Of(e.Guest))
		if !named.IsValid() {
			continue
		}
		hidden = append(hidden, named)
		for _, s := range on.Sources(e.Guest) {
			if s.To.IsValid() && s.Address != named {
				linked = append(linked, s.To)
			}
		}
	}
	return hidden, linked
}

// checkMasquerade refuses a NIC behind whose addresses no guest can be.
func (s *seen) checkMasquerade() error {
	switch {
	case len(s.spec.Guard.EtherTypes)+len(s.spec.Guard.VLANs) > 0: // infra.Auto is another binding, so Validate lets these fields pass
		return s.refuse("it translates IPv4 and IPv6, and guard.etherTypes and guard.vlans are for other frames")
	case len(s.own) == 0:
		return s.refuse("it has no address to hide a guest behind")
	case len(s.v6) > 0 && s.lacksIPv6() != "":
		return s.refuse(s.lacksIPv6())
	}
	return nil
}

// checkNextHops refuses a NIC whose address has other routes than the guest's. The losses are the tables before the
// route to the guest that get some of its packets.
func (s *seen) checkNextHops(ends router.Ends) (list losses, err error) {
	for _, e := range ends {
		v := ip.Of(e.Guest)
		if hidden := s.on.AddressesOf(v)[0].Addr(); !slices.Equal(s.on.NextHops(hidden), s.on.NextHops(e.Guest)) {
			return nil, s.refuse(fmt.Sprintf("policy rules give other routes to what comes from %v than to what comes from a guest behind it", hidden))
		}
		ahead, all := fib.Ahead(s.found, s.on.VRF(), e.Guest)
		if all {
			return nil, s.refuse(fmt.Sprintf("%s, where the route to the guest is: so %v packets for the guest go elsewhere", whyAhead(ahead), v))
		}
		named := list.keys()
		for _, r := range ahead {
			what, way := fmt.Sprintf("table %d", r.Table), "for the guest goes elsewhere"
			if r.Table == 0 {
				what, way = fmt.Sprintf("preference %d", r.Priority), "of and for the guest is refused, or goes elsewhere"
			}
			if key := (lossKey{"policy-rule", what}); !named[key] {
				named[key] = true
				list.lose("policy-rule", what, "the policy rule with the preference %d comes before main, where the route to the guest is: what it matches of the packets %s", r.Priority, way)
			}
		}
	}
	return list, nil
}

// whyAhead is why no packets for the guest are looked up in the table main.
func whyAhead(ahead []netstate.Rule) string {
	last := netstate.Rule{} // one without a table lets others decide
	if len(ahead) > 0 {
		last = ahead[len(ahead)-1]
	}
	if last.Table == 0 {
		return "no policy rule leads to the table main"
	}
	return fmt.Sprintf("the policy rule with the preference %d leads to table %d and comes before main", last.Priority, last.Table)
}

// hiddenLosses are a family if the kernel masquerades by none of the NIC's addresses, but by one of another link: for
// IPv4 it takes an address of the scope global, for IPv6 one that is not deprecated, the tap's own if there is no
// other.
func (s *seen) hiddenLosses() (list losses) {
	for _, v := range ip.Both {
		var unfit netip.Addr
		fits := func(a netstate.Address) bool {
			unfit = a.Prefix.Addr()
			return ip.Pick(v, a.Scope == netstate.ScopeUniverse, a.PreferredSeconds > 0)
		}
		if !slices.ContainsFunc(s.on.AddressesOn(v), fits) && unfit.IsValid() {
			list.lose("family", v.String(), "masquerading needs a global address that is not deprecated, and %v of %s is none", unfit, s.nic.Name)
		}
	}
	return list
}

// warnings are of what the guest does not get, and of what does not work.
func (b masquerade) warnings(s *seen) (list texts) {
	for _, v := range ip.Both {
		if ip.Pick(v, b.IPv4, b.IPv6).IsValid() && len(s.on.Own(v)) == 0 {
			list.add("the guest gets no %v address: %s has none", v, s.nic.Name)
		}
	}
	if s.routedByEBPF() {
		list.add("%s looks like a NIC of Cilium: with eBPF host routing, answers to packets that the namespace forwards are lost; then choose redirect or bridge", s.nic.Name)
	}
	return list
}

// reservePorts keeps the namespace's sockets from the ports of the guest's connections.
func (p *Plan) reservePorts(t router.Masquerade) (list texts) {
	for _, protocol := range []string{"tcp", "udp"} {
		if n, enough := t.SourcePorts.Left(protocol); !enough {
			list.add("%d ports are left for the guest's %s connections: sockets of the namespace have the ports between", n, protocol)
		}
	}
	if value, needed := t.SourcePorts.Reserve(p.found.Sysctls[netstate.ReservedPorts]); needed {
		p.wanted.Sysctls[netstate.ReservedPorts] = value
	}
	return list
}

// networks are those of the guest, one for each family in which the NIC has an address.
func (b masquerade) networks(s *seen) (networks []inner, err error) {
	for _, v := range ip.Both {
		if len(s.on.AddressesOf(v)) == 0 {
			continue
		}
		guest, gateway := networkOfGuest(b.Masquerade).Ends(v)
		within, err := s.liesWithin(guest, privatenet.OfVersion(b.Guest, v).IsValid())
		if err != nil {
			return nil, err
		}
		network := inner{router.End{Guest: guest.Addr(), Gateway: gateway}, guest.Bits(), within}
		if err := checkServers(s.spec, network); err != nil {
			return nil, err
		}
		networks = append(networks, network)
	}
	return networks, nil
}

// fillMasqueraded gives the guest its addresses in the networks.
func fillMasqueraded(r *cache.Record, networks []inner) (warnings texts) {
	for _, n := range networks {
		guest := netip.PrefixFrom(n.Guest, n.bits)
		if n.within {
			warnings.add("the guest has %v, and the namespace reaches %v by other links too: a station there with the guest's address is lost to both", n.Guest, guest.Masked())
		}
		if n.Guest.Is4() {
			r.IPv4 = &cache.IPv4{
				Address: guest,
				Server:  n.Gateway,
				Shared:  n.within,
				Routes:  []cache.Route{{Destination: ip.V4.All(), Gateway: n.Gateway}},
			}
			continue
		}
		r.IPv6 = &cache.IPv6{
			Address: n.Guest,
			Gateway: n.Gateway,
			OnLink:  []netip.Prefix{guest.Masked()},
			Router:  &cache.Router{Address: eui64.LinkLocal(r.GatewayMAC), MAC: r.GatewayMAC, Default: true},
		}
	}
	return warnings
}

// offloads reports whether established connections pass by a flow table. Before them no rules pass but those at the
// ingress of NIC and tap. A policy needs each packet of the guest: its checksum is completed first, and it may begin
// another connection. A link without Ethernet has no room for the header that the flow table writes.
func (s *seen) offloads() bool {
	return s.found.FlowTables && s.nic.Ethernet && !s.policy.IsSet()
}

// chooseFirewall returns the program that translates, and the families of iptables whose chains do; none: those of
// nftables.
func chooseFirewall(by cache.Firewall, found netstate.Snapshot) (cache.Firewall, []firewall.Family, error) {
	const legacy = cache.FirewallIPTablesLegacy
	switch {
	case found.NoNFTables && by != "" && by != legacy:
		return "", nil, &cache.FieldError{Field: "binding.masquerade.firewall", Reason: fmt.Sprintf("this kernel has no nf_tables, which %s needs: want %s", by, legacy)}
	case by == legacy || by == "" && found.NoNFTables:
		return legacy, []firewall.Family{firewall.IPTablesLegacy, firewall.IP6TablesLegacy}, nil
	case by == "" || by == cache.FirewallNFTables:
		return cache.FirewallNFTables, nil, nil
	}
	return by, []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT}, nil
}
