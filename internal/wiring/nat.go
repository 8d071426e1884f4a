package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// translation is the NAT of a masquerade binding. Packets for the NIC's addresses go to the guest, if their
// port is forwarded. Packets of the guest leave with the address of the link that they leave by, or not at all.
type translation struct {
	names       netstate.Names
	addresses   []netip.Prefix // the NIC's
	unforwarded []int          // IP versions that the NIC did not forward before: only the guest's packets may pass
	ends        []end
	infra.Masquerade
	guard infra.Guard
	mac   cache.MAC // the guest's
	ports portChoice
	noARP bool // the NIC asks for no neighbours
	// iptables says that the table becomes chains of iptables.
	iptables bool
}

// end is the guest's address and the gateway's, of one family.
type end struct{ guest, gateway netip.Addr }

func version(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
)

func loopback(v int) netip.Prefix {
	if v == 4 {
		return loopback4
	}
	return loopback6
}

func rule(v firewall.Verdict, m ...firewall.Match) firewall.Rule {
	return firewall.Rule{Matches: m, Verdict: v}
}

// has says whether the guest has an address of the version of IP.
func (t translation) has(v int) bool {
	return slices.ContainsFunc(t.ends, func(e end) bool { return version(e.guest) == v })
}

// checkSources refuses proxies' sources of a family in which the guest has no address.
func (t translation) checkSources() error {
	if t.Sidecar == nil {
		return nil
	}
	for i, a := range t.Sidecar.Sources {
		if v := version(a); !t.has(v) {
			return &cache.FieldError{Field: fmt.Sprintf("binding.masquerade.sidecar.sources[%d]", i), Reason: fmt.Sprintf("%v: %s has no IPv%d address to forward", a, t.names.NIC, v)}
		}
	}
	return nil
}

func (t translation) table() firewall.Table {
	chains := []firewall.Chain{
		{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: t.loopback()},
		{Name: "from-network", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: t.fromNetwork()},
		{Name: "from-namespace", Type: "nat", Hook: firewall.Output, Priority: firewall.DstNAT, Rules: t.fromNamespace()},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: t.through()},
		{Name: "output", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter, Rules: t.output()},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: t.source()},
	}
	for _, e := range t.ends {
		chains = append(chains, firewall.Chain{Name: toGuest(version(e.guest)), Rules: t.toGuest(e.guest)})
	}
	chains = append(chains, firewall.Chain{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: t.toNamespace()})
	if !t.guard.Off {
		chains = append(chains, firewall.Chain{Name: "errors", Rules: t.errors()})
	}
	if !t.ports.everything {
		chains = append(chains, firewall.Chain{Name: "reserved", Rules: t.reserved()})
	}
	chains = append(chains,
		firewall.Chain{Name: "accepted", Rules: t.accepted()},
		firewall.Chain{Name: "opening", Rules: t.opening()},
		firewall.Chain{Name: "opened", Rules: t.opened()},
		firewall.Chain{Name: "related", Rules: t.related()},
		firewall.Chain{Name: "outgoing", Rules: t.limit()},
		firewall.Chain{Name: "incoming", Rules: t.limit()})
	table := firewall.Table{Family: firewall.Inet, Name: t.names.Table, Chains: chains}
	if !t.iptables {
		t.limitNeighbours(&table)
	}
	return table
}

func (t translation) mostConnections() int {
	return cmp.Or(t.MaxConnections, infra.DefaultMaxConnections)
}

// limit drops a connection's first packet above MaxConnections. The kernel does not count TCP connections that have
// ended, though they stay in its table for two minutes (net/netfilter/nf_conncount.c). So their rate is limited, too.
func (t translation) limit() []firewall.Rule {
	count := rule(drop(firewall.ConnectionLimit), firewall.Connections{Over: uint32(t.mostConnections())})
	if t.iptables {
		return []firewall.Rule{count}
	}
	return []firewall.Rule{t.rate(), count}
}

func (t translation) rate() firewall.Rule {
	most := t.mostConnections()
	return rule(drop(firewall.ConnectionLimit), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Rate{Packets: most, PerMinute: true, Burst: most, Over: true})
}

// beside is the table of nftables beside the chains of iptables, for what these cannot express.
func (t translation) beside() firewall.Table {
	isNew := firewall.State{States: firewall.New}
	toGuest := []firewall.Match{t.toBridge(), firewall.InInterface{Name: t.names.Bridge, Not: true}, isNew, firewall.Unconfirmed{}}
	table := firewall.Table{Family: firewall.Inet, Name: t.names.Table, Chains: []firewall.Chain{
		{Name: "beside-forward", Type: "filter", Hook: firewall.Forward, Priority: firewall.AfterFilter, Rules: []firewall.Rule{
			rule(firewall.Jump{Chain: "opening"}, t.fromGuest(), isNew),
			rule(firewall.Jump{Chain: "incoming"}, toGuest...),
		}},
		{Name: "beside-input", Type: "filter", Hook: firewall.Input, Priority: firewall.AfterFilter, Rules: []firewall.Rule{
			rule(firewall.Jump{Chain: "accepted"}, t.fromGuest(), isNew),
		}},
		{Name: "opening", Rules: append(t.toNeighbours(), rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))},
		{Name: "accepted", Rules: append(t.fromNeighbours(), rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))},
		{Name: "outgoing", Rules: []firewall.Rule{t.rate()}},
		{Name: "incoming", Rules: []firewall.Rule{t.rate()}},
	}}
	t.limitNeighbours(&table)
	return table
}

// A neighbour table has 1024 entries for all namespaces of the machine. So the guest has at most so many next hops and, if
// Guard.Prefixes allows more sources on the link than that, so many sources, each for a minute after the last new
// connection.
const (
	mostNextHops = 64
	mostSources  = 256
	hopLife      = 60_000 // milliseconds
)

// toNeighbours limits the next hops and sources of what the guest sends through the namespace.
func (t translation) toNeighbours() []firewall.Rule {
	return append([]firewall.Rule{rule(firewall.Jump{Chain: "next-hop"}, firewall.OutInterface{Name: t.names.Bridge, Not: true})}, t.fromNeighbours()...)
}

// fromNeighbours limits the sources for which the namespace has to ask when it answers the guest.
func (t translation) fromNeighbours() []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range t.manySources() {
		rules = append(rules, rule(firewall.Jump{Chain: "from-source"}, firewall.IP{Version: version(p.Addr())}, firewall.Source{Prefix: p}))
	}
	return rules
}

// manySources are prefixes with more than mostSources link-local addresses of the guest. To other addresses the way leads
// by the guest's own, so the namespace asks for none of them. Without a guard nothing limits the sources.
func (t translation) manySources() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range t.guard.Prefixes {
		if p.Addr().IsLinkLocalUnicast() && t.has(version(p.Addr())) && many(p) {
			list = append(list, p)
		}
	}
	return list
}

// limitNeighbours adds the sets and chains of toNeighbours.
func (t translation) limitNeighbours(table *firewall.Table) {
	limit := func(chain, set string, size int, parts map[int]firewall.Part) {
		c := firewall.Chain{Name: chain}
		if t.noARP && chain == "next-hop" {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.OutInterface{Name: t.names.NIC}))
		}
		for _, e := range t.ends {
			v := version(e.guest)
			name := fmt.Sprintf("%s-%d", set, v)
			table.Sets = append(table.Sets, firewall.Set{Name: name, Of: parts[v], Size: size, Milliseconds: hopLife})
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.AddToSet{Part: parts[v], Set: name, Renew: true}))
		}
		c.Rules = append(c.Rules, rule(drop(firewall.NeighbourLimit)))
		table.Chains = append(table.Chains, c)
	}
	limit("next-hop", "next-hops", mostNextHops, map[int]firewall.Part{4: firewall.NextHop4, 6: firewall.NextHop6})
	if len(t.manySources()) > 0 {
		limit("from-source", "sources", mostSources, map[int]firewall.Part{4: firewall.SourceAddress4, 6: firewall.SourceAddress6})
	}
}

func (t translation) fromGuest() firewall.Match { return firewall.InInterface{Name: t.names.Bridge} }

func (t translation) toBridge() firewall.Match { return firewall.OutInterface{Name: t.names.Bridge} }

// loopback drops the guest's packets to the namespace's loopback addresses before connections are tracked.
// The guest's answers of a translated connection pass: here they still have the gateway's address.
func (t translation) loopback() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range t.ends {
		v := version(e.guest)
		rules = append(rules,
			rule(drop(firewall.LoopbackAddress), t.fromGuest(), firewall.IP{Version: v}, firewall.Destination{Prefix: loopback(v)}),
			rule(drop(firewall.LoopbackAddress), t.fromGuest(), firewall.IP{Version: v}, firewall.Source{Prefix: loopback(v)}))
	}
	return rules
}

// fromNetwork forwards packets that come from outside, unless proxies take them, and packets that the guest
// sends to the NIC's addresses.
func (t translation) fromNetwork() []firewall.Rule {
	from := []firewall.Match{firewall.InInterface{Name: t.names.NIC}, t.fromGuest()}
	if t.Sidecar != nil {
		from = from[1:]
	}
	var rules []firewall.Rule
	for _, in := range from {
		for _, a := range t.addresses {
			rules = append(rules, t.forwarded(a.Addr(), in)...)
		}
	}
	return rules
}

// fromNamespace forwards packets that the namespace's own processes send to the NIC's addresses, and with
// Loopback to the loopback addresses.
func (t translation) fromNamespace() []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range t.addresses {
		rules = append(rules, t.forwarded(a.Addr())...)
	}
	if t.Loopback {
		rules = append(rules, t.forwarded(netip.AddrFrom4([4]byte{127, 0, 0, 1}))...)
		rules = append(rules, t.forwarded(netip.IPv6Loopback())...)
	}
	return rules
}

// forwarded sends packets for an address that meet the conditions to the guest, if the guest has an address of
// that family.
func (t translation) forwarded(to netip.Addr, where ...firewall.Match) []firewall.Rule {
	v := version(to)
	if !t.has(v) {
		return nil
	}
	return []firewall.Rule{rule(firewall.Jump{Chain: toGuest(v)},
		append(where[:len(where):len(where)], firewall.IP{Version: v}, firewall.Destination{Prefix: single(to)})...)}
}

func toGuest(v int) string { return fmt.Sprintf("to-guest-%d", v) }

// toGuest translates the ports that are forwarded, and nothing else. A TCP packet that opens no connection and
// belongs to no tracked one is the namespace's own: its connection is older than the rules.
func (t translation) toGuest(guest netip.Addr) []firewall.Rule {
	if t.Ports != nil && len(t.Ports) == 0 {
		return nil
	}
	rules := []firewall.Rule{rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{Not: true})}
	for _, p := range t.Excluded {
		rules = append(rules, rule(firewall.Accept{}, matchPorts(p)...))
	}
	if t.Ports == nil {
		return append(rules, rule(firewall.DNAT{Address: guest}))
	}
	for _, p := range t.Ports {
		for _, one := range splitPorts(p) {
			rules = append(rules, rule(firewall.DNAT{Address: guest, Port: one.Guest}, matchPorts(one)...))
		}
	}
	return rules
}

// through is what the namespace forwards from and to the guest. A packet of the guest that belongs to no
// connection is dropped, as it would leave untranslated. To the guest pass only known connections and
// translated packets. What else comes in by the NIC is dropped, if the NIC did not forward before Setup.
// A packet of an established connection meets the first two rules and no others that look at its state.
func (t translation) through() []firewall.Rule {
	known := firewall.State{States: firewall.Established | firewall.Related}
	nic := firewall.InInterface{Name: t.names.NIC}
	rules := []firewall.Rule{
		rule(firewall.Jump{Chain: "opening"}, t.fromGuest(), firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New | firewall.Related}),
		rule(firewall.Jump{Chain: "opened"}, t.toBridge(), firewall.InInterface{Name: t.names.Bridge, Not: true}, firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New}),
		rule(firewall.ClampMSS{}, t.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, t.toBridge(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, t.fromGuest(), firewall.OutInterface{Name: t.names.Bridge, Not: true}),
		rule(firewall.Accept{}, t.toBridge(), known),
		rule(firewall.Accept{}, t.toBridge(), firewall.Translated{}),
		rule(drop(firewall.NotForwarded), t.toBridge()),
		rule(firewall.Accept{}, nic, known),
	}
	for _, v := range t.unforwarded {
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: v}))
	}
	return rules
}

// opening is what the guest sends that belongs to no established connection.
func (t translation) opening() []firewall.Rule {
	rules := []firewall.Rule{
		rule(drop(firewall.NoConnection), firewall.State{States: firewall.Invalid | firewall.Untracked}),
		rule(firewall.Goto{Chain: "related"}, firewall.State{States: firewall.Related}),
	}
	if !t.iptables {
		rules = append(rules, t.toNeighbours()...)
	}
	rules = append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))
	// The answer to a packet without ports is the guest's only if all of that protocol is.
	if t.ports.everything {
		rules = append(rules, rule(firewall.Return{}, firewall.OutInterface{Name: t.names.NIC}))
	}
	for _, protocol := range []uint8{firewall.ProtocolTCP, firewall.ProtocolUDP, firewall.ProtocolSCTP} {
		rules = append(rules, rule(firewall.Return{}, firewall.Protocol{Number: protocol}))
	}
	for _, e := range t.ends {
		echo := uint8(firewall.ProtocolICMP)
		if e.guest.Is6() {
			echo = firewall.ProtocolICMPv6
		}
		rules = append(rules, rule(firewall.Return{}, firewall.IP{Version: version(e.guest)}, firewall.Protocol{Number: echo}))
	}
	return append(rules, rule(drop(firewall.NoPorts)))
}

// accepted is what the guest may send to the namespace.
func (t translation) accepted() []firewall.Rule {
	var rules []firewall.Rule
	if !t.iptables {
		rules = t.fromNeighbours()
	}
	return append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}), rule(firewall.Accept{}))
}

// opened is what others send to the guest that belongs to no connection.
func (t translation) opened() []firewall.Rule {
	return []firewall.Rule{
		rule(drop(firewall.NoConnection), firewall.State{States: firewall.Invalid | firewall.Untracked}),
		rule(firewall.Jump{Chain: "incoming"}, firewall.Unconfirmed{}),
	}
}

// related passes errors about the guest's connections, and drops those about the namespace's own: the kernel calls an
// error related by the packet in it, whoever sends it.
func (t translation) related() []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range t.own() {
		for _, reply := range []bool{false, true} {
			rules = append(rules, rule(firewall.Accept{}, firewall.IP{Version: version(p.Addr())}, firewall.Origin{Prefix: p, Reply: reply}))
		}
	}
	return append(rules, rule(drop(firewall.NoConnection)))
}

// errors are those of the guest to the namespace. One about a smaller MTU is dropped: between the guest and the namespace
// no link is smaller, and the kernel would believe the error for the namespace's own addresses, as the packet in the error
// is translated back.
func (t translation) errors() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range t.ends {
		tooBig, protocol := firewall.ICMP{Version: 4, Type: icmpUnreachable, Code: icmpTooBig}, uint8(firewall.ProtocolICMP)
		if e.guest.Is6() {
			tooBig, protocol = firewall.ICMP{Version: 6, Type: icmp6TooBig}, firewall.ProtocolICMPv6
		}
		rules = append(rules, rule(drop(firewall.NoConnection), firewall.IP{Version: tooBig.Version}, firewall.Protocol{Number: protocol}, tooBig))
	}
	return append(rules, rule(firewall.Goto{Chain: "related"}))
}

// own are the addresses that the guest sends from.
func (t translation) own() []netip.Prefix {
	var list []netip.Prefix
	for _, e := range t.ends {
		list = append(list, single(e.guest))
		if e.guest.Is6() {
			list = append(list, single(t.mac.LinkLocal()))
		}
	}
	for _, p := range t.guard.Prefixes {
		if t.has(version(p.Addr())) {
			list = append(list, p)
		}
	}
	return list
}

// output drops what processes of the namespace send to the guest, or in the guest's place, by the taps. A process needs
// no capability to choose a link (SO_BINDTODEVICE, socket(7)). By the bridge the namespace speaks to its guest, but
// not as a DHCP server.
func (t translation) output() []firewall.Rule {
	no := drop(firewall.NamespaceOutput)
	udp := firewall.Protocol{Number: firewall.ProtocolUDP}
	rules := []firewall.Rule{
		rule(no, firewall.OutInterface{Name: t.names.Tap}),
		rule(no, firewall.OutInterface{Name: t.names.Responder}),
	}
	for _, e := range t.ends {
		client := uint16(client4)
		if e.guest.Is6() {
			client = client6
		}
		rules = append(rules, rule(no, t.toBridge(), firewall.IP{Version: version(e.guest)}, udp, firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: client, Last: client}))
	}
	return rules
}

// source hides the guest's address, and chooses the source ports of the guest's connections: see portChoice. Packets to
// the guest from an address that the guest cannot answer get the gateway's address as their source.
func (t translation) source() []firewall.Rule {
	from, out := t.fromGuest(), firewall.OutInterface{Name: t.names.NIC}
	var rules []firewall.Rule
	for _, name := range []string{"tcp", "udp", "sctp"} {
		number := transports[name]
		protocol := firewall.Protocol{Number: number}
		for _, k := range t.ports.kept[name] {
			rules = append(rules, rule(firewall.Masquerade{First: k.first, Last: k.last}, from, out, protocol,
				firewall.SourcePort{Protocol: number, First: k.first, Last: k.last}))
		}
		if by := t.ports.byNIC[name]; by != t.ports.others[name] {
			rules = append(rules, rule(firewall.Masquerade{First: by.first, Last: by.last}, from, out, protocol))
		}
		o := t.ports.others[name]
		rules = append(rules, rule(firewall.Masquerade{First: o.first, Last: o.last}, from, protocol))
	}
	rules = append(rules, rule(firewall.Masquerade{}, from))
	for _, e := range t.ends {
		for _, from := range t.rewritten(version(e.guest)) {
			rules = append(rules, rule(firewall.SNAT{Address: e.gateway}, t.toBridge(), firewall.IP{Version: version(e.guest)}, firewall.Source{Prefix: from}))
		}
	}
	return rules
}

// rewritten are the sources that get the gateway's address.
func (t translation) rewritten(v int) []netip.Prefix {
	var list []netip.Prefix
	if t.Loopback {
		list = append(list, loopback(v))
	}
	if t.Sidecar != nil {
		for _, a := range t.Sidecar.Sources {
			if version(a) == v && !(t.Loopback && loopback(v).Contains(a)) {
				list = append(list, single(a))
			}
		}
	}
	return list
}

// toNamespace is what the guest may send to the namespace itself. MaxConnections counts here too: each
// identifier of an echo request is a connection.
func (t translation) toNamespace() []firewall.Rule {
	from := t.fromGuest()
	var rules []firewall.Rule
	if !t.ports.everything {
		rules = append(rules, rule(firewall.Jump{Chain: "reserved"}, firewall.InInterface{Name: t.names.NIC}, firewall.State{States: firewall.New}))
	}
	if t.guard.Off {
		return append(rules, rule(firewall.Jump{Chain: "accepted"}, from, firewall.State{States: firewall.New}))
	}
	rules = append(rules, rule(firewall.Accept{}, from, firewall.State{States: firewall.Established}))
	rules = append(rules, rule(firewall.Goto{Chain: "errors"}, from, firewall.State{States: firewall.Related}))
	for _, e := range t.ends {
		if e.guest.Is4() {
			rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, from, firewall.IP{Version: 4},
				firewall.Protocol{Number: firewall.ProtocolICMP}, firewall.ICMP{Version: 4, Type: icmpEcho}))
			continue
		}
		rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, from, firewall.IP{Version: 6},
			firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: icmp6Echo}))
		for _, kind := range []uint8{icmp6Solicitation, icmp6Advertisement} {
			rules = append(rules, rule(firewall.Accept{}, from, firewall.IP{Version: 6},
				firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: kind}))
		}
	}
	for _, p := range t.guard.Open {
		rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, append([]firewall.Match{from}, matchPorts(p)...)...))
	}
	return append(rules, rule(drop(firewall.NamespaceService), from))
}

// reserved drops what the network opens to the ports that are left to the guest's connections. Otherwise each such packet
// would be a connection of the namespace, from whose port the guest can open none to the same peer for half a minute:
// few packets would keep the guest from its DNS server.
func (t translation) reserved() []firewall.Rule {
	var rules []firewall.Rule
	for _, name := range []string{"tcp", "udp", "sctp"} {
		number, of := transports[name], t.ports.others[name]
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.Protocol{Number: number}, firewall.DestinationPort{Protocol: number, First: of.first, Last: of.last}))
	}
	return rules
}

// Numbers that only a masquerade needs: a code of ICMP and a type of ICMPv6 (RFC 792, RFC 4443).
const (
	icmpTooBig  = 4
	icmp6TooBig = 2
)
