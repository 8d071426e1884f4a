package guestconfig

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Flat is the IPv4 configuration of a guest without routes, such as a unikernel.
type Flat struct {
	// Address is the NIC's. If Gateway is a stand-in, it is a /31.
	Address netip.Prefix

	// Gateway is in the network of Address. Zero: no default route by this NIC.
	Gateway netip.Addr

	// MTU is the guest's, in octets of IP. 0, for a virtual function: not known.
	MTU int

	// DNS has the servers of both families that a guest can reach, and the search domains.
	DNS cache.DNS

	// Warnings name what the guest does not get, a sentence each.
	Warnings []string
}

// FlatIPv4 returns the guest's flat configuration. dns is for a record that has none.
//
// Under masquerade, Gateway is the guest's gateway. Under bridge and redirect too, if that gateway is in the NIC's
// network. Otherwise (Calico), and under routed, Gateway is a stand-in, for which the responder answers.
//
// It is an error if the record has no IPv4 address. It is also an error if the guest needs a stand-in and the record
// has none. That is so without a responder, or if Setup did not learn the gateway's MAC.
func FlatIPv4(r cache.Record, dns cache.DNS) (Flat, error) {
	nics, err := Guest{Records: []cache.Record{r}, DNS: dns}.nics("flat")
	if err != nil {
		return Flat{}, err
	}
	n := nics[0]
	f, err := n.flat("flat", "a flat configuration")
	if err != nil {
		return Flat{}, err
	}
	f.MTU, f.DNS = n.MTU, n.dns
	f.Warnings = n.warns
	return f, nil
}

// flat is the interface's address and gateway. It warns of what the format leaves out, which has one of each.
func (n *nic) flat(format, name string) (Flat, error) {
	addresses := n.given()
	if len(addresses) == 0 || !addresses[0].Address.Addr().Is4() {
		return Flat{}, &formatError{Format: format, NIC: n.Name, Reason: fmt.Sprintf("it has no IPv4 address, and %s has no other", name)}
	}
	isLeased := func(a cache.StaticAddress) bool { return n.IPv4 != nil && a.Address.Addr() == n.IPv4.Address.Addr() }
	at := max(0, slices.IndexFunc(addresses, isLeased)) // the kernel lists addresses of the scope link first
	own := addresses[at]
	for _, a := range slices.Delete(addresses, at, at+1) {
		n.warn("the address %v is left out: %s has one, %v", a.Address, name, own.Address)
	}
	f := Flat{Address: own.Address}
	first := syntax.DefaultIndex(n.was.Routes, func(r cache.StaticRoute) netip.Prefix {
		if r.Table != tableMain || !r.Gateway.Is4() {
			return netip.Prefix{}
		}
		return r.Destination
	})
	if first >= 0 {
		f.Gateway = n.was.Routes[first].Gateway
	}
	hop := f.Gateway
	if hop.IsValid() && (!own.Address.Masked().Contains(hop) || own.Peer.IsValid()) {
		if n.IPv4 == nil || !n.IPv4.StandIn.IsValid() || n.IPv4.Address.Addr() != own.Address.Addr() {
			return Flat{}, &formatError{Format: format, NIC: n.Name, Reason: fmt.Sprintf("the gateway %v is not in the network of %v, so that the guest could not reach it: use another format or masquerade, or let the responder answer for it (options.noResponder left out)", hop, own.Address)}
		}
		f.Address, f.Gateway = netip.PrefixFrom(own.Address.Addr(), 31), n.IPv4.StandIn
		if f.Gateway != hop {
			n.warn("the gateway %v is replaced by %v: guestwire's responder answers for it while the launcher serves", hop, f.Gateway)
		}
	}
	reachable := f.Address.Masked()
	onLink := false // in the namespace too
	for i, r := range n.was.Routes {
		plain := r.Table == tableMain && r.Type == "" && len(r.Hops) == 0
		within := f.Address == own.Address && reachable.Contains(r.Destination.Addr()) && r.Destination.Bits() >= reachable.Bits()
		switch {
		case i == first:
			if r.MTU != 0 || r.Source.IsValid() && r.Source != own.Address.Addr() {
				n.warn("the MTU and the source of the default route are left out: %s has neither", name)
			}
		case plain && r.Destination == reachable && !r.Gateway.IsValid():
			onLink = true
		case plain && hop.IsValid() && (r.Gateway == hop && !within || r.Destination == netip.PrefixFrom(hop, 32)): // by the gateway as well
		default: // ptp, CNI's plugin, leads to the address's network by a gateway
			n.warn("the route to %v of table %d is left out: %s has a gateway alone", r.Destination, r.Table, name)
		}
	}
	if own.NoPrefixRoute && !onLink && f.Address == own.Address {
		n.warn("the guest gets a route to %v, which the namespace does not have", reachable)
	}
	if len(n.was.Rules) > 0 {
		n.warn("the %d policy rules are left out: %s has none", len(n.was.Rules), name)
	}
	for _, o := range n.was.Neighbours {
		n.warn("the permanent neighbour %v (%v) is left out: %s", o.Address, o.MAC, n.answered(o.Address))
	}
	return f, nil
}
