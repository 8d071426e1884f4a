package wiring

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

// SetTurn writes t into the plan's record. If t.Standby is set, the plan wants the guest's tap down. The error is an
// *infra.RefusedError if the binding has no tap that Setup makes, and a *cache.FieldError for the routed binding.
func (p *Plan) SetTurn(t Turn) error {
	if t.Standby && p.traits().Direct {
		return &infra.RefusedError{NIC: p.names.NIC, Binding: p.spec.Binding.Kind(), Instead: p.instead(),
			Reason: "guestwire makes no tap for the guest, so it cannot keep the guest on standby"}
	}
	if t.Standby && p.traits().OffStack {
		return &cache.FieldError{Field: "standby", Reason: "under the routed binding the namespace answers for the guest's addresses all the time: want another binding, such as masquerade, for a guest that moves"}
	}
	p.Record.Standby, p.Record.Inactive, p.Record.Turn = t.Standby, t.Inactive, t.Turn
	return nil
}

// wantedNow is what is wanted of a namespace that is as in the snapshot: on standby the guest's tap is down.
//
// The forwarding by the NIC waits for Activate. With IPv6 forwarding of the whole namespace the kernel joins the
// group of all routers on the NIC, and reports that to the network. When rtnetlink sets IPv4 forwarding of a link,
// or the link's group, the kernel reports all multicast groups there anew (ipv6_mc_up in addrconf_notify). A wiring
// that was active before keeps both, as the way back is reported, too.
//
// Addresses, routes and neighbours at the tap wait, too: a link that is down has no routes, and loses its IPv6
// addresses.
//
// A NIC that will take the guest's MAC under redirect waits, too: with arp_notify the kernel would announce the NIC's
// address with the guest's MAC. A NIC that has to go down for that takes the MAC at Setup, as Activate would interrupt
// the guest for the time that the carrier takes.
func (p *Plan) wantedNow(now netstate.Snapshot) compare.State {
	if !p.Record.Standby {
		return p.wanted
	}
	want := p.wanted
	want.Links = slices.Clone(want.Links)
	for i := range want.Links {
		switch l := &want.Links[i]; l.Index {
		case compare.NewTap:
			l.Up = false
		case p.nic().Index:
			nic, _ := now.Link(l.Index)
			l.Forwarding4, l.Group = nic.Forwarding4, nic.Group
			if found := p.nic(); l.MAC == p.Record.MAC && nic.MAC == found.MAC && netstate.ChangesMACUp(nic.Kind) {
				l.MAC = nic.MAC
			}
		}
	}
	tap, _ := now.Named(p.Record.Tap)
	addresses, routes, neighbours := map[linkPrefix]bool{}, netstate.IndexRoutes(now.Routes), map[netstate.Neighbour]bool{}
	for _, a := range now.Addresses {
		addresses[linkPrefix{a.Link, a.Prefix}] = true
	}
	for _, n := range now.Neighbours {
		neighbours[n] = true
	}
	want.Addresses = slices.DeleteFunc(slices.Clone(want.Addresses), func(a netstate.Address) bool {
		return a.Link == compare.NewTap && !addresses[linkPrefix{tap.Index, a.Prefix}]
	})
	want.Routes = slices.DeleteFunc(slices.Clone(want.Routes), func(r netstate.Route) bool {
		at := r
		at.Link = tap.Index
		return r.Link == compare.NewTap && !routes.Has(at)
	})
	want.Neighbours = slices.DeleteFunc(slices.Clone(want.Neighbours), func(n netstate.Neighbour) bool {
		at := n
		at.Link = tap.Index
		return n.Link == compare.NewTap && n.Address.IsValid() && !neighbours[at]
	})
	want.Sysctls = maps.Clone(want.Sysctls)
	delete(want.Sysctls, netstate.Forwarding6)
	return want
}

// Deactivate returns the operations that end all traffic of the guest: they take its tap down, whatever else of the
// wiring is missing.
func (p *Plan) Deactivate(now netstate.Snapshot) []netstate.Op {
	tap, there := now.Named(p.Record.Tap)
	if !there || !tap.Up {
		return nil
	}
	return []netstate.Op{netstate.LinkSet{Index: tap.Index, Link: tap.Name, Up: new(bool)}}
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
