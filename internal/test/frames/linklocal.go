package frames

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
)

// Detection returns duplicate address detection of an address, as Linux sends it: with a nonce (RFC 7527).
func (l Link) Detection(a netip.Addr) []byte {
	b := newBuilder(l)
	return b.solicitation(unspecified6, solicited(a), a, nonce)
}

var nonce = []byte{14, 1, 9, 8, 7, 6, 5, 4}

// FromLinkLocal returns what a station sends from a link-local address that has passed duplicate address detection.
// Reason is the one for which the guest filter drops the frames if the address is not the guest's.
func (l Link) FromLinkLocal(a netip.Addr) []Kind {
	b := newBuilder(l)
	report := icmp(143, 0, []byte{0, 0, 0, 1, 4, 0, 0, 0}, solicited(a).AsSlice())
	b.drop(firewall.IPSpoof, 6, "MLDv2 report", "to get a group's datagrams", b.v6(ip6{from: a, to: mldv2, hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6, body: report}))
	b.drop(firewall.IPSpoof, 6, "MLDv1 report", "to get a group's datagrams", b.v6(ip6{from: a, to: solicited(a), hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6,
		body: icmp(131, 0, make([]byte, 4), solicited(a).AsSlice())}))
	b.drop(firewall.IPSpoof, 6, "neighbour solicitation", "to find the gateway", b.solicitation(a, solicited(b.Gateway6), b.Gateway6, linkLayer(1, b.MAC)))
	b.drop(firewall.NeighbourSpoof, 6, "neighbour advertisement", "to be found", b.advertisement(a, nodes, a, 0x20, linkLayer(2, b.MAC)))
	b.drop(firewall.NeighbourSpoof, 6, "neighbour advertisement by unicast", "to be found", b.advertisement(a, b.Gateway6, a, 0x60, linkLayer(2, b.MAC)))
	b.drop(firewall.IPSpoof, 6, "echo request to all nodes", "to ping a host", b.v6(ip6{from: a, to: nodes, protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 3, 0, 1}, b.data(0))}))
	b.drop(firewall.IPSpoof, 6, "multicast DNS", "to find a service", b.v6(ip6{from: a, to: netip.MustParseAddr("ff02::fb"), body: udp(5353, 5353, b.data(0))}))
	if !b.Served {
		b.drop(firewall.IPSpoof, 6, "router solicitation", "the guest has no responder", b.neighbour(a, routers, icmp(133, 0, make([]byte, 4), linkLayer(1, b.MAC))))
		b.drop(firewall.IPSpoof, 6, "DHCPv6 solicit", "the guest has no responder", b.v6(ip6{from: a, to: dhcp6Servers, body: udp(546, 547, []byte{1, 0, 0, 1, 0, 8, 0, 2, 0, 0})}))
	}
	for i := range b.kinds {
		b.kinds[i].Name += " from " + a.String()
	}
	return b.kinds
}

// Unreceived returns forms of duplicate address detection that the address's owner does not receive, or ignores (RFC
// 4861 section 7.1.1). Their sender learns nothing from the silence that follows. Two forms are not among them, as no
// filter without arithmetic can recognize them: a wrong checksum, and a group whose last 24 bits are not the address's.
func (l Link) Unreceived(a netip.Addr) []Kind {
	b := newBuilder(l)
	add := func(name, why string, frames ...[]byte) {
		b.add(6, "duplicate address detection "+name, why, frames...)
	}
	message := func(code uint8, options ...[]byte) []byte {
		return icmp(135, code, make([]byte, 4), a.AsSlice(), slices.Concat(options...))
	}
	plain := ip6{from: unspecified6, to: solicited(a), hops: 255, protocol: protoICMPv6, body: message(0)}
	with := func(change func(*ip6)) ip6 {
		p := plain
		change(&p)
		return p
	}
	const ignored = "receivers ignore the message"
	for _, hops := range []uint8{1, 64, 254} {
		add(fmt.Sprintf("with hop limit %d", hops), ignored, b.v6(with(func(p *ip6) { p.hops = hops })))
	}
	add("with a code", ignored, b.v6(with(func(p *ip6) { p.body = message(1) })))
	add("with a MAC", ignored, b.v6(with(func(p *ip6) { p.body = message(0, linkLayer(1, b.MAC)) })))
	add("with an option of length 0", ignored, b.v6(with(func(p *ip6) { p.body = message(0, []byte{14, 0, 1, 2, 3, 4, 5, 6}) })))
	add("with an option longer than the message", ignored, b.v6(with(func(p *ip6) { p.body = message(0, []byte{14, 2, 1, 2, 3, 4, 5, 6}) })))
	add("with a part of an option", ignored, b.v6(with(func(p *ip6) { p.body = message(0, []byte{14, 1, 1, 2}) })))
	add("after destination options", "secure neighbour discovery forbids it, and a filter at a fixed offset reads another target", b.v6(with(func(p *ip6) { p.before = []extension{options} })))
	add("in fragments", ignored+" (RFC 6980)", b.fragments6(plain, 8, 1000)...)
	add("in an atomic fragment", ignored+" (RFC 6980)", b.v6(with(func(p *ip6) { p.before = []extension{atomic} })))
	const elsewhere = "the owner does not get the message"
	add("to all nodes", ignored, b.v6(with(func(p *ip6) { p.to = nodes })))
	add("to the gateway", elsewhere, b.v6(with(func(p *ip6) { p.to = b.Gateway6 })))
	add("to the address", elsewhere, b.v6(with(func(p *ip6) { p.to = a })))
	add("to the gateway's MAC", elsewhere, withDestination(b.Gateway, b.v6(plain)))
	add("to no station's MAC", elsewhere, withDestination(otherMAC, b.v6(plain)))
	add("to the guest's own MAC", elsewhere, withDestination(b.MAC, b.v6(plain)))
	return b.kinds
}
