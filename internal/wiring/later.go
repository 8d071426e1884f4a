package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Later are the addresses, routes and policy rules that the namespace has got since the first Setup, and that the guest
// does not have. No Setup gives them to the guest, as each makes its plan of the namespace as the first one found it. A
// thing is one of them if a plan with it gives the guest something else: the namespace forwards by a route, and
// masquerade hides addresses.
//
// What comes and goes with router advertisements is left out, and so are addresses and routes of a NIC that is the
// guest's (bridge), which Steps removes.
func (p *Plan) Later(now netstate.Snapshot) (list []infra.Difference) {
	nic, there := now.Link(p.nic().Index)
	if !there || p.isReplacement(nic) {
		return nil
	}
	things := p.laterThings(now)
	if len(things) == 0 {
		return nil
	}
	t := p.newTrial()
	if all := t; all.add(things...) == nil && reflect.DeepEqual(all.given, t.given) {
		return nil // most routes lead where the guest sends by anyway
	}
	// To try one costs a plan, which takes the longer the more routes there are.
	most := max(2, min(32, 20000/(1+len(p.found.Routes)+len(things))))
	rest := things[min(most, len(things)):]
	if len(rest) > 1 {
		things = things[:most]
	}
	report := func(text string) {
		if text != "" {
			list = append(list, infra.Difference{Kind: "later", Link: p.names.NIC, Text: text})
		}
	}
	for _, one := range things {
		report(t.tell(one.name, one.way, one))
	}
	if len(rest) > 1 {
		report(t.tell(fmt.Sprintf("one or more of %d further addresses, routes and policy rules", len(rest)), "the guest gets them", rest...))
	}
	return list
}

// trial is a plan of the namespace as it was found, to which things are added.
type trial struct {
	journal Journal
	nic     netstate.Link
	asked   []netip.Addr // gateways that Setup has asked for their MACs
	with    *Plan
	given
}

func (p *Plan) newTrial() trial {
	t := trial{journal: p.Journal(), nic: p.nic(), with: p, given: p.given()}
	t.asked = Gateways(p.found, t.nic)
	fresh := t.journal
	fresh.Wired = false
	if _, err := fresh.Plan(); err == nil { // else another version of guestwire wired the NIC
		t.journal = fresh
	}
	return t
}

// add makes the plan anew. After an error the trial is as it was.
func (t *trial) add(things ...thing) error {
	j := t.journal
	found := &j.Found
	found.Addresses, found.Routes, found.Rules = slices.Clone(found.Addresses), slices.Clone(found.Routes), slices.Clone(found.Rules)
	for _, one := range things {
		one.add(found)
	}
	found.Neighbours = slices.Clip(found.Neighbours)
	for _, gateway := range Gateways(*found, t.nic) {
		if !slices.Contains(t.asked, gateway) { // the next Setup asks for it
			mac := netstate.DeriveMACOf(gateway.String(), t.nic.Name, "later")
			found.Neighbours = append(found.Neighbours, netstate.Neighbour{Link: t.nic.Index, Address: gateway, MAC: mac})
		}
	}
	with, err := j.Plan()
	if err == nil {
		t.journal, t.with, t.given = j, with, with.given()
	}
	return err
}

// tell adds things, and says what becomes of them; empty: the guest has them, or does not need them.
func (t *trial) tell(what, way string, things ...thing) string {
	had := t.given
	text := what + " came after Setup"
	if err := t.add(things...); err != nil {
		return text + ", and after a Teardown Setup refuses the NIC with it: " + err.Error()
	}
	var lost []string
	for _, l := range t.with.Record.Losses {
		if !isTemporary(l) && !slices.Contains(had.losses, lossKey{l.Kind, l.What}) {
			lost = append(lost, l.String())
		}
	}
	if more := len(lost) - 1; more > 1 {
		lost = []string{lost[0], fmt.Sprintf("and %d more", more)}
	}
	isOver := func(l lossKey) bool { return !slices.Contains(t.losses, l) }
	gets := !had.same(t.given) || len(lost) == 0 && slices.ContainsFunc(had.losses, isOver)
	switch {
	case gets && len(lost) > 0:
		return text + ": " + way + " after a Teardown and another Setup, and this is lost: " + strings.Join(lost, "; ")
	case gets:
		return text + ": " + way + " after a Teardown and another Setup"
	case len(lost) > 0:
		return text + fmt.Sprintf(": after a Teardown and another Setup with %s this is lost: %s", t.with.Binding().Kind(), strings.Join(lost, "; "))
	}
	return ""
}

// thing is an address, a route or a policy rule, and how it is added to a namespace.
type thing struct {
	name string
	add  func(*netstate.Snapshot)
	way  string // what becomes of it after a Teardown and another Setup, unless it is a loss
}

const getsIt = "the guest gets it"

func (p *Plan) laterThings(now netstate.Snapshot) (things []thing) {
	name := func(index int) string {
		link, _ := now.Link(index)
		if index == p.nic().Index {
			return p.names.NIC
		}
		return link.Name
	}
	for _, a := range p.laterAddresses(now) {
		way := getsIt
		if p.Binding().Kind() == cache.BindingMasquerade { // the guest has addresses of its own
			way = fmt.Sprintf("the guest gets IPv%d", map[bool]int{false: 4, true: 6}[a.Prefix.Addr().Is6()])
		}
		things = append(things, thing{way: way, name: fmt.Sprintf("address %v of %s", a.Prefix, name(a.Link)), add: func(found *netstate.Snapshot) {
			link, _ := found.Link(a.Link)
			found.Routes = append(found.Routes, netstate.Connected(a, link, found.Addresses)...)
			found.Addresses = slices.DeleteFunc(found.Addresses, func(f netstate.Address) bool {
				is := func(n netstate.Address) bool { return n.Link == f.Link && n.Prefix == f.Prefix }
				return f.Link == a.Link && f.Prefix.Addr() == a.Prefix.Addr() && !slices.ContainsFunc(now.Addresses, is)
			})
			at := len(found.Addresses)
			if a.Prefix.Addr().Is6() {
				at = 0 // the kernel lists the IPv6 address first that came last
			}
			found.Addresses = slices.Insert(found.Addresses, at, a)
		}})
	}
	known := map[netstate.Rule]int{}
	for _, r := range p.found.Rules {
		known[r]++
	}
	for _, r := range now.Rules {
		if known[r]--; known[r] < 0 {
			things = append(things, thing{way: "the guest's routes follow it", name: ruleText(r), add: func(found *netstate.Snapshot) {
				found.Routes = append(found.Routes, p.elsewhere(now, r.Table)...)
				moved := func(f netstate.Rule) bool {
					gone := !slices.Contains(now.Rules, f)
					f.Priority = r.Priority
					return gone && f == r
				}
				if i := slices.IndexFunc(found.Rules, moved); i >= 0 {
					found.Rules[i] = r
					return
				}
				found.Rules = append(found.Rules, r)
			}})
		}
	}
	for _, r := range p.laterRoutes(now) {
		var hops []string
		for _, h := range r.Hops {
			hops = append(hops, name(h.Link))
		}
		things = append(things, thing{way: getsIt, name: "route " + netstate.RouteText(r, name(r.Link), hops), add: func(found *netstate.Snapshot) {
			if r.Destination.Addr().Is6() && len(r.Hops) > 0 {
				found.Routes = slices.DeleteFunc(found.Routes, func(f netstate.Route) bool { return joins(f, r) })
			}
			found.Routes = append(found.Routes, r)
		}})
	}
	return things
}

// ruleText is such as "policy rule 100 of IPv4, table 77,".
func ruleText(r netstate.Rule) string {
	text := fmt.Sprintf("policy rule %d of IPv%d", r.Priority, map[bool]int{false: 4, true: 6}[r.IPv6])
	if r.Table != 0 {
		text += fmt.Sprintf(", table %d,", r.Table)
	}
	return text
}

// given is what of a record says what the guest has, and what it lacks for as long as it runs.
type given struct {
	addresses []netip.Addr
	routes    []cache.Route
	mtu       int
	losses    []lossKey
}

// same compares all but the losses.
func (g given) same(o given) bool {
	g.losses, o.losses = nil, nil
	return reflect.DeepEqual(g, o)
}

type lossKey struct{ kind, what string }

func (p *Plan) given() (g given) {
	r := p.Record
	if t := p.binding.traits(); !t.routes && !t.direct { // else the namespace says what fits
		g.mtu = r.MTU
	}
	if v4 := r.IPv4; v4 != nil {
		g.addresses = append(g.addresses, v4.Address.Addr())
		g.routes = append(slices.Clone(v4.Routes), cache.Route{Destination: v4.Address.Masked()})
	}
	if v6 := r.IPv6; v6 != nil {
		g.addresses = append(append(g.addresses, v6.Address), v6.Others...)
		for _, network := range v6.OnLink {
			g.routes = append(g.routes, cache.Route{Destination: network})
		}
		if v6.Router != nil && v6.Router.Default {
			g.routes = append(g.routes, cache.Route{Destination: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Gateway: v6.Router.Address})
		}
		if v6.Router != nil {
			for _, network := range v6.Router.Routes {
				g.routes = append(g.routes, cache.Route{Destination: network, Gateway: v6.Router.Address})
			}
		}
	}
	for _, l := range r.Losses {
		if !isTemporary(l) {
			g.losses = append(g.losses, lossKey{l.Kind, l.What})
		}
	}
	g.routes = needed(g.routes)
	return g
}

// needed are the routes, in an order of their own, without those that lead where the next wider one leads.
func needed(routes []cache.Route) (list []cache.Route) {
	by, lengths := map[netip.Prefix]netip.Addr{}, map[int]bool{}
	for _, r := range routes {
		by[r.Destination], lengths[r.Destination.Bits()] = r.Gateway, true
	}
	same := func(r cache.Route) bool {
		for bits := r.Destination.Bits() - 1; bits >= 0; bits-- {
			if !lengths[bits] {
				continue
			}
			if gateway, is := by[netip.PrefixFrom(r.Destination.Addr(), bits).Masked()]; is {
				return gateway == r.Gateway
			}
		}
		return false
	}
	list = slices.DeleteFunc(slices.Clone(routes), same)
	slices.SortFunc(list, func(a, b cache.Route) int {
		return cmp.Or(a.Destination.Addr().Compare(b.Destination.Addr()), a.Destination.Bits()-b.Destination.Bits())
	})
	return list
}

// laterAddresses are those that are on the NIC, or on a link behind which nothing lies, and were not there.
func (p *Plan) laterAddresses(now netstate.Snapshot) (later []netstate.Address) {
	type key struct {
		link   int
		prefix netip.Prefix
	}
	known := map[key]bool{}
	for _, a := range slices.Concat(p.found.Addresses, p.wanted.Addresses) {
		known[key{a.Link, a.Prefix}] = true
	}
	nic := p.nic()
	for _, a := range now.Addresses {
		link, was := p.found.Link(a.Link)
		has := link.Index == nic.Index && !p.binding.traits().managesAddresses || isBehind(p.found, nic, link) && !isWired(p.found, link)
		if was && has && !known[key{a.Link, a.Prefix}] && !isLearned(a) {
			later = append(later, a)
		}
	}
	return later
}

// isLearned reports whether the kernel makes the address: it is link-local, or comes and goes with router
// advertisements.
func isLearned(a netstate.Address) bool {
	linkLocal := a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	return linkLocal || a.Temporary || a.Advertised()
}

// laterRoutes are those that have a next hop through the NIC which they had not, and those that refuse or drop packets.
// Those that come with addresses are left out, and those of router advertisements.
func (p *Plan) laterRoutes(now netstate.Snapshot) (later []netstate.Route) {
	type key struct {
		table               uint32
		destination, source netip.Prefix
		tos, kind           uint8
		hop                 netip.Addr
	}
	nic := p.nic().Index
	keys := func(r netstate.Route) (list []key) {
		if r.Type > netstate.RouteMulticast && r.Type < netstate.RouteThrow {
			return []key{{r.Table, r.Destination, r.Source, r.TOS, r.Type, netip.Addr{}}}
		}
		for _, h := range append([]netstate.Hop{{Link: r.Link, Gateway: r.Gateway}}, r.Hops...) {
			if h.Link == nic && !p.binding.traits().managesAddresses {
				list = append(list, key{r.Table, r.Destination, r.Source, r.TOS, r.Type, h.Gateway})
			}
		}
		return list
	}
	known := map[key]bool{}
	for _, r := range slices.Concat(p.found.Routes, p.wanted.Routes) {
		for _, k := range keys(r) {
			known[k] = true
		}
	}
	for _, r := range now.Routes {
		if r.Protocol != netstate.ProtocolKernel && !r.Advertised() && slices.ContainsFunc(keys(r), func(k key) bool { return !known[k] }) {
			later = append(later, r)
		}
	}
	return later
}

// elsewhere are the table's routes through other links, of which none was found.
func (p *Plan) elsewhere(now netstate.Snapshot, table uint32) (list []netstate.Route) {
	inTable := func(r netstate.Route) bool { return r.Table == table }
	if table == netstate.TableMain || table == netstate.TableLocal || slices.ContainsFunc(p.found.Routes, inTable) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(now.Routes), func(r netstate.Route) bool { return !inTable(r) || r.Uses(p.nic().Index) })
}

// joins reports whether the kernel shows the earlier IPv6 route as a part of the later one.
func joins(earlier, later netstate.Route) bool {
	isHop := func(h netstate.Hop) bool {
		same := func(o netstate.Hop) bool { return o.Link == h.Link && o.Gateway == h.Gateway }
		return same(netstate.Hop{Link: earlier.Link, Gateway: earlier.Gateway}) || slices.ContainsFunc(earlier.Hops, same)
	}
	return earlier.Destination == later.Destination && earlier.Table == later.Table && earlier.Source == later.Source &&
		earlier.Metric == later.Metric && slices.ContainsFunc(later.Hops, isHop)
}
