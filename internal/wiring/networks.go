package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Networks are what of the namespace each Setup reads anew: the networks of the NIC's link, the next hops in them,
// which nic-networks leaves out, the other links that forward, and where the resolver listens. All lists are sorted.
type Networks struct {
	Networks []netip.Prefix `json:"networks,omitempty"`
	NextHops []netip.Addr   `json:"nextHops,omitempty"`
	// Forwarders are only read under masquerade and routed.
	Forwarders Forwarders `json:"forwarders,omitzero"`
	// Resolver is only read if a resolver on loopback is the guest's.
	Resolver Resolver `json:"resolver,omitzero"`
}

// networksOf are the networks of these addresses and routes of the NIC. A prefix so short that it is a part of a
// default route does not count.
func networksOf(nic int, addresses []netstate.Address, routes []netstate.Route) (n Networks) {
	for _, a := range addresses {
		if a.Link == nic {
			n.Networks = append(n.Networks, a.Prefix.Masked())
		}
	}
	for _, r := range routes {
		if !r.Uses(nic) || r.Type != netstate.RouteUnicast {
			continue
		}
		for _, h := range r.NextHops() {
			switch {
			case h.Gateway.IsValid():
				n.NextHops = append(n.NextHops, h.Gateway)
			case h.Link == nic && r.Destination.Bits() >= syntax.MinNetwork:
				n.Networks = append(n.Networks, r.Destination)
			}
		}
	}
	return n.sorted()
}

// sorted has each network once, and of the next hops those in the networks.
func (n Networks) sorted() Networks {
	slices.SortFunc(n.Networks, ip.Compare)
	n.Networks = slices.Compact(n.Networks)
	slices.SortFunc(n.NextHops, netip.Addr.Compare)
	among := ip.PrefixesOf(n.Networks)
	n.NextHops = slices.DeleteFunc(slices.Compact(n.NextHops), func(h netip.Addr) bool { return !among.Contain(h) })
	return n
}

func (n Networks) equal(o Networks) bool {
	return slices.Equal(n.Networks, o.Networks) && slices.Equal(n.NextHops, o.NextHops) && n.Forwarders.equal(o.Forwarders) && n.Resolver == o.Resolver
}

// routesTo are the namespace's routes to the network or a part of it, but for default routes and parts of these.
func (s *seen) routesTo(network netip.Prefix) (routes []netstate.Route) {
	for _, r := range s.found.Routes {
		if r.Destination.Bits() >= syntax.MinNetwork && r.Destination.Overlaps(network) {
			routes = append(routes, r)
		}
	}
	return routes
}

// foundNetworks are those of the first Setup.
func (s *seen) foundNetworks() Networks {
	n := networksOf(s.nic.Index, s.found.Addresses, s.found.Routes)
	n.Forwarders = forwardersOf(s.found, s.nic.Index, Forwarders{})
	n.Resolver = listensAt(s.Resolver(), s.found.Listeners, s.spec.DNS != nil)
	return n
}

// networksField is the list of the policy that names nic-networks; empty: neither does.
func networksField(s infra.Spec) string {
	names := func(e infra.Egress) bool { return e.To == syntax.NICNetworks }
	switch {
	case slices.ContainsFunc(s.Egress, names):
		return "egress"
	case slices.ContainsFunc(s.EgressWithin, names):
		return "egressWithin"
	}
	return ""
}

// NamesNetworks reports whether the Spec's policy depends on the NIC's networks.
func NamesNetworks(s infra.Spec) bool { return networksField(s) != "" }

// mostNamed is the number of changes that a difference names.
const mostNamed = 8

// since says what has changed.
func (n Networks) since(was Networks) string {
	changes := n.Forwarders.since(was.Forwarders)
	changes = append(changes, changesOf(n.Networks, was.Networks, "%v is new", "%v is gone")...)
	changes = append(changes, changesOf(n.NextHops, was.NextHops, "%v is a next hop", "%v is no next hop any more")...)
	if more := len(changes) - mostNamed; more > 0 {
		changes = append(changes[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(changes, ", ")
}
