package wiring

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Later says which addresses, routes and policy rules the namespace has got since the first Setup, if the guest lacks
// something by them. No Setup gives them to the guest, as each makes its plan of the namespace as the first one found
// it. The answer is the difference of two plans: that of the namespace as it was found, and that of the namespace as a
// Setup after a Teardown would find it. So what the namespace forwards by anyway is none, nor what masquerade hides.
//
// What comes and goes with router advertisements is left out, and so are addresses and routes of a NIC that is the
// guest's (bridge), which Steps removes. The error is that of the context.
func (p *Plan) Later(ctx context.Context, now netstate.Snapshot) ([]cache.Finding, error) {
	nic, there := now.Link(p.nic.Index)
	if !there || p.isReplacement(nic) {
		return nil, nil
	}
	came := came{p.laterAddresses(now), p.laterRules(now), p.laterRoutes(now)}
	names := came.names(p, now)
	if len(names) == 0 {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	text := came.outcome(p, now, len(names) == 1)
	if text == "" {
		return nil, nil
	}
	if more := len(names) - mostNamed; more > 0 {
		names = append(names[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return []cache.Finding{{Kind: "later", Link: p.names.NIC, What: strings.Join(names, " and ") + " came after Setup" + text,
		Way: "take it out of the namespace, or call Teardown and Setup (guestwire-agent teardown, guestwire-agent setup)"}}, nil
}

// came are the things that the namespace has got.
type came struct {
	addresses []netstate.Address
	rules     []netstate.Rule
	routes    []netstate.Route
}

// outcome is what becomes of the things after a Teardown and another Setup; empty: the guest has them, or does not need
// them. Alone says that there is one.
func (c came) outcome(p *Plan, now netstate.Snapshot, alone bool) string {
	j := p.Journal()
	j.Found = c.next(p, now)
	with, err := j.First()
	if err != nil {
		if _, before := p.Journal().First(); before != nil { // another version of guestwire wired the NIC
			with, err = j.Plan()
		}
	}
	if err != nil {
		return ", and after a Teardown Setup refuses the NIC with it: " + err.Error()
	}
	had, has := p.given(), with.given()
	var lost []string
	for _, l := range with.Record.Losses {
		if !isTemporary(l) && !had.losses[lossKey{l.Kind, l.What}] {
			lost = append(lost, l.String())
		}
	}
	if more := len(lost) - 1; more > 1 {
		lost = []string{lost[0], fmt.Sprintf("and %d more", more)}
	}
	over := false
	for l := range had.losses {
		over = over || !has.losses[l]
	}
	gets := !had.same(has) || len(lost) == 0 && over
	switch {
	case gets && len(lost) > 0:
		return ": " + c.way(p, alone) + " after a Teardown and another Setup, and this is lost: " + strings.Join(lost, "; ")
	case gets:
		return ": " + c.way(p, alone) + " after a Teardown and another Setup"
	case len(lost) > 0:
		return fmt.Sprintf(": after a Teardown and another Setup with %s this is lost: %s", with.Binding().Kind(), strings.Join(lost, "; "))
	}
	return ""
}

// way is what the guest has of the things then.
func (c came) way(p *Plan, alone bool) string {
	switch {
	case !alone:
		return "the guest gets what it lacks of them"
	case len(c.rules) > 0:
		return "the guest's routes follow it"
	case len(c.addresses) > 0 && p.Binding().Kind() == cache.BindingMasquerade: // the guest has addresses of its own
		return fmt.Sprintf("the guest gets %v", ip.Of(c.addresses[0].Prefix.Addr()))
	}
	return "the guest gets it"
}

// next is the namespace as a Setup after a Teardown would find it.
func (c came) next(p *Plan, now netstate.Snapshot) netstate.Snapshot {
	next := p.found
	next.Rules, next.NoMain = now.Rules, now.NoMain
	routes := c.connected(&next, now)
	// A table without routes until now comes with all that it has.
	tables := map[uint32]bool{netstate.TableMain: true, netstate.TableLocal: true}
	for _, r := range p.found.Routes {
		tables[r.Table] = true
	}
	for _, r := range now.Routes {
		if !tables[r.Table] && !r.Uses(p.nic.Index) && r.Refuses() == "" {
			routes = append(routes, r)
		}
	}
	// The kernel shows an earlier IPv6 route with one of the next hops as a part of the new one.
	joined := map[compare.Group]bool{}
	for _, r := range c.routes {
		if r.Destination.Addr().Is6() && len(r.Hops) > 0 {
			joined[compare.GroupOf(r)] = true
		}
	}
	kept := slices.DeleteFunc(slices.Clone(p.found.Routes), func(r netstate.Route) bool { return joined[compare.GroupOf(r)] })
	ahead, behind := c.order(now)
	next.Routes = slices.Concat(ahead, kept, routes, behind)
	// Setup asks the gateways that are new for their MACs.
	asked := Gateways(p.found, p.nic)
	next.Neighbours = slices.Clone(next.Neighbours)
	for _, gateway := range Gateways(next, p.nic) {
		if !slices.Contains(asked, gateway) {
			mac := netstate.DeriveMACOf(gateway.String(), p.nic.Name, "later")
			next.Neighbours = append(next.Neighbours, netstate.Neighbour{Link: p.nic.Index, Address: gateway, MAC: mac})
		}
	}
	return next
}

// order parts the routes into those that the kernel asks before the ones that were there, as after ip route prepend,
// and the others. It asks routes of one metric to one destination in the order in which it lists them.
func (c came) order(now netstate.Snapshot) (ahead, behind []netstate.Route) {
	left, before := c.routes, map[compare.Group]bool{}
	for _, r := range now.Routes {
		switch group := compare.GroupOf(r); {
		case len(left) == 0:
			return ahead, behind
		case !reflect.DeepEqual(r, left[0]):
			before[group] = true
			continue
		case before[group]:
			behind = append(behind, r)
		default:
			ahead = append(ahead, r)
		}
		left = left[1:]
	}
	return ahead, behind
}

// connected adds the addresses in the kernel's order, and returns the routes that the kernel makes of them. The IPv6
// address that came last is the kernel's first. One that has another prefix length now is not there with the old one.
func (c came) connected(next *netstate.Snapshot, now netstate.Snapshot) (routes []netstate.Route) {
	earlier, links := netstate.Earlier{}, indexLinks(*next)
	for _, a := range next.Addresses {
		earlier.Add(a)
	}
	again, there := map[netstate.OffStack]bool{}, map[netstate.LinkPrefix]bool{}
	var v4, v6 []netstate.Address
	for _, a := range c.addresses {
		again[netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr()}] = true
		routes = append(routes, earlier.Connected(a, links.at(a.Link))...)
		earlier.Add(a)
		if a.Prefix.Addr().Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	slices.Reverse(v6)
	for _, a := range now.Addresses {
		there[a.LinkPrefix()] = true
	}
	kept := slices.DeleteFunc(slices.Clone(next.Addresses), func(a netstate.Address) bool {
		return again[netstate.OffStack{Link: a.Link, Address: a.Prefix.Addr()}] && !there[a.LinkPrefix()]
	})
	next.Addresses = slices.Concat(v6, kept, v4)
	return routes
}

// names are what the things are called.
func (c came) names(p *Plan, now netstate.Snapshot) (names []string) {
	links := indexLinks(now)
	name := func(index int) string {
		if index == p.nic.Index {
			return p.names.NIC
		}
		return links.at(index).Name
	}
	for _, a := range c.addresses {
		names = append(names, fmt.Sprintf("address %v of %s", a.Prefix, name(a.Link)))
	}
	for _, r := range c.rules {
		names = append(names, ruleText(r))
	}
	for _, r := range c.routes {
		names = append(names, "route "+netstate.RouteText(r, name(r.Link), r.HopNames(name)))
	}
	return names
}

// ruleText is such as "policy rule 100 of IPv4, table 77,".
func ruleText(r netstate.Rule) string {
	text := fmt.Sprintf("policy rule %d of %v", r.Priority, r.Version())
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
			g.routes = append(g.routes, cache.Route{Destination: ip.V6.All(), Gateway: v6.Router.Address})
		}
		if v6.Router != nil {
			for _, network := range v6.Router.Routes {
				g.routes = append(g.routes, cache.Route{Destination: network, Gateway: v6.Router.Address})
			}
		}
	}
	g.losses = losses(slices.DeleteFunc(slices.Clone(r.Losses), isTemporary)).keys()
	g.routes = needed(g.routes)
	return g
}

// needed are the routes, in an order of their own, without those that lead where the next wider one leads.
func needed(routes []cache.Route) (list []cache.Route) {
	var by ip.Prefixes[netip.Addr]
	for _, r := range routes {
		by.Set(r.Destination, r.Gateway)
	}
	list = slices.DeleteFunc(slices.Clone(routes), func(r cache.Route) bool {
		wider, is := by.Wider(r.Destination)
		return is && wider == r.Gateway
	})
	slices.SortFunc(list, func(a, b cache.Route) int { return ip.Compare(a.Destination, b.Destination) })
	return list
}

// laterRules are those that were not there. What a journal says of a rule that is Other depends on the version of
// guestwire, but for these fields.
func (p *Plan) laterRules(now netstate.Snapshot) (later []netstate.Rule) {
	other := func(r netstate.Rule) netstate.Rule {
		return netstate.Rule{Priority: r.Priority, Table: r.Table, IPv6: r.IPv6, VRF: r.VRF, Other: true}
	}
	known := map[netstate.Rule]int{}
	for _, r := range p.found.Rules {
		if r.Other {
			r = other(r)
		}
		known[r]++
	}
	for _, r := range now.Rules {
		if known[r] == 0 {
			r = other(r)
		}
		if known[r]--; known[r] < 0 {
			later = append(later, r)
		}
	}
	return later
}

// laterAddresses are those that are on the NIC, or on a link behind which nothing lies, and were not there.
func (p *Plan) laterAddresses(now netstate.Snapshot) (later []netstate.Address) {
	known := map[netstate.LinkPrefix]bool{}
	for _, a := range slices.Concat(p.found.Addresses, p.wanted.Addresses) {
		known[a.LinkPrefix()] = true
	}
	nic, links, manages := p.nic, p.links, p.traits().ManageAddresses
	for _, a := range now.Addresses {
		link := links.at(a.Link)
		has := link.Index == nic.Index && !manages || links.isBehind(nic, link) && !links.isWired(link)
		if link.Index != 0 && has && !known[a.LinkPrefix()] && !isLearned(a) {
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
		if r.Refuses() != "" {
			return []key{{r.Table, r.Destination, r.Source, r.TOS, r.Type, netip.Addr{}}}
		}
		for _, h := range r.NextHops() {
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
