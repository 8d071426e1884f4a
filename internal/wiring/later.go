package wiring

import (
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
	// To try one costs a plan.
	const most = 32
	if rest := things[min(most, len(things)):]; len(rest) > 1 {
		things = append(slices.Clip(things[:most]), thing{fmt.Sprintf("%d further addresses, routes and policy rules", len(rest)), func(found *netstate.Snapshot) {
			for _, one := range rest {
				one.add(found)
			}
		}})
	}
	j, had := p.Journal(), givenBy(p.Record)
	found := j.Found
	found.Addresses, found.Routes, found.Rules = slices.Clip(found.Addresses), slices.Clip(found.Routes), slices.Clip(found.Rules)
	for _, one := range things {
		j.Found = found
		one.add(&j.Found)
		with, err := j.Plan()
		text := one.name + " came after Setup"
		if err != nil {
			list = append(list, infra.Difference{Kind: "later", Link: p.names.NIC, Text: text + ", and Setup refuses the NIC with it: " + err.Error()})
			continue
		}
		found = j.Found
		has := givenBy(with.Record)
		if reflect.DeepEqual(has, had) {
			continue
		}
		way := ": the guest gets it after a Teardown and another Setup"
		for _, l := range with.Record.Losses {
			if !slices.Contains(had.losses, lossKey{l.Kind, l.What}) && !isTemporary(l) {
				way = ": after a Teardown and another Setup it is a loss: " + l.Why
			}
		}
		list, had = append(list, infra.Difference{Kind: "later", Link: p.names.NIC, Text: text + way}), has
	}
	return list
}

// thing is an address, a route or a policy rule, and how it is added to a namespace.
type thing struct {
	name string
	add  func(*netstate.Snapshot)
}

func (p *Plan) laterThings(now netstate.Snapshot) (things []thing) {
	name := func(index int) string {
		link, _ := now.Link(index)
		if index == p.nic().Index {
			return p.names.NIC
		}
		return link.Name
	}
	for _, a := range p.laterAddresses(now) {
		things = append(things, thing{fmt.Sprintf("address %v of %s", a.Prefix, name(a.Link)), func(found *netstate.Snapshot) {
			link, _ := found.Link(a.Link)
			found.Routes = append(found.Routes, netstate.Connected(a, link, found.Addresses)...)
			found.Addresses = append(found.Addresses, a)
		}})
	}
	if !p.binding.traits().managesAddresses {
		for _, r := range p.laterRoutes(now) {
			var hops []string
			for _, h := range r.Hops {
				hops = append(hops, name(h.Link))
			}
			link := name(r.Link)
			things = append(things, thing{"route " + netstate.RouteText(r, link, hops), func(found *netstate.Snapshot) {
				found.Routes = append(found.Routes, r)
			}})
		}
	}
	for _, r := range now.Rules {
		if !slices.Contains(p.found.Rules, r) {
			things = append(things, thing{fmt.Sprintf("policy rule %d, of table %d,", r.Priority, r.Table), func(found *netstate.Snapshot) {
				found.Rules = append(found.Rules, r)
			}})
		}
	}
	return things
}

// given is what of a record says what the guest has, and what it lacks for as long as it runs.
type given struct {
	addresses []netip.Addr
	routes    []cache.Route
	losses    []lossKey
}

type lossKey struct{ kind, what string }

func givenBy(r cache.Record) (g given) {
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
	by := map[netip.Prefix]netip.Addr{}
	for _, r := range routes {
		by[r.Destination] = r.Gateway
	}
	same := func(r cache.Route) bool {
		for bits := r.Destination.Bits() - 1; bits >= 0; bits-- {
			if gateway, is := by[netip.PrefixFrom(r.Destination.Addr(), bits).Masked()]; is {
				return gateway == r.Gateway
			}
		}
		return false
	}
	list = slices.DeleteFunc(slices.Clone(routes), same)
	slices.SortFunc(list, func(a, b cache.Route) int { return strings.Compare(a.Destination.String(), b.Destination.String()) })
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
	const advertised, manageTemporary = 2, 0x100 // as in lease.NIC.Leased
	linkLocal := a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	return linkLocal || a.Temporary || a.Protocol == advertised || a.Flags&manageTemporary != 0
}

// laterRoutes are those that have a next hop through the NIC which they had not. Those that come with addresses are left
// out, and those of router advertisements.
func (p *Plan) laterRoutes(now netstate.Snapshot) (later []netstate.Route) {
	type key struct {
		table               uint32
		destination, source netip.Prefix
		tos                 uint8
		hop                 netip.Addr
	}
	nic := p.nic().Index
	keys := func(r netstate.Route) (list []key) {
		for _, h := range append([]netstate.Hop{{Link: r.Link, Gateway: r.Gateway}}, r.Hops...) {
			if h.Link == nic {
				list = append(list, key{r.Table, r.Destination, r.Source, r.TOS, h.Gateway})
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
		advertised := r.Destination.Addr().Is6() && (r.Protocol == netstate.ProtocolRA || r.ExpiresSeconds != 0)
		if r.Protocol != netstate.ProtocolKernel && !advertised && slices.ContainsFunc(keys(r), func(k key) bool { return !known[k] }) {
			later = append(later, r)
		}
	}
	return later
}
