package ip_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/internal/ip"
)

// sites are prefixes of all lengths: those of RFC 6052 section 2.4, with its addresses of 192.0.2.33.
var sites = []struct{ prefix, address string }{
	{"2001:db8::/32", "2001:db8:c000:221::"}, {"2001:db8:100::/40", "2001:db8:1c0:2:21::"}, {"2001:db8:122::/48", "2001:db8:122:c000:2:2100::"},
	{"2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"}, {"2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"},
	{"2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"}, {"64:ff9b::/96", "64:ff9b::192.0.2.33"},
}

// TestTranslators: the table of RFC 6052 section 2.4, both ways, and the well-known prefix beside the site's.
func TestTranslators(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.33")
	for _, s := range sites {
		list := ip.TranslatorsOf(netip.MustParsePrefix(s.prefix))
		site := list[len(list)-1]
		if have := site.To6(a); have != netip.MustParseAddr(s.address) || site.To4(have) != a || !site.Contains(have) {
			t.Errorf("%v: %v, want %s", site, have, s.address)
		}
		if list[0].String() != "64:ff9b::/96" || len(list) != 2 && s.prefix != "64:ff9b::/96" {
			t.Errorf("%s: %v", s.prefix, list)
		}
	}
	if list := ip.TranslatorsOf(netip.Prefix{}); len(list) != 1 {
		t.Errorf("without a prefix: %v", list)
	}
}

// TestTranslatorNetworks: what an IPv4 network is in IPv6: a prefix, where it does not go past the reserved octet.
func TestTranslatorNetworks(t *testing.T) {
	for _, c := range []struct{ site, network, first, last string }{
		{"2001:db8:122:344::/96", "192.0.2.0/24", "2001:db8:122:344::c000:200", "2001:db8:122:344::c000:2ff"},
		{"2001:db8::/32", "192.0.2.0/24", "2001:db8:c000:200::", "2001:db8:c000:2ff:ffff:ffff:ffff:ffff"},
		{"2001:db8:100::/40", "192.0.2.0/24", "2001:db8:1c0:2::", "2001:db8:1c0:2:ffff:ffff:ffff:ffff"},
		{"2001:db8:100::/40", "192.0.2.32/28", "2001:db8:1c0:2:20::", "2001:db8:1c0:2:2f:ffff:ffff:ffff"},
		{"2001:db8:122::/48", "192.0.2.0/24", "2001:db8:122:c000:2::", "2001:db8:122:c000:2:ffff:ffff:ffff"},
		{"2001:db8:122:300::/56", "192.0.0.0/8", "2001:db8:122:3c0::", "2001:db8:122:3c0:ffff:ffff:ffff:ffff"},
		{"2001:db8:122:344::/64", "192.0.2.0/24", "2001:db8:122:344:c0:2::", "2001:db8:122:344:c0:2:ffff:ffff"},
		{"2001:db8:122:344::/64", "0.0.0.0/0", "2001:db8:122:344::", "2001:db8:122:344:ffff:ffff:ffff:ffff"},
	} {
		n := netip.MustParsePrefix(c.network)
		ranges, malformed := ip.Translator{Prefix: netip.MustParsePrefix(c.site)}.Ranges(ip.Range{First: n.Addr(), Last: ip.LastOf(n)})
		want := ip.Range{First: netip.MustParseAddr(c.first), Last: netip.MustParseAddr(c.last)}
		if !slices.Equal(ranges, []ip.Range{want}) {
			t.Errorf("%s in %s: %v, want %v; malformed %v", c.network, c.site, ranges, want, malformed)
		}
	}
}

// TestTranslatorRanges: of random ranges, an address is in one of the ranges if it stands for one of theirs. If its
// reserved octet is not zero, all addresses with the same octets in front of it have to be theirs; if only some are, it
// is malformed.
func TestTranslatorRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(64, 64))
	edges := []byte{0, 0, 1, 2, 127, 128, 255, 255}
	random := func() netip.Addr {
		var octets [4]byte
		for i := range octets {
			octets[i] = edges[r.IntN(len(edges))]
		}
		return netip.AddrFrom4(octets)
	}
	seen := map[bool]int{}
	for range 5000 {
		site := ip.Translator{Prefix: netip.MustParsePrefix(sites[r.IntN(len(sites))].prefix)}
		of := ip.Range{First: random(), Last: random()}
		if of.Last.Less(of.First) {
			of.First, of.Last = of.Last, of.First
		}
		ranges, malformed := site.Ranges(of)
		if len(ranges) > 3 || len(malformed) > 2 {
			t.Fatalf("%v of %v: %v, %v", site, of, ranges, malformed)
		}
		for range 50 {
			four := random()
			octets := site.To6(four).As16()
			odd := site.Bits() <= 64 && r.IntN(2) == 0
			if odd {
				octets[8] = edges[2+r.IntN(6)]
			}
			if site.Bits() < 96 && r.IntN(2) == 0 {
				octets[15] = edges[r.IntN(8)]
			}
			six := netip.AddrFrom16(octets)
			begin, end := four, four // with the same octets in front of the reserved one
			if odd {
				alike, _ := four.Prefix(min(32, 64-site.Bits()))
				begin, end = alike.Addr(), ip.LastOf(alike)
			}
			in := func(list []ip.Range) bool {
				return slices.ContainsFunc(list, func(r ip.Range) bool { return r.First.Compare(six) <= 0 && six.Compare(r.Last) <= 0 })
			}
			all := of.First.Compare(begin) <= 0 && end.Compare(of.Last) <= 0
			some := of.First.Compare(end) <= 0 && begin.Compare(of.Last) <= 0
			if in(ranges) != all || in(malformed) != (some && !all) || site.To4(six) != four {
				t.Fatalf("%v of %v: %v, which is %v, is in %v: %v, in %v: %v", site, of, six, site.To4(six), ranges, in(ranges), malformed, in(malformed))
			}
			seen[some && !all]++
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Error(seen)
	}
}
