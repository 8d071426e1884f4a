package netstate

import (
	"encoding/binary"
	"net/netip"
	"reflect"
)

// FiltersOf returns the filters of the link.
func FiltersOf(list []Filter, link int) []Filter {
	var filters []Filter
	for _, f := range list {
		if f.Link == link {
			filters = append(filters, f)
		}
	}
	return filters
}

// FilterKey is equal for filters that are.
type FilterKey struct {
	place           Place
	foreign, keys   string
	target          int
	ingress, clears bool
	copies          bool
}

// Key returns the filter's key.
func (f Filter) Key() FilterKey {
	var keys []byte
	for _, k := range f.Keys {
		keys = binary.NativeEndian.AppendUint64(keys, uint64(k.Offset))
		keys = binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(keys, k.Mask), k.Value)
	}
	return FilterKey{f.Place(), f.Foreign, string(keys), f.Target, f.Ingress, f.Clears, f.Copies}
}

// Place is where filters are: to delete one filter of a place deletes the others.
type Place struct {
	link               int
	priority, protocol uint16
}

// Place returns the filter's place.
func (f Filter) Place() Place { return Place{f.Link, f.Priority, f.Protocol} }

// Same reports whether the addresses are the same. Of lifetimes only the end counts: there is one, or none.
func (a Address) Same(b Address) bool { return a.Kind() == b.Kind() }

// Kind is the address with 0 for each lifetime that ends, whether or not it is a duplicate: addresses that are the same
// have it in common.
func (a Address) Kind() Address {
	a.Duplicate = false
	if a.ValidSeconds != Forever {
		a.ValidSeconds = 0
	}
	if a.PreferredSeconds != Forever {
		a.PreferredSeconds = 0
	}
	return a
}

// Advertised reports whether the address comes from router advertisements.
func (a Address) Advertised() bool {
	const advertised, manageTemporary = 2, 0x100 // IFAPROT_KERNEL_RA, and IFA_F_MANAGETEMPADDR (linux/if_addr.h) before Linux 5.18
	return a.Protocol == advertised || a.Flags&manageTemporary != 0
}

// Advertised reports whether the route comes and goes with router advertisements.
func (r Route) Advertised() bool {
	return r.Destination.Addr().Is6() && (r.Protocol == ProtocolRA || r.ExpiresSeconds != 0)
}

// Preference is that of an advertised route (RFC 4191 section 2.1): 1 high, 0 medium, -1 low. Of routes with one metric
// the kernel takes the one with the highest.
func (r Route) Preference() int {
	const attribute, high, low = 20, 1, 3 // RTA_PREF, linux/rtnetlink.h
	for _, a := range r.Other {
		switch {
		case a.Type != attribute || len(a.Data) == 0:
		case a.Data[0] == high:
			return 1
		case a.Data[0] == low:
			return -1
		}
	}
	return 0
}

// Same reports whether the routes are the same. Of routes that the kernel added with an address only the properties
// that come from the address count.
func (r Route) Same(o Route) bool {
	if r.Destination != o.Destination || r.Table != o.Table || r.Link != o.Link {
		return false // quickly, as a namespace can have many routes
	}
	if r.Protocol == ProtocolKernel && o.Protocol == ProtocolKernel {
		return r.Metric == o.Metric && r.PrefSrc == o.PrefSrc
	}
	// A router can give its routes an end, or take it, at any time: the kernel has one such route.
	if r.Protocol == ProtocolRA || (r.ExpiresSeconds == 0) == (o.ExpiresSeconds == 0) {
		o.ExpiresSeconds = r.ExpiresSeconds
	}
	return reflect.DeepEqual(r, o)
}

// Earlier are the addresses before one in a list, as far as the routes that the kernel makes of that one depend on
// them. The zero value has none, and Add needs one that was made.
type Earlier map[LinkPrefix]netip.Addr // the first address of each network

// Add adds the address.
func (e Earlier) Add(a Address) {
	key := LinkPrefix{a.Link, a.Prefix.Masked()}
	if _, there := e[key]; !there {
		e[key] = a.Prefix.Addr()
	}
}

// Connected are the routes that the kernel adds with an address when the link is up: one to the address's
// network, and for an IPv6 address with a peer one to the network and one to the peer. Of several IPv4 addresses
// in one network only the first has a route.
func (e Earlier) Connected(a Address, l Link) []Route {
	if !l.Up || a.Flags&AddrNoPrefixRoute != 0 {
		return nil
	}
	network := a.Prefix.Masked()
	if a.Peer.IsValid() {
		network = a.Peer.Masked()
	}
	r := Route{
		Link: a.Link, Table: TableMain, Destination: network, Metric: a.Metric,
		Type: RouteUnicast, Protocol: ProtocolKernel,
	}
	if a.Prefix.Addr().Is4() {
		if network.Bits() == 32 && network.Addr() == a.Prefix.Addr() {
			return nil
		}
		if _, there := e[LinkPrefix{a.Link, a.Prefix.Masked()}]; there {
			return nil
		}
		r.Scope, r.PrefSrc = ScopeLink, a.Prefix.Addr()
		return []Route{r}
	}
	if r.Metric == 0 {
		r.Metric = metricIPv6
	}
	if !a.Peer.IsValid() {
		return []Route{r}
	}
	// The prefix length is that of the own address; the route to the peer is for the peer alone.
	own, peer := r, r
	own.Destination = netip.PrefixFrom(a.Prefix.Addr(), a.Peer.Bits()).Masked()
	peer.Destination = netip.PrefixFrom(a.Peer.Addr(), 128)
	return []Route{own, peer}
}

// metricIPv6 is the metric of the routes that the kernel adds with IPv6 addresses (IP6_RT_PRIO_ADDRCONF).
const metricIPv6 = 256
