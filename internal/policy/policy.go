// Package policy computes where a guest may open connections. It takes the lists of a Spec and what their names mean in
// a namespace, and returns the sets of destinations by which rules decide. It also judges, by these sets, the
// connections that are open already. It is pure, and knows no rule.
package policy

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Policy is where a guest may open connections: the lists of a Spec, and what their names mean in a namespace. Without
// entries it allows everything.
type Policy struct {
	Egress, Within []infra.Egress // Spec.Egress and Spec.EgressWithin
	// Networks are those of the NIC's link, without the next hops in them: what nic-networks means.
	Networks []netip.Prefix
	NextHops []netip.Addr
	// Resolvers are the Spec's.
	Resolvers []netip.Addr
}

// IsSet reports whether the policy has entries.
func (p Policy) IsSet() bool { return len(p.Egress)+len(p.Within) > 0 }

// Field is the field of the policy, for errors about all of it.
func (p Policy) Field() string {
	if len(p.Egress) == 0 {
		return "egressWithin"
	}
	return "egress"
}

// Allowed are the destinations to which the guest may open connections, by the versions of IP; none: everything. The
// error is a *cache.FieldError for a policy that makes too many sets or too large ones.
func (p Policy) Allowed(versions []int) (sets []firewall.Destinations, err error) {
	if !p.IsSet() {
		return nil, nil
	}
	return p.destinations(versions, allowedSet, func(v int) ([]firewall.Box, bool) { return p.boxes(v, allowed) })
}

// Pinnable are the destinations that a pin may open, without the ranges that the guest cannot reach; none: Egress does
// not end with a refusal of all, and there are no pins.
func (p Policy) Pinnable(versions []int, unreached []Range) (sets []firewall.Destinations, err error) {
	if n := len(p.Egress); n == 0 || !p.Egress[n-1].Refuse {
		return nil, nil
	}
	return p.destinations(versions, firewall.PinnableSet, func(v int) ([]firewall.Box, bool) {
		boxes, ok := p.boxes(v, pinnable)
		for _, r := range unreached {
			boxes = r.without(boxes)
		}
		return boxes, ok
	})
}

// Range are addresses of one version of IP, both ends included.
type Range struct{ First, Last netip.Addr }

// without returns the boxes without the addresses of the range.
func (r Range) without(boxes []firewall.Box) (rest []firewall.Box) {
	first, last := r.First, r.Last
	for _, b := range boxes {
		if last.Less(b.First) || b.Last.Less(first) {
			rest = append(rest, b)
			continue
		}
		before, after := b, b
		if before.Last = first.Prev(); b.First.Less(first) {
			rest = append(rest, before)
		}
		if after.First = last.Next(); last.Less(b.Last) {
			rest = append(rest, after)
		}
	}
	return rest
}

// destinations are the sets of the boxes, by the versions of IP.
func (p Policy) destinations(versions []int, name func(v int) string, boxesOf func(v int) ([]firewall.Box, bool)) (sets []firewall.Destinations, err error) {
	for _, v := range versions {
		boxes, ok := boxesOf(v)
		if !ok {
			return nil, &cache.FieldError{Field: p.Field(), Reason: fmt.Sprintf("it makes more than %d ranges of addresses and ports of IPv%d, or too many for the kernel, as entries with ports overlap other networks: name fewer", maxBoxes, v)}
		}
		sets = append(sets, firewall.DestinationsOf(name(v), v, boxes)...)
	}
	return sets, nil
}

const (
	maxBoxes = 16384 // elements of a set
	// maxPrefixes limits the prefixes of the addresses of elements with protocols and ports. The kernel makes a set of
	// them, in a time that grows faster than their number and that no signal ends.
	maxPrefixes = 1 << 18
	maxLooks    = 1 << 26 // at entries, until the elements are known: less than a second

	mostKnown = 256 // segments that differ and are kept
)

func allowedSet(v int) string { return fmt.Sprintf("egress-%d", v) }
