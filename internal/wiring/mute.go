package wiring

import (
	"github.com/guestwire/guestwire/internal/firewall"
)

// muteNamespace is the table that drops what the namespace sends by the links, and by the taps of the wiring. Links are
// those by which a packet gets to the network. Such a packet would have the guest's address, and under redirect the
// guest's MAC as well. Forwarded packets are dropped, too.
//
// A process needs no capability to send there: SO_BINDTODEVICE, IP_PKTINFO, an IPv6 scope or a multicast membership
// name a link, which needs neither an address nor a route for that. Without a packet that leaves there is no ARP and
// no neighbour solicitation either.
//
// The table is there with Guard.Off as well: the guard is about what the guest sends.
func (p *Plan) muteNamespace(links ...string) firewall.Table {
	links = append(links, p.names.Tap)
	if p.Record.ResponderTap != "" {
		links = append(links, p.names.Responder)
	}
	var rules []firewall.Rule
	for _, l := range links {
		rules = append(rules, rule(drop(firewall.NamespaceOutput), firewall.OutInterface{Name: l}))
	}
	return firewall.Table{Family: firewall.Inet, Name: p.names.Table, Chains: []firewall.Chain{{
		Name: "from-namespace", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.Filter, Rules: rules,
	}}}
}
