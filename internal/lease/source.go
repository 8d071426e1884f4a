package lease

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/guestwire/guestwire/internal/netstate"
)

// Source is the address that the namespace's own packets to the network get when they leave by the NIC.
type Source struct {
	To      netip.Prefix // zero: all other destinations of the family
	Address netip.Addr
}

// uniqueLocal are the unique local addresses (RFC 4193), which have a label of their own in RFC 6724 section 2.1.
var uniqueLocal = netip.MustParsePrefix("fc00::/7")

// Sources are the NIC's addresses that the kernel would choose for packets from the hop, an address of the same family,
// by destination. More specific destinations come first, and the one for all others is last. They are for IPv4: the
// source of the route (ip-route(8), src), else the address in the gateway's network, else the first. For IPv6 the
// route's source comes first too, and then the rules 3, 6 and 8 of RFC 6724 section 5.
func (n NIC) Sources(hop netip.Addr) []Source {
	var own []netstate.Address
	for _, a := range n.found.Addresses {
		if addr := a.Prefix.Addr(); a.Link == n.Index && addr.Is4() == hop.Is4() && (addr.Is4() || !addr.IsLinkLocalUnicast()) {
			own = append(own, a)
		}
	}
	chooser := chooserOf(own)
	family := netip.PrefixFrom(hop, 0).Masked()
	var choices []Source
	chosen := map[netip.Prefix]bool{}
	add := func(to netip.Prefix, address netip.Addr) {
		if !chosen[to] {
			choices = append(choices, Source{to, address})
			chosen[to] = true
		}
	}
	for _, r := range n.routesIn(hop.Is4(), []netip.Addr{hop}, n.lookups(hop)...) {
		if r.Destination.Addr().IsLinkLocalUnicast() && hop.Is6() {
			continue // the kernel chooses the NIC's link-local address
		}
		address := chooser.choose(r.Destination, r.Gateway)
		if chooser.has[r.PrefSrc] {
			address = r.PrefSrc
		}
		add(r.Destination, address)
	}
	if hop.Is6() {
		for _, a := range own {
			add(a.Prefix.Masked(), chooser.choose(a.Prefix.Masked(), netip.Addr{}))
		}
		if a := chooser.choose(uniqueLocal, netip.Addr{}); uniqueLocal.Contains(a) {
			add(uniqueLocal, a)
		}
	}
	add(family, chooser.choose(family, netip.Addr{}))
	slices.SortStableFunc(choices, func(a, b Source) int { return b.To.Bits() - a.To.Bits() })
	last := len(choices) - 1
	otherwise := choices[last]
	var needed []Source // from the least specific one on
	by := map[netip.Prefix]netip.Addr{}
	for _, c := range slices.Backward(choices[:last]) {
		wider := otherwise.Address
		for bits := c.To.Bits() - 1; bits > 0; bits-- {
			if address, is := by[netip.PrefixFrom(c.To.Addr(), bits).Masked()]; is {
				wider = address
				break
			}
		}
		if c.Address != wider {
			needed, by[c.To.Masked()] = append(needed, c), c.Address
		}
	}
	slices.Reverse(needed)
	return append(needed, Source{Address: otherwise.Address})
}

// chooser chooses among a NIC's addresses of one family as the kernel does, by what the addresses of a network have in
// common: a namespace can have many.
type chooser struct {
	own      []netstate.Address
	has      map[netip.Addr]bool
	first    firsts
	networks map[netip.Prefix]firsts
	// sorted are the numbers of own by their addresses. ranges has the firsts of parts of it: those of node i are those of
	// the nodes 2i and 2i+1.
	sorted []int
	ranges []firsts
}

// firsts are the numbers of the first addresses of own, by their class; negative: there is none.
type firsts [4]int

var none = firsts{-1, -1, -1, -1}

func (f *firsts) join(o firsts) {
	for class, number := range o {
		if number >= 0 && (f[class] < 0 || number < f[class]) {
			f[class] = number
		}
	}
}

// classOf is equal for addresses that differ by their networks alone.
func classOf(a netstate.Address) (class int) {
	if a.Prefix.Addr().Is4() && a.Scope == netstate.ScopeUniverse || a.Prefix.Addr().Is6() && a.PreferredSeconds > 0 {
		class = 1
	}
	if uniqueLocal.Contains(a.Prefix.Addr()) {
		class += 2
	}
	return class
}

func chooserOf(own []netstate.Address) chooser {
	c := chooser{own: own, has: map[netip.Addr]bool{}, first: none, networks: map[netip.Prefix]firsts{}, ranges: make([]firsts, 2*len(own))}
	for i, a := range own {
		one := none
		one[classOf(a)] = i
		c.has[a.Prefix.Addr()] = true
		c.first.join(one)
		network, known := c.networks[a.Prefix.Masked()]
		if !known {
			network = none
		}
		network.join(one)
		c.networks[a.Prefix.Masked()] = network
		c.sorted = append(c.sorted, i)
	}
	slices.SortFunc(c.sorted, func(a, b int) int { return own[a].Prefix.Addr().Compare(own[b].Prefix.Addr()) })
	for i, number := range c.sorted {
		one := none
		one[classOf(own[number])] = number
		c.ranges[len(own)+i] = one
	}
	for i := len(own) - 1; i > 0; i-- {
		c.ranges[i] = c.ranges[2*i]
		c.ranges[i].join(c.ranges[2*i+1])
	}
	return c
}

// choose is the address that the kernel would choose for packets to the destination, by way of the gateway if there is
// one. Only the first address of a class and a network can be chosen.
func (c chooser) choose(to netip.Prefix, gateway netip.Addr) netip.Addr {
	best, most := 0, -1
	try := func(candidates firsts) {
		for _, number := range candidates {
			if number < 0 {
				continue
			}
			if n := score(c.own[number], to, gateway); n > most || n == most && number < best {
				best, most = number, n
			}
		}
	}
	try(c.first)
	around := func(a netip.Addr, most int) {
		for bits := most; bits >= 0; bits-- {
			network, err := a.Prefix(bits)
			if candidates, is := c.networks[network]; err == nil && is {
				try(candidates)
			}
		}
	}
	if gateway.IsValid() {
		around(gateway, gateway.BitLen())
	}
	if to.Addr().Is6() && to.Bits() > 0 {
		around(to.Addr(), to.Bits())
		try(c.within(to))
	}
	return c.own[best].Prefix.Addr()
}

// within are the firsts of the addresses in the network.
func (c chooser) within(network netip.Prefix) firsts {
	at := func(i int) netip.Addr { return c.own[c.sorted[i]].Prefix.Addr() }
	begin := sort.Search(len(c.own), func(i int) bool { return at(i).Compare(network.Masked().Addr()) >= 0 })
	end := begin + sort.Search(len(c.own)-begin, func(i int) bool { return !network.Contains(at(begin + i)) })
	found := none
	for left, right := begin+len(c.own), end+len(c.own); left < right; left, right = left/2, right/2 {
		if left%2 == 1 {
			found.join(c.ranges[left])
			left++
		}
		if right%2 == 1 {
			right--
			found.join(c.ranges[right])
		}
	}
	return found
}

// score is higher for the address that the kernel chooses. Of equal ones it takes the first.
func score(a netstate.Address, to netip.Prefix, gateway netip.Addr) (n int) {
	if gateway.IsValid() && a.Prefix.Masked().Contains(gateway) {
		n++
	}
	if to.Addr().Is4() {
		if a.Scope == netstate.ScopeUniverse && (gateway.IsValid() || to.Bits() == 0) {
			n += 2 // for a route on the link, the kernel takes an address of the scope link as well
		}
		return n
	}
	if a.PreferredSeconds > 0 {
		n += 8
	}
	if uniqueLocal.Contains(a.Prefix.Addr()) == (to.Bits() >= uniqueLocal.Bits() && uniqueLocal.Contains(to.Addr())) {
		n += 4
	}
	if to.Bits() > 0 && a.Prefix.Overlaps(to) {
		n += 2
	}
	return n
}
