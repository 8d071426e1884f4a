package guestfilter

import "github.com/guestwire/guestwire/internal/firewall"

// muteNamespace is the table that drops what the namespace sends by the link, by which a packet gets to the network,
// and by the taps of the wiring. Such a packet would have the guest's address, and under redirect the guest's MAC as
// well. Forwarded packets are dropped, too.
//
// A process needs no capability to send there: SO_BINDTODEVICE, IP_PKTINFO, an IPv6 scope or a multicast membership
// name a link, which needs neither an address nor a route for that. Without a packet that leaves there is no ARP and
// no neighbour solicitation either.
//
// Except are rules for what passes.
//
// The table is there with Guard.Off as well: the guard is about what the guest sends.
func (g guest) muteNamespace(link string, except ...firewall.Rule) firewall.Table {
	links := []string{link, g.Names.Tap}
	if g.Served {
		links = append(links, g.Names.Responder)
	}
	c := mute("from-namespace", firewall.Postrouting, links...)
	c.Rules = append(except, c.Rules...)
	return firewall.Table{Family: firewall.Inet, Name: g.Names.Table, Chains: []firewall.Chain{c}}
}

func mute(chain string, hook firewall.Hook, links ...string) firewall.Chain {
	c := firewall.Chain{Name: chain, Type: "filter", Hook: hook, Priority: firewall.Filter}
	for _, l := range links {
		c.Rules = append(c.Rules, rule(drop(firewall.NamespaceOutput), firewall.OutInterface{Name: l}))
	}
	return c
}

// renewal6 are the rules by which a DHCPv6 client in the namespace can ask for more time for the NIC's address. Such a
// client has no packet socket. The launcher, which a guest may have taken over, cannot use them.
func (g guest) renewal6() []firewall.Rule {
	if !g.Renewed {
		return nil
	}
	return []firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: g.Names.NIC}, firewall.IP{Version: 6}, firewall.Destination{Prefix: firewall.HostPrefix(firewall.AllDHCP6)}, ofProtocol(firewall.ProtocolUDP),
		firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: firewall.DHCPClient6, Last: firewall.DHCPClient6},
		firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: server6, Last: server6},
		firewall.SocketUser{UID: g.Launcher, Inverted: true})}
}
