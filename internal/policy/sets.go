package policy

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// Allowed are the destinations to which the guest may open connections, by the versions of IP; none: everything. The
// error is a *cache.FieldError for a policy that makes too many sets or too large ones.
func (p Policy) Allowed(versions []ip.Version) (sets []firewall.Destinations, err error) {
	if !p.IsSet() {
		return nil, nil
	}
	return p.destinations(versions, allowedSet, func(v ip.Version) ([]firewall.Box, bool) { return p.boxes(v, allowed) })
}

// Pinnable are the destinations that a pin may open, without the ranges that the guest cannot reach; none: Egress does
// not end with a refusal of all, and there are no pins.
func (p Policy) Pinnable(versions []ip.Version, unreached []Range) (sets []firewall.Destinations, err error) {
	if n := len(p.Egress); n == 0 || !p.Egress[n-1].Refuse {
		return nil, nil
	}
	return p.destinations(versions, firewall.PinnableSet, func(v ip.Version) ([]firewall.Box, bool) {
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
func (p Policy) destinations(versions []ip.Version, name func(v ip.Version) string, boxesOf func(v ip.Version) ([]firewall.Box, bool)) (sets []firewall.Destinations, err error) {
	for _, v := range versions {
		boxes, ok := boxesOf(v)
		if !ok {
			return nil, &cache.FieldError{Field: p.Field(), Reason: fmt.Sprintf("it makes more than %d ranges of addresses and ports of IPv%d, or too many for the kernel, as entries with ports overlap other networks: name fewer", maxBoxes, v)}
		}
		sets = append(sets, firewall.DestinationsOf(name(v), v, boxes)...)
	}
	return sets, nil
}

func allowedSet(v ip.Version) string { return fmt.Sprintf("egress-%d", v) }
