package policy

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// addressRange are the addresses that an entry is about.
type addressRange struct {
	first, last netip.Addr
	entry       int
}

// ranges are those of all entries, in one version of IP.
func (p Policy) ranges(v ip.Version) (ranges []addressRange) {
	for i, e := range slices.Concat(p.Egress, p.Within) {
		add := func(first, last netip.Addr) {
			as := []ip.Range{{First: first, Last: last}}
			if first.Is4() && v == ip.V6 {
				as = p.translated(as[0], !e.Refuse && e.Divert.Port() == 0)
			}
			for _, r := range as {
				if ip.Of(r.First) == v {
					ranges = append(ranges, addressRange{r.First, r.Last, i})
				}
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
		case syntax.Gateway:
			for _, a := range p.Gateways {
				add(a, a)
			}
		default:
			for _, n := range syntax.Destinations(e.To) {
				add(n.Addr(), ip.LastOf(n))
			}
		}
	}
	return ranges
}

// translated are the IPv6 addresses that stand for those of a range of IPv4. An entry that does not allow them has the
// malformed ones, too: some translators pass these on.
func (p Policy) translated(r ip.Range, allow bool) (list []ip.Range) {
	for _, t := range ip.TranslatorsOf(p.NAT64) {
		ranges, malformed := t.Ranges(r)
		if list = append(list, ranges...); !allow {
			list = append(list, malformed...)
		}
	}
	return list
}

// addNetworks adds the networks of the NIC's link without the next hops in them.
func (p Policy) addNetworks(add func(first, last netip.Addr)) {
	for _, n := range p.Networks {
		first, last := n.Addr(), ip.LastOf(n)
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
	refuse, within bool // within: of Within
	rest           bool // the last one of Egress
	divert         netip.AddrPort
	protocol       int    // or everyProtocol
	first, last    int    // ports
	class          uint16 // the same for equal entries
}

const everyProtocol = 256

// entries are those of both lists, in order.
func (p Policy) entries(v ip.Version) (all []entry) {
	classes := map[entry]uint16{} // fewer than 65536, as Validate limits the lists
	for i, list := range [][]infra.Egress{p.Egress, p.Within} {
		for j, e := range list {
			one := entry{refuse: e.Refuse, within: i > 0, rest: i == 0 && j == len(list)-1, divert: e.Divert, last: 65535}
			switch {
			case e.Ports == infra.Ports{}:
				one.protocol = everyProtocol
			case e.Ports.Protocol == "icmp":
				one.protocol = int(firewall.ProtocolOfICMP(v))
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

// diverted is the target of a connection; zero: it is not diverted. By has the first entry of each list that matches
// it. A divert of Within holds for whatever Egress does not refuse. A divert of Egress does not depend on Within, which
// has allowed its target.
func diverted(by []entry) (target netip.AddrPort) {
	for _, e := range by {
		if e.refuse && !e.within {
			return netip.AddrPort{}
		}
		if e.divert.Port() != 0 { // the entry of Within is the last one
			target = e.divert
		}
	}
	return target
}

// allowed reports whether the guest may open a connection to the destination itself.
func allowed(by []entry) bool {
	return diverted(by) == netip.AddrPort{} && !slices.ContainsFunc(by, func(e entry) bool { return e.refuse })
}

// pinnable reports whether nothing but the last entry of Egress refuses a connection, and nothing diverts it.
func pinnable(by []entry) bool {
	return !slices.ContainsFunc(by, func(e entry) bool { return e.refuse && !e.rest || e.divert.Port() != 0 })
}
