package router

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Masquerade is a router that translates the guest's addresses. Packets for the NIC's addresses go to the guest, if
// their port is forwarded. Packets of the guest leave with the address of the link that they leave by, or not at all.
type Masquerade struct {
	Router
	infra.Masquerade
	// Addresses are the NIC's.
	Addresses   []netip.Addr
	SourcePorts SourcePorts
	// Flows says that established connections pass by a flow table.
	Flows bool
	// Families are those of iptables whose chains translate; none: a table of nftables does. With NoNFTables there is
	// none beside them. With NoIPv6AtTap the tap has no IPv6.
	Families    []firewall.Family
	NoNFTables  bool
	NoIPv6AtTap bool
}

// established is the flow table of the guest's connections by the NIC.
const established = "established"

// Tables are those of nftables, and of iptables if that translates.
func (t Masquerade) Tables() []firewall.Table {
	t.iptables = len(t.Families) > 0
	tables := t.completeChecksums()
	switch {
	case !t.iptables:
		tables = append(tables, t.table())
	case !t.NoNFTables:
		tables = append(tables, t.tableBeside())
	}
	for _, f := range t.Families {
		table := t.table()
		if f.IPTables() == 6 && !t.has(6) {
			if !t.NoNFTables || t.NoIPv6AtTap {
				continue // beside, or not needed
			}
			table.Chains = []firewall.Chain{{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: t.noIPv6()}}
		}
		tables = append(tables, table.IPTables(f, t.Names.Chains()))
	}
	return tables
}

func (t Masquerade) table() firewall.Table {
	chains := []firewall.Chain{
		{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: t.loopback()},
		{Name: "from-network", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: t.fromNetwork()},
		{Name: "from-namespace", Type: "nat", Hook: firewall.Output, Priority: firewall.DstNAT, Rules: t.fromNamespace()},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: t.through()},
		{Name: "output", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter, Rules: t.output()},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: t.source()},
	}
	if !t.iptables {
		chains = append(chains, t.last())
	}
	chains = append(chains, t.loopbacks()...)
	for _, e := range t.Ends {
		chains = append(chains, firewall.Chain{Name: toGuest(version(e.Guest)), Rules: t.toGuest(e.Guest)})
	}
	chains = append(chains, firewall.Chain{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: t.toNamespace()})
	if !t.Guard.Off {
		chains = append(chains, firewall.Chain{Name: "errors", Rules: t.errors()})
	}
	if !t.SourcePorts.everything {
		chains = append(chains, firewall.Chain{Name: "reserved", Rules: t.reserved()})
	}
	chains = append(chains,
		firewall.Chain{Name: "accepted", Rules: t.accepted()},
		firewall.Chain{Name: "opening", Rules: t.opening()},
		firewall.Chain{Name: "opened", Rules: t.opened()},
		firewall.Chain{Name: "related", Rules: t.related()},
		firewall.Chain{Name: "outgoing", Rules: t.limit()},
		firewall.Chain{Name: "incoming", Rules: t.limit()})
	table := firewall.Table{Family: firewall.Inet, Name: t.Names.Table, Chains: chains}
	for _, m := range portMaps(t.Ports) {
		table.Maps = append(table.Maps, m.PortMap)
	}
	if !t.iptables {
		t.limitNeighbours(&table)
		t.addEgress(&table)
		t.addOtherLinks(&table)
	}
	if t.Flows {
		table.Flows = []firewall.FlowTable{{Name: established, Devices: []string{t.Names.NIC, t.Names.Tap}, Priority: firewall.Last}}
	}
	return table
}

// tableBeside is the table of nftables beside the chains of iptables, for what these cannot express.
func (t Masquerade) tableBeside() firewall.Table {
	isNew := firewall.State{States: firewall.New}
	toGuest := []firewall.Match{t.toTap(), firewall.InInterface{Name: t.Names.Tap, Inverted: true}, isNew, firewall.Unconfirmed{}}
	table := firewall.Table{Family: firewall.Inet, Name: t.Names.Table, Chains: []firewall.Chain{
		{Name: "beside-forward", Type: "filter", Hook: firewall.Forward, Priority: firewall.AfterFilter, Rules: slices.Concat(t.reopened(), t.checked(t.fromGuest()), t.resumed(toGuest...), []firewall.Rule{
			rule(firewall.Jump{Chain: "opening"}, t.fromGuest(), isNew),
			rule(firewall.Jump{Chain: "incoming"}, toGuest...),
		})},
		{Name: "beside-input", Type: "filter", Hook: firewall.Input, Priority: firewall.AfterFilter, Rules: []firewall.Rule{
			rule(firewall.Jump{Chain: "accepted"}, t.fromGuest(), isNew),
		}},
		{Name: "opening", Rules: slices.Concat([]firewall.Rule{t.toOtherLinks()}, t.toNeighbours(), []firewall.Rule{rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{})})},
		{Name: "accepted", Rules: append(t.fromNeighbours(), rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))},
		{Name: "outgoing", Rules: []firewall.Rule{t.rate()}},
		{Name: "incoming", Rules: []firewall.Rule{t.rate()}},
		t.last(),
	}}
	if rules := append(t.noIPv6(), t.sourceRoutes()...); len(rules) > 0 {
		table.Chains = append(table.Chains, firewall.Chain{Name: "beside-first", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: rules})
	}
	t.limitNeighbours(&table)
	t.addEgress(&table)
	t.addOtherLinks(&table)
	return table
}

// fromNetwork forwards packets that come from outside, unless proxies take them, and packets that the guest
// sends to the NIC's addresses.
func (t Masquerade) fromNetwork() []firewall.Rule {
	from := []firewall.Match{firewall.InInterface{Name: t.Names.NIC}, t.fromGuest()}
	if t.Sidecar != nil {
		from = from[1:]
	}
	var rules []firewall.Rule
	for _, in := range from {
		for _, a := range t.Addresses {
			rules = append(rules, t.forwarded(a, in)...)
		}
	}
	return rules
}

// fromNamespace forwards packets that the namespace's own processes send to the NIC's addresses, and with
// Loopback to the loopback addresses.
func (t Masquerade) fromNamespace() []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range t.forwardedAddresses() {
		rules = append(rules, t.forwarded(a)...)
	}
	return rules
}

// forwardedAddresses are the addresses whose forwarded ports lead to the guest.
func (t Masquerade) forwardedAddresses() []netip.Addr {
	all := slices.Clone(t.Addresses)
	if t.Loopback {
		all = append(all, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !t.has(version(a)) })
}

// forwarded sends packets for an address that meet the conditions to the guest, if the guest has an address of
// that family.
func (t Masquerade) forwarded(to netip.Addr, where ...firewall.Match) []firewall.Rule {
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
func (t Masquerade) toGuest(guest netip.Addr) []firewall.Rule {
	if t.Ports != nil && len(t.Ports) == 0 {
		return nil
	}
	rules := []firewall.Rule{rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{Inverted: true})}
	for _, p := range t.Excluded {
		rules = append(rules, rule(firewall.Accept{}, matchPorts(p)...))
	}
	if t.Ports == nil {
		return append(rules, rule(firewall.DNAT{Address: guest}))
	}
	for _, p := range t.Ports {
		if f := syntax.Ports(p).Full(); f.Guest == f.First {
			rules = append(rules, rule(firewall.DNAT{Address: guest}, matchPorts(p)...))
		}
	}
	for _, m := range portMaps(t.Ports) {
		number := firewall.Transports[m.protocol]
		rules = append(rules, rule(firewall.DNATMap{Address: guest, Protocol: number, Map: m.Name}, firewall.Protocol{Number: number}))
	}
	return rules
}

// through is what the namespace forwards from and to the guest. A packet of the guest that belongs to no
// connection is dropped, as it would leave untranslated. To the guest pass only known connections and
// translated packets. What else comes in by the NIC is dropped, if the NIC did not forward before Setup.
func (t Masquerade) through() []firewall.Rule {
	known := firewall.State{States: firewall.Established | firewall.Related}
	nic := firewall.InInterface{Name: t.Names.NIC}
	rules := append(t.offloaded(), answered()...)
	if !t.iptables {
		rules = append(rules, t.reopened()...)
	}
	rules = append(rules,
		rule(firewall.Jump{Chain: "opening"}, t.fromGuest(), firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New | firewall.Related}),
		rule(firewall.Jump{Chain: "opened"}, t.toTap(), firewall.InInterface{Name: t.Names.Tap, Inverted: true}, firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New}),
		rule(firewall.ClampMSS{}, t.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, t.toTap(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, t.fromGuest(), firewall.OutInterface{Name: t.Names.Tap, Inverted: true}),
		rule(firewall.Accept{}, t.toTap(), known),
		rule(firewall.Accept{}, t.toTap(), firewall.Translated{}),
		rule(drop(firewall.NotForwarded), t.toTap()),
		rule(firewall.Accept{}, nic, known),
	)
	for _, v := range t.Unforwarded {
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: v}))
	}
	return rules
}

// closingSeconds is the longest time that the kernel keeps a TCP connection that is ending, without a packet
// (nf_conntrack_tcp_timeout_fin_wait and its likes).
const closingSeconds = 120

// offloaded adds connections to the flow table: what the guest sends by the NIC, as each connection has such packets,
// and the answers come with them. Of TCP, a connection that is ending stays with connection tracking: in the flow table
// its last packets would pass unseen, and so would the first of the next connection between the same ports. Of UDP, a
// question with one answer stays as well: the flow table would keep it four times as long.
func (t Masquerade) offloaded() []firewall.Rule {
	if !t.Flows {
		return nil
	}
	add, out := firewall.Offload{Table: established}, firewall.OutInterface{Name: t.Names.NIC}
	return []firewall.Rule{
		rule(add, firewall.Protocol{Number: firewall.ProtocolTCP}, t.fromGuest(), out, firewall.Assured{}, firewall.Lasting{Seconds: closingSeconds}),
		rule(add, firewall.Protocol{Number: firewall.ProtocolUDP}, t.fromGuest(), out, firewall.Assured{}),
	}
}

// opening is what the guest sends that belongs to no established connection.
func (t Masquerade) opening() []firewall.Rule {
	rules := []firewall.Rule{rule(drop(firewall.NoConnection), firewall.State{States: firewall.Invalid | firewall.Untracked})}
	if !t.iptables {
		rules = append(rules, t.checked()...)
	}
	rules = append(rules, rule(firewall.Goto{Chain: "related"}, firewall.State{States: firewall.Related}))
	if !t.iptables {
		rules = append(append(rules, t.toOtherLinks()), t.toNeighbours()...)
	}
	rules = append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))
	// An answer without ports is forwarded to the guest only if everything is.
	if t.SourcePorts.everything {
		rules = append(rules, rule(firewall.Return{}, firewall.OutInterface{Name: t.Names.NIC}))
	}
	for _, protocol := range []uint8{firewall.ProtocolTCP, firewall.ProtocolUDP, firewall.ProtocolSCTP} {
		rules = append(rules, rule(firewall.Return{}, firewall.Protocol{Number: protocol}))
	}
	for _, e := range t.Ends {
		echo := uint8(firewall.ProtocolICMP)
		if e.Guest.Is6() {
			echo = firewall.ProtocolICMPv6
		}
		rules = append(rules, rule(firewall.Return{}, firewall.IP{Version: version(e.Guest)}, firewall.Protocol{Number: echo}))
	}
	return append(rules, rule(drop(firewall.NoPorts)))
}

// source hides the guest's address, and chooses the source ports of the guest's connections: see SourcePorts. Packets
// to the guest from an address that the guest cannot answer get the gateway's address as their source.
func (t Masquerade) source() []firewall.Rule {
	from, out := t.fromGuest(), firewall.OutInterface{Name: t.Names.NIC}
	var rules []firewall.Rule
	for _, name := range []string{"tcp", "udp", "sctp"} {
		number := firewall.Transports[name]
		protocol := firewall.Protocol{Number: number}
		for _, k := range t.SourcePorts.kept[name] {
			rules = append(rules, rule(firewall.Masquerade{First: k.first, Last: k.last}, from, out, protocol,
				firewall.SourcePort{Protocol: number, First: k.first, Last: k.last}))
		}
		if by := t.SourcePorts.byNIC[name]; by != t.SourcePorts.others[name] {
			rules = append(rules, rule(firewall.Masquerade{First: by.first, Last: by.last}, from, out, protocol))
		}
		o := t.SourcePorts.others[name]
		rules = append(rules, rule(firewall.Masquerade{First: o.first, Last: o.last}, from, protocol))
	}
	rules = append(rules, rule(firewall.Masquerade{}, from))
	for _, e := range t.Ends {
		for _, from := range t.rewritten(version(e.Guest)) {
			rules = append(rules, rule(firewall.SNAT{Address: e.Gateway}, t.toTap(), firewall.IP{Version: version(e.Guest)}, firewall.Source{Prefix: from}))
		}
	}
	return rules
}

// last drops packets for the guest's address that leave by another link. A default route would send them there while
// the tap is down on standby, or deleted by the launcher.
func (t Masquerade) last() firewall.Chain {
	c := firewall.Chain{Name: "last", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.SrcNAT + 1}
	for _, e := range t.Ends {
		c.Rules = append(c.Rules, rule(drop(firewall.NotForwarded), firewall.IP{Version: version(e.Guest)}, firewall.Destination{Prefix: single(e.Guest)},
			firewall.OutInterface{Name: t.Names.Tap, Inverted: true}))
	}
	return c
}

// rewritten are the sources that get the gateway's address.
func (t Masquerade) rewritten(v int) []netip.Prefix {
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

// toNamespace drops what comes to the ports that are left to the guest's connections, and what the guest may not send
// to the namespace. The gateway's addresses are for the guest and the namespace's own processes: what listens there,
// such as a DNS proxy, must not answer a neighbour in the guest's place.
func (t Masquerade) toNamespace() []firewall.Rule {
	rules := []firewall.Rule{rule(firewall.Return{}, firewall.InInterface{Name: "lo"})}
	for _, e := range t.Ends {
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.InInterface{Name: t.Names.Tap, Inverted: true},
			firewall.IP{Version: version(e.Gateway)}, firewall.Destination{Prefix: single(e.Gateway)}))
	}
	rules = append(rules, t.Router.toNamespace()...)
	if t.SourcePorts.everything {
		return rules
	}
	return append([]firewall.Rule{rule(firewall.Jump{Chain: "reserved"}, firewall.InInterface{Name: t.Names.NIC}, firewall.State{States: firewall.New})}, rules...)
}

// reserved drops what the network opens to the ports that are left to the guest's connections. Otherwise each such
// packet would become a connection of the namespace, and keep the guest from using the port to the same peer for half a
// minute: a few packets could cut the guest off from its DNS server.
func (t Masquerade) reserved() []firewall.Rule {
	var rules []firewall.Rule
	for _, name := range []string{"tcp", "udp", "sctp"} {
		number, of := firewall.Transports[name], t.SourcePorts.others[name]
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.Protocol{Number: number}, firewall.DestinationPort{Protocol: number, First: of.first, Last: of.last}))
	}
	return rules
}
