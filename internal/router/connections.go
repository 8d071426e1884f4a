package router

import (
	"net/netip"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// untranslated are the UDP exchanges that others have opened with ports of the addresses. Portless are also the
// exchanges without ports, whoever has opened them: connection tracking gives the guest no other port.
func untranslated(addresses []netip.Addr, ports []infra.Ports, portless bool) (ops []netstate.ConnectionsDel) {
	for _, a := range addresses {
		own := firewall.HostPrefix(a)
		if len(ports) > 0 {
			ops = append(ops, netstate.ConnectionsDel{OrigDst: own, ReplySrc: own, Ports: ports})
		}
		if portless {
			ops = append(ops, netstate.ConnectionsDel{OrigDst: own, ReplySrc: own, Portless: true}, netstate.ConnectionsDel{OrigSrc: own, ReplyDst: own, Portless: true})
		}
	}
	return ops
}

// NetworkConnections are the connections that addresses of the networks have opened or answer.
func NetworkConnections(networks []netip.Prefix) (ops []netstate.ConnectionsDel) {
	for _, n := range networks {
		ops = append(ops, netstate.ConnectionsDel{OrigSrc: n}, netstate.ConnectionsDel{ReplySrc: n})
	}
	return ops
}

// GuestNetworks are the guest's networks at the tap, and its addresses to which a route of the wiring leads. Those of a
// routed guest all have routes, as the tap's address is the namespace's own.
func GuestNetworks(tap netstate.Link, addresses []netstate.Address, routes []netstate.Route, routed bool) (networks []netip.Prefix) {
	for _, a := range addresses {
		if a.Link == tap.Index && !a.Prefix.Addr().IsLinkLocalUnicast() && !routed {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	for _, r := range routes {
		if r.Link == tap.Index && r.Type == netstate.RouteUnicast && r.Protocol == netstate.ProtocolStatic {
			networks = append(networks, r.Destination)
		}
	}
	return networks
}

// WithoutOwn leaves out the networks that are an address of the link, as the addresses of a routed guest are. With the
// wiring gone, these are the namespace's own again, and a connection of such an address may be a process's.
func WithoutOwn(guests []netip.Prefix, link int, addresses []netstate.Address) (left []netip.Prefix) {
	own := map[netip.Prefix]bool{}
	for _, a := range addresses {
		if a.Link == link {
			own[firewall.HostPrefix(a.Prefix.Addr())] = true
		}
	}
	for _, n := range guests {
		if !own[n] {
			left = append(left, n)
		}
	}
	return left
}

// HopConnections are the connections that a routed binding has translated between an address of the NIC and the
// namespace's, and those between the two. Other routed NICs have the same address of the namespace.
func HopConnections(own, hop netip.Addr) []netstate.ConnectionsDel {
	nic, inside := firewall.HostPrefix(own), firewall.HostPrefix(hop)
	return []netstate.ConnectionsDel{
		{OrigSrc: nic, ReplySrc: inside},
		{OrigSrc: inside, ReplyDst: nic},
		{OrigDst: nic, ReplySrc: inside},
		{OrigSrc: inside, OrigDst: nic},
		{ReplySrc: nic, ReplyDst: inside},
	}
}

// Older are the UDP exchanges with ports that a masquerade forwards, and those without ports if it forwards everything.
// A sidecar's proxies take what the network sends.
func (m Masquerade) Older() []netstate.ConnectionsDel {
	if m.Sidecar != nil {
		return nil
	}
	var forwarded portSet
	if m.Ports == nil {
		forwarded.add(span{1, 65535})
	}
	forwarded.include(m.Ports, "udp")
	forwarded.remove(m.Excluded, "udp")
	return untranslated(m.forwardedAddresses(), forwarded.udp(), m.Ports == nil)
}

// Older are the UDP exchanges with ports that a routed binding leaves to the namespace.
func (r Routed) Older() []netstate.ConnectionsDel {
	var excluded portSet
	excluded.include(r.Excluded, "udp")
	return untranslated(r.Own, excluded.udp(), false)
}

// Translated are the namespace's own connections by a routed binding's addresses, and those of the guest that are
// diverted. With the wiring gone, a process's connection between the same addresses and ports would be diverted too.
func (r Routed) Translated() (ops []netstate.ConnectionsDel) {
	for _, a := range r.Own {
		hop := r.Ends.Gateway(ip.Of(a))
		ops = append(ops, HopConnections(a, hop)...)
		known := map[netip.Addr]bool{hop: true}
		for _, d := range r.Diverts {
			if to := d.Target.Addr(); d.Set.Version == ip.Of(a) && !known[to] {
				known[to] = true
				ops = append(ops, netstate.ConnectionsDel{OrigSrc: firewall.HostPrefix(a), ReplySrc: firewall.HostPrefix(to)})
			}
		}
	}
	return ops
}

func (s portSet) udp() []infra.Ports {
	var list []infra.Ports
	for _, r := range s {
		list = append(list, infra.Ports{Protocol: "udp", First: r.first, Last: r.last})
	}
	return list
}
