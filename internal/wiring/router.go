package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Under masquerade and routed the namespace is the guest's next hop. The guest's tap is the gateway: it has the
// gateway's MAC and addresses, and rules of any program see the guest's packets come in by it.

// sysctlsOfRouter are the sysctls that make the namespace a router.
func sysctlsOfRouter(n netstate.Names) []string {
	return append(netstate.SourceRoutes6("default"), netstate.NoIPv6, netstate.Forwarding6, netstate.AcceptRA(n.NIC), netstate.ForceForwarding(n.NIC))
}

// lacksIPv6 returns why the guest's link could have no IPv6; empty: it has.
func (s *seen) lacksIPv6() string {
	if s.nic.AddrGen == netstate.AddrGenNoIPv6 || s.mtu < minMTUIPv6 {
		return fmt.Sprintf("it has IPv6 addresses, and with its MTU of %d the guest's link could have none", s.mtu)
	}
	return ""
}

// gatewayTap is the tap of a guest with these addresses, whose gateway it is.
func (p *Plan) gatewayTap(ends router.Ends) netstate.Link {
	tap, v4 := p.newTap(), ends.Has(4)
	tap.MAC, tap.Forwarding4, tap.AcceptLocal = p.Record.GatewayMAC, v4, v4 && p.traits().OffStack
	tap.NoSourceRoutes = v4 // else the guest could choose the way of a connection that is open
	return tap
}

// addRouter wants the NIC and the taps, and makes both ways forward. With loopback, processes of the namespace send to
// the guest from loopback addresses.
func (p *Plan) addRouter(tap netstate.Link, ends router.Ends, loopback bool) {
	nic, v4, v6 := p.nic, ends.Has(4), ends.Has(6)
	tap.RouteLocalnet = loopback || p.divertsToLoopback()
	if v6 {
		p.enableIPv6()
		p.enableForwarding6()
		p.addWarnings(p.refuseSourceRoutes6()...)
	}
	lost := p.downLosses()
	if macs := len(p.spec.Guard.MACs); macs > 0 {
		lost.lose("frames", toGuardMACs(macs), "the namespace sends to the guest's MAC alone")
	}
	p.addLosses(lost...)
	nic.Forwarding4 = nic.Forwarding4 || v4
	if nic.Group == 0 { // else it is another program's
		nic.Group = netstate.GroupOfNICs
	}
	p.wanted.Links = append(p.wanted.Links, nic)
	p.addTaps(tap)
	if v6 && loopback {
		p.wanted.Routes = append(p.wanted.Routes, loopbackRoute(tap))
	}
}

// addRoutesToGuest gives the tap its link-local address, after its other addresses, and leads the guest's other
// addresses to the guest.
func (p *Plan) addRoutesToGuest(tap netstate.Link, ends router.Ends) error {
	if ends.Has(6) {
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, Address: eui64.LinkLocal(p.Record.MAC), MAC: p.Record.MAC, Permanent: true})
		p.addAddress(tap, netip.PrefixFrom(eui64.LinkLocal(tap.MAC), 64), netstate.ScopeLink)
	}
	return p.routeGuardPrefixes(tap, ends)
}

// routeGuardPrefixes routes the guest's other addresses by way of the guest, so the guest answers no ARP for them.
// Where the namespace has a route of its own, the answers to these addresses would not come to the guest.
func (p *Plan) routeGuardPrefixes(tap netstate.Link, ends router.Ends) error {
	for i, prefix := range p.spec.Guard.Prefixes {
		at := slices.IndexFunc(ends, func(e router.End) bool { return ip.Of(e.Guest) == ip.Of(prefix.Addr()) })
		switch {
		case prefix.Addr().IsLinkLocalUnicast():
			continue // on the link
		case at < 0:
			p.warn("no route leads to guard.prefixes[%d], %v: the guest has no IPv%d address", i, prefix, ip.Of(prefix.Addr()))
			continue
		case prefix.Bits() < syntax.MinNetwork:
			p.warn("no route leads to guard.prefixes[%d], %v: it is part of a default route, so only what the guest opens is answered", i, prefix)
			continue
		}
		r := netstate.Route{
			Link: tap.Index, Table: netstate.TableMain, Destination: prefix, Gateway: ends[at].Guest,
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
		}
		if p.traits().OffStack {
			r.PrefSrc = ends[at].Gateway // the kernel would choose the guest's address
			if prefix.Addr().Is6() {
				r.Gateway = eui64.LinkLocal(p.Record.MAC) // an address of the namespace can be no gateway
			}
		}
		if prefix.Addr().Is6() {
			r.Metric, r.Other = metricPrefix, []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}
		}
		if routes := p.routesTo(prefix); len(routes) > 0 {
			otherwise := "leave the prefix out"
			if routes[0].Link == p.nic.Index {
				otherwise += ", or choose the binding bridge or redirect, which carry addresses of the NIC's network"
			}
			return fmt.Errorf("guard.prefixes[%d]: %v overlaps the route to %v of the namespace: %w, %s", i, prefix, routes[0].Destination, infra.ErrCollision, otherwise)
		}
		onLink := slices.ContainsFunc(p.wanted.Addresses, func(a netstate.Address) bool {
			return a.Link == tap.Index && a.Prefix.Bits() <= prefix.Bits() && a.Prefix.Contains(prefix.Addr())
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

// loopbackRoute lets the guest's answers to ::1 into the namespace. They arrive for the gateway, and are translated
// back to the loopback address. The kernel needs a route through the tap itself (ip6_route_input looks the route up by
// the incoming link). For IPv4 the tap's RouteLocalnet does the same.
func loopbackRoute(tap netstate.Link) netstate.Route {
	return netstate.Route{
		Link: tap.Index, Table: netstate.TableLocal, Destination: firewall.HostPrefix(netip.IPv6Loopback()),
		Type: netstate.RouteLocal, Protocol: netstate.ProtocolStatic, Metric: metricLocal,
		Other: []netstate.Attribute{{Type: routePreference, Data: []byte{0}}}, // medium, as the kernel reports it
	}
}

// routePreference is RTA_PREF (linux/rtnetlink.h).
const routePreference = 20

// metricLocal is larger than the metric of the kernel's own route to ::1, 0.
const metricLocal = 1024

// unforwarded are the IP versions that the NIC did not forward before Setup.
func (p *Plan) unforwarded() (list []ip.Version) {
	if !p.nic.Forwarding4 {
		list = append(list, 4)
	}
	if p.found.Sysctls[netstate.Forwarding6] != "1" && p.found.Sysctls[netstate.ForceForwarding(p.names.NIC)] != "1" {
		list = append(list, 6)
	}
	return list
}

// enableForwarding6 enables IPv6 forwarding for the NIC and the guest's tap where the kernel can (force_forwarding),
// and else for the whole namespace. Either way the kernel removes the routes that routers have advertised. With
// forwarding for the whole namespace, a link takes no more advertisements unless its accept_ra is 2.
func (p *Plan) enableForwarding6() {
	found, nic, wanted := p.found, p.nic, p.wanted.Sysctls
	learns := slices.ContainsFunc(found.Routes, func(r netstate.Route) bool { return r.Uses(nic.Index) && r.Protocol == netstate.ProtocolRA })
	if learns && found.Sysctls[netstate.Forwarding6] == "0" && found.Sysctls[netstate.AcceptRA(nic.Name)] == "1" {
		wanted[netstate.AcceptRA(nic.Name)] = "2"
	}
	// Where sysctls cannot be written, those of the future tap cannot either.
	force := netstate.ForceForwarding(nic.Name)
	if _, can := found.Sysctls[force]; !can || slices.Contains(found.ReadOnly, force) {
		wanted[netstate.Forwarding6] = "1"
		return
	}
	wanted[force] = "1"
	wanted[netstate.ForceForwarding(p.names.Tap)] = "1"
	wanted[netstate.Forwards6(p.names.Tap)] = "1"
}

// refuseSourceRoutes6 keeps the guest from choosing by which addresses its packets go on: no rule would see where these
// go. A new link takes such packets if the namespace says so of all new ones, and later if somebody says so of it.
func (p *Plan) refuseSourceRoutes6() (list texts) {
	ofTap := netstate.SourceRoutes6(p.names.Tap)
	for i, path := range netstate.SourceRoutes6("default") {
		value, has := p.found.Sysctls[path]
		switch {
		case !has:
		case value != "0" && slices.Contains(p.found.ReadOnly, path):
			list.add("the guest can choose the way of its IPv6 packets: sysctl %s is %s, and cannot be written here", strings.ReplaceAll(path, "/", "."), value)
		default:
			p.wanted.Sysctls[ofTap[i]] = "0"
		}
	}
	return list
}

// forwarding is that of the guest. Most is the binding's MaxConnections. Unreached are the addresses that the guest
// looks for on its link in vain.
func (p *Plan) forwarding(ends router.Ends, most int, unreached []ip.Range) (t router.Router, err error) {
	t = router.Router{Names: p.names, Unforwarded: p.unforwarded(), Ends: ends, Guard: p.spec.Guard, MAC: p.Record.MAC, Most: most, NoARP: p.nic.NoARP,
		OtherLinks: map[ip.Version][]string{4: p.networks.Forwarders.IPv4, 6: p.networks.Forwarders.IPv6}, All6: forwardsAll6(p.found), Checksums: p.found.Checksums, LocalSources: p.found.LocalSources}
	if t.Allowed, err = p.policy.Allowed(ends.Versions()); err != nil {
		return t, err
	}
	if len(t.Allowed) > 0 {
		p.addWarnings(p.warnIncomplete(ends)...)
		if !t.LocalSources {
			p.warn("%s of %s does not hold against a process of the pod that helps the guest, as this kernel's rules cannot say which addresses are the namespace's own: a process can send to the guest in the name of a host that the list refuses, and the guest can answer; load the modules (modprobe nft_fib_inet) and call Setup again",
				p.policy.Field(), p.names.NIC)
		}
	}
	t.Pinnable, err = p.policy.Pinnable(ends.Versions(), unreached)
	p.sets, t.Diverts = slices.Concat(t.Allowed, t.Pinnable), p.diverted
	return t, err
}

// checkSources refuses proxies' sources of a family in which the guest has no address.
func (s *seen) checkSources(by *infra.Sidecar, ends router.Ends) error {
	if by == nil {
		return nil
	}
	for i, a := range by.Sources {
		if v := ip.Of(a); !ends.Has(v) {
			return &cache.FieldError{Field: fmt.Sprintf("binding.%s.sidecar.sources[%d]", s.spec.Binding.Kind(), i), Reason: fmt.Sprintf("%v: %s has no IPv%d address to forward", a, s.nic.Name, v)}
		}
	}
	return nil
}

// defaultGatewayMAC is the gateway's MAC of a routed guest, and of a masquerade without GatewayMAC. Each guest is alone
// with its gateway, so all gateways can have the same one.
var defaultGatewayMAC = cache.MAC{0x02, 0, 0, 0, 0, 0}
