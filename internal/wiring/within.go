package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// A masquerade's guest can have an IPv4 address of a network that the namespace reaches already, such as the NIC's own.
// Then a route leads to the guest's address alone, and the kernel answers the guest's ARP requests for all others at
// the tap, the gateway's among them. The gateway's address is not the namespace's own if a station of the network may
// have it: packets from that station would be dropped, and no route could name it. IPv6 has no such answers for a whole
// network.

// liesWithin reports whether the guest's network is one that the namespace reaches already, wholly or in part. The
// error is ErrCollision if the guest cannot have its address then. Named says that the caller has named the guest's
// address, and so knows that a station with that address is lost.
func (s *seen) liesWithin(guest netip.Prefix, named bool) (bool, error) {
	network, own := guest.Masked(), guest.Addr()
	refuse := func(otherwise, format string, args ...any) (bool, error) {
		return false, fmt.Errorf("binding.masquerade.ipv%d: %s: %w, choose %s", ip.Of(own), fmt.Sprintf(format, args...), infra.ErrCollision, otherwise)
	}
	const another = "another address for the guest"
	otherwise, naming := "another network", ""
	switch {
	case own.Is6() && named:
		otherwise += ", as no neighbour discovery answers the guest for a whole one"
		named = false
	case own.Is4() && !named:
		naming = ", or name the guest's address in binding.masquerade.guest: a station with that address is lost then"
	}
	within := false
	for _, r := range s.found.Routes {
		if slices.ContainsFunc(r.NextHops(), func(h netstate.Hop) bool { return h.Gateway == own }) {
			return refuse(another, "the guest would get %v, the next hop of the namespace's route to %v", own, r.Destination)
		}
	}
	for _, r := range s.routesTo(network) {
		within = true
		if r.Type != netstate.RouteUnicast || s.links.isWired(s.links.at(r.Link)) {
			return refuse(otherwise, "%v overlaps the route to %v of the namespace", network, r.Destination)
		}
		if !named {
			return refuse(otherwise+naming, "%v overlaps the route to %v of the namespace", network, r.Destination)
		}
		if r.Destination == firewall.HostPrefix(own) {
			return refuse(another, "the namespace has a route to %v", own)
		}
	}
	for _, a := range s.found.Addresses {
		if !network.Contains(a.Prefix.Addr()) {
			continue
		}
		within = true
		if !named {
			return refuse(otherwise+naming, "%v contains the namespace's address %v", network, a.Prefix.Addr())
		}
		if a.Prefix.Addr() == own || isEdge(a.Prefix, own) {
			return refuse(another, "%v is the namespace's own, with %v", own, a.Prefix)
		}
	}
	if link := s.answeringARP(); within && link != "" {
		return refuse(otherwise+", or switch proxy_arp off (net.ipv4.conf."+link+", net.ipv4.conf.all)",
			"%s would answer its network's ARP requests for the guest's %v", link, own)
	}
	return within, nil
}

// answeringARP returns the name of a link that would answer its network's ARP requests for a guest that a route leads
// to; empty: there is none. It may be any link but a guest's tap, whose guest has no neighbours to ask for.
func (s *seen) answeringARP() string {
	if s.nic.ProxyARP || s.found.Sysctls[netstate.ProxyARP] == "1" {
		return s.nic.Name
	}
	for _, l := range s.found.Links {
		if _, marked := netstate.Marked(l.Alias); l.ProxyARP && !marked && !l.Loopback {
			return l.Name
		}
	}
	return ""
}

// isEdge reports whether the IPv4 address is the first or the last one of the network, which the kernel takes for all
// its hosts.
func isEdge(network netip.Prefix, a netip.Addr) bool {
	return network.Bits() < 31 && network.Contains(a) && (a == network.Masked().Addr() || !network.Contains(a.Next()))
}

// addWithin wants the ways between the tap, which answers ARP requests for others, and a guest whose network the
// namespace reaches.
func (p *Plan) addWithin(tap netstate.Link, n inner) {
	// Without a delay: no other station could answer. Where it cannot be set, the first answer takes up to 0.8 s.
	if delay := netstate.ProxyDelay(p.names.NIC); p.found.Sysctls[delay] != "" && !slices.Contains(p.found.ReadOnly, delay) {
		p.wanted.Sysctls[netstate.ProxyDelay(tap.Name)] = "0"
	}
	if !p.reaches(n.Gateway) {
		p.addAddress(tap, firewall.HostPrefix(n.Gateway), netstate.ScopeUniverse)
	}
	p.wanted.Routes = append(p.wanted.Routes, netstate.Route{
		Link: tap.Index, Table: netstate.TableMain, Destination: firewall.HostPrefix(n.Guest), Scope: netstate.ScopeLink,
		Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
	})
}

// reaches reports whether the namespace has the address, or reaches it other than by a default route.
func (s *seen) reaches(a netip.Addr) bool {
	return len(s.routesTo(firewall.HostPrefix(a))) > 0 || slices.ContainsFunc(s.found.Addresses, func(o netstate.Address) bool { return o.Prefix.Masked().Contains(a) })
}

// inner is the guest's network of one family.
type inner struct {
	router.End
	bits int
	// within says that the namespace reaches the network already, so that a route leads to the guest alone.
	within bool
}
