package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// boxes are those of one version of IP for which holds is true, as few as the order of the entries makes. It goes
// through the addresses at which an entry begins or ends. In between all addresses are alike. Not ok: there are too
// many.
func (p Policy) boxes(v ip.Version, holds func(by []entry) bool) (boxes []firewall.Box, ok bool) {
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
	end(ip.LastOf(netip.PrefixFrom(since, 0)))
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

const (
	maxBoxes = 16384 // elements of a set
	// maxPrefixes limits the prefixes of the addresses of elements with protocols and ports. The kernel makes a set of
	// them, in a time that grows faster than their number and that no signal ends.
	maxPrefixes = 1 << 18
	maxLooks    = 1 << 26 // at entries, until the elements are known: less than a second

	mostKnown = 256 // segments that differ and are kept
)
