package netstate

import "net/netip"

// RouteIndex finds routes among many. The zero value has none.
type RouteIndex map[routeKey][]Route

// routeKey is equal for two routes that are the same, and differs for most others.
type routeKey struct {
	destination netip.Prefix
	table       uint32
	link        int
	metric      uint32
}

func keyOf(r Route) routeKey { return routeKey{r.Destination, r.Table, r.Link, r.Metric} }

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
