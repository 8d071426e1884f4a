package infra

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// bridge wires the NIC itself to the guest. The NIC gives its name, addresses and MAC to a link
// that stays down, takes another MAC (a bridge delivers frames for a port's own address to the
// namespace and not to the guest), and becomes a port beside the tap.
func (p *Plan) bridge(nic Link, spec Spec) error {
	if err := p.bridgeable(nic); err != nil {
		return err
	}
	var special []Route // a namespace has few of them, if any
	for _, r := range p.found.Routes {
		if r.Type > RouteUnicast && r.Type <= routeMulticast {
			special = append(special, r)
		}
	}
	for _, r := range p.found.Routes {
		if !r.Uses(nic.Index) {
			continue
		}
		if why := p.lost(r, nic, special); why != "" {
			return &RefusedError{NIC: nic.Name, Binding: Bridge{}.Kind(), Instead: p.insteadOfBridge(nic),
				Reason: fmt.Sprintf("the route to %v %s, and could not be given back", r.Destination, why)}
		}
	}
	p.Record = p.record(nic, spec, nic.MAC)
	for _, path := range bridgeCalls {
		p.wired.sysctls[path] = "0" // where the kernel has them, by now or later
	}

	moved := nic
	moved.Name = p.names.Moved
	moved.MAC = deriveMAC(nic, "moved")
	moved.Up = true
	moved.Master = newBridge
	moved.Port = portSettings
	if moved.AddrGen != AddrGenNoIPv6 {
		moved.AddrGen = AddrGenNone
	}

	holder := p.created(nic, newHolder, nic.Name, "bridge", nic.MTU)
	if p.found.Dummy {
		holder.Kind, holder.Bridge, holder.NoARP = "dummy", nil, true
	}
	holder.MAC = nic.MAC
	holder.Up = false

	br := p.created(nic, newBridge, p.names.Bridge, "bridge", min(nic.MTU, cache.MaxMTU))
	br.MAC = deriveMAC(nic, "bridge")

	p.wired.links = append(p.wired.links, moved, holder, br)
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			a.Link = newHolder
			p.wired.addresses = append(p.wired.addresses, a)
			if a.Prefix.Addr().Is6() {
				p.enableIPv6()
			}
		}
	}
	p.hand(&p.Record, nic)
	p.taps(nic, spec, p.Record)
	g := p.guest(p.own(nic))
	p.wired.tables = []firewall.Table{g.behind(p.names, spec.Guard, deaf(p.names.Moved, p.names.Tap)...)}
	return p.guard(g)
}

// nexthopObject says whether the route's next hop is an object of its own, which is not read.
func (r Route) nexthopObject() bool {
	return slices.ContainsFunc(r.Other, func(a Attribute) bool { return a.Type == routeNexthopID })
}

// lost says why the kernel would not have a route through the NIC a second time, or nothing. Special
// are the routes of type local, broadcast and the like.
func (p *Plan) lost(r Route, nic Link, special []Route) string {
	switch {
	case r.nexthopObject():
		return "uses a nexthop object"
	case !nic.Up && len(r.Hops) > 0:
		return "leads through " + nic.Name + ", which is down, and through another link"
	}
	for _, h := range append([]Hop{{Gateway: r.Gateway, OnLink: r.OnLink}}, r.Hops...) {
		if h.Gateway.IsValid() && !h.OnLink && p.isOwn(h.Gateway, r.Table, special) {
			return fmt.Sprintf("has the gateway %v, which another route gives to the namespace itself", h.Gateway)
		}
	}
	return ""
}

// isOwn says whether routes that somebody added say that an address is the namespace's own, a
// broadcast address or the like: the kernel takes no gateway there.
func (p *Plan) isOwn(gateway netip.Addr, table uint32, special []Route) bool {
	leads := func(r Route) bool {
		return (r.Table == table || r.Table == TableLocal) && r.Type <= routeMulticast && r.Destination.Contains(gateway)
	}
	if !slices.ContainsFunc(special, leads) {
		return false
	}
	best, own := -1, false
	for _, r := range p.found.Routes {
		if !leads(r) {
			continue
		}
		if r.Destination.Bits() > best {
			best, own = r.Destination.Bits(), false
		}
		own = own || r.Destination.Bits() == best && r.Type != RouteUnicast
	}
	return own
}

// routeNexthopID is RTA_NH_ID (linux/rtnetlink.h).
const routeNexthopID = 30

// ipvlan is the kind of links that share their parent's MAC.
const ipvlan = "ipvlan"

// own are the addresses that become the guest's; none: nobody knows what it will have.
func (p *Plan) own(nic Link) []netip.Prefix {
	if v4, v6 := addressesOf(p.found, nic); len(v4)+len(v6) == 0 {
		return nil
	}
	var own []netip.Prefix
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			own = append(own, a.Prefix)
		}
	}
	return own
}

// insteadOfBridge is what works where Bridge does not.
func (p *Plan) insteadOfBridge(nic Link) string {
	if p.redirectable(nic) == nil {
		return Redirect{}.Kind()
	}
	return Masquerade{}.Kind()
}

// bridgeable says whether a NIC can be a bridge's port with another MAC.
func (p *Plan) bridgeable(nic Link) error {
	reason := ""
	switch {
	case nic.Kind == macvtap:
		return &RefusedError{NIC: nic.Name, Binding: Bridge{}.Kind(), Reason: "a macvtap can be no bridge's port", Instead: Macvtap{}.Kind()}
	case p.found.NoNFTables:
		reason = "this kernel has no nf_tables, without which the namespace would answer for the guest"
	case !nic.Ethernet || nic.NoARP:
		reason = "it carries no Ethernet with ARP"
	case nic.Kind == ipvlan:
		reason = "an ipvlan can be no bridge's port"
	case nic.Kind == "macvlan" && nic.Mode != "passthru":
		reason = fmt.Sprintf("a macvlan in mode %s receives only for its own MAC", nic.Mode)
	case nic.Kind == "bridge":
		reason = "a bridge can be no bridge's port"
	case !nic.MAC.Unicast():
		reason = "it has no MAC"
	case p.child(nic, "macvlan", macvtap, ipvlan) != "":
		reason = fmt.Sprintf("%s lies on it, and a link has either such children or a bridge", p.child(nic, "macvlan", macvtap, ipvlan))
	default:
		return nil
	}
	return &RefusedError{NIC: nic.Name, Binding: Bridge{}.Kind(), Reason: reason, Instead: p.insteadOfBridge(nic)}
}
