package frames

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
)

func (b *builder) addForeignSources6() {
	const spoof = "the answers, or the blame, go to another station"
	for _, s := range []struct{ name, address string }{
		{"a foreign source", foreign6.String()},
		{"another's source", b.own6.Next().Next().String()},
		{"the gateway's source", b.Gateway6.String()},
		{"a foreign link-local source", foreign6l.String()},
		{"the gateway's link-local source", eui64.LinkLocal(b.Gateway).String()},
		{"source ::1", "::1"},
		{"source ::", "::"},
		{"source ::ffff:127.0.0.1", "::ffff:127.0.0.1"},
		{"source ::ffff:203.0.113.66", "::ffff:203.0.113.66"},
		{"source ::203.0.113.66", "::203.0.113.66"},
		{"a group's source", "ff02::1"},
		{"a site-local source", "fec0::66"},
		{"a source of 6to4", "2002:cb00:7142::1"},
		{"a source of NAT64", "64:ff9b::203.0.113.66"},
	} {
		b.drop(firewall.IPSpoof, 6, "IPv6 from "+s.name, spoof, b.v6(ip6{from: netip.MustParseAddr(s.address)}))
	}
	sources := func(name string, p ip6) {
		p.from = foreign6
		b.drop(firewall.IPSpoof, 6, name+" from a foreign source", spoof, b.v6(p))
	}
	sources("IPv6 TCP SYN", ip6{protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})
	sources("IPv6 echo request", ip6{protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(0))})
	sources("IPv6 packet too big", ip6{protocol: protoICMPv6, body: icmp(2, 0, []byte{0, 0, 5, 0}, b.v6(ip6{})[14:])})
	sources("IPv6 SCTP", ip6{protocol: protoSCTP, body: sctpInit(b.data(20))})
	sources("IPv6 ESP", ip6{protocol: protoESP, body: b.data(64)})
	sources("IPv6 in IPv6", ip6{protocol: 41, body: b.v6(ip6{})[14:]})
	sources("IPv6 without a next header", ip6{protocol: noNext, body: b.data(16)})
	b.drop(firewall.Malformed, 6, "IPv6 protocol 255 from a foreign source", spoof, b.v6(ip6{from: foreign6, protocol: 255, body: b.data(64)}))
	sources("IPv6 multicast", ip6{to: netip.MustParseAddr("ff02::fb")})
	for _, e := range extensions {
		sources("IPv6 UDP after "+e.name, ip6{before: e.headers})
		sources("IPv6 TCP after "+e.name, ip6{before: e.headers, protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))})
	}
	sources("IPv6 after an authentication header", ip6{before: []extension{authentic}})
	pieces := b.fragments6(ip6{from: foreign6, body: udp(5000, 5001, b.data(2000))}, 1000, 1000)
	b.drop(firewall.IPSpoof, 6, "first IPv6 fragment from a foreign source", spoof, pieces[0])
	b.drop(firewall.IPSpoof, 6, "later IPv6 fragment from a foreign source", "a filter that needs ports lets it pass", pieces[1])
	b.drop(firewall.IPSpoof, 6, "IPv6 fragments from a foreign source", spoof, pieces...)
	b.drop(firewall.IPSpoof, 6, "tiny IPv6 fragments from a foreign source", spoof, b.fragments6(ip6{from: foreign6, protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}, 8, 16)...)

	const loop = "a forwarding namespace delivers it to its own services"
	b.drop(firewall.LoopbackAddress, 6, "IPv6 UDP to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback()}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 TCP to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback(), protocol: protoTCP, body: tcp(5000, 80, syn, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 echo request to ::1", loop, b.v6(ip6{to: netip.IPv6Loopback(), protocol: protoICMPv6, body: icmp(128, 0, []byte{0, 1, 0, 1}, b.data(0))}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 fragments to ::1", loop, b.fragments6(ip6{to: netip.IPv6Loopback(), body: udp(5000, 5001, b.data(2000))}, 1000, 1000)...)
	b.drop(firewall.LoopbackAddress, 6, "IPv6 to ::ffff:127.0.0.1", loop, b.v6(ip6{to: netip.MustParseAddr("::ffff:127.0.0.1")}))
	b.drop(firewall.LoopbackAddress, 6, "IPv6 to ::ffff:198.51.100.9", "an IPv4 address that an IPv6 filter does not look for", b.v6(ip6{to: netip.MustParseAddr("::ffff:198.51.100.9")}))

	const ill = "a filter that misreads the header finds other addresses"
	good := b.v6(ip6{})
	for _, version := range []byte{0, 4, 5, 7, 15} {
		b.drop(firewall.Malformed, 6, fmt.Sprintf("IPv6 of version %d", version), ill, withOctets(good, 14, version<<4))
	}
	b.drop(firewall.Malformed, 6, "IPv6 longer than the frame", ill, withOctets(good, 18, 0x20, 0))
	b.drop(firewall.Malformed, 6, "IPv6 cut before its source", ill, good[:14+8])
	b.drop(firewall.Malformed, 6, "IPv6 cut in its header", ill, good[:14+39])
	b.drop(firewall.Malformed, 6, "IPv6 with a chain that does not end", "a filter that gives up lets it pass", b.raw6(ip6{}, destination, []byte{destination, 200, 1, 4, 0, 0, 0, 0}))
	b.drop(firewall.Malformed, 6, "IPv6 with a chain of nothing", "a filter that gives up lets it pass", b.raw6(ip6{}, hopByHop, nil))
}

// extensions are header chains that hide a message from a simple filter.
var extensions = []struct {
	name    string
	headers []extension
}{
	{"hop-by-hop options", []extension{hop}},
	{"destination options", []extension{options}},
	{"a routing header", []extension{route}},
	{"an atomic fragment header", []extension{atomic}},
	{"two fragment headers", []extension{atomic, atomic}},
	{"all of them", []extension{hop, options, route, atomic, options}},
	{"many destination options", slices.Repeat([]extension{options}, 40)},
}

// advertisement returns a router advertisement with a prefix.
func advertisement(mac cache.MAC) []byte {
	return icmp(134, 0, []byte{64, 0xc0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, linkLayer(1, mac),
		[]byte{3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
}

// addRouters6 adds messages that only routers may send, plain and after extension headers.
func (b *builder) addRouters6() {
	const hidden = ", hidden from a filter that reads only the first headers"
	for _, m := range []struct {
		reason    firewall.Reason
		name, why string
		to        netip.Addr
		message   []byte
	}{
		{firewall.RouterAdvertisement, "router advertisement", "every host takes the guest for its router (CVE-2020-10749)", nodes, advertisement(b.MAC)},
		{firewall.ICMPRedirect, "redirect", "a host takes the guest for its next hop", b.Gateway6, icmp(137, 0, make([]byte, 4), b.local6.AsSlice(), b.Far6.AsSlice())},
		{firewall.MulticastRouter, "MLD query", "switches take the guest for the multicast router", nodes, icmp(130, 0, []byte{0, 100, 0, 0}, unspecified6.AsSlice(), []byte{2, 125, 0, 0})},
	} {
		p := ip6{from: b.local6, to: m.to, hops: 255, protocol: protoICMPv6, body: m.message}
		if m.name == "MLD query" {
			p.hops = 1
		}
		b.drop(m.reason, 6, m.name, m.why, b.v6(p))
		with := func(change func(*ip6)) ip6 {
			changed := p
			change(&changed)
			return changed
		}
		for _, e := range extensions {
			b.drop(m.reason, 6, m.name+" after "+e.name, m.why+hidden, b.v6(with(func(p *ip6) { p.before = e.headers })))
		}
		b.drop(m.reason, 6, m.name+" after a router alert", m.why+hidden, b.v6(with(func(p *ip6) { p.before = []extension{routerAlert} })))
		b.drop(m.reason, 6, m.name+" in fragments", m.why+hidden, b.fragments6(p, 8, 1000)[0])
		cut := b.fragments6(with(func(p *ip6) { p.before = []extension{options, options} }), 8, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" in the second fragment", m.why+" (RFC 7113 section 2.1: the first fragment has only the beginning of the header chain)", cut...)
		cut = b.fragments6(with(func(p *ip6) { p.before = []extension{{destination, append([]byte{0, 2, 1, 20}, make([]byte, 20)...)}} }), 16, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" after options cut in two", m.why+" (RFC 7112)", cut...)
		cut = b.fragments6(with(func(p *ip6) { p.before = []extension{atomic} }), 8, 1000)
		b.drop(firewall.HiddenFragment, 6, m.name+" in nested fragments", m.why+hidden, cut...)
		b.drop(m.reason, 6, m.name+" from its global address", m.why, b.v6(with(func(p *ip6) { p.from = b.own6 })))
		b.drop(m.reason, 6, m.name+" from ::", m.why, b.v6(with(func(p *ip6) { p.from = unspecified6 })))
		b.drop(m.reason, 6, m.name+" as the gateway", m.why, b.v6(with(func(p *ip6) { p.from = eui64.LinkLocal(b.Gateway) })))
	}
	known := map[uint8]bool{ // by this filter, with a reason of its own or as legitimate
		130: true, 131: true, 132: true, 133: true, 134: true, 135: true, 136: true, 137: true, 143: true,
		1: true, 2: true, 3: true, 4: true, 128: true, 129: true, 160: true, 161: true,
		255: true,
	}
	for _, m := range []struct {
		kind      uint8
		name, why string
	}{
		{138, "router renumbering", "routers change their prefixes (RFC 2894)"},
		{139, "node information query", "hosts report their names and addresses (RFC 4620)"},
		{140, "node information response", "it claims any name"},
		{141, "inverse neighbour solicitation", "it asks for the addresses of a MAC (RFC 3122)"},
		{142, "inverse neighbour advertisement", "it claims addresses that the filter does not check"},
		{144, "home agent discovery request", "only routers receive it (RFC 6275)"},
		{145, "home agent discovery reply", "the guest is a router"},
		{146, "mobile prefix solicitation", "only routers receive it"},
		{147, "mobile prefix advertisement", "the guest is a router"},
		{148, "certification path solicitation", "only routers receive it (RFC 3971)"},
		{149, "certification path advertisement", "the guest is a router"},
		{151, "multicast router advertisement", "switches send it all groups (RFC 4286)"},
		{152, "multicast router solicitation", "switches report their routers"},
		{153, "multicast router termination", "switches forget the multicast router"},
		{155, "RPL control", "it takes part in a mesh's routing (RFC 6550)"},
		{157, "duplicate address request", "only routers receive it (RFC 6775)"},
		{158, "duplicate address confirmation", "the guest is a router"},
		{154, "fast handover", "only routers receive it (RFC 5568)"},
	} {
		known[m.kind] = true
		b.drop(firewall.ICMPType, 6, m.name, m.why, b.neighbour(b.local6, nodes, icmp(m.kind, 0, make([]byte, 4), make([]byte, 32))))
		b.drop(firewall.ICMPType, 6, m.name+" in fragments", m.why, b.fragments6(ip6{from: b.local6, to: nodes, hops: 255, protocol: protoICMPv6, body: icmp(m.kind, 0, make([]byte, 4), make([]byte, 32))}, 8, 64)[0])
	}
	var others [][]byte
	for kind := range 256 {
		if !known[uint8(kind)] {
			others = append(others, b.neighbour(b.local6, nodes, icmp(uint8(kind), 0, make([]byte, 4), make([]byte, 32))))
		}
	}
	b.drop(firewall.Malformed, 6, "ICMPv6 type 255", "the number is reserved", b.neighbour(b.local6, nodes, icmp(255, 0, make([]byte, 4), make([]byte, 32))))
	b.drop(firewall.ICMPType, 6, "ICMPv6 of all other types", "no host sends them", others...)
	b.drop(firewall.Malformed, 6, "ICMPv6 without a type", "a filter cannot see what it is", b.v6(ip6{protocol: protoICMPv6, sealed: true, body: []byte{}}))
}

// addDiscovery6 adds neighbour discovery for addresses or MACs of other stations.
func (b *builder) addDiscovery6() {
	const poison = "neighbours then send another station's packets to the guest"
	const away = "its own address moves to another station"
	add := func(reason firewall.Reason, name, why string, frame []byte) { b.drop(reason, 6, name, why, frame) }
	mine, its := linkLayer(2, b.MAC), linkLayer(2, otherMAC)
	neighbour := b.own6.Next().Next()
	fromNone := firewall.IPSpoof
	if !b.IPv6.IsValid() {
		fromNone = firewall.NeighbourSpoof // the target is not the guest's either
	}
	add(firewall.NeighbourSpoof, "neighbour advertisement of another's address", poison, b.advertisement(b.local6, nodes, neighbour, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of the gateway's address", poison, b.advertisement(b.local6, nodes, b.Gateway6, 0xa0, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of the gateway's link-local address", poison, b.advertisement(b.local6, nodes, eui64.LinkLocal(b.Gateway), 0xa0, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of a foreign address", poison, b.advertisement(b.own6, nodes, foreign6, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of a foreign link-local address", poison, b.advertisement(b.own6, nodes, foreign6l, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement of another's address without an option", poison, b.advertisement(b.local6, b.Gateway6, neighbour, 0x60))
	add(firewall.NeighbourSpoof, "neighbour advertisement as the gateway", poison, b.advertisement(b.Gateway6, nodes, b.Gateway6, 0xa0, mine))
	add(fromNone, "neighbour advertisement from ::", poison, b.advertisement(unspecified6, nodes, b.own6, 0x20, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement with another's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with the gateway's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, linkLayer(2, b.Gateway)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with two MACs, its own first", away, b.advertisement(b.own6, nodes, b.own6, 0x20, mine, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with two MACs, another's first", away, b.advertisement(b.own6, nodes, b.own6, 0x20, its, mine))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a nonce before another's MAC", away, b.advertisement(b.own6, nodes, b.own6, 0x20, []byte{14, 1, 1, 2, 3, 4, 5, 6}, its))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a long option", away, b.advertisement(b.own6, nodes, b.own6, 0x20, append([]byte{2, 2}, append(otherMAC[:], make([]byte, 8)...)...)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with a source option", away, b.advertisement(b.own6, nodes, b.own6, 0x20, linkLayer(1, otherMAC)))
	add(firewall.NeighbourSpoof, "neighbour advertisement with an option of length 0", "a careless parser loops for ever", b.advertisement(b.own6, nodes, b.own6, 0x20, []byte{2, 0, 0, 0, 0, 0, 0, 0}))
	add(firewall.NeighbourSpoof, "neighbour advertisement cut in its target", "a filter cannot see whose address it is", b.neighbour(b.own6, nodes, icmp(136, 0, []byte{0x20, 0, 0, 0}, b.own6.AsSlice()[:8])))
	for _, e := range extensions {
		add(firewall.ExtensionHeader, "neighbour advertisement of another's address after "+e.name, poison,
			b.neighbour(b.local6, nodes, icmp(136, 0, []byte{0x20, 0, 0, 0}, neighbour.AsSlice(), mine), e.headers...))
	}
	b.drop(firewall.ExtensionHeader, 6, "neighbour advertisement in fragments", "RFC 6980 forbids it, and the option is in the second fragment",
		b.fragments6(ip6{from: b.own6, to: nodes, hops: 255, protocol: protoICMPv6, body: icmp(136, 0, []byte{0x20, 0, 0, 0}, b.own6.AsSlice(), its)}, 24, 1000)[0])

	its, mine = linkLayer(1, otherMAC), linkLayer(1, b.MAC)
	group := solicited(b.Gateway6)
	add(firewall.NeighbourSpoof, "neighbour solicitation with another's MAC", away, b.solicitation(b.own6, group, b.Gateway6, its))
	add(firewall.NeighbourSpoof, "neighbour solicitation with the gateway's MAC", away, b.solicitation(b.own6, group, b.Gateway6, linkLayer(1, b.Gateway)))
	add(firewall.NeighbourSpoof, "neighbour solicitation with two MACs", away, b.solicitation(b.own6, group, b.Gateway6, mine, its))
	add(firewall.NeighbourSpoof, "neighbour solicitation with a nonce and another's MAC", away, b.solicitation(b.own6, group, b.Gateway6, []byte{14, 1, 1, 2, 3, 4, 5, 6}, its))
	add(firewall.IPSpoof, "neighbour solicitation from another's address", poison, b.solicitation(neighbour, group, b.Gateway6, mine))
	add(firewall.IPSpoof, "neighbour solicitation from the gateway's address", poison, b.solicitation(b.Gateway6, group, neighbour, mine))
	add(firewall.IPSpoof, "neighbour solicitation from a foreign link-local address", poison, b.solicitation(foreign6l, group, b.Gateway6, mine))
	add(firewall.ExtensionHeader, "neighbour solicitation after destination options", "a filter at a fixed offset does not find its option",
		b.neighbour(b.own6, group, icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice(), its), options))
	b.drop(firewall.ExtensionHeader, 6, "neighbour solicitation in fragments", "RFC 6980 forbids it, and the option is in the second fragment",
		b.fragments6(ip6{from: b.own6, to: group, hops: 255, protocol: protoICMPv6, body: icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice(), its)}, 24, 1000)[0])
	const deny = "its owner gives the address up"
	add(firewall.NeighbourSpoof, "duplicate address detection of another's address", deny, b.solicitation(unspecified6, solicited(neighbour), neighbour))
	add(firewall.NeighbourSpoof, "duplicate address detection of the gateway's address", deny, b.solicitation(unspecified6, group, b.Gateway6))
	add(firewall.NeighbourSpoof, "duplicate address detection of a foreign link-local address", deny, b.solicitation(unspecified6, solicited(foreign6l), foreign6l))
	add(firewall.NeighbourSpoof, "duplicate address detection of another's address with a nonce", deny, b.solicitation(unspecified6, solicited(neighbour), neighbour, []byte{14, 1, 1, 2, 3, 4, 5, 6}))
	add(firewall.NeighbourSpoof, "duplicate address detection with a MAC", "RFC 4861 section 4.3 forbids it", b.solicitation(unspecified6, solicited(b.own6), b.own6, mine))
	add(firewall.NeighbourSpoof, "neighbour solicitation cut in its target", "a filter cannot see whose address it is", b.neighbour(b.own6, group, icmp(135, 0, make([]byte, 4), b.Gateway6.AsSlice()[:8])))

	const learn = "the router learns another station for the guest"
	asked := func(unserved firewall.Reason) firewall.Reason {
		if !b.Served {
			return unserved
		}
		return b.taken(b.IPv6, b.asks(b.IPv6, firewall.RouterSolicitation))
	}
	add(asked(firewall.NeighbourSpoof), "router solicitation with another's MAC", learn, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), its)))
	add(asked(firewall.IPSpoof), "router solicitation from a foreign link-local address", learn, b.neighbour(foreign6l, routers, icmp(133, 0, make([]byte, 4), mine)))
	add(asked(firewall.NeighbourSpoof), "router solicitation with two MACs", learn, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), mine, its)))
	if b.Served {
		const around = "a client's message that avoids the responder and reaches other routers"
		for _, e := range extensions[:4] {
			add(b.asks(b.IPv6, firewall.RouterSolicitation), "router solicitation after "+e.name, around, b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), mine), e.headers...))
		}
	}
}

// addDiscoveryOptions6 adds neighbour discovery in which another's MAC stands at any place after the target, and
// messages with more options than a filter can look through.
func (b *builder) addDiscoveryOptions6() {
	const away = "its own address moves to another station"
	for _, m := range b.discovery(b.own6) {
		lie := func(number byte) []byte { return linkLayer(number, otherMAC) }
		var alone, between, long, second [][]byte
		for number := byte(1); number <= 2; number++ {
			for n := range 12 {
				before := slices.Repeat([][]byte{unknown(253, 1)}, n)
				alone = append(alone, m.frame(append(before, lie(number))...))
				if n < 11 {
					between = append(between, m.frame(append(before, lie(number), unknown(254, 1))...))
					second = append(second, m.frame(append(append([][]byte{linkLayer(m.option, b.MAC)}, before...), lie(number))...))
				}
				if n > 1 {
					long = append(long, m.frame(unknown(253, byte(n)), lie(number)))
				}
			}
			long = append(long, m.frame(unknown(33, 2), unknown(253, 3), lie(number)), m.frame(unknown(14, 1), unknown(253, 3), lie(number), unknown(38, 2)))
		}
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC at each place", away, alone...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC between options", away, between...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC after long options", away, long...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with another's MAC after its own, at each place", away, second...)
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with the gateway's MAC after an unknown option", away, m.frame(unknown(253, 1), linkLayer(m.option, b.Gateway)))
		near := b.MAC
		near[5] ^= 1
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with a neighbouring MAC after an unknown option", away, m.frame(unknown(253, 1), linkLayer(m.option, near)))

		const far = "another's MAC may stand where the filter does not look"
		var frames [][]byte
		for _, units := range []byte{7, 8, 13, 28, 120} {
			units -= byte(m.fixed/8) - 3 // so many that the payload has 80 octets at least
			frames = append(frames, m.frame(unknown(253, units)), m.frame(unknown(253, units-1), lie(m.option)), m.frame(slices.Repeat([][]byte{unknown(254, 1)}, int(units))...))
		}
		b.drop(firewall.NeighbourSpoof, 6, m.name+" with 80 octets and more", far, frames...)
	}
}

// message is a neighbour discovery message to which options can be added.
type message struct {
	name   string
	option byte // 1 or 2: the kind of link-layer address that the message has
	fixed  int  // octets in front of the options
	frame  func(options ...[]byte) []byte
	// bare: the message must not have a link-layer address.
	bare bool
}

// discovery returns the neighbour discovery messages that a guest sends for its address.
func (b *builder) discovery(own netip.Addr) []message {
	list := []message{
		{name: "neighbour solicitation", option: 1, fixed: 24, frame: func(options ...[]byte) []byte {
			return b.solicitation(own, solicited(b.Gateway6), b.Gateway6, options...)
		}},
		{name: "neighbour advertisement", option: 2, fixed: 24, frame: func(options ...[]byte) []byte {
			return b.advertisement(own, nodes, own, 0x20, options...)
		}},
		{name: "duplicate address detection", option: 1, fixed: 24, bare: true, frame: func(options ...[]byte) []byte {
			return b.solicitation(unspecified6, solicited(own), own, options...)
		}},
	}
	if !b.Served {
		list = append(list, message{name: "router solicitation", option: 1, fixed: 8, frame: func(options ...[]byte) []byte {
			return b.neighbour(b.local6, routers, icmp(133, 0, make([]byte, 4), slices.Concat(options...)))
		}})
	}
	return list
}

// unknown returns a neighbour discovery option of so many units of 8 octets, which a receiver skips.
func unknown(number, units byte) []byte {
	return append([]byte{number, units}, slices.Repeat([]byte{0xee}, int(units)*8-2)...)
}

func (b *builder) addServers6() {
	const server = "the guest hands out addresses and name servers"
	reply := func() []byte {
		return append([]byte{7, 1, 2, 3, 0, 2, 0, 10, 0, 3, 0, 1}, append(b.MAC[:], b.marker()...)...)
	}
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply", server, b.v6(ip6{from: b.local6, to: b.Gateway6, body: udp(547, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to all nodes", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(547, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply from another port", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(5470, 546, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to another port", server, b.v6(ip6{from: b.local6, to: nodes, body: udp(547, 5460, reply())}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply as the gateway", server, b.v6(ip6{from: eui64.LinkLocal(b.Gateway), to: nodes, body: udp(547, 546, reply())}))
	for _, e := range extensions {
		b.drop(firewall.DHCPServer, 6, "DHCPv6 reply after "+e.name, server, b.v6(ip6{from: b.local6, to: nodes, before: e.headers, body: udp(547, 546, reply())}))
	}
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply in fragments", server, b.fragments6(ip6{from: b.local6, to: nodes, body: udp(547, 546, reply())}, 8, 1000)[0])
	b.drop(firewall.HiddenFragment, 6, "DHCPv6 reply in the second fragment", server+" (RFC 7112)",
		b.fragments6(ip6{from: b.local6, to: nodes, before: []extension{options, options}, body: udp(547, 546, reply())}, 8, 1000)...)
	b.drop(firewall.HiddenFragment, 6, "DHCPv6 reply after options cut in two", server+" (RFC 7112)",
		b.fragments6(ip6{from: b.local6, to: nodes, before: []extension{{destination, append([]byte{0, 2, 1, 20}, make([]byte, 20)...)}}, body: udp(547, 546, reply())}, 16, 1000)...)
	b.drop(firewall.Malformed, 6, "IPv6 UDP datagram without ports", "a filter cannot see whether a server sent it", b.v6(ip6{sealed: true, body: []byte{0}}))
	b.drop(firewall.DHCPServer, 6, "DHCPv6 reply to a relay", "a relay would send it to the clients of its network", b.v6(ip6{body: udp(547, 547, append([]byte{13}, reply()...))}))
	for _, to := range []netip.Addr{nodes, dhcp6SiteServers} {
		b.drop(firewall.DHCPServer, 6, "DHCPv6 message of a relay to "+to.String()+" in a frame to one station", "who listens for clients would answer",
			withDestination(b.Gateway, b.v6(ip6{to: to, body: udp(547, 547, append([]byte{12}, b.data(40)...))})))
	}
	if b.Served {
		const around = "a client's message that avoids the responder and reaches other servers"
		solicit := func() []byte { return append([]byte{1, 0, 0, 1}, b.marker()...) }
		for _, to := range []netip.Addr{b.Far6, dhcp6SiteServers} {
			b.drop(b.asks(b.IPv6, firewall.DHCPRequest), 6, "DHCPv6 solicit to "+to.String(), around, b.v6(ip6{to: to, body: udp(546, 547, solicit())}))
		}
		b.drop(b.asks(b.IPv6, firewall.DHCPRequest), 6, "DHCPv6 message of a relay to the link after options", around,
			b.v6(ip6{from: b.local6, to: dhcp6Servers, before: []extension{options}, body: udp(546, 547, append([]byte{12}, b.data(40)...))}))
		for _, e := range extensions {
			b.drop(b.asks(b.IPv6, firewall.DHCPRequest), 6, "DHCPv6 solicit after "+e.name, around, b.v6(ip6{from: b.local6, to: dhcp6Servers, before: e.headers, body: udp(546, 547, solicit())}))
		}
		b.drop(b.asks(b.IPv6, firewall.DHCPRequest), 6, "DHCPv6 solicit in fragments", around, b.fragments6(ip6{from: b.local6, to: dhcp6Servers, body: udp(546, 547, solicit())}, 8, 1000)[0])
		b.drop(firewall.VLANTag, 6, "DHCPv6 solicit with a tag", around, tagged(b.v6(ip6{from: b.local6, to: dhcp6Servers, body: udp(546, 547, solicit())}), []byte{0x81, 0, 0, 0}))
	}
}
