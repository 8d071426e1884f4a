package router

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
)

// toNeighbours limits the next hops and sources of what the guest sends through the namespace.
func (r Router) toNeighbours() []firewall.Rule {
	return append([]firewall.Rule{rule(firewall.Jump{Chain: "next-hop"}, firewall.OutInterface{Name: r.Names.Tap, Inverted: true})}, r.fromNeighbours()...)
}

// fromNeighbours limits the sources for which the namespace has to ask when it answers the guest.
func (r Router) fromNeighbours() []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range r.manySources() {
		rules = append(rules, rule(firewall.Jump{Chain: "from-source"}, firewall.IP{Version: firewall.Version(p.Addr())}, firewall.Source{Prefix: p}))
	}
	return rules
}

// manySources are prefixes with more than guestfilter.MostSources link-local addresses of the guest. Other addresses
// are routed by way of the guest's own, so the namespace asks for none of them. Without a guard nothing limits the
// sources.
func (r Router) manySources() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range r.Guard.Prefixes {
		if p.Addr().IsLinkLocalUnicast() && r.Ends.Has(firewall.Version(p.Addr())) && guestfilter.HasMany(p) {
			list = append(list, p)
		}
	}
	return list
}

// limitNeighbours adds the sets and chains of toNeighbours.
func (r Router) limitNeighbours(table *firewall.Table) {
	limit := func(chain, set string, size int, parts map[int]firewall.Part) {
		c := firewall.Chain{Name: chain}
		if r.NoARP && chain == "next-hop" {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.OutInterface{Name: r.Names.NIC}))
		}
		for _, e := range r.Ends {
			v := firewall.Version(e.Guest)
			name := fmt.Sprintf("%s-%d", set, v)
			table.Sets = append(table.Sets, firewall.Set{Name: name, Of: parts[v], Size: size, Milliseconds: guestfilter.NeighbourLife})
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.AddToSet{Part: parts[v], Set: name, Renew: true}))
		}
		c.Rules = append(c.Rules, rule(drop(firewall.NeighbourLimit)))
		table.Chains = append(table.Chains, c)
	}
	limit("next-hop", "next-hops", mostNextHops, map[int]firewall.Part{4: firewall.NextHop4, 6: firewall.NextHop6})
	if len(r.manySources()) > 0 {
		limit("from-source", "sources", guestfilter.MostSources, map[int]firewall.Part{4: firewall.SourceAddress4, 6: firewall.SourceAddress6})
	}
}
