package wiring

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Types of ICMP and IGMP (www.iana.org/assignments/icmp-parameters, igmp-type-numbers, icmpv6-parameters).
const (
	icmpRedirect      = 5
	icmpEcho          = 8
	icmpAdvertisement = 9

	igmpReport1 = 0x12
	igmpReport2 = 0x16
	igmpLeave   = 0x17
	igmpReport3 = 0x22

	icmp6Echo                = 128
	icmp6EchoReply           = 129
	icmp6Query               = 130
	icmp6Report              = 131
	icmp6Done                = 132
	icmp6RouterSolicitation  = 133
	icmp6RouterAdvertisement = 134
	icmp6Solicitation        = 135
	icmp6Advertisement       = 136
	icmp6Redirect            = 137
	icmp6Report2             = 143
)

// guest is what the filter knows of the guest.
type guest struct {
	macs       []cache.MAC
	prefixes   []netip.Prefix
	anyAddress bool // the guest's addresses are not known
	served     bool // by guestwire's responder, so the guest asks no other server
}

// checkMACs refuses a Guard.MACs entry that is the MAC of a link of the wiring, or the guest's own.
func (p *Plan) checkMACs() error {
	for i, m := range p.spec.Guard.MACs {
		at := slices.IndexFunc(p.wanted.Links, func(l netstate.Link) bool { return l.MAC == m })
		if at >= 0 || m == p.Record.MAC || m == p.Record.ResponderMAC {
			return &cache.FieldError{Field: fmt.Sprintf("guard.macs[%d]", i), Reason: fmt.Sprintf("%v is another link's of the wiring, or the guest's own already", m)}
		}
	}
	return nil
}

func (p *Plan) filteredGuest(addresses []netip.Prefix) guest {
	g := guest{
		macs:       append([]cache.MAC{p.Record.MAC}, p.spec.Guard.MACs...),
		anyAddress: len(addresses) == 0,
		served:     p.Record.ResponderTap != "",
	}
	for _, a := range addresses {
		g.prefixes = append(g.prefixes, single(a.Addr()))
	}
	g.prefixes = append(g.prefixes, single(p.Record.MAC.LinkLocal()))
	g.prefixes = append(g.prefixes, p.spec.Guard.Prefixes...)
	slices.SortFunc(g.prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	g.prefixes = slices.Compact(g.prefixes)
	return g
}

// addFilter adds the guest filter, unless the guard is off.
func (p *Plan) addFilter(g guest) error {
	if p.spec.Guard.Off {
		return nil
	}
	if p.found.NoNFTables {
		return &cache.FieldError{Field: "guard", Reason: "this kernel has no nf_tables, without which no filter keeps the guest from sending with other addresses: " +
			"load them (modprobe nf_tables), or set guard.off if the guest may do that"}
	}
	if err := p.checkMACs(); err != nil {
		return err
	}
	p.wanted.Tables = append(p.wanted.Tables, g.filter(p.names))
	return nil
}

func (g guest) of(v int) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range g.prefixes {
		if version(p.Addr()) == v {
			list = append(list, p)
		}
	}
	return list
}

// filter is the table at the ingress of the guest's tap. The chains are short on the way of TCP and UDP, and
// compare bytes there, because a field's name would make the kernel check the protocol once more. Chains are
// entered by goto, and each ends with an accept of all packets or a drop with a reason. Rules that only choose
// the reason are at the end, where no packet comes that passes. Packets for the responder do not get here, as tc
// takes them before.
func (g guest) filter(n netstate.Names) firewall.Table {
	t := firewall.Table{Family: firewall.NetDev, Name: n.Table}
	add := func(name string, rules ...firewall.Rule) {
		t.Chains = append(t.Chains, firewall.Chain{Name: name, Rules: rules})
	}
	// The destinations that bridges do not forward (802.1D table 7-10) begin so.
	frames := []firewall.Rule{rule(drop(firewall.BridgeControl), firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0x01, 0x80, 0xc2, 0x00}})}
	for _, m := range g.macs {
		for _, to := range []struct {
			kind  uint16
			chain string
		}{{netstate.EthernetIPv4, "from-ip"}, {netstate.EthernetIPv6, "from-ip6"}, {netstate.EthernetARP, "from-arp"}} {
			// The source and the EtherType lie side by side. With a VLAN tag the EtherType is the tag's.
			frames = append(frames, rule(firewall.Goto{Chain: to.chain},
				firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: binary.BigEndian.AppendUint16(m[:], to.kind)}))
		}
	}
	for _, m := range g.macs {
		frames = append(frames, rule(firewall.Goto{Chain: "other-type"}, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:]}))
	}
	frames = append(frames, rule(drop(firewall.MACSpoof)))
	t.Chains = append(t.Chains, firewall.Chain{
		Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: n.Tap, Priority: firewall.Filter, Drops: true, Rules: frames,
	})
	tag := func(kind ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: kind}
	}
	add("other-type",
		rule(drop(firewall.VLANTag), tag(0x81, 0x00)),
		rule(drop(firewall.VLANTag), tag(0x88, 0xa8)),
		rule(drop(firewall.EtherTypeOther)))
	g.filterARP(add)
	g.filter4(add)
	g.filter6(add)
	return t
}

// drop is a drop for a reason.
func drop(why firewall.Reason) firewall.Drop { return firewall.Drop{Reason: why} }

type chainAdder func(name string, rules ...firewall.Rule)

// filterARP lets ARP pass if the sender's MAC and address are the guest's.
func (g guest) filterARP(add chainAdder) {
	operation := func(n byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, n}}
	}
	var senders, addresses []firewall.Rule
	for _, m := range g.macs {
		senders = append(senders, rule(firewall.Goto{Chain: "arp-address"}, firewall.Bytes{Header: firewall.Network, Offset: 8, Value: m[:]}))
	}
	sender := func(p netip.Prefix) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: 14, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}
	}
	for _, p := range g.of(4) {
		addresses = append(addresses, rule(firewall.Accept{}, sender(p)))
	}
	// A probe (RFC 5227 section 2.1.1) is a request whose sender has no address yet.
	addresses = append(addresses, rule(firewall.Accept{}, operation(1), sender(single(netip.IPv4Unspecified()))))
	if g.anyAddress {
		addresses = append(addresses, rule(drop(firewall.ARPSpoof), sender(loopback4)), rule(firewall.Accept{}))
	} else {
		addresses = append(addresses, rule(drop(firewall.ARPSpoof)))
	}
	// Hardware type Ethernet, protocol type IPv4, the lengths of their addresses, request or reply.
	typed := func(operation byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Value: []byte{0, 1, 8, 0, 6, 4, 0, operation}}
	}
	add("from-arp",
		rule(firewall.Goto{Chain: "arp-sender"}, typed(1)),
		rule(firewall.Goto{Chain: "arp-sender"}, typed(2)),
		rule(drop(firewall.Malformed)))
	add("arp-sender", append(senders, rule(drop(firewall.ARPSpoof)))...)
	add("arp-address", addresses...)
}

// wellFormed matches every packet whose transport header the kernel has found.
var wellFormed = firewall.Protocol{Number: 255, Not: true}

func is(protocol uint8) firewall.Match { return firewall.Protocol{Number: protocol} }

// udp drops what a DHCP server sends, and with a responder also what is for a server. Behind these rules are the
// packets whose ports cannot be read, except later fragments.
func (g guest) udp(server, client uint16, later firewall.Match, next firewall.Goto) []firewall.Rule {
	rules := []firewall.Rule{
		rule(drop(firewall.DHCPServer), firewall.SourcePort{First: server, Last: server}),
		rule(drop(firewall.DHCPServer), firewall.DestinationPort{First: client, Last: client}),
	}
	if g.served {
		rules = append(rules, rule(drop(firewall.DHCPRequest), firewall.DestinationPort{First: server, Last: server}))
	}
	return append(rules,
		rule(next, firewall.DestinationPort{Not: true}),
		rule(next, later))
}

func (g guest) filter4(add chainAdder) {
	laterFragment := firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x1f, 0xff}, Not: true}
	next := firewall.Goto{Chain: "ip-source"}
	add("from-ip",
		rule(next, is(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp"}, is(firewall.ProtocolUDP)),
		rule(firewall.Goto{Chain: "from-icmp"}, is(firewall.ProtocolICMP)),
		rule(firewall.Goto{Chain: "from-igmp"}, is(firewall.ProtocolIGMP)),
		rule(next, wellFormed),
		rule(drop(firewall.Malformed)))
	add("from-udp", append(g.udp(67, 68, laterFragment, next), rule(drop(firewall.Malformed)))...)
	v4 := firewall.Carries{Version: 4}
	add("from-icmp",
		rule(drop(firewall.ICMPRedirect), v4, is(firewall.ProtocolICMP), firewall.ICMP{Version: 4, Type: icmpRedirect}),
		rule(drop(firewall.RouterAdvertisement), v4, is(firewall.ProtocolICMP), firewall.ICMP{Version: 4, Type: icmpAdvertisement}),
		rule(next))
	var member []firewall.Rule
	for _, kind := range []byte{igmpReport1, igmpReport2, igmpLeave, igmpReport3} {
		member = append(member, rule(next, firewall.Bytes{Header: firewall.Transport, Value: []byte{kind}}))
	}
	add("from-igmp", append(member, rule(drop(firewall.MulticastRouter)))...)
	rules := []firewall.Rule{rule(drop(firewall.LoopbackAddress), firewall.Bytes{Header: firewall.Network, Offset: 16, Value: []byte{127}})}
	for _, p := range g.of(4) {
		rules = append(rules, rule(firewall.Accept{}, firewall.Bytes{Header: firewall.Network, Offset: 12, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	if !g.served { // a DHCP client without a lease
		rules = append(rules, rule(firewall.Accept{}, v4, firewall.Source{Prefix: single(netip.IPv4Unspecified())}, is(firewall.ProtocolUDP),
			firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: 68, Last: 68},
			firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: 67, Last: 67}))
	}
	if g.anyAddress {
		rules = append(rules, anySourceBut(v4, "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")...)
	}
	add("ip-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}

// anySourceBut accepts all sources except the listed prefixes, which no station has.
func anySourceBut(v firewall.Match, but ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range but {
		rules = append(rules, rule(drop(firewall.IPSpoof), v, firewall.Source{Prefix: netip.MustParsePrefix(p)}))
	}
	return append(rules, rule(firewall.Accept{}, v))
}

// unreadable6 is for IPv6 whose headers cannot be read.
var unreadable6 = firewall.Goto{Chain: "unreadable6"}

func (g guest) filter6(add chainAdder) {
	next := firewall.Goto{Chain: "ip6-source"}
	rules := []firewall.Rule{
		rule(next, is(firewall.ProtocolTCP)),
		rule(firewall.Goto{Chain: "from-udp6"}, is(firewall.ProtocolUDP)),
		rule(firewall.Goto{Chain: "from-icmp6"}, is(firewall.ProtocolICMPv6)),
	}
	// The transport header is an extension header: the packet is a fragment whose header chain goes on in the
	// next fragment, which hides the real transport header from a filter.
	for _, n := range []uint8{0, 43, 44, 60} {
		rules = append(rules, rule(drop(firewall.HiddenFragment), is(n)))
	}
	add("from-ip6", append(rules,
		rule(next, wellFormed),
		rule(unreadable6))...)
	add("from-udp6", append(g.udp(547, 546, firewall.Fragment{}, next), rule(unreadable6))...)
	add("unreadable6",
		rule(drop(firewall.HiddenFragment), firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{44}}),
		rule(drop(firewall.Malformed)))
	g.filterICMP6(add)

	v6 := firewall.Carries{Version: 6}
	rules = []firewall.Rule{
		// ::1, ::ffff:0:0/96 and other sources that no station has.
		rule(drop(firewall.LoopbackAddress), firewall.Bytes{Header: firewall.Network, Offset: 24, Value: make([]byte, 4)}),
	}
	for _, p := range g.of(6) {
		rules = append(rules, rule(firewall.Accept{}, firewall.Bytes{Header: firewall.Network, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	if g.anyAddress {
		rules = append(rules, anySourceBut(v6, "::/96", "::ffff:0:0/96", "ff00::/8")...)
	}
	add("ip6-source", append(rules, rule(drop(firewall.IPSpoof)))...)
}

// filterICMP6 lets pass what a host sends (RFC 4861, 2710, 3810). Neighbour discovery passes without extension
// headers, and with no option but the guest's own link-layer address.
func (g guest) filterICMP6(add chainAdder) {
	v6 := firewall.Carries{Version: 6}
	kind := func(verdict firewall.Verdict, number uint8, more ...firewall.Match) firewall.Rule {
		return rule(verdict, append(more, v6, is(firewall.ProtocolICMPv6), firewall.ICMP{Version: 6, Type: number})...)
	}
	source := firewall.Goto{Chain: "ip6-source"}
	unspecified := firewall.Source{Prefix: single(netip.IPv6Unspecified())}
	direct := firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{firewall.ProtocolICMPv6}}

	var rules []firewall.Rule
	for _, n := range []uint8{1, 2, 3, 4, icmp6Echo, icmp6EchoReply} { // errors, echo
		rules = append(rules, kind(source, n))
	}
	for _, n := range []uint8{icmp6Report, icmp6Done, icmp6Report2} {
		rules = append(rules, kind(firewall.Goto{Chain: "listener"}, n))
	}
	rules = append(rules,
		kind(firewall.Goto{Chain: "solicitation"}, icmp6Solicitation, direct),
		kind(firewall.Goto{Chain: "advertisement"}, icmp6Advertisement, direct))
	if !g.served {
		rules = append(rules, kind(firewall.Goto{Chain: "router"}, icmp6RouterSolicitation, direct))
	}
	solicitation := firewall.ExtensionHeader
	if g.served {
		solicitation = firewall.RouterSolicitation
	}
	add("from-icmp6", append(rules,
		rule(source, firewall.Fragment{}),
		kind(drop(firewall.RouterAdvertisement), icmp6RouterAdvertisement),
		kind(drop(firewall.ICMPRedirect), icmp6Redirect),
		kind(drop(firewall.MulticastRouter), icmp6Query),
		kind(drop(solicitation), icmp6RouterSolicitation),
		kind(drop(firewall.ExtensionHeader), icmp6Solicitation),
		kind(drop(firewall.ExtensionHeader), icmp6Advertisement),
		rule(drop(firewall.ICMPType), firewall.Bytes{Header: firewall.Transport, Value: []byte{255}, Not: true}), // any that can be read
		rule(unreadable6))...)
	add("listener", rule(firewall.Accept{}, v6, unspecified), rule(source))

	// The lengths are those in the IPv6 header, of what follows it.
	length := func(n uint16) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: 4, Value: binary.BigEndian.AppendUint16(nil, n)}
	}
	option := func(offset int, value ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: value}
	}
	withMAC := func(total uint16, offset int, number byte) []firewall.Rule {
		var list []firewall.Rule
		for _, m := range g.macs {
			list = append(list, rule(source, length(total), option(offset, append([]byte{number, 1}, m[:]...)...)))
		}
		return list
	}
	nonce := option(24, 14, 1) // RFC 3971 section 5.3.2, as RFC 7527 uses it
	spoof := rule(drop(firewall.NeighbourSpoof))
	var targets []firewall.Rule
	for _, p := range g.of(6) {
		targets = append(targets, rule(nil, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
	}
	if g.anyAddress {
		targets = []firewall.Rule{rule(nil)}
	}
	about := func(next string) []firewall.Rule {
		list := slices.Clone(targets)
		for i := range list {
			list[i].Verdict = firewall.Goto{Chain: next}
		}
		if g.anyAddress {
			return list
		}
		return append(list, spoof)
	}

	add("solicitation", append([]firewall.Rule{
		rule(firewall.Goto{Chain: "detection"}, v6, unspecified),
		rule(source, length(24)),
		rule(source, length(32), nonce),
	}, append(withMAC(32, 24, 1), spoof)...)...)
	add("detection", about("detection-option")...)
	add("detection-option", rule(firewall.Accept{}, length(24)), rule(firewall.Accept{}, length(32), nonce), spoof)
	add("advertisement", about("advertisement-option")...)
	add("advertisement-option", append([]firewall.Rule{rule(source, length(24))}, append(withMAC(32, 24, 2), spoof)...)...)
	if !g.served {
		add("router", append([]firewall.Rule{
			rule(firewall.Accept{}, v6, unspecified, length(8)),
			rule(source, length(8)),
		}, append(withMAC(16, 8, 1), spoof)...)...)
	}
}

// bridgeTable is the table of the family bridge. By the rules in toNamespace the namespace does not hear the
// frames of the bridge. A guest with a responder does not hear the network's DHCP servers and routers.
func (g guest) bridgeTable(n netstate.Names, guard infra.Guard, toNamespace ...firewall.Rule) firewall.Table {
	t := firewall.Table{Family: firewall.Bridge, Name: n.Table, Chains: []firewall.Chain{
		{Name: "input", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: toNamespace},
	}}
	if guard.Off || !g.served {
		return t
	}
	t.Chains = append(t.Chains, firewall.Chain{
		Name: "to-guest", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter,
		Rules: append([]firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: n.Tap, Not: true})}, withoutServers(firewall.Accept{}, func(kind uint16) firewall.Match { return firewall.EtherType{Number: kind} })...),
	})
	return t
}

// withoutServers drops what the network's DHCP servers and routers send to a guest that has a responder, and
// lets the rest pass. Of is how the table's family matches an EtherType.
func withoutServers(pass firewall.Verdict, of func(kind uint16) firewall.Match) []firewall.Rule {
	server := func(v int, client uint16) firewall.Rule {
		return rule(drop(firewall.NetworkDHCP), firewall.Carries{Version: v}, is(firewall.ProtocolUDP),
			firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: client, Last: client})
	}
	return []firewall.Rule{
		rule(pass, is(firewall.ProtocolTCP)), // most packets: decided first
		server(4, 68),
		server(6, 546),
		rule(drop(firewall.NetworkRouter), firewall.Carries{Version: 6}, is(firewall.ProtocolICMPv6), firewall.ICMP{Version: 6, Type: icmp6RouterAdvertisement}),
		// Frames of other kinds are dropped: the guest could not answer them, but could read an advertisement
		// in them, behind tags of VLAN 0, in LLC and SNAP (CVE-2021-27853, -27861), in an incomplete first
		// fragment.
		rule(pass, of(netstate.EthernetIPv4)),
		rule(pass, of(netstate.EthernetIPv6), wellFormed),
		rule(pass, of(netstate.EthernetARP)),
		rule(drop(firewall.NetworkFrame)),
	}
}

// deafTo drops what the namespace itself would receive from the bridge's ports. Otherwise the namespace would
// answer ARP for the guest's address, which it still has, take routes from a router advertisement of the
// guest, and detect the guest's address as a duplicate of its own. These drops have no reason: what arrives here
// is the namespace's copy of a broadcast or a multicast, and the frame itself has gone on to the other port.
func deafTo(links ...string) []firewall.Rule {
	var rules []firewall.Rule
	for _, l := range links {
		rules = append(rules, rule(firewall.Drop{}, firewall.InInterface{Name: l}))
	}
	return rules
}

// deafToIPv6 drops the guest's IPv6 to a namespace that has none for the guest: one router advertisement would
// give the namespace a default route through the guest. (With IPv6 forwarding on, a link takes no routes.)
func deafToIPv6(tap string) firewall.Rule {
	return rule(drop(firewall.NoIPv6), firewall.InInterface{Name: tap}, firewall.EtherType{Number: netstate.EthernetIPv6})
}

// deafToIPv6Legacy is deafToIPv6 for a kernel without nf_tables.
func deafToIPv6Legacy(n netstate.Names) firewall.Table {
	return firewall.Table{Family: firewall.Inet, Chains: []firewall.Chain{
		{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Rules: []firewall.Rule{rule(firewall.Drop{}, firewall.InInterface{Name: n.Bridge})}},
	}}.IPTables(firewall.IP6TablesLegacy, n.Chains())
}
