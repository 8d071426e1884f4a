package policy

import (
	"fmt"
	"net/netip"
	"slices"

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
func (p Policy) Pinnable(versions []ip.Version, unreached []ip.Range) (sets []firewall.Destinations, err error) {
	if n := len(p.Egress); n == 0 || !p.Egress[n-1].Refuse {
		return nil, nil
	}
	return p.destinations(versions, firewall.PinnableSet, func(v ip.Version) ([]firewall.Box, bool) {
		boxes, ok := p.boxes(v, pinnable)
		for _, r := range unreached {
			boxes = without(boxes, r)
		}
		return boxes, ok
	})
}

// without returns the boxes without the addresses of the range.
func without(boxes []firewall.Box, r ip.Range) (rest []firewall.Box) {
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

// Diverts are those of the policy, in the order of their targets' first entries. A target without an address is the
// gateway's, of each version. The error is that of Allowed.
func (p Policy) Diverts(versions []ip.Version) (diverts []firewall.Divert, err error) {
	for _, v := range versions {
		n := 0 // of the version's sets
		for _, target := range p.targets() {
			to := p.resolve(target, v)
			if !to.IsValid() {
				continue
			}
			sets, err := p.destinations([]ip.Version{v}, firewall.DivertSet(n+1), func(v ip.Version) ([]firewall.Box, bool) {
				boxes, ok := p.boxes(v, func(by []entry) bool { return diverted(by) == target })
				return withPorts(boxes, ok)
			})
			if err != nil {
				return nil, err
			}
			d := firewall.Divert{Target: to, Set: sets[0]} // no box has all protocols
			d.Protocols = d.Set.Protocols()
			if len(d.Set.Boxes) > 0 {
				n++
				diverts = append(diverts, d)
			}
		}
	}
	return diverts, nil
}

// diverting are the protocols that can be diverted, which have ports.
var diverting = []uint8{firewall.ProtocolTCP, firewall.ProtocolUDP, firewall.ProtocolSCTP}

// targets are those of both lists, each once.
func (p Policy) targets() (list []netip.AddrPort) {
	for _, e := range slices.Concat(p.Egress, p.Within) {
		if e.Divert.Port() != 0 && !slices.Contains(list, e.Divert) {
			list = append(list, e.Divert)
		}
	}
	return list
}

// resolve is the target with its address, for a version of IP; zero: it has none of that.
func (p Policy) resolve(target netip.AddrPort, v ip.Version) netip.AddrPort {
	if a := target.Addr(); a.IsValid() {
		if ip.Of(a) != v {
			return netip.AddrPort{}
		}
		return target
	}
	for _, a := range p.Gateways {
		if ip.Of(a) == v {
			return netip.AddrPortFrom(a, target.Port())
		}
	}
	return netip.AddrPort{}
}

// withPorts are the boxes of the protocols that can be diverted. Not ok: there are too many.
func withPorts(boxes []firewall.Box, ok bool) (list []firewall.Box, fits bool) {
	prefixes := 0
	for _, b := range boxes {
		for _, number := range diverting {
			if b.FirstProtocol <= number && number <= b.LastProtocol {
				one := b
				one.FirstProtocol, one.LastProtocol = number, number
				list = append(list, one)
				prefixes += prefixesOf(b.First, b.Last)
			}
		}
	}
	return list, ok && len(list) <= maxBoxes && prefixes <= maxPrefixes
}

func allowedSet(v ip.Version) string { return fmt.Sprintf("egress-%d", v) }
