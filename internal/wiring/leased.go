package wiring

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// warnLeased warns of a DHCP client in the namespace, which under bridge takes the holder for the NIC. A client outside,
// such as CNI's dhcp daemon, keeps the NIC by its number.
func (p *Plan) warnLeased(nic netstate.Link) {
	for _, version := range []int{4, 6} {
		for _, a := range lease.Of(p.found, nic).Leased(version) {
			p.warn("the address %v of %s has a lifetime, and a DHCP client in the namespace cannot renew it under bridge, where another link has the name %[2]s: choose redirect", a, nic.Name)
		}
	}
}

// renewal6 are the rules by which a DHCPv6 client in the namespace can ask for more time for the NIC's address. Such a
// client has no packet socket. The launcher, which a guest may have taken over, cannot use them.
func (p *Plan) renewal6(nic netstate.Link) []firewall.Rule {
	if len(lease.Of(p.found, nic).Leased(6)) == 0 {
		return nil
	}
	all := netip.MustParseAddr("ff02::1:2") // All_DHCP_Relay_Agents_and_Servers, RFC 8415 section 7.1
	return []firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: nic.Name}, firewall.IP{Version: 6}, firewall.Destination{Prefix: single(all)}, is(firewall.ProtocolUDP),
		firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: client6, Last: client6},
		firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: server6, Last: server6},
		firewall.SocketUser{UID: p.owner().UID, Not: true})}
}
