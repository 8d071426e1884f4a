package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
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

// wire gives the NIC's name, addresses and MAC to a link that stays down, the holder. The NIC takes another
// MAC, as a bridge delivers frames for a port's own MAC to the namespace and not to the guest.
func (b bridge) wire(p *Plan) error {
	nic := p.nic
	if err := p.checkBridge(); err != nil {
		return err
	}
	if why := p.whyNotReturned(); why != "" {
		return p.refuse(why + ", and could not be given back")
	}
	routes := routesIn(p.found)
	for _, r := range p.found.Routes {
		if !r.Uses(nic.Index) {
			continue
		}
		if why := routes.whyLost(r, nic); why != "" {
			return p.refuse(fmt.Sprintf("the route to %v %s, and could not be given back", r.Destination, why))
		}
	}
	if b.MAC.IsZero() {
		b.MAC = nic.MAC
	}
	p.Record = p.leasedRecord(b.MAC)
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

	holder := p.newLink(compare.NewHolder, nic.Name, "bridge", nic.MTU)
	if p.found.Dummy {
		holder.Kind, holder.Bridge, holder.NoARP = "dummy", nil, true
	}
	holder.MAC = nic.MAC
	holder.Up = false

	br := p.newLink(compare.NewBridge, p.names.Bridge, "bridge", p.mtu)
	br.MAC = netstate.DeriveMAC(nic, "bridge")

	p.wanted.Links = append(p.wanted.Links, moved, holder, br)
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			a.Link = compare.NewHolder
			p.wanted.Addresses = append(p.wanted.Addresses, a)
			if a.Prefix.Addr().Is6() {
				p.enableIPv6()
			}
		}
	}
	p.addWarnings(p.warnOtherMAC(p.Record.MAC)...)
	p.addWarnings(p.warnLeased()...)
	p.addLosses(p.downRoutes()...)
	tap := p.newTap()
	tap.Master, tap.BridgePort = compare.NewBridge, portSettings
	for _, mac := range append([]cache.MAC{b.MAC}, p.spec.Guard.MACs...) {
		p.wanted.Neighbours = append(p.wanted.Neighbours, netstate.Neighbour{Link: tap.Index, MAC: mac, Permanent: true})
	}
	p.addTaps(tap)
	return p.addFilter(guestfilter.Guest{Addresses: p.guestAddresses(p.Record.MAC)})
}

// warnLeased warns of a DHCP client in the namespace, which under bridge takes the holder for the NIC. A client
// outside, such as CNI's dhcp daemon, keeps the NIC by its number.
func (s *seen) warnLeased() (list texts) {
	for _, v := range ip.Both {
		for _, a := range s.on.Leased(v) {
			list.add("the address %v of %s has a lifetime, and a DHCP client in the namespace cannot renew it under bridge, where another link has the name %[2]s: choose redirect", a, s.nic.Name)
		}
	}
	return list
}

// checkBridge refuses a NIC that cannot be a bridge's port with another MAC.
func (s *seen) checkBridge() error {
	reason, nic := "", s.nic
	switch {
	case nic.Kind == kindMacvtap:
		return &infra.RefusedError{NIC: nic.Name, Binding: cache.BindingBridge, Reason: "a macvtap can be no bridge's port", Instead: cache.BindingMacvtap}
	case s.found.NoNFTables:
		reason = "this kernel has no nf_tables, without which the namespace would answer for the guest; load them (modprobe nf_tables), or choose masquerade with guard.off"
	case s.found.NoFwd && slices.Contains(s.spec.Guard.VLANs, 0) && !s.spec.Guard.Off && !s.spec.Options.NoResponder: // of frames with a priority tag
		reason = noFwd
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
	case child(s.found, nic, receivers...) != "":
		reason = fmt.Sprintf("%s lies on it, and a link has either such children or a bridge", child(s.found, nic, receivers...))
	case s.whyNotBelow() != "":
		reason = s.whyNotBelow()
	default:
		return nil
	}
	return s.refuse(reason)
}

// whyNotReturned says what of the NIC's IPv6 the kernel alone can make, by router advertisements; empty: nothing.
func (s *seen) whyNotReturned() string {
	nic := s.nic
	if nic.MTU6 != 0 && nic.MTU6 != nic.MTU {
		return fmt.Sprintf("its MTU of IPv6 is %d (net.ipv6.conf.%s.mtu), as a router advertises it", nic.MTU6, nic.Name)
	}
	for _, a := range s.found.Addresses {
		if a.Link == nic.Index && a.Temporary {
			return fmt.Sprintf("the temporary address %v is made by the kernel", a.Prefix)
		}
	}
	apart, ofNIC := map[compare.Group]int{}, map[compare.Group]bool{}
	for _, r := range s.found.Routes {
		if r.Destination.Addr().Is6() && (r.Gateway.IsValid() || len(r.Hops) > 0) && !nexthopObject(r) {
			g := compare.GroupOf(r)
			apart[g]++
			ofNIC[g] = ofNIC[g] || r.Uses(nic.Index)
			if apart[g] > 1 && ofNIC[g] {
				return fmt.Sprintf("the routes to %v of the metric %d are kept apart by the kernel, as one is of a router advertisement", r.Destination, r.Metric)
			}
		}
	}
	return ""
}

// whyNotBelow is why a bridge would change a VLAN on the NIC; empty: there is none. The NIC goes down for another name,
// and comes up, and so does each VLAN on it. A VLAN with the NIC's MAC gets another one with it.
func (s *seen) whyNotBelow() string {
	at := slices.IndexFunc(s.found.Links, func(l netstate.Link) bool { return l.Parent == s.nic.Index && l.Kind == kindVLAN })
	if at < 0 {
		return ""
	}
	vlan := s.found.Links[at]
	reason := vlan.Name + " lies on it, and would come up with it"
	if vlan.Up {
		reason = vlan.Name + " lies on it, and would go down with it, which takes its routes and IPv6 addresses"
	}
	if vlan.MAC == s.nic.MAC {
		reason += ", and get another MAC with it"
	}
	return reason
}
