package wiring

import (
	"cmp"
	"context"
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
// guest's (bridge), which Steps removes. The error is that of the context: a plan is made for each thing.
func (p *Plan) Later(ctx context.Context, now netstate.Snapshot) (list []infra.Difference, err error) {
	nic, there := now.Link(p.nic.Index)
	if !there || p.isReplacement(nic) {
		return nil, nil
	}
	things := p.laterThings(now)
	if len(things) == 0 {
		return nil, nil
	}
	t := p.newTrial(now)
	if all := t; all.add(things...) == nil && reflect.DeepEqual(all.given, t.given) {
		return nil, nil // most routes lead where the guest sends by anyway
	}
	// To try one costs a plan, which takes the longer the more there is.
	most := max(2, min(32, 20000/(1+len(p.found.Routes)+len(p.found.Addresses)+len(p.found.Rules)+len(things))))
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
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		report(t.tell(one.name, one.way, one))
	}
	if len(rest) > 1 {
		report(t.tell(fmt.Sprintf("one or more of %d further addresses, routes and policy rules", len(rest)), "the guest gets them", rest...))
	}
	return list, nil
}

// trial is a plan of the namespace as it was found, to which things are added.
type trial struct {
	journal Journal
	nic     netstate.Link
	now     present
	asked   []netip.Addr // gateways that Setup has asked for their MACs
	plan    func(Journal) (*Plan, error)
	with    *Plan
	given
}

// present is what the namespace has now, by what a trial looks for.
type present struct {
	addresses map[linkPrefix]bool
	rules     map[netstate.Rule]bool
	elsewhere map[uint32][]netstate.Route // routes through other links, by their tables
}

func (p *Plan) newTrial(now netstate.Snapshot) trial {
	t := trial{journal: p.Journal(), nic: p.nic, with: p, given: p.given()}
	t.asked = Gateways(p.found, t.nic)
	t.plan = Journal.First
	if _, err := t.plan(t.journal); err != nil { // another version of guestwire wired the NIC
		t.plan = Journal.Plan
	}
	t.now = present{addresses: map[linkPrefix]bool{}, rules: map[netstate.Rule]bool{}, elsewhere: map[uint32][]netstate.Route{}}
	for _, a := range now.Addresses {
		t.now.addresses[linkPrefix{a.Link, a.Prefix}] = true
	}
	for _, r := range now.Rules {
		t.now.rules[r] = true
	}
	for _, r := range now.Routes {
		if r.Table != netstate.TableMain && r.Table != netstate.TableLocal && !r.Uses(t.nic.Index) {
			t.now.elsewhere[r.Table] = append(t.now.elsewhere[r.Table], r)
		}
	}
	return t
}

// add makes the plan anew. After an error the trial is as it was.
func (t *trial) add(things ...thing) error {
	j := t.journal
	found := &j.Found
	t.addAddresses(found, things)
	t.addRules(found, things)
	addRoutes(found, things)
	found.Neighbours = slices.Clip(found.Neighbours)
	for _, gateway := range Gateways(*found, t.nic) {
		if !slices.Contains(t.asked, gateway) { // the next Setup asks for it
			mac := netstate.DeriveMACOf(gateway.String(), t.nic.Name, "later")
			found.Neighbours = append(found.Neighbours, netstate.Neighbour{Link: t.nic.Index, Address: gateway, MAC: mac})
		}
	}
	with, err := t.plan(j)
	if err == nil {
		t.journal, t.with, t.given = j, with, with.given()
	}
	return err
}

// addAddresses adds addresses and the routes that the kernel makes of them, in the kernel's order: the IPv6 address
// that came last is its first. An address that is there with another prefix length now is not there any more.
func (t *trial) addAddresses(found *netstate.Snapshot, things []thing) {
	came := map[netstate.OffStack]bool{}
	var v4, v6 []netstate.Address
	for _, one := range things {
		if a := one.address; a != nil {
			came[netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr()}] = true
			if a.Prefix.Addr().Is6() {
				v6 = append(v6, *a)
			} else {
				v4 = append(v4, *a)
			}
		}
	}
	if len(came) == 0 {
		return
	}
	links := indexLinks(*found)
	earlier := netstate.Earlier{}
	for _, a := range found.Addresses {
		earlier.Add(a)
	}
	routes := slices.Clip(found.Routes)
	for _, a := range slices.Concat(v4, v6) {
		routes = append(routes, earlier.Connected(a, links.at(a.Link))...)
		earlier.Add(a)
	}
	addresses := slices.DeleteFunc(slices.Clone(found.Addresses), func(f netstate.Address) bool {
		return came[netstate.OffStack{Link: f.Link, Address: f.Prefix.Addr()}] && !t.now.addresses[linkPrefix{f.Link, f.Prefix}]
	})
	slices.Reverse(v6)
	found.Addresses, found.Routes = slices.Concat(v6, addresses, v4), routes
}

// addRules adds policy rules. One that was there with another preference, and is not any more, has moved. A table
// without routes in the trial comes with its present ones through other links.
func (t *trial) addRules(found *netstate.Snapshot, things []thing) {
	var moved map[netstate.Rule][]int // of rules without their preferences
	var tables map[uint32]bool
	for _, one := range things {
		r := one.rule
		if r == nil {
			continue
		}
		if moved == nil {
			moved, tables = map[netstate.Rule][]int{}, map[uint32]bool{}
			found.Rules, found.Routes = slices.Clone(found.Rules), slices.Clip(found.Routes)
			for i, f := range found.Rules {
				if !t.now.rules[f] {
					f.Priority = 0
					moved[f] = append(moved[f], i)
				}
			}
			for _, f := range found.Routes {
				tables[f.Table] = true
			}
		}
		if !tables[r.Table] {
			tables[r.Table] = true
			found.Routes = append(found.Routes, t.now.elsewhere[r.Table]...)
		}
		anywhere := *r
		anywhere.Priority = 0
		if at := moved[anywhere]; len(at) > 0 {
			found.Rules[at[0]], moved[anywhere] = *r, at[1:]
		} else {
			found.Rules = append(found.Rules, *r)
		}
	}
}

// addRoutes adds routes. The kernel shows an earlier IPv6 route with one of the next hops as a part of the new one.
func addRoutes(found *netstate.Snapshot, things []thing) {
	type part struct {
		destination, source netip.Prefix
		table, metric       uint32
		link                int
		gateway             netip.Addr
	}
	partOf := func(r netstate.Route, link int, gateway netip.Addr) part {
		return part{r.Destination, r.Source, r.Table, r.Metric, link, gateway}
	}
	parts := map[part]bool{}
	var routes []netstate.Route
	for _, one := range things {
		if r := one.route; r != nil {
			routes = append(routes, *r)
			for _, h := range r.Hops {
				if r.Destination.Addr().Is6() {
					parts[partOf(*r, h.Link, h.Gateway)] = true
				}
			}
		}
	}
	if len(routes) == 0 {
		return
	}
	joined := func(f netstate.Route) bool {
		return parts[partOf(f, f.Link, f.Gateway)] || slices.ContainsFunc(f.Hops, func(h netstate.Hop) bool { return parts[partOf(f, h.Link, h.Gateway)] })
	}
	found.Routes = append(slices.DeleteFunc(slices.Clone(found.Routes), joined), routes...)
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
		if !isTemporary(l) && !had.losses[lossKey{l.Kind, l.What}] {
			lost = append(lost, l.String())
		}
	}
	if more := len(lost) - 1; more > 1 {
		lost = []string{lost[0], fmt.Sprintf("and %d more", more)}
	}
	over := false
	for l := range had.losses {
		over = over || !t.losses[l]
	}
	gets := !had.same(t.given) || len(lost) == 0 && over
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

// thing is an address, a route or a policy rule: one of the three.
type thing struct {
	name    string
	way     string // what becomes of it after a Teardown and another Setup, unless it is a loss
	address *netstate.Address
	rule    *netstate.Rule
	route   *netstate.Route
}

const getsIt = "the guest gets it"

func (p *Plan) laterThings(now netstate.Snapshot) (things []thing) {
	links, nic := indexLinks(now), p.nic.Index
	name := func(index int) string {
		if index == nic {
			return p.names.NIC
		}
		return links.at(index).Name
	}
	for _, a := range p.laterAddresses(now) {
		way := getsIt
		if p.Binding().Kind() == cache.BindingMasquerade { // the guest has addresses of its own
			way = fmt.Sprintf("the guest gets IPv%d", map[bool]int{false: 4, true: 6}[a.Prefix.Addr().Is6()])
		}
		things = append(things, thing{way: way, name: fmt.Sprintf("address %v of %s", a.Prefix, name(a.Link)), address: &a})
	}
	known := map[netstate.Rule]int{}
	for _, r := range p.found.Rules {
		known[r]++
	}
	for _, r := range now.Rules {
		if known[r]--; known[r] < 0 {
			things = append(things, thing{way: "the guest's routes follow it", name: ruleText(r), rule: &r})
		}
	}
	for _, r := range p.laterRoutes(now) {
		var hops []string
		for _, h := range r.Hops {
			hops = append(hops, name(h.Link))
		}
		things = append(things, thing{way: getsIt, name: "route " + netstate.RouteText(r, name(r.Link), hops), route: &r})
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
	losses    map[lossKey]bool
}

// same compares all but the losses.
func (g given) same(o given) bool {
	g.losses, o.losses = nil, nil
	return reflect.DeepEqual(g, o)
}

func (p *Plan) given() (g given) {
	r := p.Record
	if t := p.traits(); !t.Routes && !t.Direct { // else the namespace says what fits
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
	g.losses = map[lossKey]bool{}
	for _, l := range r.Losses {
		if !isTemporary(l) {
			g.losses[lossKey{l.Kind, l.What}] = true
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
	known := map[linkPrefix]bool{}
	for _, a := range slices.Concat(p.found.Addresses, p.wanted.Addresses) {
		known[linkPrefix{a.Link, a.Prefix}] = true
	}
	nic, links, manages := p.nic, indexLinks(p.found), p.traits().ManageAddresses
	for _, a := range now.Addresses {
		link := links.at(a.Link)
		has := link.Index == nic.Index && !manages || links.isBehind(nic, link) && !links.isWired(link)
		if link.Index != 0 && has && !known[linkPrefix{a.Link, a.Prefix}] && !isLearned(a) {
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
	nic := p.nic.Index
	keys := func(r netstate.Route) (list []key) {
		if r.Type > netstate.RouteMulticast && r.Type < netstate.RouteThrow {
			return []key{{r.Table, r.Destination, r.Source, r.TOS, r.Type, netip.Addr{}}}
		}
		for _, h := range append([]netstate.Hop{{Link: r.Link, Gateway: r.Gateway}}, r.Hops...) {
			if h.Link == nic && !p.traits().ManageAddresses {
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
