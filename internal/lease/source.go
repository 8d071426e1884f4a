package lease

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// uniqueLocal are the unique local addresses (RFC 4193), which have a label of their own in RFC 6724 section 2.1.
var uniqueLocal = netip.MustParsePrefix("fc00::/7")

// Sources are the NIC's addresses that the kernel would choose for packets from the hop, an address of the same family,
// by destination. More specific destinations come first, and the one for all others is last. They are for IPv4: the
// source of the route (ip-route(8), src), else the address in the gateway's network, else the first. For IPv6 the
// route's source comes first too, and then the rules 3, 6 and 8 of RFC 6724 section 5.
func (n NIC) Sources(hop netip.Addr) []fib.Choice {
	v := ip.Of(hop)
	own := n.AddressesOn(v)
	var to []destination
	var routes ip.Prefixes[destination]
	for _, r := range n.RoutesFrom(hop) {
		if v == ip.V6 && r.Destination.Addr().IsLinkLocalUnicast() {
			continue // the kernel chooses the NIC's link-local address
		}
		d := destination{r.Destination, n.hop(r), r.PrefSrc}
		to = append(to, d)
		if _, known := routes.Get(r.Destination); !known {
			routes.Set(r.Destination, d)
		}
	}
	networks := []netip.Prefix{v.All()}
	if v == ip.V6 {
		networks = append(networks, uniqueLocal)
		for _, a := range own {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	for _, network := range networks {
		d, _ := routes.Longest(network)
		d.network = network
		to = append(to, d)
	}
	var chosen ip.Prefixes[netip.Addr]
	var choices []fib.Choice
	chooser := chooserOf(own, to)
	for _, d := range to {
		address := chooser.choose(d)
		if _, is := chosen.Get(d.network); !is && (d.network != uniqueLocal || uniqueLocal.Contains(address)) {
			chosen.Set(d.network, address)
			choices = append(choices, fib.Choice{To: d.network, Address: address})
		}
	}
	slices.SortStableFunc(choices, func(a, b fib.Choice) int { return b.To.Bits() - a.To.Bits() })
	choices = slices.DeleteFunc(choices, func(c fib.Choice) bool {
		wider, is := chosen.Wider(c.To)
		return is && wider == c.Address
	})
	choices[len(choices)-1].To = netip.Prefix{}
	return choices
}

// Senders are the addresses from which a namespace sends, by its links.
type Senders struct {
	on map[sender][]netstate.Address
	// anywhere chooses for links without an address.
	anywhere map[ip.Version]chooser
}

type sender struct {
	link    int
	version ip.Version
}

// SendersOf are those of the namespace as it was found.
func SendersOf(found netstate.Snapshot) Senders {
	s := Senders{map[sender][]netstate.Address{}, map[ip.Version]chooser{}}
	global := map[ip.Version][]netstate.Address{}
	for _, a := range found.Addresses {
		addr := a.Prefix.Addr()
		v := ip.Of(addr)
		if isDeprecated(a) || v == ip.V6 && addr.IsLinkLocalUnicast() { // the rules 2 and 3 of RFC 6724 section 5 are before the rule 5
			continue
		}
		at := sender{a.Link, v}
		s.on[at] = append(s.on[at], a)
		if a.Scope == netstate.ScopeUniverse && addr.IsGlobalUnicast() {
			global[v] = append(global[v], a)
		}
	}
	for v, own := range global {
		s.anywhere[v] = chooserOf(own, nil)
	}
	return s
}

// On are the link's addresses of the version.
func (s Senders) On(link int, v ip.Version) []netstate.Address { return s.on[sender{link, v}] }

// By are the addresses from which the namespace sends by each of the link's routes, of one family and at least one: the
// route's own (ip-route(8), src), else the link's, else, as the kernel does, that of another link; zero: there is none.
func (s Senders) By(link int, routes []netstate.Route) (sources []netip.Addr) {
	v := ip.Of(routes[0].Destination.Addr())
	own := s.On(link, v)
	var to []destination
	for _, r := range routes {
		d := destination{network: r.Destination, source: r.PrefSrc}
		if len(own) > 0 {
			d.gateway = NIC{Link: netstate.Link{Index: link}}.hop(r)
		}
		to = append(to, d)
	}
	chooser := s.anywhere[v]
	if len(own) > 0 {
		chooser = chooserOf(own, to)
	}
	for _, d := range to {
		if !d.source.IsValid() && len(chooser.own) > 0 {
			d.source = chooser.choose(d)
		}
		sources = append(sources, d.source)
	}
	return sources
}

// destination is where packets go, and by way of which gateway. The source is the route's; zero: the kernel chooses.
type destination struct {
	network         netip.Prefix
	gateway, source netip.Addr
}

// chooser chooses among a NIC's addresses of one family as the kernel does, by what the addresses of a network have in
// common: a namespace can have many.
type chooser struct {
	own      []netstate.Address
	has      map[netip.Addr]bool
	first    firsts
	networks ip.Prefixes[*firsts] // of the addresses in networks of their own
	within   ip.Prefixes[*firsts] // of the addresses in the destinations
}

// firsts are the numbers of the first addresses of own, by their class, each and one; 0: there is none.
type firsts [4]int

func (f *firsts) add(number, class int) {
	if f[class] == 0 {
		f[class] = number + 1
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

func chooserOf(own []netstate.Address, to []destination) chooser {
	c := chooser{own: own, has: map[netip.Addr]bool{}}
	for _, d := range to {
		c.within.Set(d.network, &firsts{})
	}
	for i, a := range own {
		class := classOf(a)
		c.has[a.Prefix.Addr()] = true
		c.first.add(i, class)
		network, known := c.networks.Get(a.Prefix)
		if !known {
			network = &firsts{}
			c.networks.Set(a.Prefix, network)
		}
		network.add(i, class)
		for _, of := range c.within.Around(netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen())) {
			of.add(i, class)
		}
	}
	return c
}

// choose is the address that the kernel would choose for packets to the destination. Only the first address of a class
// and a network can be chosen.
func (c *chooser) choose(to destination) netip.Addr {
	if c.has[to.source] {
		return to.source
	}
	best, most := 0, -1
	try := func(candidates *firsts) {
		for _, number := range candidates {
			if number == 0 {
				continue
			}
			if n := score(c.own[number-1], to.network, to.gateway); n > most || n == most && number-1 < best {
				best, most = number-1, n
			}
		}
	}
	try(&c.first)
	if to.gateway.IsValid() && to.network.Addr().Is4() {
		for _, candidates := range c.networks.Around(netip.PrefixFrom(to.gateway, to.gateway.BitLen())) {
			try(candidates)
		}
	}
	if to.network.Addr().Is6() && to.network.Bits() > 0 {
		for _, candidates := range c.networks.Around(to.network) {
			try(candidates)
		}
		if candidates, is := c.within.Get(to.network); is {
			try(candidates)
		}
	}
	return c.own[best].Prefix.Addr()
}

// score is higher for the address that the kernel chooses. Of equal ones it takes the first.
func score(a netstate.Address, to netip.Prefix, gateway netip.Addr) (n int) {
	if to.Addr().Is4() {
		if gateway.IsValid() && a.Prefix.Masked().Contains(gateway) {
			n++
		}
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
