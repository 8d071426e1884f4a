package netstate

import (
	"hash/maphash"
	"net/netip"
)

// RouteIndex finds routes among many. The zero value has none.
type RouteIndex map[routeKey][]Route

// routeKey is equal for two routes that are the same, and differs for others: who adds routes to a namespace chooses
// what they have in common.
type routeKey struct {
	destination, source netip.Prefix
	table, metric       uint32
	link                int
	prefSrc, gateway    netip.Addr
	kernel              bool
	rest                uint64
}

var seed = maphash.MakeSeed()

func keyOf(r Route) routeKey {
	k := routeKey{destination: r.Destination, table: r.Table, link: r.Link, metric: r.Metric, prefSrc: r.PrefSrc}
	if r.Protocol == ProtocolKernel {
		k.kernel = true
		return k
	}
	k.source, k.gateway = r.Source, r.Gateway
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, [6]uint8{r.Type, r.Scope, r.Protocol, r.TOS, map[bool]uint8{true: 1}[r.OnLink]})
	maphash.WriteComparable(&h, r.MTU)
	for _, hop := range r.Hops {
		maphash.WriteComparable(&h, hop)
	}
	for _, o := range r.Other {
		maphash.WriteComparable(&h, o.Type)
		h.Write(o.Data)
	}
	k.rest = h.Sum64()
	return k
}

// IndexRoutes returns the index of the routes.
func IndexRoutes(list []Route) RouteIndex {
	x := make(RouteIndex, len(list))
	for _, r := range list {
		key := keyOf(r)
		x[key] = append(x[key], r)
	}
	return x
}

// Has reports whether one of the routes is the same as r (Route.Same).
func (x RouteIndex) Has(r Route) bool {
	_, ok := x.Find(r)
	return ok
}

// Find returns the first route that is the same as r.
func (x RouteIndex) Find(r Route) (Route, bool) {
	for _, o := range x[keyOf(r)] {
		if o.Same(r) {
			return o, true
		}
	}
	return Route{}, false
}
