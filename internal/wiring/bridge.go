package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// bridge makes the NIC and the guest's tap ports of a bridge.
type bridge struct{ infra.Bridge }

func (bridge) asks(netstate.Names) Questions {
	return Questions{Sysctls: append([]string{netstate.NoIPv6}, netstate.BridgeCalls()...), Dummy: true, Gateways: true, Log: true}
}

func (b bridge) sameGuest(other infra.Binding) bool { return b.Bridge == other }
func (b bridge) wiredAs() string                    { return wiredWith(b.MAC) }
func (bridge) makesMAC() bool                       { return false }
func (b bridge) givenMAC() cache.MAC                { return b.MAC }

func (b bridge) takeOver(prefix string, from cache.Record) (infra.Binding, error) {
	err := takeMAC(prefix+"mac", &b.MAC, from.MAC)
	return b.Bridge, err
}

// wire gives the NIC's name, addresses and MAC to a link that stays down, the holder. The NIC takes another
// MAC, as a bridge delivers frames for a port's own MAC to the namespace and not to the guest.
func (b bridge) wire(p *Plan, nic netstate.Link) error {
	if err := checkBridge(p.found, nic); err != nil {
		return err
	}
	if why := whyNotReturned(p.found, nic); why != "" {
		return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingBridge, Reason: why + ", and could not be given back"}
	}
	routes := routesIn(p.found)
	for _, r := range p.found.Routes {
		if !r.Uses(nic.Index) {
			continue
		}
		if why := routes.whyLost(r, nic); why != "" {
			return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingBridge,
				Reason: fmt.Sprintf("the route to %v %s, and could not be given back", r.Destination, why)}
		}
	}
	if b.MAC.IsZero() {
		b.MAC = nic.MAC
	}
	p.Record = leasedRecord(p.spec, p.found, nic, b.MAC)
	for _, path := range netstate.BridgeCalls() {
		p.wanted.Sysctls[path] = "0" // the kernel has them now, or gets them with the bridge
	}

	moved := nic
	moved.Name = p.names.Moved
	moved.MAC = netstate.DeriveMAC(nic, "moved")
	moved.Up = true
	moved.Master = compare.NewBridge
	moved.BridgePort = portSettings
	if moved.AddrGen != netstate.AddrGenNoIPv6 {
		moved.AddrGen = netstate.AddrGenNone
	}

	holder := newLink(nic, compare.NewHolder, nic.Name, "bridge", nic.MTU)
	if p.found.Dummy {
		holder.Kind, holder.Bridge, holder.NoARP = "dummy", nil, true
	}
	holder.MAC = nic.MAC
	holder.Up = false

	br := newLink(nic, compare.NewBridge, p.names.Bridge, "bridge", linkMTU(p.spec, nic))
	br.MAC = netstate.DeriveMAC(nic, "bridge")

	p.wanted.Links = append(p.wanted.Links, moved, holder, br)
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			a.Link = compare.NewHolder
			p.wanted.Addresses = append(p.wanted.Addresses, a)
			if a.Prefix.Addr().Is6() {
				enableIPv6(p.found, p.wanted.Sysctls)
			}
		}
	}
	p.addWarnings(warnOtherMAC(p.found, nic, p.Record.MAC)...)
	p.addWarnings(warnLeased(p.found, nic)...)
	tap := tapOf(p.spec, p.found, nic, p.Record)
	tap.Master, tap.BridgePort = compare.NewBridge, portSettings
	for _, mac := range append([]cache.MAC{b.MAC}, p.spec.Guard.MACs...) {
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, MAC: mac, Permanent: true})
	}
	p.addTaps(nic, tap)
	return p.addFilter(nic, guestfilter.Guest{Addresses: guestAddresses(p.found, nic, p.Record.MAC)})
}

// warnLeased warns of a DHCP client in the namespace, which under bridge takes the holder for the NIC. A client
// outside, such as CNI's dhcp daemon, keeps the NIC by its number.
func warnLeased(found netstate.Snapshot, nic netstate.Link) (list texts) {
	for _, version := range []int{4, 6} {
		for _, a := range lease.Of(found, nic).Leased(version) {
			list.add("the address %v of %s has a lifetime, and a DHCP client in the namespace cannot renew it under bridge, where another link has the name %[2]s: choose redirect", a, nic.Name)
		}
	}
	return list
}

// checkBridge refuses a NIC that cannot be a bridge's port with another MAC.
func checkBridge(found netstate.Snapshot, nic netstate.Link) error {
	reason := ""
	switch {
	case nic.Kind == kindMacvtap:
		return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingBridge, Reason: "a macvtap can be no bridge's port", Instead: cache.BindingMacvtap}
	case found.NoNFTables:
		reason = "this kernel has no nf_tables, without which the namespace would answer for the guest; load them (modprobe nf_tables), or choose masquerade with guard.off"
	case !nic.Ethernet || nic.NoARP:
		reason = "it carries no Ethernet with ARP"
	case nic.SharesMAC():
		reason = fmt.Sprintf("an %s can be no bridge's port", nic.Kind)
	case nic.Kind == kindMacvlan && nic.Mode != "passthru":
		reason = fmt.Sprintf("a macvlan in mode %s receives only for its own MAC", nic.Mode)
	case nic.Mode == netstate.ModeActive, nic.Mode == netstate.ModeFollow:
		reason = fmt.Sprintf("its MAC is that of a port (%s), and as a bridge's port it needs another one than the guest's", nic.Mode)
	case nic.Kind == kindHSR:
		reason = "as a bridge's port it needs another MAC, and an hsr takes none"
	case nic.Mode == netstate.ModeTLB:
		reason = "as a bridge's port it needs another MAC, which would replace those of its ports for good (balance-tlb)"
	case nic.Kind == "bridge":
		reason = "a bridge can be no bridge's port"
	case !nic.MAC.Unicast():
		reason = "it has no MAC"
	case child(found, nic, receivers...) != "":
		reason = fmt.Sprintf("%s lies on it, and a link has either such children or a bridge", child(found, nic, receivers...))
	case whyNotBelow(found, nic) != "":
		reason = whyNotBelow(found, nic)
	default:
		return nil
	}
	return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingBridge, Reason: reason}
}

// routesOf are the routes of a namespace, for the question whether the kernel would add one of them again: by their
// destinations and tables, whether one of them is of type local, broadcast, anycast or multicast.
type routesOf map[lookup]bool

type lookup struct {
	destination netip.Prefix
	table       uint32
}

func routesIn(found netstate.Snapshot) routesOf {
	routes := routesOf{}
	for _, r := range found.Routes {
		if r.Type <= netstate.RouteMulticast {
			at := lookup{r.Destination.Masked(), r.Table}
			routes[at] = routes[at] || r.Type != netstate.RouteUnicast
		}
	}
	return routes
}

// whyLost says why the kernel would refuse the route through the NIC when it is added again; empty: the
// kernel would not.
func (routes routesOf) whyLost(r netstate.Route, nic netstate.Link) string {
	switch {
	case nexthopObject(r):
		return "uses a nexthop object"
	case !nic.Up && len(r.Hops) > 0:
		return "leads through " + nic.Name + ", which is down, and through another link"
	}
	for _, h := range append([]netstate.Hop{{Gateway: r.Gateway, OnLink: r.OnLink}}, r.Hops...) {
		if !h.Gateway.IsValid() || h.OnLink {
			continue
		}
		if routes.takeAsOwn(h.Gateway, r.Table) {
			return fmt.Sprintf("has the gateway %v, which another route gives to the namespace itself", h.Gateway)
		}
	}
	return ""
}

// whyNotReturned says what of the NIC's IPv6 the kernel alone can make, by router advertisements; empty: nothing.
func whyNotReturned(found netstate.Snapshot, nic netstate.Link) string {
	if nic.MTU6 != 0 && nic.MTU6 != nic.MTU {
		return fmt.Sprintf("its MTU of IPv6 is %d (net.ipv6.conf.%s.mtu), as a router advertises it", nic.MTU6, nic.Name)
	}
	for _, a := range found.Addresses {
		if a.Link == nic.Index && a.Temporary {
			return fmt.Sprintf("the temporary address %v is made by the kernel", a.Prefix)
		}
	}
	type group struct {
		destination, source netip.Prefix
		table, metric       uint32
	}
	apart, ofNIC := map[group]int{}, map[group]bool{}
	for _, r := range found.Routes {
		if r.Destination.Addr().Is6() && (r.Gateway.IsValid() || len(r.Hops) > 0) && !nexthopObject(r) {
			g := group{r.Destination, r.Source, r.Table, r.Metric}
			apart[g]++
			ofNIC[g] = ofNIC[g] || r.Uses(nic.Index)
			if apart[g] > 1 && ofNIC[g] {
				return fmt.Sprintf("the routes to %v of the metric %d are kept apart by the kernel, as one is of a router advertisement", r.Destination, r.Metric)
			}
		}
	}
	return ""
}

// routeNexthopID is RTA_NH_ID (linux/rtnetlink.h).
const routeNexthopID = 30

// takeAsOwn reports whether a special route covers the gateway, so that the kernel takes it for the namespace's own, a
// broadcast address or the like, and refuses it as a gateway.
func (routes routesOf) takeAsOwn(gateway netip.Addr, table uint32) bool {
	for bits := gateway.BitLen(); bits >= 0; bits-- {
		network, _ := gateway.Prefix(bits)
		special, is := routes[lookup{network, table}]
		local, isLocal := routes[lookup{network, netstate.TableLocal}]
		if is || isLocal {
			return special || local
		}
	}
	return false
}

// Kinds of links, as rtnetlink names them.
const (
	kindIPVLAN  = "ipvlan"
	kindVLAN    = "vlan"
	kindHSR     = "hsr" // a ring, IEC 62439-3
	kindMacvlan = "macvlan"
	kindMacvtap = "macvtap" // is a tap already
)

// receivers are the kinds of links that take what arrives at the link below them, as a bridge does.
var receivers = []string{kindMacvlan, kindMacvtap, kindIPVLAN, "ipvtap", "macsec", "rmnet"}

// whyNotBelow is why a bridge would change a VLAN on the NIC; empty: there is none. The NIC goes down for another name,
// and comes up, and so does each VLAN on it. A VLAN with the NIC's MAC gets another one with it.
func whyNotBelow(found netstate.Snapshot, nic netstate.Link) string {
	at := slices.IndexFunc(found.Links, func(l netstate.Link) bool { return l.Parent == nic.Index && l.Kind == kindVLAN })
	if at < 0 {
		return ""
	}
	vlan := found.Links[at]
	reason := vlan.Name + " lies on it, and would come up with it"
	if vlan.Up {
		reason = vlan.Name + " lies on it, and would go down with it, which takes its routes and IPv6 addresses"
	}
	if vlan.MAC == nic.MAC {
		reason += ", and get another MAC with it"
	}
	return reason
}

// guestAddresses are the NIC's addresses, which become the guest's; none: the guest's addresses are not known. A guest
// with another MAC than the NIC's makes another link-local address.
func guestAddresses(found netstate.Snapshot, nic netstate.Link, mac cache.MAC) []netip.Addr {
	if v4, v6 := lease.Of(found, nic).Addresses(); len(v4)+len(v6) == 0 {
		return nil
	}
	var own []netip.Addr
	for _, a := range found.Addresses {
		if a.Link == nic.Index && (a.Prefix.Addr() != eui64.LinkLocal(nic.MAC) || mac == nic.MAC) {
			own = append(own, a.Prefix.Addr())
		}
	}
	return own
}
