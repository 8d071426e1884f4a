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
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
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
func lacksIPv6(spec infra.Spec, nic netstate.Link) string {
	if nic.AddrGen == netstate.AddrGenNoIPv6 || linkMTU(spec, nic) < minMTUIPv6 {
		return fmt.Sprintf("it has IPv6 addresses, and with its MTU of %d the guest's link could have none", linkMTU(spec, nic))
	}
	return ""
}

// gatewayTap is the tap of a guest with these addresses, whose gateway it is.
func gatewayTap(spec infra.Spec, found netstate.Snapshot, nic netstate.Link, r cache.Record, ends router.Ends) netstate.Link {
	tap, v4 := tapOf(spec, found, nic, r), ends.Has(4)
	tap.MAC, tap.Forwarding4, tap.AcceptLocal = r.GatewayMAC, v4, v4 && traitsOf(spec.Binding).OffStack
	tap.NoSourceRoutes = v4 // else the guest could choose the way of a connection that is open
	return tap
}

// addRouter wants the NIC and the taps, and makes both ways forward.
func (p *Plan) addRouter(nic, tap netstate.Link, ends router.Ends) {
	v4, v6 := ends.Has(4), ends.Has(6)
	if v6 {
		enableIPv6(p.found, p.wanted.Sysctls)
		enableForwarding6(p.found, p.names, nic, p.wanted.Sysctls)
		p.addWarnings(refuseSourceRoutes6(p.found, p.names, p.wanted.Sysctls)...)
	}
	p.addWarnings(warnDown(nic)...)
	nic.Forwarding4 = nic.Forwarding4 || v4
	if nic.Group == 0 { // else it is another program's
		nic.Group = netstate.GroupOfNICs
	}
	p.wanted.Links = append(p.wanted.Links, nic)
	p.addTaps(nic, tap)
	if v6 && tap.RouteLocalnet {
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
		at := slices.IndexFunc(ends, func(e router.End) bool { return firewall.Version(e.Guest) == firewall.Version(prefix.Addr()) })
		switch {
		case prefix.Addr().IsLinkLocalUnicast():
			continue // on the link
		case at < 0:
			p.warn("no route leads to guard.prefixes[%d], %v: the guest has no IPv%d address", i, prefix, firewall.Version(prefix.Addr()))
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
		for _, f := range p.found.Routes {
			if f.Destination.Bits() >= syntax.MinNetwork && f.Destination.Overlaps(prefix) {
				return fmt.Errorf("guard.prefixes[%d]: %v overlaps the route to %v of the namespace: %w, leave the prefix out", i, prefix, f.Destination, infra.ErrCollision)
			}
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
func unforwarded(found netstate.Snapshot, names netstate.Names, nic int) []int {
	var list []int
	if l, _ := found.Link(nic); !l.Forwarding4 {
		list = append(list, 4)
	}
	if found.Sysctls[netstate.Forwarding6] != "1" && found.Sysctls[netstate.ForceForwarding(names.NIC)] != "1" {
		list = append(list, 6)
	}
	return list
}

// enableForwarding6 enables IPv6 forwarding for the NIC and the guest's tap where the kernel can (force_forwarding),
// and else for the whole namespace. Either way the kernel removes the routes that routers have advertised. With
// forwarding for the whole namespace, a link takes no more advertisements unless its accept_ra is 2.
func enableForwarding6(found netstate.Snapshot, names netstate.Names, nic netstate.Link, wanted map[string]string) {
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
	wanted[netstate.ForceForwarding(names.Tap)] = "1"
	wanted[netstate.Forwards6(names.Tap)] = "1"
}

// refuseSourceRoutes6 keeps the guest from choosing by which addresses its packets go on, where the namespace lets new
// links take such packets: no rule would see where these go.
func refuseSourceRoutes6(found netstate.Snapshot, names netstate.Names, wanted map[string]string) (list texts) {
	ofTap := netstate.SourceRoutes6(names.Tap)
	for i, path := range netstate.SourceRoutes6("default") {
		value, has := found.Sysctls[path]
		switch {
		case !has || value == "0":
		case slices.Contains(found.ReadOnly, path):
			list.add("the guest can choose the way of its IPv6 packets: sysctl %s is %s, and cannot be written here", strings.ReplaceAll(path, "/", "."), value)
		default:
			wanted[ofTap[i]] = "0"
		}
	}
	return list
}

// forwarding is that of the guest. Most is the binding's MaxConnections. Unreached are the addresses that the guest
// looks for on its link in vain.
func (p *Plan) forwarding(nic netstate.Link, ends router.Ends, most int, unreached []policy.Range) (t router.Router, err error) {
	on := p.nicNetworks(nic)
	t = router.Router{Names: p.names, Unforwarded: unforwarded(p.found, p.names, nic.Index), Ends: ends, Guard: p.spec.Guard, MAC: p.Record.MAC, Most: most, NoARP: nic.NoARP,
		OtherLinks: map[int][]string{4: on.Forwarders.IPv4, 6: on.Forwarders.IPv6}, All6: forwardsAll6(p.found), Checksums: p.found.Checksums}
	by := policyOf(p.spec, on)
	if t.Allowed, err = by.Allowed(ends.Versions()); err != nil {
		return t, err
	}
	if len(t.Allowed) > 0 {
		p.addWarnings(warnIncomplete(by.Field(), p.found, p.names, ends)...)
	}
	t.Pinnable, err = by.Pinnable(ends.Versions(), unreached)
	p.policy = slices.Concat(t.Allowed, t.Pinnable)
	return t, err
}

// checkSources refuses proxies' sources of a family in which the guest has no address.
func checkSources(s *infra.Sidecar, kind cache.Kind, nic netstate.Link, ends router.Ends) error {
	if s == nil {
		return nil
	}
	for i, a := range s.Sources {
		if v := firewall.Version(a); !ends.Has(v) {
			return &cache.FieldError{Field: fmt.Sprintf("binding.%s.sidecar.sources[%d]", kind, i), Reason: fmt.Sprintf("%v: %s has no IPv%d address to forward", a, nic.Name, v)}
		}
	}
	return nil
}
