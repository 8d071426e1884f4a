package policy

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
)

// Index finds the entries that decide of a connection, in a time that depends on how many lengths of prefixes the lists
// have, and hardly on how many entries.
type Index struct {
	policy   Policy
	versions map[ip.Version]version
}

// version is the index of one version of IP.
type version struct {
	all      []entry
	prefixes *ip.Prefixes[deciding]
}

// deciding are the first entries about a network by list (Within: 1) and protocol, or everyProtocol.
type deciding map[[2]int]portRanges

// portRanges are ranges of ports, each up to the next one, with the first entry about its ports; -1: there is none.
type portRanges struct {
	first   []int
	entries []int
}

// Index returns the index of the policy.
func (p Policy) Index() *Index {
	x := &Index{p, map[ip.Version]version{}}
	for _, v := range ip.Both {
		all := p.entries(v)
		about := map[netip.Prefix]map[[2]int][]int{}
		for _, r := range p.ranges(v) {
			e := all[r.entry]
			key := [2]int{0, e.protocol}
			if e.within {
				key[0] = 1
			}
			for _, network := range prefixesIn(r.first, r.last) {
				if about[network] == nil {
					about[network] = map[[2]int][]int{}
				}
				about[network][key] = append(about[network][key], r.entry)
			}
		}
		prefixes := &ip.Prefixes[deciding]{}
		for network, lists := range about {
			d := deciding{}
			for key, list := range lists {
				d[key] = firstByPort(all, list)
			}
			prefixes.Set(network, d)
		}
		x.versions[v] = version{all, prefixes}
	}
	return x
}

// firstByPort finds the first entry about each port. The list is in order, as the ranges of Policy are.
func firstByPort(all []entry, list []int) (r portRanges) {
	for _, i := range list {
		r.first = append(r.first, all[i].first, all[i].last+1)
	}
	slices.Sort(r.first)
	r.first = slices.Compact(r.first)
	next := make([]int, len(r.first)+1) // the range itself, or one behind it, that no entry has yet
	for at := range next {
		next[at] = at
	}
	free := func(at int) int {
		for next[at] != at {
			next[at] = next[next[at]]
			at = next[at]
		}
		return at
	}
	r.entries = slices.Repeat([]int{-1}, len(r.first))
	for _, i := range list {
		at, _ := slices.BinarySearch(r.first, all[i].first)
		end, _ := slices.BinarySearch(r.first, all[i].last+1)
		for at = free(at); at < end; at = free(at) {
			r.entries[at], next[at] = i, at+1
		}
	}
	return r
}

func (r portRanges) of(port int) int {
	at, found := slices.BinarySearch(r.first, port)
	if !found {
		at--
	}
	if at < 0 {
		return -1
	}
	return r.entries[at]
}

// prefixesIn are the fewest networks that have the addresses of a range, and no others.
func prefixesIn(first, last netip.Addr) (list []netip.Prefix) {
	for first.IsValid() && first.Compare(last) <= 0 {
		bits := first.BitLen()
		for bits > 0 {
			wider, _ := first.Prefix(bits - 1)
			if wider.Addr() != first || last.Less(ip.LastOf(wider)) {
				break
			}
			bits--
		}
		network := netip.PrefixFrom(first, bits)
		list = append(list, network)
		first = ip.LastOf(network).Next()
	}
	return list
}

// Decision is what the lists say of a connection.
type Decision struct {
	// Entry is the entry that decides: that which refuses or diverts, else that of Egress, or of Within if Egress is
	// empty. The zero value: there are no lists.
	Entry  infra.Egress
	Within bool // the entry is one of Within
	// Refuses is set if the connection does not pass, and Pinnable if a pin lets it pass all the same.
	Refuses, Pinnable bool
	// Target is where a connection that is diverted arrives.
	Target netip.AddrPort
}

// Decide returns what the lists say of a connection. A target without an address is the gateway's of the destination's
// version.
func (x *Index) Decide(to netip.AddrPort, protocol uint8) (d Decision) {
	v := x.versions[ip.Of(to.Addr())]
	first := [2]int{-1, -1}
	for _, list := range v.prefixes.Around(netip.PrefixFrom(to.Addr(), to.Addr().BitLen())) {
		for within := range first {
			for _, of := range []int{int(protocol), everyProtocol} {
				if at := list[[2]int{within, of}].of(int(to.Port())); at >= 0 && (first[within] < 0 || at < first[within]) {
					first[within] = at
				}
			}
		}
	}
	by := make([]entry, 0, 2)
	at := -1 // the index of the entry that decides
	for _, i := range first {
		if i < 0 {
			continue
		}
		e := v.all[i]
		by = append(by, e)
		switch {
		case at < 0, e.divert.Port() != 0 && !v.all[at].refuse:
			at = i
		case e.refuse && !v.all[at].refuse && v.all[at].divert.Port() == 0:
			at = i
		}
	}
	if at < 0 {
		return d
	}
	if d.Within = v.all[at].within; d.Within {
		d.Entry = x.policy.Within[at-len(x.policy.Egress)]
	} else {
		d.Entry = x.policy.Egress[at]
	}
	if target := diverted(by); target.Port() != 0 {
		d.Target = x.policy.resolve(target, ip.Of(to.Addr()))
		d.Refuses = !d.Target.IsValid()
		return d
	}
	d.Refuses, d.Pinnable = !allowed(by), pinnable(by)
	return d
}
