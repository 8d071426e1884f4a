package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

// addTaps wants the guest's tap, as a port of the bridge if the binding has one, and if the record has a
// responder also its tap and the filters between the two.
func (p *Plan) addTaps(nic netstate.Link) {
	r := p.Record
	mtu := min(nic.MTU, cache.MaxMTU)
	tap := p.newLink(nic, compare.NewTap, r.Tap, "tun", mtu)
	tap.MAC = netstate.DeriveMAC(nic, "tap") // a station's, and frames for that one would end here
	tap.Tap = &netstate.Tap{Owner: p.spec.Owner, MultiQueue: r.Queues > 1}
	if r.ResponderTap != "" {
		port := p.newLink(nic, compare.NewResponder, r.ResponderTap, "tun", mtu)
		port.Tap = &netstate.Tap{Owner: infra.Owner{UID: p.spec.Owner.UID}}
		p.wanted.Links = append(p.wanted.Links, port)
		p.wanted.Filters = portFilters(r)
	}
	bridged := p.binding.traits().bridged
	if bridged {
		tap.Master, tap.BridgePort = compare.NewBridge, portSettings
	}
	p.wanted.Links = append(p.wanted.Links, tap) // last: it comes up when everything else is there
	if !bridged {
		return
	}
	for _, mac := range append([]cache.MAC{r.MAC}, p.spec.Guard.MACs...) {
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: compare.NewTap, MAC: mac, Permanent: true})
	}
}

// newLink is a link of ours.
func (p *Plan) newLink(nic netstate.Link, index int, name, kind string, mtu int) netstate.Link {
	l := netstate.Link{
		Index: index, Name: name, Kind: kind, MTU: mtu, Up: true,
		Alias: netstate.Mark(nic.Name), Group: netstate.Group(nic.Index), AddrGen: netstate.AddrGenNone,
	}
	if nic.AddrGen == netstate.AddrGenNoIPv6 || mtu < minMTUIPv6 {
		l.AddrGen = netstate.AddrGenNoIPv6
	}
	if kind == "bridge" {
		l.Bridge = bridgeSettings
	}
	return l
}

// The wiring's bridges do without multicast snooping. Their ports do not learn, so that each port floods its
// frames to the other one.
var (
	bridgeSettings = netstate.DefaultBridge.With(netstate.Settings{"mcast_snooping": 0})
	portSettings   = netstate.DefaultBridgePort.With(netstate.Settings{"learning": 0})
)

// minMTUIPv6 is RFC 8200 section 5: below, a link has no IPv6.
const minMTUIPv6 = 1280

// enableIPv6 lets new links have IPv6 if the NIC has it: some container engines switch it on for
// the NIC alone.
func (p *Plan) enableIPv6() {
	if p.found.Sysctls[netstate.NoIPv6] == "1" {
		p.wanted.Sysctls[netstate.NoIPv6] = "0"
	}
}

// keepNIC wants the NIC to have what the guest is hidden behind: its addresses and routes, of a family
// in which none of them comes by an advertisement or a lease, as those change by themselves.
func (p *Plan) keepNIC(nic netstate.Link) {
	for _, v4 := range []bool{true, false} {
		var addresses []netstate.Address
		for _, a := range p.found.Addresses {
			if a.Link == nic.Index && a.Prefix.Addr().Is4() == v4 {
				addresses = append(addresses, a)
			}
		}
		var routes []netstate.Route
		for _, r := range p.found.Routes {
			if r.Uses(nic.Index) && r.Destination.Addr().Is4() == v4 {
				routes = append(routes, r)
			}
		}
		if slices.ContainsFunc(addresses, func(a netstate.Address) bool { return a.ValidSeconds != netstate.Forever }) ||
			slices.ContainsFunc(routes, func(r netstate.Route) bool { return r.Protocol == netstate.ProtocolRA || r.ExpiresSeconds != 0 }) {
			continue
		}
		elsewhere := func(r netstate.Route) bool {
			return nexthopObject(r) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return h.Link != nic.Index })
		}
		p.wanted.Addresses = append(p.wanted.Addresses, addresses...)
		p.wanted.Routes = append(p.wanted.Routes, slices.DeleteFunc(routes, elsewhere)...)
	}
}

// addAddress puts one on a link of ours, with the route that the kernel makes of it.
func (p *Plan) addAddress(l netstate.Link, prefix netip.Prefix, scope uint8) {
	a := netstate.Address{Link: l.Index, Prefix: prefix, Scope: scope, ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
	if prefix.Addr().Is6() {
		a.Flags = netstate.AddrNoDAD
	} else {
		a.Label = l.Name // the kernel's default
	}
	p.wanted.Addresses = append(p.wanted.Addresses, a)
	p.wanted.Routes = append(p.wanted.Routes, netstate.Connected(a, l, p.wanted.Addresses[:len(p.wanted.Addresses)-1])...)
}
