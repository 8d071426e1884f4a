package frames

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Outer returns what a hostile gateway sends to a guest with a responder: DHCP messages, router advertisements and
// redirects, also hidden ones.
func Outer(l Link) []Kind {
	b := newBuilder(l.FromGateway())
	b.addOuterDHCP4()
	b.addOuterRouters4()
	b.drop(firewall.NetworkFrame, 4, "ARP reply that gives the guest's own MAC for its address", "a guest that probes the address takes it for a duplicate; bridges that answer ARP for their ports send it (ebtables arpreply)",
		b.arp(func(a *arp) {
			a.operation, a.sender, a.senderIP, a.target, a.targetIP, a.destination = 2, l.MAC, l.IPv4, l.MAC, unspecified4, l.MAC
		}))
	for _, target := range []netip.Addr{l.IPv6, eui64.LinkLocal(l.MAC)} {
		b.drop(firewall.NetworkFrame, 6, fmt.Sprintf("the guest's own detection of %v, come back", target), "a guest without a nonce (RFC 7527) takes it for a duplicate; ports with hairpin mode send it",
			withSource(l.MAC, b.solicitation(unspecified6, solicited(target), target)))
	}
	b.addOuter6(eui64.LinkLocal(l.MAC))
	return b.kinds
}

// OuterLegitimate returns what a gateway or a neighbour may send to a guest with a responder.
func OuterLegitimate(l Link) []Kind {
	b := newBuilder(l.FromGateway())
	b.addStation()
	const members = "to learn who wants a group's datagrams"
	alert := []byte{0x94, 4, 0, 0}
	b.add(4, "IGMPv2 query", members, b.v4(ip4{to: netip.MustParseAddr("224.0.0.1"), options: alert, protocol: protoIGMP, body: []byte{0x11, 100, 0, 0, 0, 0, 0, 0}}))
	b.add(4, "IGMPv3 query", members, b.v4(ip4{to: netip.MustParseAddr("224.0.0.1"), options: alert, protocol: protoIGMP, body: []byte{0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0}}))
	for _, q := range []struct {
		name string
		to   netip.Addr
		rest []byte
	}{
		{"MLDv1 query", nodes, unspecified6.AsSlice()},
		{"MLDv2 query", nodes, append(unspecified6.AsSlice(), 2, 125, 0, 0)},
		{"MLDv2 query of a group", solicited(l.IPv6), append(solicited(l.IPv6).AsSlice(), 2, 125, 0, 0)},
	} {
		b.add(6, q.name, members, b.v6(ip6{from: b.local6, to: q.to, hops: 1, before: []extension{routerAlert}, protocol: protoICMPv6, body: icmp(130, 0, []byte{0, 100, 0, 0}, q.rest)}))
	}
	const find = "to find the guest"
	for _, target := range []netip.Addr{l.IPv6, eui64.LinkLocal(l.MAC)} {
		b.add(6, fmt.Sprintf("neighbour solicitation of the guest's %v", target), find, b.solicitation(b.local6, solicited(target), target, linkLayer(1, b.MAC)))
	}
	b.add(6, "neighbour advertisement of a router", "to be found", b.advertisement(b.local6, l.IPv6, b.local6, 0xe0, linkLayer(2, b.MAC)))
	b.add(4, "ARP request for the guest", find, b.arp(func(a *arp) { a.targetIP = l.IPv4 }))
	b.add(4, "ARP reply of another station that has the guest's address", "to report the duplicate", b.arp(func(a *arp) {
		a.operation, a.senderIP, a.target, a.targetIP, a.destination = 2, l.IPv4, l.MAC, unspecified4, l.MAC
	}))
	b.add(6, "IPv6 UDP after long destination options", "RFC 8200 allows them", b.v6(ip6{before: []extension{longOptions}}))
	b.add(6, "IPv6 TCP fragments", "a segment larger than a path's MTU", b.fragments6(ip6{protocol: protoTCP, body: tcp(5002, 80, ack, b.data(2000))}, 1000, 1000)...)
	b.add(6, "IPv6 UDP fragments, the last one first", "a path changes the order", reversed(b.fragments6(ip6{body: udp(5013, 5001, b.data(3000))}, 1400, 1400))...)
	b.add(4, "IPv4 UDP fragments, the last one first", "a path changes the order", reversed(b.fragments4(ip4{body: udp(5013, 5001, b.data(3000))}, 1416, 1416))...)
	b.add(4, "IPv4 UDP fragments of 8 octets", "the shortest that a path can make", b.fragments4(ip4{body: udp(5014, 5001, b.data(0))}, 8, 8)...)
	return b.kinds
}

const outerWhy = "the guest's responder is its only DHCP server and router"

// unreadable is the reason if a filter cannot read the port or the type.
const unreadable = firewall.NetworkFrame

// outer adds a hostile kind whose last frames pass.
func (b *builder) outer(reason firewall.Reason, version, pass int, name, why string, frames ...[]byte) {
	k := b.add(version, name, why, frames...)
	k.Reason, k.Pass = reason, pass
}

func (b *builder) addOuterDHCP4() {
	const why = outerWhy
	offer := func() []byte {
		return append(append(append([]byte{2, 1, 6, 0}, make([]byte, 232)...), 99, 130, 83, 99, 53, 1, 2, 255), b.marker()...)
	}
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer to all", why, b.v4(ip4{to: all4, body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer to the guest", why, b.v4(ip4{body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer from another port", why, b.v4(ip4{to: all4, body: udp(6700, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer after options", why, b.v4(ip4{to: all4, options: make([]byte, 40), body: udp(67, 68, offer())}))
	b.drop(firewall.NetworkDHCP, 4, "DHCPv4 offer with a priority tag", why+": a host removes a tag of VLAN 0", tagged(b.v4(ip4{to: all4, body: udp(67, 68, offer())}), []byte{0x81, 0, 0, 0}))
	for _, size := range []int{8, 16, 80, 200} {
		pieces := b.fragments4(ip4{to: all4, body: udp(67, 68, offer())}, size, size)
		b.outer(firewall.NetworkDHCP, 4, len(pieces)-1, fmt.Sprintf("DHCPv4 offer in fragments of %d octets", size), why, pieces...)
	}
	pieces := b.fragments4(ip4{to: all4, options: make([]byte, 40), body: udp(67, 68, offer())}, 8, 80)
	b.outer(firewall.NetworkDHCP, 4, len(pieces)-1, "DHCPv4 offer in fragments after options", why, pieces...)
	pieces = b.fragments4(ip4{to: all4, body: udp(67, 68, offer())}, 8, 2000)
	decoy := b.v4(ip4{to: all4, sealed: true, flags: 0x2000, body: udp(5000, 5001, nil)})
	b.outer(firewall.NetworkDHCP, 4, 2, "DHCPv4 offer in fragments with two first ones", why+": which of them a host takes is the host's choice", pieces[0], decoy, pieces[1])
	for _, octets := range []int{0, 2, 3} {
		for _, more := range []uint16{0, 0x2000} {
			cut := b.v4(ip4{to: all4, sealed: true, flags: more, body: udp(67, 68, nil)[:octets]})
			name := fmt.Sprintf("IPv4 UDP cut after %d octets", octets)
			if more != 0 {
				name = fmt.Sprintf("IPv4 UDP first fragment cut after %d octets", octets)
			}
			b.drop(unreadable, 4, name, "a filter cannot see for which port it is", cut)
		}
	}
}

// addOuterRouters4 adds router advertisements of RFC 1256, and redirects.
func (b *builder) addOuterRouters4() {
	const why = outerWhy
	hosts := netip.MustParseAddr("224.0.0.1")
	inner := b.v4(ip4{from: b.Far4, to: foreign4, body: udp(5000, 5001, b.data(0))})[14:]
	for _, m := range []struct {
		name string
		to   netip.Addr
		body []byte
	}{
		{"ICMP router advertisement to all", hosts, icmp(9, 0, []byte{1, 2, 7, 8}, b.own4.AsSlice(), make([]byte, 4))},
		{"ICMP router advertisement by broadcast", all4, icmp(9, 0, []byte{1, 2, 7, 8}, b.own4.AsSlice(), make([]byte, 4))},
		{"ICMP router advertisement to the guest", b.Far4, icmp(9, 0, []byte{1, 2, 7, 8}, b.own4.AsSlice(), make([]byte, 4))},
		{"ICMP router advertisement of mobile IP", b.Far4, icmp(9, 16, []byte{1, 2, 7, 8}, b.own4.AsSlice(), make([]byte, 4))},
		{"ICMP redirect of a network", b.Far4, icmp(5, 0, foreign4.AsSlice(), inner)},
		{"ICMP redirect of a host", b.Far4, icmp(5, 1, foreign4.AsSlice(), inner)},
		{"ICMP redirect of a network and a service", b.Far4, icmp(5, 2, foreign4.AsSlice(), inner)},
		{"ICMP redirect of a host and a service", b.Far4, icmp(5, 3, foreign4.AsSlice(), inner)},
	} {
		p := ip4{to: m.to, protocol: protoICMP, body: m.body}
		whole := b.v4(p)
		b.drop(firewall.NetworkRouter, 4, m.name, why, whole)
		b.drop(firewall.NetworkRouter, 4, m.name+" with a priority tag", why+": a host removes a tag of VLAN 0", tagged(whole, []byte{0x81, 0, 0, 0}))
		pieces := b.fragments4(p, 8, 8)
		b.outer(firewall.NetworkRouter, 4, len(pieces)-1, m.name+" in fragments", why, pieces...)
		decoy := b.v4(ip4{to: m.to, protocol: protoICMP, sealed: true, flags: 0x2000, body: icmp(8, 0, []byte{0, 1, 0, 1})})
		b.outer(firewall.NetworkRouter, 4, len(pieces), m.name+" in fragments with two first ones", why, append([][]byte{pieces[0], decoy}, pieces[1:]...)...)
		for _, octets := range [][]byte{{1, 1, 1, 0}, make([]byte, 40)} {
			p.options = octets
			b.drop(firewall.NetworkRouter, 4, fmt.Sprintf("%s after %d octets of options", m.name, len(octets)), why, b.v4(p))
			pieces := b.fragments4(p, 8, 64)
			b.outer(firewall.NetworkRouter, 4, len(pieces)-1, fmt.Sprintf("%s in fragments after %d octets of options", m.name, len(octets)), why, pieces...)
		}
	}
}

// longOptions are destination options of 64 octets (PadN), longer than a first fragment may be.
var longOptions = extension{destination, append([]byte{0, 7, 1, 60}, make([]byte, 60)...)}

// addOuter6 adds messages of DHCPv6 servers and of routers, to the guest's link-local address or to all nodes.
func (b *builder) addOuter6(guest netip.Addr) {
	const why = outerWhy
	for _, m := range []struct {
		reason firewall.Reason
		name   string
		packet ip6
	}{
		{firewall.NetworkRouter, "router advertisement", ip6{to: nodes, hops: 255, protocol: protoICMPv6, body: advertisement(b.MAC)}},
		{firewall.NetworkRouter, "router advertisement to the guest", ip6{to: guest, hops: 255, protocol: protoICMPv6, body: advertisement(b.MAC)}},
		{firewall.NetworkRouter, "ICMPv6 redirect", ip6{to: guest, hops: 255, protocol: protoICMPv6, body: icmp(137, 0, make([]byte, 4), b.local6.AsSlice(), foreign6.AsSlice(), linkLayer(2, b.MAC))}},
		{firewall.NetworkDHCP, "DHCPv6 reply", ip6{to: guest, body: udp(547, 546, append([]byte{7, 1, 2, 3}, make([]byte, 60)...))}},
		{firewall.NetworkDHCP, "DHCPv6 reply from another port", ip6{to: guest, body: udp(5470, 546, append([]byte{7, 1, 2, 3}, make([]byte, 60)...))}},
	} {
		m.packet.from = b.local6
		whole := b.v6(m.packet)
		b.drop(m.reason, 6, m.name, why, whole)
		for _, e := range extensions {
			m.packet.before = e.headers
			b.drop(m.reason, 6, m.name+" after "+e.name, why, b.v6(m.packet))
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
		m.packet.before = nil
		b.addHidden6(m.reason, m.name, m.packet)
	}
}

// addHidden6 adds fragments whose first one has the headers, but not the port or the type. A host takes the next header
// from the first fragment (RFC 8200 section 4.5), so the other fragments can lie about it, and pass as something else.
func (b *builder) addHidden6(reason firewall.Reason, name string, p ip6) {
	const why = outerWhy + " (RFC 7112)"
	lies := []struct {
		name   string
		number uint8
	}{{"TCP", protoTCP}, {"UDP", protoUDP}, {"ICMPv6", protoICMPv6}, {"ESP", protoESP}, {"no next header", noNext}}
	lying := func(pieces [][]byte, number uint8) [][]byte {
		pieces = slices.Clone(pieces)
		for i, f := range pieces[1:] {
			pieces[i+1] = withOctets(f, 14+40, number)
		}
		return pieces
	}
	// cut adds fragments, with each lie, and after each header that may stand before a fragment header.
	cut := func(reason firewall.Reason, name string, pieces [][]byte) {
		for _, l := range lies {
			b.outer(reason, 6, len(pieces)-1, name+", the next one lies: "+l.name, why, lying(pieces, l.number)...)
		}
		for _, e := range []struct {
			name   string
			header extension
		}{{"hop-by-hop options", hop}, {"a routing header", route}, {"destination options", options}, {"an atomic fragment header", atomic}} {
			frames := lying(pieces, protoTCP)
			for i := range frames {
				frames[i] = behind6(e.header, frames[i])
			}
			b.outer(reason, 6, len(pieces)-1, name+" after "+e.name, why, frames...)
		}
		decoy := slices.Clone(b.fragments6(ip6{from: p.from, to: p.to, body: udp(5000, 5001, b.data(100))}, 40, 1000)[0])
		b.outer(reason, 6, len(pieces), name+" with two first ones", why, append([][]byte{pieces[0], decoy}, lying(pieces, protoTCP)[1:]...)...)
	}
	p.before = []extension{longOptions}
	cut(unreadable, name+" after options cut in two", b.fragments6(p, 24, 1000))
	cut(unreadable, name+" after options cut in many", b.fragments6(p, 8, 24))
	cut(unreadable, name+" after whole options, its header in the second fragment", b.fragments6(p, 64, 1000))
	cut(reason, name+" after whole options, cut after its first 8 octets", b.fragments6(p, 72, 1000))
	p.before = []extension{hop, longOptions}
	cut(unreadable, name+" after two headers, the second cut", b.fragments6(p, 32, 1000))
	p.before = []extension{route, options, longOptions}
	cut(unreadable, name+" after three headers, the last cut", b.fragments6(p, 40, 1000))
	p.before = []extension{{routing, append([]byte{0, 7, 253}, make([]byte, 61)...)}}
	cut(unreadable, name+" after a routing header cut in two", b.fragments6(p, 24, 1000))
	p.before = []extension{atomic, longOptions}
	cut(unreadable, name+" in nested fragments after options cut in two", b.fragments6(p, 32, 1000))
	p.before = []extension{options}
	cut(reason, name+" cut after its first 8 octets", b.fragments6(p, 16, 1000))
	p.before = nil
	whole := b.fragments6(p, 8, 16)
	cut(reason, name+" in fragments", whole)

	long := extension{destination, slices.Clone(longOptions.octets)}
	long.octets[1] = 200
	p.before = []extension{long}
	b.drop(unreadable, 6, name+" after options longer than the packet", why, b.v6(p))
	p.before = nil
	if p.protocol == protoICMPv6 {
		empty := p
		empty.body, empty.sealed = []byte{}, true
		b.drop(unreadable, 6, name+" of no octets", why, b.v6(empty))
		return
	}
	for _, octets := range []int{0, 2, 3} {
		short := p
		short.body, short.sealed = p.body[:octets], true
		b.drop(unreadable, 6, fmt.Sprintf("%s cut after %d octets", name, octets), why, b.v6(short))
		short.before = []extension{longOptions}
		b.drop(unreadable, 6, fmt.Sprintf("%s in a first fragment cut after %d octets", name, octets), why, b.fragments6(ip6{
			from: p.from, to: p.to, before: short.before, body: p.body}, 64+octets, 1000)[0])
	}
}

// FromGateway returns the link with guest and gateway exchanged, for frames from the gateway to the guest.
func (l Link) FromGateway() Link {
	return Link{MAC: l.Gateway, IPv4: l.Gateway4, IPv6: l.Gateway6, Gateway: l.MAC, Gateway4: l.IPv4, Gateway6: l.IPv6, Far4: l.IPv4, Far6: l.IPv6}
}
