package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Gateways are the next hops of the NIC's routes whose MACs a plan needs and the snapshot does not have.
func Gateways(s netstate.Snapshot, nic netstate.Link) []netip.Addr {
	n := lease.Of(s, nic)
	return slices.DeleteFunc(n.Gateways(), func(a netip.Addr) bool {
		_, known := n.Neighbour(a)
		return known
	})
}

// Gateway is a gateway and its MAC, from which a part of the record is made: of IPv6 the router, of IPv4 the stand-in,
// or the next hop if that is an IPv6 address.
type Gateway struct {
	Link    int // the NIC
	Address netip.Addr
	MAC     cache.MAC // as the first Setup found it; zero: it did not answer
}

// Gateways returns the gateways whose MACs the record depends on, so that the record is out of date when one of them
// gets another MAC. There is none if the guest's router is another one, such as the bridge of a masquerade, or if
// an administrator has set the MAC (a permanent neighbour).
func (p *Plan) Gateways() []Gateway {
	if !p.binding.asks(p.names).Gateways {
		return nil
	}
	var list []Gateway
	for _, address := range p.on.Gateways() {
		if address.Is4() && (p.Record.IPv4 == nil || !p.Record.IPv4.Gateway().IsValid()) || address.Is6() && p.Record.IPv6 == nil && p.Record.IPv4 == nil {
			continue
		}
		g := Gateway{Link: p.nic.Index, Address: address}
		if known, ok := p.on.Neighbour(address); ok {
			if known.Permanent {
				continue
			}
			g.MAC = known.MAC
		}
		list = append(list, g)
	}
	return list
}

// HasPermanent reports whether the guest has the MACs of neighbours that an administrator has set.
func (p *Plan) HasPermanent() bool {
	return p.binding.asks(p.names).Gateways && p.Record.ResponderTap != "" && len(p.found.PermanentNeighbours(p.nic.Index)) > 0
}

// Replaced are those that now have another MAC: at the NIC, or at the link that has its name.
func (p *Plan) Replaced(links []netstate.Link, neighbours []netstate.Neighbour) (list []Gateway) {
	at := map[int]bool{p.nic.Index: true}
	for _, l := range links {
		at[l.Index] = at[l.Index] || l.Name == p.names.NIC
	}
	for _, was := range p.found.PermanentNeighbours(p.nic.Index) {
		for _, is := range neighbours {
			if at[is.Link] && is.Permanent && is.Address == was.Address && is.MAC != was.MAC && is.MAC.Unicast() {
				list = append(list, Gateway{Link: p.nic.Index, Address: is.Address, MAC: is.MAC})
				break
			}
		}
	}
	return list
}

// WithGateway returns the plan as it would be if the gateway had been found with the MAC. The rest of the
// namespace as found is the same, so Undo is.
func (p *Plan) WithGateway(g Gateway) (*Plan, error) {
	found := p.found
	found.Neighbours = slices.Clone(found.Neighbours)
	isGateway := func(n netstate.Neighbour) bool { return n.Link == g.Link && n.Address == g.Address }
	var known netstate.Neighbour
	if at := slices.IndexFunc(found.Neighbours, isGateway); at >= 0 {
		known = found.Neighbours[at]
	}
	known.Link, known.Address, known.MAC = g.Link, g.Address, g.MAC
	found.Neighbours = append(slices.DeleteFunc(found.Neighbours, isGateway), known)
	j := p.Journal()
	j.Found = found
	return j.Plan()
}

// KnownGateways notes the MACs of the guest's gateways as another record of the guest has them, so that the network
// needs not be asked. A gateway with another address, and one whose MAC the namespace knows, is left as it is.
func KnownGateways(found *netstate.Snapshot, nic netstate.Link, from cache.Record) {
	for _, gateway := range Gateways(*found, nic) {
		mac := gatewayMAC(from, gateway)
		isGateway := from.Static != nil && slices.ContainsFunc(from.Static.Routes, func(r cache.StaticRoute) bool { return r.Gateway == gateway })
		if isGateway && !mac.IsZero() {
			found.Neighbours = append(slices.Clone(found.Neighbours), netstate.Neighbour{Link: nic.Index, Address: gateway, MAC: mac})
		}
	}
}

// gatewayMAC is the MAC that the record has of the gateway of the family; zero: none.
func gatewayMAC(r cache.Record, gateway netip.Addr) cache.MAC {
	if gateway.Is6() {
		if r.IPv6 == nil || r.IPv6.Router == nil {
			return cache.MAC{}
		}
		return r.IPv6.Router.MAC
	}
	for _, n := range r.Neighbours {
		if r.IPv4 != nil && n.Address == r.IPv4.StandIn {
			return n.MAC
		}
	}
	return cache.MAC{}
}
