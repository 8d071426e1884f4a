package wiring

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/syntax"
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

// addressRange are the addresses that an entry is about.
type addressRange struct {
	first, last netip.Addr
	entry       int
}

// nat64 is the network in which a translator gives IPv4 addresses to hosts of IPv6 (RFC 6052 section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// translated is the IPv4 address as hosts of IPv6 see it.
func translated(a netip.Addr) netip.Addr {
	octets, four := nat64.Addr().As16(), a.As4()
	copy(octets[12:], four[:])
	return netip.AddrFrom16(octets)
}

// ranges are those of all entries, in one version of IP.
func (p Policy) ranges(v int) (ranges []addressRange) {
	for i, e := range slices.Concat(p.Egress, p.Within) {
		add := func(first, last netip.Addr) {
			if first.Is4() && v == 6 {
				first, last = translated(first), translated(last)
			}
			if version(first) == v {
				ranges = append(ranges, addressRange{first, last, i})
			}
		}
		switch e.To {
		case syntax.NICNetworks:
			p.addNetworks(add)
		case syntax.Resolvers:
			for _, a := range p.Resolvers {
				a = a.Unmap().WithZone("")
				add(a, a)
			}
		default:
			for _, n := range syntax.Destinations(e.To) {
				add(n.Addr(), firewall.LastOf(n))
			}
		}
	}
	return ranges
}

// addNetworks adds the networks of the NIC's link without the next hops in them.
func (p Policy) addNetworks(add func(first, last netip.Addr)) {
	for _, n := range p.Networks {
		first, last := n.Addr(), firewall.LastOf(n)
		for _, h := range p.NextHops {
			if !first.IsValid() || !n.Contains(h) {
				continue
			}
			if first.Less(h) {
				add(first, h.Prev())
			}
			if first = h.Next(); last.Less(first) {
				first = netip.Addr{}
			}
		}
		if first.IsValid() {
			add(first, last)
		}
	}
}

// entry is one of Egress, or of Within, in one version of IP.
type entry struct {
	refuse, within bool   // within: of Within
	rest           bool   // the last one of Egress
	protocol       int    // or everyProtocol
	first, last    int    // ports
	class          uint16 // the same for equal entries
}

const everyProtocol = 256

// entries are those of both lists, in order.
func (p Policy) entries(v int) (all []entry) {
	icmp := firewall.ProtocolICMP
	if v == 6 {
		icmp = firewall.ProtocolICMPv6
	}
	classes := map[entry]uint16{} // fewer than 65536, as Validate limits the lists
	for i, list := range [][]infra.Egress{p.Egress, p.Within} {
		for j, e := range list {
			one := entry{refuse: e.Refuse, within: i > 0, rest: i == 0 && j == len(list)-1, last: 65535}
			switch {
			case e.Ports == infra.Ports{}:
				one.protocol = everyProtocol
			case e.Ports.Protocol == "icmp":
				one.protocol = icmp
			default:
				one.protocol = int(firewall.Transports[syntax.Ports(e.Ports).Full().Protocol])
			}
			if e.Ports.First != 0 {
				one.first, one.last = int(e.Ports.First), int(syntax.Ports(e.Ports).Full().Last)
			}
			class, known := classes[one]
			if !known {
				class = uint16(len(classes))
				classes[one] = class
			}
			one.class = class
			all = append(all, one)
		}
	}
	return all
}

// allowed reports whether the guest may open a connection. By has the first entry of each list that matches it.
func allowed(by []entry) bool {
	return !slices.ContainsFunc(by, func(e entry) bool { return e.refuse })
}

// pinnable reports whether nothing but the last entry of Egress refuses a connection.
func pinnable(by []entry) bool {
	return !slices.ContainsFunc(by, func(e entry) bool { return e.refuse && !e.rest })
}

// boxes are those of one version of IP for which holds is true, as few as the order of the entries makes. It goes
// through the addresses at which an entry begins or ends. In between all addresses are alike. Not ok: there are too
// many.
func (p Policy) boxes(v int, holds func(by []entry) bool) (boxes []firewall.Box, ok bool) {
	type event struct {
		at     netip.Addr
		entry  int
		begins bool
	}
	var events []event
	for _, s := range p.ranges(v) {
		events = append(events, event{s.first, s.entry, true})
		if after := s.last.Next(); after.IsValid() {
			events = append(events, event{after, s.entry, false})
		}
	}
	slices.SortFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	s := segments{all: p.entries(v), lists: 1, holds: holds, known: map[string][]firewall.Box{}}
	if len(p.Egress) > 0 && len(p.Within) > 0 {
		s.lists = 2
	}
	var open []firewall.Box
	since := events[0].at
	prefixes := 0
	end := func(last netip.Addr) {
		if len(open) > 0 && !open[0].AllPorts() {
			prefixes += len(open) * prefixesOf(since, last)
		}
		for _, b := range open {
			b.First, b.Last = since, last
			boxes = append(boxes, b)
		}
	}
	for i, e := range events {
		at, is := slices.BinarySearch(s.active, e.entry)
		if e.begins {
			s.active = slices.Insert(s.active, at, e.entry)
		} else if is {
			s.active = slices.Delete(s.active, at, at+1)
		}
		if i+1 < len(events) && events[i+1].at == e.at {
			continue
		}
		now := s.boxes()
		if !slices.Equal(open, now) {
			end(e.at.Prev())
			open, since = now, e.at
		}
		if len(boxes)+len(open) > maxBoxes || prefixes > maxPrefixes || s.looks > maxLooks {
			return nil, false
		}
	}
	end(firewall.LastOf(netip.PrefixFrom(since, 0)))
	return boxes, true
}

// prefixesOf is the number of prefixes that have the addresses of a range, and no others.
func prefixesOf(first, last netip.Addr) int {
	a, b := first.AsSlice(), last.AsSlice()
	bit := func(of []byte, i int) byte { return of[i/8] >> (7 - i%8) & 1 }
	n, split := 8*len(a), 0
	for split < n && bit(a, split) == bit(b, split) {
		split++
	}
	// half counts the prefixes of one half: one at the range's end, and one for each of its bits that equals outer, the
	// half's own end's, and has a bit that differs to the right.
	half := func(of []byte, outer byte) (count int, whole bool) {
		count, whole = 1, true
		for i := n - 1; i > split; i-- {
			switch {
			case bit(of, i) != outer:
				whole = false
			case !whole:
				count++
			}
		}
		return count, whole
	}
	lower, wholeLower := half(a, 0)
	upper, wholeUpper := half(b, 1)
	if wholeLower && wholeUpper {
		return 1
	}
	return lower + upper
}

// segments computes what is allowed at addresses that the same entries are about.
type segments struct {
	all    []entry
	lists  int   // that are set
	active []int // of all, in order
	holds  func(by []entry) bool
	looks  int                       // at entries
	known  map[string][]firewall.Box // by what the active entries are; most segments are alike
}

// boxes are those of the active entries, without addresses.
func (s *segments) boxes() []firewall.Box {
	key := make([]byte, 0, 64)
	s.looks += len(s.active)
	for _, i := range s.active {
		key = binary.NativeEndian.AppendUint16(key, s.all[i].class)
	}
	boxes, known := s.known[string(key)]
	if !known {
		if len(s.known) == mostKnown {
			clear(s.known)
		}
		boxes = s.protocols()
		s.known[string(key)] = boxes
	}
	return boxes
}

// protocols are the boxes of all protocols.
func (s *segments) protocols() (boxes []firewall.Box) {
	begins := []int{0}
	for _, i := range s.active {
		if n := s.all[i].protocol; n != everyProtocol {
			begins = append(begins, n, n+1)
		}
	}
	slices.Sort(begins)
	begins = slices.DeleteFunc(slices.Compact(begins), func(n int) bool { return n == everyProtocol })
	var before [][2]int
	for i, n := range begins {
		ports, last := s.ports(n), uint8(255)
		if i+1 < len(begins) {
			last = uint8(begins[i+1] - 1)
		}
		if slices.Equal(before, ports) {
			for j := len(boxes) - len(ports); j < len(boxes); j++ {
				boxes[j].LastProtocol = last
			}
			continue
		}
		before = ports
		for _, p := range ports {
			boxes = append(boxes, firewall.Box{FirstProtocol: uint8(n), LastProtocol: last, FirstPort: uint16(p[0]), LastPort: uint16(p[1])})
		}
	}
	return boxes
}

// ports are the ranges of ports of the protocol.
func (s *segments) ports(protocol int) (ranges [][2]int) {
	var about []entry
	begins := []int{0}
	for _, i := range s.active {
		if e := s.all[i]; e.protocol == protocol || e.protocol == everyProtocol {
			about = append(about, e)
			begins = append(begins, e.first, e.last+1)
		}
	}
	slices.Sort(begins)
	begins = slices.Compact(begins)
	for i, port := range begins[:len(begins)-1] { // the last is after all ports
		if s.looks > maxLooks {
			return nil
		}
		if !s.holds(s.deciding(about, port)) {
			continue
		}
		last := begins[i+1] - 1
		if n := len(ranges); n > 0 && ranges[n-1][1] == port-1 {
			ranges[n-1][1] = last
		} else {
			ranges = append(ranges, [2]int{port, last})
		}
	}
	return ranges
}

// deciding are the first entries of each list with the port.
func (s *segments) deciding(about []entry, port int) (by []entry) {
	for _, e := range about {
		s.looks++
		if e.first <= port && port <= e.last && (len(by) == 0 || by[0].within != e.within) {
			by = append(by, e)
		}
		if len(by) == s.lists {
			break
		}
	}
	return by
}
