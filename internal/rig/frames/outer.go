package frames

import (
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Outer returns what a hostile gateway sends to a guest with a responder: DHCP messages and router
// advertisements, also hidden ones.
func Outer(l Link) []Kind {
	b := newBuilder(l.FromGateway())
	const why = "the guest's responder is its only DHCP server and router"
	offer := func() []byte {
		return append(append(append([]byte{2, 1, 6, 0}, make([]byte, 232)...), 99, 130, 83, 99, 53, 1, 2, 255), b.marker()...)
	}
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer to all", why, b.v4(ip4{to: all4, body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer to the guest", why, b.v4(ip4{body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer from another port", why, b.v4(ip4{to: all4, body: udp(6700, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer behind options", why, b.v4(ip4{to: all4, options: make([]byte, 40), body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer in fragments", why, b.fragments4(ip4{to: all4, body: udp(67, 68, offer())}, 8, 2000)[0])
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer with a priority tag", why+": a host removes a tag of VLAN 0", tagged(b.v4(ip4{to: all4, body: udp(67, 68, offer())}), []byte{0x81, 0, 0, 0}))
	for _, m := range []struct {
		reason firewall.Reason
		name   string
		packet ip6
	}{
		{firewall.NetworkRouter, "router advertisement", ip6{to: nodes, hops: 255, protocol: protoICMPv6, body: advertisement(b.MAC)}},
		{firewall.NetworkDHCP, "DHCPv6 reply", ip6{to: l.MAC.LinkLocal(), body: udp(547, 546, []byte{7, 1, 2, 3})}},
	} {
		m.packet.from = b.local6
		whole := b.v6(m.packet)
		b.drop(m.reason, 6, m.name, why, whole)
		for _, e := range extensions {
			m.packet.before = e.headers
			b.drop(m.reason, 6, m.name+" behind "+e.name, why, b.v6(m.packet))
		}
		m.packet.before = []extension{options, options}
		b.drop(firewall.NetworkFrame, 6, m.name+" in the second fragment", why+" (RFC 7112)", b.fragments6(m.packet, 8, 1000)...)
		snap := slices.Concat([]byte{0xaa, 0xaa, 3, 0, 0, 0}, whole[12:])
		b.drop(firewall.NetworkFrame, 6, m.name+" in LLC and SNAP", why+" (CVE-2021-27861)", ethernet(cache.MAC(whole[:6]), b.MAC, uint16(len(snap)), snap))
		for _, kind := range []byte{0x81, 0x88} {
			tag := []byte{kind, map[byte]byte{0x81: 0, 0x88: 0xa8}[kind], 0, 0}
			b.drop(m.reason, 6, m.name+" with a tag of kind "+map[byte]string{0x81: "802.1Q", 0x88: "802.1ad"}[kind], why, tagged(whole, tag))
			b.drop(firewall.NetworkFrame, 6, m.name+" with two tags, the first of kind "+map[byte]string{0x81: "802.1Q", 0x88: "802.1ad"}[kind], why, tagged(whole, tag, []byte{0x81, 0, 0, 0}))
		}
	}
	return b.kinds
}

// FromGateway returns the link with guest and gateway exchanged, for frames from the gateway to the guest.
func (l Link) FromGateway() Link {
	return Link{MAC: l.Gateway, IPv4: l.Gateway4, IPv6: l.Gateway6, Gateway: l.MAC, Gateway4: l.IPv4, Gateway6: l.IPv6, Far4: l.IPv4, Far6: l.IPv6}
}
