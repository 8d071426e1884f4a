package wiring

import (
	"github.com/guestwire/guestwire/internal/firewall"
)

// muteNamespace is the table that drops what the namespace sends by the link, by which a packet gets to the network, and by
// the taps of the wiring. Such a packet would have the guest's address, and under redirect the guest's MAC as well.
// Forwarded packets are dropped, too.
//
// A process needs no capability to send there: SO_BINDTODEVICE, IP_PKTINFO, an IPv6 scope or a multicast membership
// name a link, which needs neither an address nor a route for that. Without a packet that leaves there is no ARP and
// no neighbour solicitation either.
//
// Except are rules for what passes.
//
// The table is there with Guard.Off as well: the guard is about what the guest sends.
func (p *Plan) muteNamespace(link string, except ...firewall.Rule) firewall.Table {
	links := []string{link, p.names.Tap}
	if p.Record.ResponderTap != "" {
		links = append(links, p.names.Responder)
	}
	c := mute("from-namespace", firewall.Postrouting, links...)
	c.Rules = append(except, c.Rules...)
	return firewall.Table{Family: firewall.Inet, Name: p.names.Table, Chains: []firewall.Chain{c}}
}

// muteBridge adds to the two tables of a bridge what drops packets that the namespace sends by the bridge. They do not
// end at postrouting: where another program lets frames of bridges pass iptables (bridge-nf-call-iptables), the guest's
// frames come there, too. A rule at output leaves no neighbour entries. The rules of the family bridge are for all else:
// forwarded packets, and other protocols than IP.
func muteBridge(ofBridge, inet *firewall.Table, bridge string, ports ...string) {
	inet.Chains = append(inet.Chains, mute("to-bridge", firewall.Output, bridge))
	ofBridge.Chains = append(ofBridge.Chains, mute("from-namespace", firewall.Output, ports...))
}

func mute(chain string, hook firewall.Hook, links ...string) firewall.Chain {
	c := firewall.Chain{Name: chain, Type: "filter", Hook: hook, Priority: firewall.Filter}
	for _, l := range links {
		c.Rules = append(c.Rules, rule(drop(firewall.NamespaceOutput), firewall.OutInterface{Name: l}))
	}
	return c
}
