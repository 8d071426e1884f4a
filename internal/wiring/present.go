package wiring

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Present returns the plan by the NIC's networks and by the forwarding links that the namespace has now, and the
// snapshot for that plan. If this changes the guest's rules, it also returns that difference. If nothing has changed,
// the plan is p itself.
func (p *Plan) Present(now netstate.Snapshot) (*Plan, netstate.Snapshot, []cache.Finding, error) {
	nic := p.nic
	link, there := now.Link(nic.Index)
	if !there || p.isReplacement(link) {
		return p, now, nil, nil
	}
	was, is := p.readsAnew(p.networks), p.readsAnew(p.networksNow(now, link))
	if is.equal(was) {
		return p, now, nil, nil
	}
	j := p.Journal()
	j.Networks = &is
	if is.equal(p.readsAnew(p.foundNetworks())) {
		j.Networks = nil
	}
	present, err := j.Plan()
	if err != nil {
		return p, now, nil, fmt.Errorf("by the present networks of %s: %w", nic.Name, err)
	}
	present.Record.Namespace = p.Record.Namespace
	differs := cache.Finding{Kind: "networks", Link: p.names.NIC}
	switch {
	case is.Resolver != was.Resolver && !reflect.DeepEqual(present.diverted, p.diverted):
		differs.Kind = "resolver"
		differs.What = fmt.Sprintf("the resolver at %v listens at the ports %d of UDP and %d of TCP, not at %d and %d", p.Resolver(), is.Resolver.UDP, is.Resolver.TCP, was.Resolver.UDP, was.Resolver.TCP)
	case !reflect.DeepEqual(present.sets, p.sets):
		differs.What = fmt.Sprintf("%s: nic-networks has changed: %s", networksField(p.spec), is.since(was))
	case is.Forwarders.equal(was.Forwarders):
		return present, now, nil, nil
	default:
		differs.Kind, differs.What = "forwarding", strings.Join(is.Forwarders.since(was.Forwarders), ", ")
	}
	return present, p.withTables(now), []cache.Finding{differs}, nil
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
	is, was := networksOf(link.Index, addresses, slices.Concat(now.Routes, p.wanted.Routes)), p.networks
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
	is.Resolver = listensAt(p.Resolver(), now.Listeners, p.spec.DNS != nil).since(was.Resolver)
	return is.sorted()
}

// readsAnew are those of the lists that a plan depends on.
func (s *seen) readsAnew(n Networks) Networks {
	if !NamesNetworks(s.spec) {
		n.Networks, n.NextHops = nil, nil
	}
	if !s.traits().Routes {
		n.Forwarders = Forwarders{}
	}
	return n
}
