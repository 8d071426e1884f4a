package wiring

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
)

// newTap is the guest's tap, as the record has it.
func (p *Plan) newTap() netstate.Link {
	tap := p.newLink(compare.NewTap, p.Record.Tap, "tun", p.mtu)
	tap.MAC = netstate.DeriveMAC(p.nic, "tap") // not the guest's: the kernel would keep frames for the tap's own MAC
	tap.Tap = &netstate.Tap{Owner: infra.Owner{UID: p.owner.UID, GID: p.owner.GID, Root: p.owner.UID == 0}, MultiQueue: p.Record.Queues > 1}
	if l := p.spec.Limits.ToGuest; l.BitsPerSecond != 0 {
		rate, frame := l.BitsPerSecond/8, uint64(p.mtu+frameHeader)
		burst := max(cmp.Or(l.BurstBytes, rate/burstsPerSecond), frame)
		queue := min(max(rate/queuesPerSecond, firstFlight*frame, min(burst, longestPacket)), mostQueued)
		tap.Shape = netstate.Shape{Rate: rate, Burst: uint32(burst), Limit: uint32(queue)}
	}
	return tap
}

// What waits for the guest at a tap with a limit. A bucket of 10 ms reaches the rate where timers are as coarse as a
// kernel's slowest clock (HZ 100). A queue of 50 ms is full when a TCP sender has to slow down. At low rates the first
// flight of a TCP connection fits in it (RFC 6928), if it is alone. A packet that the bucket holds is not cut, and fits
// in it as well. The bucket is no part of the queue, as tbf's limit counts what waits alone (bfifo_enqueue in
// net/sched/sch_fifo.c). mostQueued bounds the node's memory: short frames occupy some ten times as much as they are
// long.
const (
	frameHeader     = 14 + 4 // Ethernet, a VLAN tag
	burstsPerSecond = 100
	queuesPerSecond = 20
	firstFlight     = 10
	longestPacket   = 128 << 10 // a packet of 64 KiB before it is cut (GSO), with a header for each segment
	mostQueued      = 4 << 20
)

// addTaps wants the guest's tap, and if the record has a responder also its tap and the filters between the two.
func (p *Plan) addTaps(tap netstate.Link) {
	r := p.Record
	p.wanted.TapContext = p.spec.Owner.SELinux
	if r.ResponderTap != "" {
		port := p.newLink(compare.NewResponder, r.ResponderTap, "tun", tap.MTU)
		port.Tap = &netstate.Tap{Owner: infra.Owner{UID: p.owner.UID, Root: p.owner.UID == 0}}
		port.QueueLength = responderQueue
		p.wanted.Links = append(p.wanted.Links, port)
		p.wanted.Filters = responderFilters(r)
	}
	p.wanted.Filters = append(p.wanted.Filters, p.clearingFilters()...)
	p.wanted.Links = append(p.wanted.Links, tap) // last: it comes up when everything else is there
}

// responderQueue is the number of requests that wait for a responder that is stopped. The guest's frames have up to 64
// KiB, whatever the MTU, so with the kernel's default of 1000 a guest could occupy 64 MiB.
const responderQueue = 16

// newLink is a link that Setup creates.
func (s *seen) newLink(index int, name, kind string, mtu int) netstate.Link {
	l := netstate.Link{
		Index: index, Name: name, Kind: kind, MTU: mtu, Up: true,
		Alias: netstate.Mark(s.nic.Name), Group: netstate.Group(s.nic.Index), AddrGen: netstate.AddrGenNone,
	}
	if s.nic.AddrGen == netstate.AddrGenNoIPv6 || mtu < minMTUIPv6 {
		l.AddrGen = netstate.AddrGenNoIPv6
	}
	if kind == "bridge" {
		l.Bridge = bridgeSettings
	}
	return l
}

// The wiring's bridges do without multicast snooping. Their ports do not learn addresses from a guest's frames,
// so each frame is flooded to the other port, if there is one.
var (
	bridgeSettings = netstate.DefaultBridge.With(netstate.Settings{"mcast_snooping": 0})
	portSettings   = netstate.DefaultBridgePort.With(netstate.Settings{"learning": 0})
)

// enableIPv6 enables IPv6 for new links, as some container engines enable it for the NIC alone.
func (p *Plan) enableIPv6() {
	if p.found.Sysctls[netstate.NoIPv6] == "1" {
		p.wanted.Sysctls[netstate.NoIPv6] = "0"
	}
}

// keepNIC wants the NIC to keep its addresses and routes, so that a repair adds them again. A family in which
// an address or a route has a lifetime, or a route comes from an advertisement, is left out, as it changes by
// itself.
func (p *Plan) keepNIC() {
	for _, v4 := range []bool{true, false} {
		var addresses []netstate.Address
		for _, a := range p.found.Addresses {
			if a.Link == p.nic.Index && a.Prefix.Addr().Is4() == v4 {
				addresses = append(addresses, a)
			}
		}
		var routes []netstate.Route
		for _, r := range p.found.Routes {
			if r.Uses(p.nic.Index) && r.Destination.Addr().Is4() == v4 {
				routes = append(routes, r)
			}
		}
		if slices.ContainsFunc(addresses, func(a netstate.Address) bool { return a.ValidSeconds != netstate.Forever }) ||
			slices.ContainsFunc(routes, func(r netstate.Route) bool { return r.Protocol == netstate.ProtocolRA || r.ExpiresSeconds != 0 }) {
			continue
		}
		elsewhere := func(r netstate.Route) bool {
			return nexthopObject(r) || slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return h.Link != p.nic.Index })
		}
		p.wanted.Addresses = append(p.wanted.Addresses, addresses...)
		p.wanted.Routes = append(p.wanted.Routes, slices.DeleteFunc(routes, elsewhere)...)
	}
}

// addAddress wants an address on a new link, and the route that the kernel adds with it.
func (p *Plan) addAddress(l netstate.Link, prefix netip.Prefix, scope uint8) {
	a := netstate.Address{Link: l.Index, Prefix: prefix, Scope: scope, ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
	if prefix.Addr().Is6() {
		a.Flags = netstate.AddrNoDAD
	} else {
		a.Label = l.Name // the kernel's default
	}
	earlier := netstate.Earlier{}
	for _, e := range p.wanted.Addresses {
		earlier.Add(e)
	}
	p.wanted.Addresses = append(p.wanted.Addresses, a)
	p.wanted.Routes = append(p.wanted.Routes, earlier.Connected(a, l)...)
}
