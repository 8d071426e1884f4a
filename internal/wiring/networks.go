package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Networks are what of the namespace each Setup reads anew: the networks of the NIC's link, the next hops in them,
// which nic-networks leaves out, and the other links that forward. All lists are sorted.
type Networks struct {
	Networks []netip.Prefix `json:"networks,omitempty"`
	NextHops []netip.Addr   `json:"nextHops,omitempty"`
	// Forwarders are only read under masquerade and routed.
	Forwarders Forwarders `json:"forwarders,omitzero"`
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
		switch {
		case !r.Uses(nic) || r.Type != netstate.RouteUnicast:
		case r.Gateway.IsValid():
			n.NextHops = append(n.NextHops, r.Gateway)
		case len(r.Hops) > 0:
			for _, h := range r.Hops {
				n.NextHops = append(n.NextHops, h.Gateway)
			}
		case r.Destination.Bits() >= syntax.MinNetwork:
			n.Networks = append(n.Networks, r.Destination)
		}
	}
	return n.sorted()
}

// sorted has each network once, and of the next hops those in the networks.
func (n Networks) sorted() Networks {
	slices.SortFunc(n.Networks, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	n.Networks = slices.Compact(n.Networks)
	slices.SortFunc(n.NextHops, netip.Addr.Compare)
	n.NextHops = slices.DeleteFunc(slices.Compact(n.NextHops), func(h netip.Addr) bool {
		return !slices.ContainsFunc(n.Networks, func(p netip.Prefix) bool { return p.Contains(h) })
	})
	return n
}

func (n Networks) equal(o Networks) bool {
	return slices.Equal(n.Networks, o.Networks) && slices.Equal(n.NextHops, o.NextHops) && n.Forwarders.equal(o.Forwarders)
}

// readsAnew are those of the lists that a plan depends on.
func readsAnew(spec infra.Spec, n Networks) Networks {
	if !NamesNetworks(spec) {
		n.Networks, n.NextHops = nil, nil
	}
	if !bindingOf(spec.Binding).traits().routes {
		n.Forwarders = Forwarders{}
	}
	return n
}

// nicNetworks are those by which the plan was computed.
func (p *Plan) nicNetworks(nic netstate.Link) Networks {
	if p.networks != nil {
		return *p.networks
	}
	return foundNetworks(p.found, nic)
}

func foundNetworks(found netstate.Snapshot, nic netstate.Link) Networks {
	n := networksOf(nic.Index, found.Addresses, found.Routes)
	n.Forwarders = forwardersOf(found, nic.Index, Forwarders{})
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

// Present returns the plan by the NIC's networks and by the forwarding links that the namespace has now, and the
// snapshot for that plan. If this changes the guest's rules, it also returns the difference. If nothing has changed,
// the plan is p itself.
func (p *Plan) Present(now netstate.Snapshot) (*Plan, netstate.Snapshot, *infra.Difference, error) {
	nic := p.nic()
	link, there := now.Link(nic.Index)
	if !there || p.isReplacement(link) {
		return p, now, nil, nil
	}
	was, is := readsAnew(p.spec, p.nicNetworks(nic)), readsAnew(p.spec, p.networksNow(now, link))
	if is.equal(was) {
		return p, now, nil, nil
	}
	j := p.Journal()
	j.Networks = &is
	if is.equal(readsAnew(p.spec, foundNetworks(p.found, nic))) {
		j.Networks = nil
	}
	present, err := j.Plan()
	if err != nil {
		return p, now, nil, fmt.Errorf("by the present networks of %s: %w", nic.Name, err)
	}
	present.Record.Namespace = p.Record.Namespace
	policy := !reflect.DeepEqual(present.policy, p.policy)
	switch {
	case !policy && is.Forwarders.equal(was.Forwarders):
		return present, now, nil, nil
	case !policy:
		text := strings.Join(is.Forwarders.since(was.Forwarders), ", ")
		return present, p.withTables(now), &infra.Difference{Kind: "forwarding", Link: p.names.NIC, Text: text}, nil
	}
	text := fmt.Sprintf("%s: nic-networks has changed: %s", networksField(p.spec), is.since(was))
	return present, p.withTables(now), &infra.Difference{Kind: "networks", Link: p.names.NIC, Text: text}, nil
}

// networksNow are the networks of the NIC as it is now, with what Setup gives back to it. The addresses that the wiring
// adds are left out. The kernel takes routes and addresses from a NIC that goes down, so what a NIC had that is down
// stays. IPv6 link-local networks stay as they are: nothing is forwarded to them, and the kernel makes them when the
// NIC comes up.
func (p *Plan) networksNow(now netstate.Snapshot, link netstate.Link) Networks {
	own := func(a netstate.Address) bool {
		return a.Link == link.Index && slices.ContainsFunc(p.added.Addresses, func(o netstate.Address) bool { return o.Prefix == a.Prefix })
	}
	addresses := slices.DeleteFunc(slices.Concat(now.Addresses, p.wanted.Addresses), own)
	is, was := networksOf(link.Index, addresses, slices.Concat(now.Routes, p.wanted.Routes)), p.nicNetworks(link)
	linkLocal := func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }
	is.Networks = slices.DeleteFunc(is.Networks, func(n netip.Prefix) bool { return linkLocal(n.Addr()) })
	is.NextHops = slices.DeleteFunc(is.NextHops, linkLocal)
	for _, n := range was.Networks {
		if !link.Up || linkLocal(n.Addr()) {
			is.Networks = append(is.Networks, n)
		}
	}
	for _, h := range was.NextHops {
		if !link.Up || linkLocal(h) {
			is.NextHops = append(is.NextHops, h)
		}
	}
	is.Forwarders = forwardersOf(now, link.Index, was.Forwarders)
	return is.sorted()
}

// mostNamed is the number of changes that a difference names.
const mostNamed = 8

// since says what has changed.
func (n Networks) since(was Networks) string {
	changes := n.Forwarders.since(was.Forwarders)
	for _, p := range n.Networks {
		if !slices.Contains(was.Networks, p) {
			changes = append(changes, fmt.Sprintf("%v is new", p))
		}
	}
	for _, p := range was.Networks {
		if !slices.Contains(n.Networks, p) {
			changes = append(changes, fmt.Sprintf("%v is gone", p))
		}
	}
	for _, h := range n.NextHops {
		if !slices.Contains(was.NextHops, h) {
			changes = append(changes, fmt.Sprintf("%v is a next hop", h))
		}
	}
	for _, h := range was.NextHops {
		if !slices.Contains(n.NextHops, h) {
			changes = append(changes, fmt.Sprintf("%v is no next hop any more", h))
		}
	}
	if more := len(changes) - mostNamed; more > 0 {
		changes = append(changes[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(changes, ", ")
}
