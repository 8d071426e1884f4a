package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Gateways are the next hops of the NIC's routes whose MACs NewPlan needs and the snapshot does not have.
func Gateways(s netstate.Snapshot, nic netstate.Link) []netip.Addr {
	return slices.DeleteFunc(neededGateways(s, nic), func(a netip.Addr) bool { return neighbourAt(s, nic, a) >= 0 })
}

// neededGateways are the next hops whose MACs the record holds: of IPv4 as addStandIn, of IPv6 as addRouter needs it.
func neededGateways(s netstate.Snapshot, nic netstate.Link) []netip.Addr {
	var needed []netip.Addr
	if nic.NoARP {
		return nil
	}
	if v4, _ := addressesOf(s, nic); len(v4) > 0 {
		routes, _ := guestRoutes(routesOf(s, nic, true))
		address, gateway, _ := asTold(v4[0], routes)
		if gateway.IsValid() && address.Bits() == 32 && gateway != beside(address.Addr()) {
			needed = append(needed, gateway)
		}
	}
	routes, _ := guestRoutes(routesOf(s, nic, false))
	if gateway := gateway6(routes); gateway.IsValid() && (!gateway.IsLinkLocalUnicast() || nic.Kind == kindIPVLAN) {
		needed = append(needed, gateway)
	}
	return needed
}

// neighbourAt is the index of the NIC's neighbour with the address; -1: there is none.
func neighbourAt(s netstate.Snapshot, nic netstate.Link, a netip.Addr) int {
	return slices.IndexFunc(s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == nic.Index && n.Address == a })
}

// Gateway is a gateway and its MAC, from which a part of the record is made: of IPv6 the router, of IPv4 the stand-in.
type Gateway struct {
	Link    int // the NIC
	Address netip.Addr
	MAC     cache.MAC // as the first Setup found it; zero: it did not answer
}

// Gateways returns the gateways whose MACs the record depends on, so that the record is out of date when one of them
// gets another MAC. There is none if the guest's router is another one, such as the bridge of a masquerade, or if
// an administrator has set the MAC (a permanent neighbour).
func (p *Plan) Gateways() []Gateway {
	nic := p.nic()
	if !p.binding.asks(p.names.NIC).Gateways {
		return nil
	}
	var list []Gateway
	for _, address := range neededGateways(p.found, nic) {
		if address.Is4() && (p.Record.IPv4 == nil || !p.Record.IPv4.Gateway().IsValid()) || address.Is6() && p.Record.IPv6 == nil {
			continue
		}
		g := Gateway{Link: nic.Index, Address: address}
		if i := neighbourAt(p.found, nic, address); i >= 0 {
			if p.found.Neighbours[i].Permanent {
				continue
			}
			g.MAC = p.found.Neighbours[i].MAC
		}
		list = append(list, g)
	}
	return list
}

// WithGateway returns the plan as it would be if the gateway had been found with the MAC. The rest of the
// namespace as found is the same, so Undo is.
func (p *Plan) WithGateway(g Gateway) (*Plan, error) {
	found := p.found
	found.Neighbours = slices.Clone(found.Neighbours)
	n := netstate.Neighbour{Link: g.Link, Address: g.Address, MAC: g.MAC}
	if i := neighbourAt(found, p.nic(), g.Address); i >= 0 {
		found.Neighbours[i] = n
	} else {
		found.Neighbours = append(found.Neighbours, n)
	}
	return Journal{Found: found, Spec: p.spec, Turn: turnOf(p.Record)}.Plan()
}
