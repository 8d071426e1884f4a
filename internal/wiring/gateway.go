package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Gateways6 are the IPv6 next hops of the NIC's routes whose MACs NewPlan needs and the snapshot does not have.
func Gateways6(s netstate.Snapshot, nic netstate.Link) []netip.Addr {
	gateway, needed := neededGateway(s, nic)
	if !needed || neighbourAt(s, nic, gateway) >= 0 {
		return nil
	}
	return []netip.Addr{gateway}
}

// neededGateway returns the IPv6 next hop whose MAC the record holds, if there is one (addRouter).
func neededGateway(s netstate.Snapshot, nic netstate.Link) (netip.Addr, bool) {
	guest, _ := guestRoutes(routesOf(s, nic, false))
	gateway := gateway6(guest)
	needed := gateway.IsValid() && (!gateway.IsLinkLocalUnicast() || nic.Kind == kindIPVLAN) && !nic.NoARP
	return gateway, needed
}

// neighbourAt is the index of the NIC's neighbour with the address; -1: there is none.
func neighbourAt(s netstate.Snapshot, nic netstate.Link, a netip.Addr) int {
	return slices.IndexFunc(s.Neighbours, func(n netstate.Neighbour) bool { return n.Link == nic.Index && n.Address == a })
}

// Gateway is an IPv6 gateway and its MAC, from which the record's router is made.
type Gateway struct {
	Link    int // the NIC
	Address netip.Addr
	MAC     cache.MAC // as the first Setup found it; zero: it did not answer
}

// Gateway returns the gateway whose MAC the record depends on, so that the record is out of date when the gateway
// gets another MAC. There is none if the guest's router is another one, such as the bridge of a masquerade, or if
// an administrator has set the MAC (a permanent neighbour).
func (p *Plan) Gateway() (Gateway, bool) {
	nic := p.nic()
	address, needed := neededGateway(p.found, nic)
	if !needed || !p.binding.asks(p.names.NIC).Gateways || p.Record.IPv6 == nil {
		return Gateway{}, false
	}
	g := Gateway{Link: nic.Index, Address: address}
	if i := neighbourAt(p.found, nic, address); i >= 0 {
		if p.found.Neighbours[i].Permanent {
			return Gateway{}, false
		}
		g.MAC = p.found.Neighbours[i].MAC
	}
	return g, true
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
