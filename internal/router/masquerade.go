package router

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Masquerade is a router that translates the guest's addresses. Packets for the NIC's addresses go to the guest, if
// their port is forwarded. Packets of the guest leave with the address of the link that they leave by, or not at all.
type Masquerade struct {
	Router
	infra.Masquerade
	// Addresses are the NIC's. Hidden are those from which the default routes by the NIC say to send, one of a version at
	// most: the kernel's own choice does not read the routes. Linked are the networks to which the namespace sends from
	// other addresses of the NIC.
	Addresses   []netip.Addr
	Hidden      []netip.Addr
	Linked      []netip.Prefix
	SourcePorts SourcePorts
	// Flows says that established connections pass by a flow table.
	Flows bool
	// Counts says that the kernel counts what each connection carries, also in the flow table.
	Counts bool
	// Families are those of iptables whose chains translate; none: a table of nftables does. With NoNFTables there is
	// none beside them. With NoIPv6AtTap the tap has no IPv6.
	Families    []firewall.Family
	NoNFTables  bool
	NoIPv6AtTap bool
}

// established is the flow table of the guest's connections by the NIC.
const established = "established"

// Tables are those of nftables, and of iptables if that translates.
func (m Masquerade) Tables() []firewall.Table {
	m.iptables = len(m.Families) > 0
	tables := m.completeChecksums()
	switch {
	case !m.iptables:
		tables = append(tables, m.table())
	case !m.NoNFTables:
		tables = append(tables, m.tableBeside())
	}
	for _, f := range m.Programs() {
		table := m.table()
		if f.IPTables() == 6 && !m.Ends.Has(6) {
			table.Chains = []firewall.Chain{{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: m.noIPv6()}}
		}
		tables = append(tables, table.IPTables(f, m.Names.Chains()))
	}
	return tables
}

// Programs are those of iptables by which there are chains. Without a guest's IPv6 those of nftables refuse it, or no
// rule has to.
func (m Masquerade) Programs() []firewall.Family {
	return slices.DeleteFunc(slices.Clone(m.Families), func(f firewall.Family) bool {
		return f.IPTables() == 6 && !m.Ends.Has(6) && (!m.NoNFTables || m.NoIPv6AtTap)
	})
}

func (m Masquerade) table() firewall.Table {
	chains := []firewall.Chain{
		{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: m.loopback()},
		{Name: "from-network", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: m.fromNetwork()},
		{Name: "from-namespace", Type: "nat", Hook: firewall.Output, Priority: firewall.DstNAT, Rules: m.fromNamespace()},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: m.through()},
		{Name: "output", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter, Rules: m.output()},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: m.source()},
	}
	if len(m.Hidden) > 0 {
		chains = append(chains, firewall.Chain{Name: hiddenChain, Rules: m.hidden()})
	}
	if !m.iptables {
		chains = append(chains, m.last())
	}
	chains = append(chains, m.loopbacks()...)
	for _, e := range m.Ends {
		chains = append(chains, firewall.Chain{Name: toGuest(ip.Of(e.Guest)), Rules: m.toGuest(e.Guest)})
	}
	chains = append(chains, firewall.Chain{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: m.toNamespace()})
	if !m.Guard.Off {
		chains = append(chains, firewall.Chain{Name: "errors", Rules: m.errors()})
	}
	if !m.SourcePorts.everything {
		chains = append(chains, firewall.Chain{Name: "reserved", Rules: m.reserved()})
	}
	chains = append(chains,
		firewall.Chain{Name: "accepted", Rules: m.accepted()},
		firewall.Chain{Name: "opening", Rules: m.opening()},
		firewall.Chain{Name: "opened", Rules: m.opened()},
		firewall.Chain{Name: "related", Rules: m.related()},
		firewall.Chain{Name: "outgoing", Rules: m.limit()},
		firewall.Chain{Name: "incoming", Rules: m.limit()})
	table := firewall.Table{Family: firewall.Inet, Name: m.Names.Table, Chains: chains}
	for _, ports := range portMaps(m.Ports) {
		table.Maps = append(table.Maps, ports.PortMap)
	}
	if !m.iptables {
		m.limitNeighbours(&table)
		m.addEgress(&table)
		m.addDiverts(&table)
		m.addOtherLinks(&table)
	}
	if m.Flows {
		table.Flows = []firewall.FlowTable{{Name: established, Devices: []string{m.Names.NIC, m.Names.Tap}, Priority: firewall.Last, Counts: m.Counts}}
	}
	return table
}

// tableBeside is the table of nftables beside the chains of iptables, for what these cannot express.
func (m Masquerade) tableBeside() firewall.Table {
	isNew := firewall.State{States: firewall.New}
	toGuest := []firewall.Match{m.toTap(), firewall.InInterface{Name: m.Names.Tap, Inverted: true}, isNew, firewall.Unconfirmed{}}
	table := firewall.Table{Family: firewall.Inet, Name: m.Names.Table, Chains: []firewall.Chain{
		{Name: "beside-forward", Type: "filter", Hook: firewall.Forward, Priority: firewall.AfterFilter, Rules: slices.Concat(m.astrayOpen(), m.reopened(), m.checked(m.fromGuest()), m.resumed(toGuest...), []firewall.Rule{
			rule(firewall.Jump{Chain: "opening"}, m.fromGuest(), isNew),
			rule(firewall.Jump{Chain: "incoming"}, toGuest...),
		})},
		{Name: "beside-input", Type: "filter", Hook: firewall.Input, Priority: firewall.AfterFilter, Rules: append(m.divertedBeside(),
			rule(firewall.Jump{Chain: "accepted"}, m.fromGuest(), isNew))},
		{Name: "opening", Rules: slices.Concat([]firewall.Rule{m.toOtherLinks()}, m.toNeighbours(), []firewall.Rule{rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{})})},
		{Name: "accepted", Rules: append(m.fromNeighbours(), rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))},
		{Name: "outgoing", Rules: []firewall.Rule{m.rate()}},
		{Name: "incoming", Rules: []firewall.Rule{m.rate()}},
		m.last(),
	}}
	if rules := append(m.noIPv6(), m.sourceRoutes()...); len(rules) > 0 {
		table.Chains = append(table.Chains, firewall.Chain{Name: "beside-first", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: rules})
	}
	m.limitNeighbours(&table)
	m.addEgress(&table)
	m.addDiverts(&table)
	m.addOtherLinks(&table)
	return table
}

// fromNetwork forwards packets that come from outside, unless proxies take them, and packets that the guest
// sends to the NIC's addresses.
func (m Masquerade) fromNetwork() []firewall.Rule {
	from := []firewall.Match{firewall.InInterface{Name: m.Names.NIC}, m.fromGuest()}
	if m.Sidecar != nil {
		from = from[1:]
	}
	var rules []firewall.Rule
	for _, in := range from {
		for _, a := range m.Addresses {
			rules = append(rules, m.forwarded(a, in)...)
		}
	}
	return rules
}

// fromNamespace forwards packets that the namespace's own processes send to the NIC's addresses, and with
// Loopback to the loopback addresses.
func (m Masquerade) fromNamespace() []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range m.forwardedAddresses() {
		rules = append(rules, m.forwarded(a)...)
	}
	return rules
}

// forwardedAddresses are the addresses whose forwarded ports lead to the guest.
func (m Masquerade) forwardedAddresses() []netip.Addr {
	all := slices.Clone(m.Addresses)
	if m.Loopback {
		all = append(all, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !m.Ends.Has(ip.Of(a)) })
}

// forwarded sends packets for an address that meet the conditions to the guest, if the guest has an address of
// that family.
func (m Masquerade) forwarded(to netip.Addr, where ...firewall.Match) []firewall.Rule {
	v := ip.Of(to)
	if !m.Ends.Has(v) {
		return nil
	}
	return []firewall.Rule{rule(firewall.Jump{Chain: toGuest(v)},
		append(where[:len(where):len(where)], firewall.IP{Version: v}, firewall.Destination{Prefix: firewall.HostPrefix(to)})...)}
}

func toGuest(v ip.Version) string { return fmt.Sprintf("to-guest-%d", v) }

// toGuest translates the ports that are forwarded, and nothing else. A TCP packet that opens no connection and
// belongs to no tracked one is the namespace's own: its connection is older than the rules.
func (m Masquerade) toGuest(guest netip.Addr) []firewall.Rule {
	if m.Ports != nil && len(m.Ports) == 0 {
		return nil
	}
	rules := []firewall.Rule{rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{Inverted: true})}
	for _, p := range m.Excluded {
		rules = append(rules, rule(firewall.Accept{}, matchPorts(p)...))
	}
	if m.Ports == nil {
		return append(rules, rule(firewall.DNAT{Address: guest}))
	}
	for _, p := range m.Ports {
		if f := syntax.Ports(p).Full(); f.Guest == f.First {
			rules = append(rules, rule(firewall.DNAT{Address: guest}, matchPorts(p)...))
		}
	}
	for _, ports := range portMaps(m.Ports) {
		number := firewall.Transports[ports.protocol]
		rules = append(rules, rule(firewall.DNATMap{Address: guest, Protocol: number, Map: ports.Name}, firewall.Protocol{Number: number}))
	}
	return rules
}

// through is what the namespace forwards from and to the guest. A packet of the guest that belongs to no
// connection is dropped, as it would leave untranslated. To the guest pass only known connections and
// translated packets. What else comes in by the NIC is dropped, if the NIC did not forward before Setup.
func (m Masquerade) through() []firewall.Rule {
	known := firewall.State{States: firewall.Established | firewall.Related}
	nic := firewall.InInterface{Name: m.Names.NIC}
	var rules []firewall.Rule
	if !m.iptables {
		rules = m.astrayOpen()
	}
	rules = slices.Concat(rules, m.offloaded(), answered())
	if !m.iptables {
		rules = append(rules, m.reopened()...)
	}
	rules = append(rules,
		rule(firewall.Jump{Chain: "opening"}, m.fromGuest(), firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New | firewall.Related}),
		rule(firewall.Jump{Chain: "opened"}, m.toTap(), firewall.InInterface{Name: m.Names.Tap, Inverted: true}, firewall.State{States: firewall.Invalid | firewall.Untracked | firewall.New}),
		rule(firewall.ClampMSS{}, m.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, m.toTap(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, m.fromGuest(), firewall.OutInterface{Name: m.Names.Tap, Inverted: true}),
		rule(firewall.Accept{}, m.toTap(), known),
		rule(firewall.Accept{}, m.toTap(), firewall.Translated{}),
		rule(drop(firewall.NotForwarded), m.toTap()),
		rule(firewall.Accept{}, nic, known),
	)
	for _, v := range m.Unforwarded {
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
func (m Masquerade) offloaded() []firewall.Rule {
	if !m.Flows {
		return nil
	}
	add, out := firewall.Offload{Table: established}, firewall.OutInterface{Name: m.Names.NIC}
	return []firewall.Rule{
		rule(add, firewall.Protocol{Number: firewall.ProtocolTCP}, m.fromGuest(), out, firewall.Assured{}, firewall.Lasting{Seconds: closingSeconds}),
		rule(add, firewall.Protocol{Number: firewall.ProtocolUDP}, m.fromGuest(), out, firewall.Assured{}),
	}
}

// opening is what the guest sends that belongs to no established connection.
func (m Masquerade) opening() []firewall.Rule {
	rules := []firewall.Rule{rule(drop(firewall.NoConnection), firewall.State{States: firewall.Invalid | firewall.Untracked})}
	if !m.iptables {
		rules = append(rules, m.checked()...)
	}
	rules = append(rules, rule(firewall.Goto{Chain: "related"}, firewall.State{States: firewall.Related}))
	if !m.iptables {
		rules = append(append(rules, m.toOtherLinks()), m.toNeighbours()...)
	}
	rules = append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))
	// An answer without ports is forwarded to the guest only if everything is.
	if m.SourcePorts.everything {
		rules = append(rules, rule(firewall.Return{}, firewall.OutInterface{Name: m.Names.NIC}))
	}
	for _, protocol := range []uint8{firewall.ProtocolTCP, firewall.ProtocolUDP, firewall.ProtocolSCTP} {
		rules = append(rules, rule(firewall.Return{}, firewall.Protocol{Number: protocol}))
	}
	for _, e := range m.Ends {
		v := ip.Of(e.Guest)
		rules = append(rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.Protocol{Number: firewall.ProtocolOfICMP(v)}))
	}
	return append(rules, rule(drop(firewall.NoPorts)))
}

// source hides the guest's address, and chooses the source ports of the guest's connections: see SourcePorts. Packets
// to the guest from an address that the guest cannot answer get the gateway's address as their source.
func (m Masquerade) source() []firewall.Rule {
	from, out := m.fromGuest(), firewall.OutInterface{Name: m.Names.NIC}
	var rules []firewall.Rule
	if len(m.Hidden) > 0 {
		rules = append(rules, rule(firewall.Jump{Chain: hiddenChain}, from, out))
	}
	for _, name := range transports {
		number := firewall.Transports[name]
		protocol := firewall.Protocol{Number: number}
		for _, k := range m.SourcePorts.kept[name] {
			rules = append(rules, rule(firewall.Masquerade{First: k.first, Last: k.last}, from, out, protocol, firewall.SourcePort{Protocol: number, First: k.first, Last: k.last}))
		}
		by, o := m.SourcePorts.byNIC[name], m.SourcePorts.others[name]
		if by != o {
			rules = append(rules, rule(firewall.Masquerade{First: by.first, Last: by.last}, from, out, protocol))
		}
		rules = append(rules, rule(firewall.Masquerade{First: o.first, Last: o.last}, from, protocol))
	}
	rules = append(rules, rule(firewall.Masquerade{}, from))
	for _, e := range m.Ends {
		for _, from := range m.rewritten(ip.Of(e.Guest)) {
			rules = append(rules, rule(firewall.SNAT{Address: e.Gateway}, m.toTap(), firewall.IP{Version: ip.Of(e.Guest)}, firewall.Source{Prefix: from}))
		}
	}
	return rules
}

const hiddenChain = "hidden"

// hidden translates what the guest sends by the NIC to the address that the route names, with the ports of source.
func (m Masquerade) hidden() (rules []firewall.Rule) {
	for _, to := range m.Linked {
		rules = append(rules, rule(firewall.Return{}, firewall.IP{Version: ip.Of(to.Addr())}, firewall.Destination{Prefix: to}))
	}
	for _, a := range m.Hidden {
		snat := func(first, last uint16, where ...firewall.Match) {
			rules = append(rules, rule(firewall.SNAT{Address: a, First: first, Last: last}, append([]firewall.Match{firewall.IP{Version: ip.Of(a)}}, where...)...))
		}
		for _, name := range transports {
			number := firewall.Transports[name]
			protocol := firewall.Protocol{Number: number}
			for _, k := range m.SourcePorts.kept[name] {
				snat(k.first, k.last, protocol, firewall.SourcePort{Protocol: number, First: k.first, Last: k.last})
			}
			by := m.SourcePorts.byNIC[name]
			snat(by.first, by.last, protocol)
		}
		snat(0, 0)
	}
	return rules
}

// last drops packets for the guest's address that leave by another link. A default route would send them there while
// the tap is down on standby, or deleted by the launcher.
func (m Masquerade) last() firewall.Chain {
	c := firewall.Chain{Name: "last", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.SrcNAT + 1}
	for _, e := range m.Ends {
		c.Rules = append(c.Rules, rule(drop(firewall.NotForwarded), firewall.IP{Version: ip.Of(e.Guest)}, firewall.Destination{Prefix: firewall.HostPrefix(e.Guest)},
			firewall.OutInterface{Name: m.Names.Tap, Inverted: true}))
	}
	return c
}

// rewritten are the sources that get the gateway's address.
func (m Masquerade) rewritten(v ip.Version) []netip.Prefix {
	var list []netip.Prefix
	if m.Loopback {
		list = append(list, loopback(v))
	}
	if m.Sidecar != nil {
		for _, a := range m.Sidecar.Sources {
			if ip.Of(a) == v && !(m.Loopback && loopback(v).Contains(a)) {
				list = append(list, firewall.HostPrefix(a))
			}
		}
	}
	return list
}

// toNamespace drops what comes to the ports that are left to the guest's connections, and what the guest may not send
// to the namespace. The gateway's addresses are for the guest and the namespace's own processes: what listens there,
// such as a DNS proxy, must not answer a neighbour in the guest's place.
func (m Masquerade) toNamespace() []firewall.Rule {
	rules := []firewall.Rule{rule(firewall.Return{}, firewall.InInterface{Name: "lo"})}
	for _, e := range m.Ends {
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.InInterface{Name: m.Names.Tap, Inverted: true},
			firewall.IP{Version: ip.Of(e.Gateway)}, firewall.Destination{Prefix: firewall.HostPrefix(e.Gateway)}))
	}
	rules = append(rules, m.Router.toNamespace()...)
	if m.SourcePorts.everything {
		return rules
	}
	return append([]firewall.Rule{rule(firewall.Jump{Chain: "reserved"}, firewall.InInterface{Name: m.Names.NIC}, firewall.State{States: firewall.New})}, rules...)
}

// reserved drops what the network opens to the ports that are left to the guest's connections. Otherwise each such
// packet would become a connection of the namespace, and keep the guest from using the port to the same peer for half a
// minute: a few packets could cut the guest off from its DNS server.
func (m Masquerade) reserved() []firewall.Rule {
	var rules []firewall.Rule
	for _, name := range transports {
		number, of := firewall.Transports[name], m.SourcePorts.others[name]
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.Protocol{Number: number}, firewall.DestinationPort{Protocol: number, First: of.first, Last: of.last}))
	}
	return rules
}
