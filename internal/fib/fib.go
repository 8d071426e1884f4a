// Package fib says where the kernel sends packets: by the policy rules (ip-rule(8)), the tables and the VRFs of a
// namespace (ip-route(8)). It is pure. [Of] makes one table of all those in which the packets of a [Source] are looked
// up, and [Table.Lookup] is the answer of `ip route get`. The table local is not in a Snapshot, and not here.
package fib

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Source is what rules and routes ask of packets, but for the destination.
type Source struct {
	IP ip.Version
	// From are the addresses of who sends. The first is that of the packets; none: the kernel still chooses one. A route
	// for a source prefix (IPv6) counts if all of them lie in it.
	From []netip.Addr
	TOS  uint8
	Mark uint32
	// In is the link by which the packets come; "lo": the namespace sends them. Empty: no rule that asks for a link is for
	// all of them.
	In string
	// VRF is the table of the VRF that the packets are in; 0: none.
	VRF uint32
}

// Choice is the address that the kernel gives to the namespace's own packets to a network.
type Choice struct {
	To      netip.Prefix // zero: all other destinations of the family
	Address netip.Addr
}

// Table is where the packets of a source go, by their destinations.
type Table struct {
	// Looked are the numbers of the tables in which all packets are looked up.
	Looked map[uint32]bool
	// Rest are the policy rules for some of the packets, in the order of their preferences. They decide nothing here.
	Rest []netstate.Rule
	ways ip.Prefixes[Way]
	all  []Way
}

// Way is where packets to a destination go.
type Way struct {
	To netip.Prefix
	// Routes are those of the table that decides, in the order in which the kernel takes them: the first one is in force.
	// Its destination may be wider, where another table has a throw route. None: no table has a route.
	Routes []netstate.Route
	place  int // of the first route in the Snapshot
}

// Lookup is the way of packets to the whole destination.
func (t *Table) Lookup(to netip.Prefix) (Way, bool) {
	way, is := t.ways.Longest(to)
	return way, is && len(way.Routes) > 0
}

// Ways are those that decide somewhere. More specific ones come first, and of equal ones that which the namespace lists
// first.
func (t *Table) Ways() []Way { return t.all }

// Of makes the table of the source's packets.
func Of(s netstate.Snapshot, from Source) *Table {
	t := &Table{Looked: map[uint32]bool{}}
	asked := from.rules(s, t)
	networks := networksOf(s, from, t.Looked)
	var entries []entry
	type lookup struct {
		table    uint32
		suppress int
	}
	known := map[lookup]*disjoint{}
	for place, r := range asked {
		key := lookup{r.Table, r.Suppress}
		if known[key] == nil {
			known[key] = &disjoint{}
		}
		entries = append(entries, networks[r.Table].entries(place, r, known[key])...)
	}
	// A wider destination comes before those in it.
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(ip.Compare(a.to, b.to), a.place-b.place)
	})
	t.join(entries, len(asked))
	slices.SortFunc(t.all, func(a, b Way) int { return cmp.Or(b.To.Bits()-a.To.Bits(), a.place-b.place, ip.Compare(a.To, b.To)) })
	return t
}

// rules are those that lead all of the source's packets to a table, in order. Of rules that ask for nothing, the first
// one to a table counts.
func (from Source) rules(s netstate.Snapshot, t *Table) (asked []netstate.Rule) {
	known := map[netstate.Rule]bool{}
	own := Sorted(from.From)
	for _, r := range Rules(s, from.IP, from.VRF) {
		r.Suppress = min(r.Suppress, 129) // no prefix is as long
		switch key := (netstate.Rule{Table: r.Table, Destination: r.Destination, Suppress: r.Suppress}); {
		case !from.matches(r):
			if !r.Source.IsValid() || own.MeetIn(r.Source) {
				t.Rest = append(t.Rest, r)
			}
		case !known[key]:
			asked, known[key], t.Looked[r.Table] = append(asked, r), true, true
		}
	}
	return asked
}

// matches reports whether the rule is for all of the packets, as far as they have its destination.
func (from Source) matches(r netstate.Rule) bool {
	isFrom := !r.Source.IsValid() || r.Source.Bits() == 0 || len(from.From) > 0 && r.Source.Contains(from.From[0])
	return !r.Other && isFrom && (r.TOS == 0 || r.TOS == from.TOS) && (from.Mark^r.Mark)&r.Mask == 0 && (r.In == "" || r.In == from.In)
}

// Rules are the namespace's policy rules in the order in which the kernel asks them, with those for the tables main
// and default. IPv6 has none for the table default. What leads to the table of a VRF leads to that of the packets' VRF,
// or is left out.
func Rules(s netstate.Snapshot, v ip.Version, vrf uint32) (rules []netstate.Rule) {
	if !slices.Contains(s.NoMain, v) {
		rules = append(rules, netstate.Rule{Priority: netstate.PriorityMain, Table: netstate.TableMain, IPv6: v == ip.V6})
	}
	if v == ip.V4 {
		rules = append(rules, netstate.Rule{Priority: netstate.PriorityMain + 1, Table: netstate.TableDefault})
	}
	for _, r := range s.Rules {
		switch {
		case r.Version() != v || r.VRF && vrf == 0:
			continue
		case r.VRF:
			r.Table, r.VRF = vrf, false
		}
		rules = append(rules, r)
	}
	slices.SortStableFunc(rules, func(a, b netstate.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	return rules
}

// Tables are those in which the namespace looks some packets up: that of a VRF, or one that a policy rule names.
func Tables(s netstate.Snapshot, v ip.Version) map[uint32]bool {
	tables := map[uint32]bool{}
	for _, l := range s.Links {
		tables[l.VRF] = l.VRF != 0
	}
	for _, r := range Rules(s, v, 0) {
		tables[r.Table] = true
	}
	return tables
}

// networks are a table's routes by their destinations, which are sorted.
type networks struct {
	sorted []netip.Prefix
	routes ip.Prefixes[*routes]
}

type routes struct {
	list  []netstate.Route
	place int
	// bySource says that a route of the destination is for a source prefix. Then the kernel does not look at those that
	// are for all sources, whatever the packet's source is (fib6_node_lookup_1 in net/ipv6/ip6_fib.c). Default routes are
	// at the root, where each search ends.
	bySource bool
}

// networksOf are the routes of the tables that the packets can take.
func networksOf(s netstate.Snapshot, from Source, looked map[uint32]bool) map[uint32]*networks {
	type destination struct {
		table uint32
		to    netip.Prefix
	}
	all := map[destination]*routes{}
	own := Sorted(from.From)
	for place, r := range s.Routes {
		if !looked[r.Table] || ip.Of(r.Destination.Addr()) != from.IP || from.VRF != 0 && r.Table == from.VRF && ofAddress(r) {
			continue
		}
		key := destination{r.Table, r.Destination.Masked()}
		at, known := all[key]
		if !known {
			at = &routes{place: place}
			all[key] = at
		}
		at.bySource = at.bySource || r.Source.Bits() > 0 && r.Destination.Bits() > 0
		if from.takes(r, own) {
			at.list = append(at.list, r)
		}
	}
	of := make(map[uint32]*networks, len(looked))
	for table := range looked {
		of[table] = &networks{}
	}
	for key, at := range all {
		at.list = slices.DeleteFunc(at.list, func(r netstate.Route) bool { return at.bySource && r.Source.Bits() <= 0 })
		if len(at.list) == 0 {
			continue
		}
		slices.SortStableFunc(at.list, func(a, b netstate.Route) int {
			return cmp.Or(int(b.TOS)-int(a.TOS), b.Source.Bits()-a.Source.Bits(), cmp.Compare(a.Metric, b.Metric), b.Preference()-a.Preference())
		})
		of[key.table].sorted = append(of[key.table].sorted, key.to)
		of[key.table].routes.Set(key.to, at)
	}
	for _, n := range of {
		slices.SortFunc(n.sorted, ip.Compare)
	}
	return of
}

// ofAddress reports whether the kernel makes the route of an address, as it does in the table local.
func ofAddress(r netstate.Route) bool {
	return r.Protocol == netstate.ProtocolKernel && r.Type != netstate.RouteUnicast && r.Type <= netstate.RouteMulticast
}

// takes reports whether the packets can take the route, as far as they have its destination.
func (from Source) takes(r netstate.Route, own Addresses) bool {
	return (r.TOS == 0 || r.TOS == from.TOS) && (r.Source.Bits() <= 0 || own.LieIn(r.Source))
}

// accepts reports whether the rule takes the route. A throw route sends the lookup to the next table, and
// suppress_prefixlength one that leads somewhere. A route that refuses packets counts, however short its prefix is
// (fib_rules_lookup in net/core/fib_rules.c).
func accepts(rule netstate.Rule, r netstate.Route) bool {
	return r.Type != netstate.RouteThrow && (r.Destination.Bits() >= rule.Suppress || r.Refuses() != "")
}

// entry are the routes of a table to a destination, which decide; none: the lookup goes on.
type entry struct {
	to     netip.Prefix
	place  int // of the table, in the order of the lookup
	routes *routes
}

// entries are those of the table at the place to which the rule leads. Known are the destinations of earlier rules that
// look up the same: there this rule adds nothing. So many rules to one table make no more entries than one.
func (n *networks) entries(place int, rule netstate.Rule, known *disjoint) (list []entry) {
	add := func(to netip.Prefix, at *routes) {
		if !accepts(rule, at.list[0]) {
			at = nil
		}
		list = append(list, entry{to, place, at})
	}
	to := rule.Version().All()
	if rule.Destination.IsValid() {
		to = rule.Destination.Masked()
	}
	within, is := known.add(to)
	if is {
		return nil
	}
	if at, is := n.routes.Longest(to); is {
		add(to, at)
	}
	rest := n.sorted
	skip := func(is func(netip.Prefix) bool) {
		rest = rest[sort.Search(len(rest), func(i int) bool { return !is(rest[i]) }):]
	}
	skip(func(p netip.Prefix) bool { return ip.Compare(p, to) <= 0 })
	for len(within) > 0 || len(rest) > 0 && to.Contains(rest[0].Addr()) {
		if len(within) > 0 && (len(rest) == 0 || ip.Compare(within[0], rest[0]) <= 0) {
			list = append(list, entry{within[0], place, nil})
			skip(func(p netip.Prefix) bool { return within[0].Contains(p.Addr()) })
			within = within[1:]
			continue
		}
		at, _ := n.routes.Get(rest[0])
		add(rest[0], at)
		rest = rest[1:]
	}
	return list
}

// disjoint are sorted networks, none of which lies in another one.
type disjoint []netip.Prefix

// add adds the network in place of those within it, which it returns. Is says that it lies in one of them.
func (d *disjoint) add(network netip.Prefix) (within []netip.Prefix, is bool) {
	at, is := slices.BinarySearchFunc(*d, network, ip.Compare)
	if is || at > 0 && (*d)[at-1].Contains(network.Addr()) {
		return nil, true
	}
	end := at + sort.Search(len(*d)-at, func(i int) bool { return !network.Contains((*d)[at+i].Addr()) })
	within = slices.Clone((*d)[at:end])
	*d = slices.Replace(*d, at, end, network)
	return within, false
}

// join finds the first table that decides for each destination, among the count of tables.
func (t *Table) join(entries []entry, count int) {
	now := make([]*routes, count) // of each table, for the destination at hand
	var deciding []int            // the tables that have any, sorted
	set := func(place int, r *routes) {
		at, is := slices.BinarySearch(deciding, place)
		switch {
		case r != nil && !is:
			deciding = slices.Insert(deciding, at, place)
		case r == nil && is:
			deciding = slices.Delete(deciding, at, at+1)
		}
		now[place] = r
	}
	first := func() *routes {
		if len(deciding) == 0 {
			return nil
		}
		return now[deciding[0]]
	}
	var around []entry // those of wider destinations, with what their tables had without them
	for i := 0; i < len(entries); {
		to := entries[i].to
		for last := len(around) - 1; last >= 0 && !around[last].to.Overlaps(to); last-- {
			set(around[last].place, around[last].routes)
			around = around[:last]
		}
		wider := first()
		for ; i < len(entries) && entries[i].to == to; i++ {
			e := entries[i]
			around = append(around, entry{to, e.place, now[e.place]})
			set(e.place, e.routes)
		}
		switch r := first(); {
		case r == wider:
		case r == nil:
			t.ways.Set(to, Way{To: to})
		default:
			way := Way{To: to, Routes: r.list, place: r.place}
			t.ways.Set(to, way)
			t.all = append(t.all, way)
		}
	}
}
