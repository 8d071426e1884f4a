// Package guestfilter makes the tables around a guest from a description of it: what the guest may send, what may reach
// the guest, and what the namespace itself may not send in the guest's place. It is pure.
package guestfilter

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Types of ICMP and IGMP (www.iana.org/assignments/icmp-parameters, igmp-type-numbers, icmpv6-parameters).
const (
	icmpEchoReply     = 0
	icmpRedirect      = 5
	icmpAdvertisement = 9
	icmpTimeExceeded  = 11 // and 12, a parameter problem, and 13, a timestamp request
	icmpTimestampBack = 14
	icmpExtendedEcho  = 42 // RFC 8335
	icmpExtendedBack  = 43

	igmpReport1 = 0x12
	igmpReport2 = 0x16
	igmpLeave   = 0x17
	igmpReport3 = 0x22

	icmp6Query               = 130
	icmp6Report              = 131
	icmp6Done                = 132
	icmp6RouterSolicitation  = 133
	icmp6RouterAdvertisement = 134
	icmp6Redirect            = 137
	icmp6Report2             = 143
)

// Guest is what the rules around a guest depend on.
//
// With Bridged the guest's tap and the NIC are ports of a bridge, and with Routed the namespace is the guest's next
// hop. If neither is set, rules forward each frame from the NIC to the tap, and back.
type Guest struct {
	Names   netstate.Names
	NIC     int // the NIC's index
	Bridged bool
	Routed  bool

	MAC       cache.MAC
	Addresses []netip.Addr // the guest's; none: they are not known
	Served    bool         // by guestwire's responder, so the guest asks no other server
	Guard     infra.Guard
	Limits    cache.Limits
	// MTU is that of the guest's link, to which longer packets are not sent; 0: the NIC's.
	MTU int
	// Longest is the number of octets after the Ethernet header that a frame of the guest may have; 0: the next link
	// checks.
	Longest int

	// Gateways are the next hops of the NIC's IPv6 routes.
	Gateways []netip.Addr
	// Announced are addresses for which the guest answers ARP at the NIC, and Hop is the namespace's own address there.
	// Other ARP is for the namespace.
	Announced []netip.Addr
	Hop       netip.Addr
	// Renewed: a DHCPv6 client of the namespace renews the NIC's address. Launcher is the user that must not.
	Renewed  bool
	Launcher uint32
}

// Tables returns the tables around the guest: the guest filter, unless the guard is off; what forwards frames, and
// keeps the namespace's own packets from the NIC; the guest's limits. At most one table a family.
func Tables(described Guest) []firewall.Table {
	g := newGuest(described)
	t := &tables{name: g.Names.Table}
	switch {
	case g.Routed:
		g.addFilter(t)
		if len(g.Announced) > 0 {
			g.addAnnounced(t.table(firewall.NetDev))
		}
	case g.Bridged:
		g.addBridged(t)
		g.addFilter(t)
		if g.Served {
			at := t.table(firewall.NetDev)
			at.Chains = append(at.Chains, g.toLeaseOwner())
		}
	default:
		g.addFilter(t)
		g.addForwarding(t)
		t.add(g.muteNamespace(g.Names.NIC, g.renewal6()...))
	}
	g.addBounds(t)
	return t.list
}

// tables are the tables of a guest.
type tables struct {
	name string
	list []firewall.Table
}

func (t *tables) add(table firewall.Table) { t.list = append(t.list, table) }

// table returns that of the family, which is added if it is not there.
func (t *tables) table(family firewall.Family) *firewall.Table {
	at := slices.IndexFunc(t.list, func(o firewall.Table) bool { return o.Family == family })
	if at < 0 {
		at = len(t.list)
		t.add(firewall.Table{Family: family, Name: t.name})
	}
	return &t.list[at]
}

// guest is a Guest, and what follows from it.
type guest struct {
	Guest
	macs       []cache.MAC
	prefixes   []netip.Prefix
	primary    []netip.Addr     // the first address of each family, which most packets have as their source
	anyAddress bool             // the guest's addresses are not known
	pass       firewall.Verdict // of a frame that the filter lets pass
	local      linkLocal
}

func newGuest(d Guest) guest {
	g := guest{Guest: d, macs: append([]cache.MAC{d.MAC}, d.Guard.MACs...), anyAddress: len(d.Addresses) == 0, pass: firewall.Accept{}}
	forwards := !d.Bridged && !d.Routed
	if forwards {
		g.pass = firewall.Fwd{Device: d.Names.NIC}
	}
	for _, v := range []int{4, 6} {
		at := slices.IndexFunc(d.Addresses, func(a netip.Addr) bool { return firewall.Version(a) == v && !a.IsLinkLocalUnicast() })
		if at >= 0 {
			g.primary = append(g.primary, d.Addresses[at])
		}
	}
	for _, a := range d.Addresses {
		g.prefixes = append(g.prefixes, firewall.HostPrefix(a))
	}
	for _, m := range g.macs {
		g.prefixes = append(g.prefixes, firewall.HostPrefix(eui64.LinkLocal(m)))
	}
	g.prefixes = append(g.prefixes, d.Guard.Prefixes...)
	slices.SortFunc(g.prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	g.prefixes = slices.Compact(g.prefixes)
	g.local = g.linkLocal()
	g.local.seesNetwork = forwards && g.local.learns
	return g
}

// addFilter adds the guest filter, unless the guard is off.
func (g guest) addFilter(t *tables) {
	if !g.Guard.Off {
		t.add(g.filter())
	}
}

// addAnnounced adds what the guest sends and receives of the NIC's ARP.
func (g guest) addAnnounced(at *firewall.Table) {
	at.Chains = append(at.Chains, g.asked())
	if g.Guard.Off {
		at.Chains = append(at.Chains, firewall.Chain{Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Tap, Priority: firewall.Filter,
			Rules: g.answers(etherType(netstate.EthernetARP))})
	}
}

func (g guest) prefixesOf(v int) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range g.prefixes {
		if firewall.Version(p.Addr()) == v {
			list = append(list, p)
		}
	}
	return list
}

// filter is the table at the ingress of the guest's tap. The chains are short on the way of TCP and UDP from the
// guest's first address, and compare bytes there, because a field's name would make the kernel check the protocol once
// more. Chains are entered by goto, and each ends with a rule that lets all packets pass, or a drop with a reason; only
// the chains options and link-layer are entered by jump, and return. Rules that only choose the reason are at the end,
// where no packet comes that passes. Packets for the responder do not get here, as tc takes them before.
func (g guest) filter() firewall.Table {
	t := firewall.Table{Family: firewall.NetDev, Name: g.Names.Table, Sets: append(g.local.sets(), g.askers()...)}
	add := func(name string, rules ...firewall.Rule) {
		t.Chains = append(t.Chains, firewall.Chain{Name: name, Rules: rules})
	}
	frames := append(g.frequent(4), g.frequent(6)...)
	// The destinations that bridges do not forward (802.1D table 7-10) begin so.
	frames = append(frames, rule(drop(firewall.BridgeControl), firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0x01, 0x80, 0xc2, 0x00}}))
	for _, m := range g.macs {
		for _, to := range []struct {
			kind  uint16
			chain string
		}{{netstate.EthernetIPv4, "from-ip"}, {netstate.EthernetIPv6, "from-ip6"}, {netstate.EthernetARP, "from-arp"}} {
			frames = append(frames, rule(firewall.Goto{Chain: to.chain}, from(m, to.kind)))
		}
	}
	for _, m := range g.macs {
		frames = append(frames, rule(firewall.Goto{Chain: "other-type"}, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:]}))
	}
	frames = append(frames, rule(drop(firewall.MACSpoof)))
	t.Chains = append(t.Chains, firewall.Chain{
		Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Tap, Priority: firewall.Filter, Drops: true, Rules: frames,
	})
	untagged := map[uint16]firewall.Verdict{
		netstate.EthernetIPv4: firewall.Goto{Chain: "from-ip"},
		netstate.EthernetIPv6: firewall.Goto{Chain: "from-ip6"},
		netstate.EthernetARP:  firewall.Goto{Chain: "from-arp"},
	}
	add("other-type", slices.Concat(
		g.passVLANs(g.pass, firewall.VLANTag),
		g.passPriority(g.pass, func(kind uint16) []firewall.Rule { return []firewall.Rule{rule(untagged[kind])} }),
		g.passTypes(g.pass),
		[]firewall.Rule{
			rule(firewall.Goto{Chain: "from-rarp"}, etherType(netstate.EthernetRARP)),
			rule(drop(firewall.VLANTag), etherType(tag8021Q)),
			rule(drop(firewall.VLANTag), etherType(tag8021ad)),
			rule(drop(firewall.EtherTypeOther)),
		})...)
	g.filterARP(add)
	g.filterRARP(add)
	g.filter4(add)
	g.filter6(add)
	return t
}

// drop is a drop for a reason.
func drop(why firewall.Reason) firewall.Drop { return firewall.Drop{Reason: why} }

func rule(v firewall.Verdict, m ...firewall.Match) firewall.Rule {
	return firewall.Rule{Matches: m, Verdict: v}
}

type chainAdder func(name string, rules ...firewall.Rule)

// filterARP lets ARP pass if the sender's MAC and address are the guest's.
func (g guest) filterARP(add chainAdder) {
	var senders, addresses []firewall.Rule
	for _, m := range g.macs {
		senders = append(senders, rule(firewall.Goto{Chain: "arp-address"}, firewall.Bytes{Header: firewall.Network, Offset: 8, Value: m[:]}))
	}
	sender := arpSender
	// A probe (RFC 5227 section 2.1.1) is a request whose sender has no address yet. A station that is about to use
	// the address in the probe gives it up, so the guest may probe for its own addresses only.
	probe := func(more ...firewall.Match) firewall.Rule {
		return rule(g.pass, append([]firewall.Match{arpOperation(1), sender(firewall.HostPrefix(netip.IPv4Unspecified()))}, more...)...)
	}
	addresses = append(addresses, g.answers()...)
	for _, p := range g.prefixesOf(4) {
		addresses = append(addresses, g.limitSenders(g.pass, p, firewall.ARPSender, sender(p))...)
	}
	for _, p := range g.prefixesOf(4) {
		addresses = append(addresses, probe(arpTarget(p)))
	}
	if g.anyAddress {
		addresses = append(addresses, probe(), rule(drop(firewall.ARPSpoof), sender(netip.MustParsePrefix("127.0.0.0/8"))), rule(g.pass))
	} else {
		addresses = append(addresses, rule(drop(firewall.ARPSpoof)))
	}
	// Hardware type Ethernet, protocol type IPv4, the lengths of their addresses, request or reply.
	add("from-arp", append(g.tooLong(),
		rule(firewall.Goto{Chain: "arp-sender"},
			firewall.Bytes{Header: firewall.Network, Value: []byte{0, 1, 8, 0, 6, 4, 0, 1}, Last: []byte{0, 1, 8, 0, 6, 4, 0, 2}}),
		rule(drop(firewall.Malformed)))...)
	add("arp-sender", append(senders, rule(drop(firewall.ARPSpoof)))...)
	add("arp-address", addresses...)
}

// answers sends ARP to the NIC's network in which the guest says that it has an address, or asks whether another
// station has it: replies, announcements and probes (RFC 5227).
func (g guest) answers(m ...firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range g.Announced {
		own := firewall.HostPrefix(a)
		for _, also := range [][]firewall.Match{
			{arpOperation(2), arpSender(own)},
			{arpOperation(1), arpSender(own), arpTarget(own)},
			{arpOperation(1), arpSender(firewall.HostPrefix(netip.IPv4Unspecified())), arpTarget(own)},
		} {
			rules = append(rules, rule(firewall.Fwd{Device: g.Names.NIC}, append(slices.Clone(m), also...)...))
		}
	}
	return rules
}

// asked forwards to the guest the ARP requests that ask for the guest. The kernel would answer for the namespace's
// address, which other namespaces on the link have, too.
func (g guest) asked() firewall.Chain {
	c := firewall.Chain{Name: "asked", Type: "filter", Hook: firewall.Ingress, Device: g.Names.NIC, Priority: firewall.Filter}
	arp := etherType(netstate.EthernetARP)
	c.Rules = append(c.Rules, rule(drop(firewall.NotForwarded), arp, arpOperation(1), arpTarget(firewall.HostPrefix(g.Hop))))
	for _, a := range g.Announced {
		c.Rules = append(c.Rules, rule(firewall.Fwd{Device: g.Names.Tap}, arp, arpOperation(1), arpTarget(firewall.HostPrefix(a))))
	}
	return c
}

// Fields of ARP: the operation, 1 for a request and 2 for a reply, and the IPv4 addresses of sender and target.
func arpOperation(n byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, n}}
}

func arpSender(p netip.Prefix) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 14, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
}

func arpTarget(p netip.Prefix) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 24, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
}

// filterRARP lets a RARP request pass in which the guest asks for the address of its own MAC (RFC 903): a hypervisor
// sends such a request for the guest after a move, so that switches learn the guest's new place. Sender and target are
// the same MAC, and neither has an IP address.
func (g guest) filterRARP(add chainAdder) {
	request := firewall.Bytes{Header: firewall.Network, Value: []byte{0, 1, 8, 0, 6, 4, 0, 3}}
	rules := g.tooLong()
	for _, m := range g.macs {
		own := append(slices.Clone(m[:]), 0, 0, 0, 0) // the MAC, and no address
		rules = append(rules, rule(g.pass, request,
			firewall.Bytes{Header: firewall.Network, Offset: 8, Value: own}, firewall.Bytes{Header: firewall.Network, Offset: 18, Value: own}))
	}
	add("from-rarp", append(rules,
		rule(drop(firewall.ARPSpoof), request),
		rule(drop(firewall.Malformed)))...)
}

// A neighbour table has 1024 entries for all namespaces of the machine. If Guard.Prefixes allows more source addresses
// on the link than MostSources, the guest may use MostSources of them, each for NeighbourLife after its last new
// connection.
const (
	MostSources   = 256
	NeighbourLife = 60_000 // milliseconds
)

// HasMany reports whether the prefix has more than MostSources addresses.
func HasMany(p netip.Prefix) bool { return 1<<min(16, p.Addr().BitLen()-p.Bits()) > MostSources }

// limitSenders passes a question whose sender, the part of the packet, is in the prefix. For a prefix with many
// addresses it passes at most MostSources senders, as the namespace notes each.
func (g guest) limitSenders(pass firewall.Verdict, p netip.Prefix, part firewall.Part, sender ...firewall.Match) []firewall.Rule {
	if !g.Routed || !HasMany(p) {
		return []firewall.Rule{rule(pass, sender...)}
	}
	note := firewall.AddToSet{Part: part, Set: setOfAskers(firewall.Version(p.Addr())), Renew: true}
	return []firewall.Rule{
		rule(pass, append(slices.Clone(sender), note)...),
		rule(drop(firewall.NeighbourLimit), sender...),
	}
}

func setOfAskers(v int) string { return fmt.Sprintf("askers-%d", v) }

// askers are the sets of limitSenders.
func (g guest) askers() []firewall.Set {
	var sets []firewall.Set
	for _, part := range []firewall.Part{firewall.ARPSender, firewall.RawSource6} {
		if v := part.Version(); g.Routed && slices.ContainsFunc(g.prefixesOf(v), HasMany) {
			sets = append(sets, firewall.Set{Name: setOfAskers(v), Of: part, Size: MostSources, Milliseconds: NeighbourLife})
		}
	}
	return sets
}

// wellFormed matches every packet whose transport header the kernel has found.
var wellFormed = firewall.Protocol{Number: 255, Inverted: true}

func ofProtocol(protocol uint8) firewall.Match { return firewall.Protocol{Number: protocol} }

// tooLong drops a frame that is longer than the NIC's MTU. TCP and UDP do not come here: they can be longer until the
// kernel cuts them (GSO), and no match distinguishes such a frame from one that the kernel does not cut.
func (g guest) tooLong() []firewall.Rule {
	if g.Longest == 0 {
		return nil
	}
	return []firewall.Rule{rule(drop(firewall.TooLong), firewall.Longer{Octets: uint32(g.Longest)})}
}

// Ports of DHCP servers.
const (
	server4 = 67
	server6 = 547

	// Ports near one of DHCP's have the same bits in the mask.
	nearDHCP4 = 0xfff8
	nearDHCP6 = 0xfffc
)

// farFrom matches a port that differs from the other in the bits of the mask. It never matches a port that cannot
// be read.
func farFrom(offset int, port, mask uint16) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Offset: offset,
		Value: binary.BigEndian.AppendUint16(nil, port&mask), Mask: binary.BigEndian.AppendUint16(nil, mask), Inverted: true}
}

// frequent lets pass most TCP and UDP packets of the IP version, each by one rule. These are unicast packets from the
// guest's first MAC and first address, without extension headers and fragments, to addresses that no later rule drops.
// The ports of UDP are not near DHCP's. A port can only be read in a packet whose headers the kernel has found.
//
// The matches are those that the kernel evaluates without a call of a function, before the others: one, two or four
// octets of the network or transport header, with a mask of four (nft_do_chain in net/netfilter/nf_tables_core.c).
func (g guest) frequent(v int) []firewall.Rule {
	at := slices.IndexFunc(g.primary, func(a netip.Addr) bool { return firewall.Version(a) == v })
	if at < 0 {
		return nil
	}
	kind, protocol, source, destination := uint16(netstate.EthernetIPv4), 9, 12, loopback4Octets
	dhcp, mask := uint16(server4), uint16(nearDHCP4)
	if v == 6 {
		kind, protocol, source, destination = netstate.EthernetIPv6, 6, 8, loopback6Octets
		dhcp, mask = server6, nearDHCP6
	}
	destination.Inverted = true
	frame := []firewall.Match{
		firewall.Multicast{Inverted: true}, // and so no address of bridges
		from(g.macs[0], kind),
	}
	own := firewall.Bytes{Header: firewall.Network, Offset: source, Value: g.primary[at].AsSlice()}
	if v == 4 {
		frame = append([]firewall.Match{own}, frame...)
	} else {
		frame = append(frame, own) // longer than four octets
	}
	passes := func(number byte, ports ...firewall.Match) firewall.Rule {
		carries := firewall.Bytes{Header: firewall.Network, Offset: protocol, Value: []byte{number}}
		return rule(g.pass, slices.Concat([]firewall.Match{carries, destination}, ports, frame)...)
	}
	// far matches ports if one differs from a port of DHCP's in the bits of mask.
	far := func(shift int) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Inverted: true,
			Value: binary.BigEndian.AppendUint32(nil, uint32(dhcp&mask)<<shift), Mask: binary.BigEndian.AppendUint32(nil, uint32(mask)<<shift)}
	}
	return []firewall.Rule{
		passes(firewall.ProtocolTCP, firewall.Bytes{Header: firewall.Transport, Value: []byte{0, 0}, Inverted: true}),
		passes(firewall.ProtocolUDP, far(16), far(0)), // the source port, and the destination port after it
	}
}

// from matches the source MAC of a frame and its EtherType, which lie side by side. With a VLAN tag the EtherType is
// the tag's.
func from(m cache.MAC, kind uint16) firewall.Match {
	return firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: binary.BigEndian.AppendUint16(m[:], kind)}
}

// Destinations in the IP header that the filter drops: 127.0.0.0/8; and ::1, ::ffff:0:0/96 and others that no station
// has.
var (
	loopback4Octets = firewall.Bytes{Header: firewall.Network, Offset: 16, Value: []byte{127}}
	loopback6Octets = firewall.Bytes{Header: firewall.Network, Offset: 24, Value: make([]byte, 4)}
)

// udp drops what a DHCP server sends, and with a responder also what is for a server, but for what is relayed. After
// these rules are the packets whose ports cannot be read, except later fragments.
func (g guest) udp(server, client uint16, relayed [][]firewall.Match, later firewall.Match, next firewall.Goto) []firewall.Rule {
	var rules []firewall.Rule
	for _, m := range relayed {
		rules = append(rules, rule(next, append([]firewall.Match{firewall.DestinationPort{First: server, Last: server}}, m...)...))
	}
	rules = append(rules,
		rule(drop(firewall.DHCPServer), firewall.SourcePort{First: server, Last: server}),
		rule(drop(firewall.DHCPServer), firewall.DestinationPort{First: client, Last: client}))
	if g.Served {
		rules = append(rules, rule(drop(firewall.DHCPRequest), firewall.DestinationPort{First: server, Last: server}))
	}
	return append(rules,
		rule(next, firewall.DestinationPort{Inverted: true}),
		rule(next, later))
}

// relayed4 are DHCPv4 messages to one server from a relay in the guest, for stations that the guest serves itself: a
// request (op 1) whose giaddr, to which the server answers, is the guest's. A message of a client has none (RFC 2131
// section 2), and a server's is a reply (op 2).
func (g guest) relayed4() (list [][]firewall.Match) {
	const op, giaddr = 8, 8 + 24 // from the UDP header
	for _, p := range g.prefixesOf(4) {
		list = append(list, []firewall.Match{
			firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0}, Mask: []byte{1}},                                // to one station
			firewall.Bytes{Header: firewall.Network, Offset: 16, Value: []byte{224}, Mask: []byte{224}, Inverted: true}, // nor by IP a group or broadcast
			firewall.Bytes{Header: firewall.Transport, Offset: op, Value: []byte{1}},
			firewall.Bytes{Header: firewall.Transport, Offset: giaddr, Value: make([]byte, 4), Inverted: true}, // a prefix may be 0.0.0.0/0
			firewall.Bytes{Header: firewall.Transport, Offset: giaddr, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)},
		})
	}
	return list
}

// relayed6 are DHCPv6 messages to one server from a relay in the guest (RELAY-FORW). The server answers to the source,
// which is the guest's, by RELAY-REPL.
func relayed6() [][]firewall.Match {
	const relayForward = 12
	return [][]firewall.Match{{
		firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0}, Mask: []byte{1}}, // to one station
		firewall.Bytes{Header: firewall.Network, Offset: 24, Value: []byte{0xff}, Inverted: true},
		firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: []byte{relayForward}},
	}}
}

// laterFragment4 is an IPv4 fragment that is not the first.
var laterFragment4 = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x1f, 0xff}, Inverted: true}

// messageType matches the first octet of the transport header, which is the type in ICMP, ICMPv6 and IGMP. It is for
// chains into which the protocol leads. With last, the type lies in a range.
func messageType(first byte, last ...byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Value: []byte{first}, Last: last}
}

// messageTypes matches the types that agree with kind in the bits of mask.
func messageTypes(kind, mask byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Value: []byte{kind}, Mask: []byte{mask}}
}

// typeReadable matches an ICMP, ICMPv6 or IGMP message whose type can be read, except the type 255, which is reserved.
var typeReadable = firewall.Bytes{Header: firewall.Transport, Value: []byte{255}, Inverted: true}

func (g guest) filter4(add chainAdder) {
	next := firewall.Goto{Chain: "ip-source"}
	rules := []firewall.Rule{
		rule(drop(firewall.LoopbackAddress), loopback4Octets),
		rule(next, ofProtocol(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp"}, ofProtocol(firewall.ProtocolUDP)),
	}
	rules = append(rules, g.tooLong()...)
	add("from-ip", append(rules,
		rule(firewall.Goto{Chain: "from-icmp"}, ofProtocol(firewall.ProtocolICMP)),
		rule(firewall.Goto{Chain: "from-igmp"}, ofProtocol(firewall.ProtocolIGMP)),
		rule(next, wellFormed),
		rule(drop(firewall.Malformed)))...)
	add("from-udp", append(g.udp(server4, firewall.DHCPClient4, g.relayed4(), laterFragment4, next), rule(drop(firewall.Malformed)))...)
	// Other types are obsolete (RFC 6633, RFC 6918), or for routers. An address mask reply, for example, changes the
	// network of a host that believes it.
	add("from-icmp",
		rule(next, messageTypes(icmpEchoReply, 0xff^firewall.ICMPEcho)), // and the request
		rule(next, messageType(firewall.ICMPUnreachable)),
		rule(next, messageType(icmpTimeExceeded, icmpTimestampBack)),
		rule(next, messageType(icmpExtendedEcho, icmpExtendedBack)),
		rule(next, laterFragment4),
		rule(drop(firewall.ICMPRedirect), messageType(icmpRedirect)),
		rule(drop(firewall.RouterAdvertisement), messageType(icmpAdvertisement)),
		rule(drop(firewall.ICMPType), typeReadable),
		rule(drop(firewall.Malformed)))
	add("from-igmp",
		rule(next, messageType(igmpReport1)),
		rule(next, messageType(igmpReport2, igmpLeave)),
		rule(next, messageType(igmpReport3)),
		rule(drop(firewall.MulticastRouter)))
	v4 := firewall.Carries{Version: 4}
	rules = nil
	for _, p := range g.prefixesOf(4) {
		rules = append(rules, rule(g.pass, firewall.Bytes{Header: firewall.Network, Offset: 12, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	if !g.Served { // a DHCP client without a lease
		rules = append(rules, rule(g.pass, v4, firewall.Source{Prefix: firewall.HostPrefix(netip.IPv4Unspecified())}, ofProtocol(firewall.ProtocolUDP),
			firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: firewall.DHCPClient4, Last: firewall.DHCPClient4},
			firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: server4, Last: server4}))
	}
	if g.anyAddress {
		rules = append(rules, g.anySourceBut(v4, "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")...)
	}
	add("ip-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}

// anySourceBut lets all sources pass except the listed prefixes, which no station has.
func (g guest) anySourceBut(v firewall.Match, but ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range but {
		rules = append(rules, rule(drop(firewall.IPSpoof), v, firewall.Source{Prefix: netip.MustParsePrefix(p)}))
	}
	return append(rules, rule(g.pass, v))
}

// unreadable6 is for IPv6 whose headers cannot be read.
var unreadable6 = firewall.Goto{Chain: "unreadable6"}

func (g guest) filter6(add chainAdder) {
	next := firewall.Goto{Chain: "ip6-source"}
	rules := []firewall.Rule{
		rule(drop(firewall.LoopbackAddress), loopback6Octets),
		rule(next, ofProtocol(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp6"}, ofProtocol(firewall.ProtocolUDP)),
	}
	rules = append(rules, g.tooLong()...)
	rules = append(rules, rule(firewall.Goto{Chain: "from-icmp6"}, ofProtocol(firewall.ProtocolICMPv6)))
	// The transport header is an extension header: the packet is a fragment whose header chain goes on in the
	// next fragment, which hides the real transport header from a filter.
	for _, n := range []uint8{0, 43, 44, 60} {
		rules = append(rules, rule(drop(firewall.HiddenFragment), ofProtocol(n)))
	}
	add("from-ip6", append(rules,
		rule(next, wellFormed),
		rule(unreadable6))...)
	add("from-udp6", append(g.udp(server6, firewall.DHCPClient6, relayed6(), firewall.Fragment{}, next), rule(unreadable6))...)
	add("unreadable6",
		rule(drop(firewall.HiddenFragment), firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{44}}),
		rule(drop(firewall.Malformed)))
	g.filterICMP6(add)

	rules = nil
	for _, p := range g.prefixesOf(6) {
		rules = append(rules, rule(g.pass, firewall.Bytes{Header: firewall.Network, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	rules = append(rules, g.local.source(g.pass)...)
	if g.anyAddress {
		rules = append(rules, g.anySourceBut(firewall.Carries{Version: 6}, "::/96", "::ffff:0:0/96", "ff00::/8")...)
	}
	add("ip6-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}

// filterICMP6 lets pass what a host sends (RFC 4861, 2710, 3810). Neighbour discovery passes without extension
// headers. A link-layer address in an option is the guest's; a receiver ignores options that it does not know, so the
// filter does as well.
func (g guest) filterICMP6(add chainAdder) {
	source, listener := firewall.Goto{Chain: "ip6-source"}, firewall.Goto{Chain: "listener"}
	direct := firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{firewall.ProtocolICMPv6}}
	rules := []firewall.Rule{
		rule(source, messageType(1, 4)),                      // errors
		rule(source, messageTypes(firewall.ICMP6Echo, 0xde)), // also the reply 129, and 160 and 161 of RFC 8335
		rule(listener, messageType(icmp6Report, icmp6Done)),
		rule(listener, messageType(icmp6Report2)),
		rule(firewall.Goto{Chain: "solicitation"}, direct, messageType(firewall.ICMP6Solicitation)),
		rule(firewall.Goto{Chain: "advertisement"}, direct, messageType(firewall.ICMP6Advertisement)),
	}
	if !g.Served {
		rules = append(rules, rule(firewall.Goto{Chain: "router"}, direct, messageType(icmp6RouterSolicitation)))
	}
	solicitation := firewall.ExtensionHeader
	if g.Served {
		solicitation = firewall.RouterSolicitation
	}
	add("from-icmp6", append(rules,
		rule(source, firewall.Fragment{}),
		rule(drop(firewall.RouterAdvertisement), messageType(icmp6RouterAdvertisement)),
		rule(drop(firewall.ICMPRedirect), messageType(icmp6Redirect)),
		rule(drop(firewall.MulticastRouter), messageType(icmp6Query)),
		rule(drop(solicitation), messageType(icmp6RouterSolicitation)),
		rule(drop(firewall.ExtensionHeader), messageType(firewall.ICMP6Solicitation, firewall.ICMP6Advertisement)),
		rule(drop(firewall.ICMPType), typeReadable),
		rule(unreadable6))...)
	add("listener", rule(g.pass, fromUnspecified), rule(source))

	const options = 24 // where the options of solicitations and advertisements begin
	checked := firewall.Jump{Chain: "options"}
	add("options", append(firstOption(options),
		rule(drop(firewall.NeighbourSpoof), length6(0, options-1, false)), // cut in its target
		rule(firewall.Jump{Chain: "link-layer"}))...)
	add("link-layer", g.foreignMACs(options)...)

	// about continues with a message about an address of the guest's, and drops the others after the rules of more.
	spoof := rule(drop(firewall.NeighbourSpoof))
	about := func(v firewall.Verdict, more []firewall.Rule) []firewall.Rule {
		if g.anyAddress {
			return []firewall.Rule{rule(v)}
		}
		var list []firewall.Rule
		for _, p := range g.prefixesOf(6) {
			list = append(list, rule(v, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
		}
		return append(append(list, more...), spoof)
	}
	asks := []firewall.Rule{
		rule(checked),
		rule(firewall.Goto{Chain: "detection"}, fromUnspecified),
	}
	for _, p := range g.prefixesOf(6) {
		if g.Routed && HasMany(p) {
			asks = append(asks, g.limitSenders(source, p, firewall.RawSource6,
				firewall.Bytes{Header: firewall.Network, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)})...)
		}
	}
	add("solicitation", append(asks, rule(source))...)
	// A solicitation from nowhere has no link-layer address (RFC 4861 section 7.1.1).
	add("detection", append([]firewall.Rule{rule(spoof.Verdict, optionType(options, 1))}, about(g.pass, g.local.detected())...)...)
	if g.local.learns {
		add("new-local", append(g.local.learn(g.pass), spoof)...)
	}
	if g.local.seesNetwork {
		add("note-used", used()...)
	}
	add("advertisement", append([]firewall.Rule{rule(checked)}, about(source, g.local.advertised(source))...)...)
	if !g.Served {
		router := append(firstOption(8), g.foreignMAC(8)...)
		router = append(router, g.foreignMAC(16)...)
		add("router", append(router,
			rule(firewall.Jump{Chain: "link-layer"}),
			rule(g.pass, fromUnspecified),
			rule(source))...)
	}
}

// fromUnspecified matches the source ::, in a packet that is known as IPv6.
var fromUnspecified = firewall.Bytes{Header: firewall.Network, Offset: 8, Value: make([]byte, 16)}

// longestDiscovery is the IPv6 payload of the longest message of neighbour discovery that passes, in octets: after the
// target there are six options of 8 octets at most. A host sends two, its link-layer address and a nonce (RFC 7527).
// Signatures (RFC 3971) are longer than what rules could look through.
const longestDiscovery = 79

func optionType(offset int, first byte, last ...byte) firewall.Match {
	return firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: []byte{first}, Last: last}
}

// firstOption drops a message whose first option has no length, or is a link-layer address of a wrong length.
func firstOption(offset int) []firewall.Rule {
	length := func(not bool, n byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Offset: offset + 1, Value: []byte{n}, Inverted: not}
	}
	return []firewall.Rule{
		rule(drop(firewall.NeighbourSpoof), length(false, 0)),
		rule(drop(firewall.NeighbourSpoof), optionType(offset, 1, 2), length(true, 1)),
	}
}

// length6 matches the length of what follows the IPv6 header.
func length6(first, last uint16, not bool) firewall.Match {
	return firewall.Bytes{Header: firewall.Network, Offset: 4, Inverted: not,
		Value: binary.BigEndian.AppendUint16(nil, first), Last: binary.BigEndian.AppendUint16(nil, last)}
}

// foreignMACs drops a message of neighbour discovery with a link-layer address that is not the guest's, in any option
// from an offset on. Options have 8 octets or a multiple (RFC 4861 section 4.6), so a link-layer address can only be at
// such offsets. What lies inside of another option is not distinguished: of 32768 values one looks like an address. A
// message that is too long to be looked at whole is dropped.
func (g guest) foreignMACs(from int) []firewall.Rule {
	rules := []firewall.Rule{rule(drop(firewall.NeighbourSpoof), length6(0, longestDiscovery, true))}
	for offset := from; offset+8 <= longestDiscovery; offset += 8 {
		rules = append(rules, g.foreignMAC(offset)...)
	}
	return rules
}

// foreignMAC drops a message with a link-layer address that is not the guest's in the option at the offset: type 1 or
// 2, length 1. By the mask, the types 0 and 3 are dropped as well: 0 does not exist, and 3 is longer.
func (g guest) foreignMAC(offset int) []firewall.Rule {
	m := []firewall.Match{firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: []byte{0, 1}, Mask: []byte{0xfc, 0xff}}}
	for _, own := range g.macs {
		m = append(m, firewall.Bytes{Header: firewall.Transport, Offset: offset + 2, Value: own[:], Inverted: true})
	}
	return []firewall.Rule{rule(drop(firewall.NeighbourSpoof), m...)}
}

// dropInput drops what the namespace itself would receive from the bridge's ports. The namespace still has the guest's
// address. So it would answer ARP for it, and take it for a duplicate of its own. It would also take routes from a
// router advertisement of the guest. These drops have no reason: what arrives here is the namespace's copy of a
// broadcast or a multicast, and the frame itself has gone on to the other port.
func dropInput(links ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, l := range links {
		rules = append(rules, rule(firewall.Drop{}, firewall.InInterface{Name: l}))
	}
	return rules
}
