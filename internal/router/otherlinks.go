package router

import (
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

const otherLinkChain = "other-link"

// toOtherLinks sends what leaves by another link than the NIC to the chain of otherLinks.
func (r Router) toOtherLinks(more ...firewall.Match) firewall.Rule {
	return rule(firewall.Jump{Chain: otherLinkChain}, append(more, firewall.OutInterface{Name: r.Names.NIC, Inverted: true})...)
}

// otherLinks refuses what would leave by a link whose answers do not come back.
func (r Router) otherLinks() firewall.Chain {
	c := firewall.Chain{Name: otherLinkChain, Rules: []firewall.Rule{
		rule(firewall.Return{}, firewall.OutGroup{Group: netstate.GroupOfNICs, Mask: netstate.RouterMask}),
	}}
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		if v == 6 && r.All6 {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: 6}))
			continue
		}
		for _, name := range r.OtherLinks[v] {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.OutInterface{Name: name}))
		}
	}
	c.Rules = append(c.Rules, rule(firewall.Refuse{Reason: firewall.OtherLink}))
	return c
}

// addOtherLinks adds the chain of otherLinks.
func (r Router) addOtherLinks(table *firewall.Table) {
	table.Chains = append(table.Chains, r.otherLinks())
}
