package fib

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// FuzzLookup: the table of all tables says what a search in one table after the other says.
func FuzzLookup(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := make([]byte, 120)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b, r.Uint32())
	}
	f.Fuzz(func(t *testing.T, b []byte, to uint32) {
		var s netstate.Snapshot
		next := func() byte {
			if len(b) == 0 {
				return 0
			}
			first := b[0]
			b = b[1:]
			return first
		}
		address := func() netip.Addr { return netip.AddrFrom4([4]byte{next() & 3, next() & 3, 0, 0}) }
		for range next() % 6 {
			r := netstate.Rule{Priority: uint32(next()), Table: uint32(100 + next()%3), Suppress: int(next() % 4), TOS: 16 * (next() % 2)}
			if next()%2 == 1 {
				r.Mark, r.Mask = uint32(next()%8), 3
			}
			if bits := int(next() % 17); bits > 0 {
				r.Destination = netip.PrefixFrom(address(), bits).Masked()
			}
			s.Rules = append(s.Rules, r)
		}
		types := []uint8{netstate.RouteUnicast, netstate.RouteUnicast, netstate.RouteThrow, 6}
		for i := range next() % 12 {
			s.Routes = append(s.Routes, netstate.Route{
				Link: int(i) + 1, Table: []uint32{100, 101, 102, netstate.TableMain}[next()%4], Destination: netip.PrefixFrom(address(), int(next()%17)).Masked(),
				Type: types[next()%4], Metric: uint32(next() % 3), TOS: 16 * (next() % 2),
			})
		}
		destination := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(to>>24) & 3, byte(to>>16) & 3, byte(to >> 8), byte(to)}), 32)
		from := Source{IP: ip.V4, TOS: 16 * (next() % 2), Mark: uint32(next())}
		way, is := Of(s, from).Lookup(destination)
		link := 0
		if is {
			link = way.Routes[0].Link
		}
		if want := oneByOne(s, from, destination.Addr()); link != want {
			t.Errorf("%v goes by route %d, want %d:\n%+v\n%+v", destination, link, want, s.Rules, s.Routes)
		}
	})
}

// oneByOne is the link of the route, as ip-rule(8) says it: rule after rule, in each table the longest prefix.
func oneByOne(s netstate.Snapshot, from Source, to netip.Addr) int {
	for _, rule := range Rules(s, ip.V4, 0) {
		var best *netstate.Route
		for _, r := range s.Routes {
			isBetter := func() bool {
				return cmp.Or(r.Destination.Bits()-best.Destination.Bits(), int(r.TOS)-int(best.TOS), int(best.Metric)-int(r.Metric)) > 0
			}
			if r.Table == rule.Table && r.Destination.Contains(to) && (r.TOS == 0 || r.TOS == from.TOS) && (best == nil || isBetter()) {
				best = &r
			}
		}
		matches := (!rule.Destination.IsValid() || rule.Destination.Contains(to)) && (rule.TOS == 0 || rule.TOS == from.TOS) && (from.Mark^rule.Mark)&rule.Mask == 0
		if matches && best != nil && best.Type != netstate.RouteThrow && (best.Type == 6 || best.Destination.Bits() >= rule.Suppress) {
			return best.Link
		}
	}
	return 0
}
