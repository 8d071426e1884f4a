package syntax

import "net/netip"

// IsDefault reports whether a route to p is a default route, or a half of one. VPNs add both halves, such as 0.0.0.0/1
// and 128.0.0.0/1, to take precedence over a default route.
func IsDefault(p netip.Prefix) bool { return p.IsValid() && p.Bits() <= 1 }

// DefaultIndex returns the index of the route that is the default route of a list of one family: the first half if
// both halves are there, else the whole one. It is -1 if there is none. A route without a destination does not count.
func DefaultIndex[R any](routes []R, destination func(R) netip.Prefix) int {
	whole, half := -1, -1
	halves := map[netip.Prefix]bool{}
	for i, r := range routes {
		p := destination(r)
		switch {
		case !IsDefault(p):
		case p.Bits() == 0 && whole < 0:
			whole = i
		case p.Bits() == 1:
			if half < 0 {
				half = i
			}
			halves[p.Masked()] = true
		}
	}
	if len(halves) == 2 {
		return half
	}
	return whole
}
