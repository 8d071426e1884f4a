package router

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/ip"
)

// toNeighbours limits the next hops and sources of what the guest sends through the namespace.
func (r Router) toNeighbours() []firewall.Rule {
	return append([]firewall.Rule{rule(firewall.Jump{Chain: "next-hop"}, firewall.OutInterface{Name: r.Names.Tap, Inverted: true})}, r.fromNeighbours()...)
}

// fromNeighbours limits the sources for which the namespace has to ask when it answers the guest.
func (r Router) fromNeighbours() []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range r.manySources() {
		rules = append(rules, rule(firewall.Jump{Chain: "from-source"}, firewall.IP{Version: ip.Of(p.Addr())}, firewall.Source{Prefix: p}))
	}
	return rules
}

// manySources are prefixes with more than guestfilter.MostSources link-local addresses of the guest. Other addresses
// are routed by way of the guest's own, so the namespace asks for none of them. Without a guard nothing limits the
// sources.
func (r Router) manySources() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range r.Guard.Prefixes {
		if p.Addr().IsLinkLocalUnicast() && r.Ends.Has(ip.Of(p.Addr())) && guestfilter.HasMany(p) {
			list = append(list, p)
		}
	}
	return list
}

// limitNeighbours adds the sets and chains of toNeighbours.
func (r Router) limitNeighbours(table *firewall.Table) {
	limit := func(chain, set string, size int, part4, part6 firewall.Part) {
		c := firewall.Chain{Name: chain}
		if r.NoARP && chain == "next-hop" {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.OutInterface{Name: r.Names.NIC}))
		}
		for _, e := range r.Ends {
			v := ip.Of(e.Guest)
			name, part := fmt.Sprintf("%s-%d", set, v), ip.Pick(v, part4, part6)
			table.Sets = append(table.Sets, firewall.Set{Name: name, Of: part, Size: size, Milliseconds: guestfilter.NeighbourLife})
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.AddToSet{Part: part, Set: name, Renew: true}))
		}
		c.Rules = append(c.Rules, rule(drop(firewall.NeighbourLimit)))
		table.Chains = append(table.Chains, c)
	}
	limit("next-hop", "next-hops", cmp.Or(r.Guard.MaxNeighbours, mostNextHops), firewall.NextHop4, firewall.NextHop6)
	if len(r.manySources()) > 0 {
		limit("from-source", "sources", guestfilter.MostSources, firewall.SourceAddress4, firewall.SourceAddress6)
	}
}
