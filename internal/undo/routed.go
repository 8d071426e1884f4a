package undo

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// isHop reports whether a routed binding has put the address at the NIC.
func isHop(a netstate.Address) bool {
	switch a.Prefix.Addr() {
	case lease.RoutedIPv4, lease.RoutedIPv4.Next():
		return a.Scope == netstate.ScopeHost && a.Prefix.IsSingleIP()
	case lease.RoutedIPv6:
		return a.Prefix.IsSingleIP() && a.Flags&netstate.AddrNoPrefixRoute != 0
	}
	return false
}

// takeBack removes from the Snapshot of a NIC whose journal is lost what a routed binding has added.
func takeBack(found *netstate.Snapshot, nic netstate.Link) {
	var hops []netip.Addr
	var addresses []netstate.Address
	sources := map[netip.Prefix]netip.Addr{} // of the kernel's own routes
	earlier := netstate.Earlier{}
	for _, a := range found.Addresses {
		if a.Link == nic.Index && isHop(a) {
			hops = append(hops, a.Prefix.Addr())
			continue
		}
		if a.Link == nic.Index {
			if a.PreferredSeconds == 0 {
				a.PreferredSeconds = a.ValidSeconds
			}
			for _, r := range earlier.Connected(a, nic) {
				sources[r.Destination] = r.PrefSrc
			}
			earlier.Add(a)
		}
		addresses = append(addresses, a)
	}
	found.Addresses, found.Routes = addresses, slices.Clone(found.Routes)
	for i := range found.Routes {
		if r := &found.Routes[i]; r.Uses(nic.Index) && slices.Contains(hops, r.PrefSrc) {
			r.PrefSrc = netip.Addr{}
			if r.Protocol == netstate.ProtocolKernel {
				r.PrefSrc = sources[r.Destination]
			}
		}
	}
}

// addedByRouted is what a routed binding may have added to a NIC whose journal is lost.
func addedByRouted(found netstate.Snapshot, nic netstate.Link) (added compare.Gone) {
	for _, hop := range []netip.Addr{lease.RoutedIPv4, lease.RoutedIPv4.Next(), lease.RoutedIPv6} {
		added.Addresses = append(added.Addresses, netstate.Address{Link: nic.Index, Prefix: firewall.HostPrefix(hop)})
		for _, r := range found.Routes {
			if r.Uses(nic.Index) && r.Destination.Addr().Is4() == hop.Is4() {
				r.PrefSrc = hop
				added.Routes = append(added.Routes, r)
			}
		}
	}
	return added
}

// translated are the connections of the namespace that a routed binding has translated between the NIC's addresses and
// those that it has added.
func translated(found netstate.Snapshot, nic netstate.Link, added compare.Gone) (connections []netstate.ConnectionsDel) {
	for _, a := range found.Addresses {
		for _, hopAddress := range added.Addresses {
			if own, hop := a.Prefix.Addr(), hopAddress.Prefix.Addr(); a.Link == nic.Index && own.Is4() == hop.Is4() {
				connections = append(connections, router.HopConnections(own, hop)...)
			}
		}
	}
	return connections
}
