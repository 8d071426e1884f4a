package wiring

import (
	"maps"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

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
	if p.Record.Role == cache.RoleActive {
		return p.wanted
	}
	want := p.wanted
	want.Links = slices.Clone(want.Links)
	for i := range want.Links {
		switch l := &want.Links[i]; l.Index {
		case compare.NewTap:
			l.Up = false
		case p.nic.Index:
			nic, _ := now.Link(l.Index)
			l.Forwarding4, l.Group = nic.Forwarding4, nic.Group
			if found := p.nic; l.MAC == p.Record.MAC && nic.MAC == found.MAC && netstate.ChangesMACUp(nic.Kind) {
				l.MAC = nic.MAC
			}
		}
	}
	tap, _ := now.Named(p.Record.Tap)
	addresses, routes, neighbours := map[netstate.LinkPrefix]bool{}, netstate.IndexRoutes(now.Routes), map[netstate.Neighbour]bool{}
	for _, a := range now.Addresses {
		addresses[a.LinkPrefix()] = true
	}
	for _, n := range now.Neighbours {
		neighbours[n] = true
	}
	want.Addresses = slices.DeleteFunc(slices.Clone(want.Addresses), func(a netstate.Address) bool {
		return a.Link == compare.NewTap && !addresses[netstate.LinkPrefix{Link: tap.Index, Prefix: a.Prefix}]
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
	down := tap
	down.Up = false
	return []netstate.Op{netstate.LinkSet{Have: tap, Want: down}}
}
