package lease

import (
	"math"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/netstate"
)

// Addresses are sorted addresses, each once, among which to look for those in a network.
type Addresses []netip.Addr

// SortedAddresses returns the addresses sorted.
func SortedAddresses(list []netip.Addr) Addresses {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// AddressesIn returns the addresses of the prefixes, sorted.
func AddressesIn(prefixes []netip.Prefix) Addresses { return SortedAddresses(addressesOf(prefixes)) }

// MeetIn reports whether one of the addresses lies in the network.
func (a Addresses) MeetIn(network netip.Prefix) bool {
	at, _ := slices.BinarySearchFunc(a, network.Masked().Addr(), netip.Addr.Compare)
	return at < len(a) && network.Contains(a[at])
}

// lieIn reports whether all of the addresses lie in the network.
func (a Addresses) lieIn(network netip.Prefix) bool {
	return len(a) == 0 || network.Contains(a[0]) && network.Contains(a[len(a)-1])
}

// has reports whether the address is one of them.
func (a Addresses) has(one netip.Addr) bool {
	_, is := slices.BinarySearchFunc(a, one, netip.Addr.Compare)
	return is
}

// PrefixSet are prefixes among which to look for an address.
type PrefixSet map[int]map[netip.Prefix]bool // by their length

func (s PrefixSet) Add(p netip.Prefix) {
	if s[p.Bits()] == nil {
		s[p.Bits()] = map[netip.Prefix]bool{}
	}
	s[p.Bits()][p.Masked()] = true
}

// Contain reports whether the address lies in one of the prefixes.
func (s PrefixSet) Contain(a netip.Addr) bool {
	for bits, of := range s {
		if p, err := a.Prefix(bits); err == nil && of[p] {
			return true
		}
	}
	return false
}

// decisions are the types of the routes of tables, by what the kernel looks them up by.
type decisions map[decision]uint8

type decision struct {
	table       uint32
	destination netip.Prefix
}

func (n NIC) decisions() decisions {
	d := make(decisions, len(n.found.Routes))
	for _, r := range n.found.Routes {
		if r.TOS == 0 && r.Source.Bits() <= 0 {
			d[decision{r.Table, r.Destination.Masked()}] = r.Type
		}
	}
	return d
}

// isDecided reports whether the table has a route for the whole destination. The most specific route counts. A throw
// route sends the lookup to the next table.
func (d decisions) isDecided(destination netip.Prefix, table uint32) bool {
	for bits := destination.Bits(); bits >= 0; bits-- {
		network := netip.PrefixFrom(destination.Addr(), bits).Masked()
		if kind, is := d[decision{table, network}]; is {
			return decides(kind)
		}
	}
	return false
}

func decides(kind uint8) bool { return kind != netstate.RouteThrow }

// first returns the place of the first table that has a route for the whole destination, by the destinations of the
// tables' routes: the places are those in the list of tables.
func (d decisions) first(tables []uint32) map[netip.Prefix]int {
	type route struct {
		destination netip.Prefix
		place       int
		decides     bool
	}
	places := make(map[uint32]int, len(tables))
	for i, table := range tables {
		places[table] = i
	}
	var routes []route
	for at, kind := range d {
		if place, is := places[at.table]; is {
			routes = append(routes, route{at.destination, place, decides(kind)})
		}
	}
	// A wider destination comes before those in it.
	slices.SortFunc(routes, func(a, b route) int {
		if c := a.destination.Addr().Compare(b.destination.Addr()); c != 0 {
			return c
		}
		return a.destination.Bits() - b.destination.Bits()
	})
	first := map[netip.Prefix]int{}
	deciding := newPlaces(len(tables))
	var around []route // the routes to wider destinations, with what their tables said without them
	for i := 0; i < len(routes); {
		destination := routes[i].destination
		for last := len(around) - 1; last >= 0 && !around[last].destination.Overlaps(destination); last-- {
			deciding.set(around[last].place, around[last].decides)
			around = around[:last]
		}
		for ; i < len(routes) && routes[i].destination == destination; i++ {
			r := routes[i]
			around = append(around, route{destination, r.place, deciding.has(r.place)})
			deciding.set(r.place, r.decides)
		}
		first[destination] = deciding.first()
	}
	return first
}

// firstFor is the place of the first table that has a route for the whole destination, which need not be one of those
// of first.
func firstFor(destination netip.Prefix, first map[netip.Prefix]int) int {
	for bits := destination.Bits(); bits >= 0; bits-- {
		if place, is := first[netip.PrefixFrom(destination.Addr(), bits).Masked()]; is {
			return place
		}
	}
	return math.MaxInt
}

// places are a set of small numbers, of which the smallest is found quickly.
type places struct {
	tree []int // how many of the numbers below a node are in the set
	half int
}

func newPlaces(n int) places {
	half := 1
	for half < n {
		half *= 2
	}
	return places{make([]int, 2*half), half}
}

func (p places) has(n int) bool { return p.tree[p.half+n] > 0 }

func (p places) set(n int, in bool) {
	if p.has(n) == in {
		return
	}
	change := 1
	if !in {
		change = -1
	}
	for at := p.half + n; at > 0; at /= 2 {
		p.tree[at] += change
	}
}

// first is the smallest number; beyond all if there is none.
func (p places) first() int {
	if p.tree[1] == 0 {
		return len(p.tree)
	}
	at := 1
	for at < p.half {
		at *= 2
		if p.tree[at] == 0 {
			at++
		}
	}
	return at - p.half
}
