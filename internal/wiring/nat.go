package wiring

import (
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
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: t.source()},
	}
	for _, e := range t.ends {
		chains = append(chains, firewall.Chain{Name: toGuest(version(e.guest)), Rules: t.toGuest(e.guest)})
	}
	if rules := t.toNamespace(); len(rules) > 0 {
		chains = append(chains, firewall.Chain{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: rules})
	}
	if t.MaxConnections > 0 {
		chains = append(chains, firewall.Chain{Name: "cap", Rules: []firewall.Rule{
			rule(drop(firewall.ConnectionLimit), firewall.Connections{Over: uint32(t.MaxConnections)}),
		}})
	}
	return firewall.Table{Family: firewall.Inet, Name: t.names.Table, Chains: chains}
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
func (t translation) through() []firewall.Rule {
	known := firewall.State{States: firewall.Established | firewall.Related}
	nic := firewall.InInterface{Name: t.names.NIC}
	var rules []firewall.Rule
	for _, m := range []firewall.Match{t.fromGuest(), t.toBridge()} {
		rules = append(rules, rule(drop(firewall.NoConnection), m, firewall.State{States: firewall.Invalid | firewall.Untracked}))
		if t.MaxConnections > 0 {
			rules = append(rules, rule(firewall.Jump{Chain: "cap"}, m, firewall.State{States: firewall.New}))
		}
	}
	rules = append(rules,
		rule(firewall.ClampMSS{}, t.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, t.toBridge(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, t.fromGuest(), firewall.OutInterface{Name: t.names.Bridge, Not: true}),
		rule(firewall.Accept{}, t.toBridge(), known),
		rule(firewall.Accept{}, t.toBridge(), firewall.Translated{}),
		rule(drop(firewall.NotForwarded), t.toBridge()),
		rule(firewall.Accept{}, nic, known))
	for _, v := range t.unforwarded {
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: v}))
	}
	return rules
}

// source hides the guest's address. Packets to the guest from an address that the guest cannot answer get
// the gateway's address as their source.
func (t translation) source() []firewall.Rule {
	rules := []firewall.Rule{
		rule(firewall.Masquerade{}, t.fromGuest(), firewall.OutInterface{Name: t.names.Bridge, Not: true}),
		rule(firewall.Masquerade{}, t.fromGuest(), t.toBridge()), // from the guest to the guest, by the NIC's address
	}
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
	if t.MaxConnections > 0 {
		rules = append(rules, rule(firewall.Jump{Chain: "cap"}, from, firewall.State{States: firewall.New}))
	}
	if t.guard.Off {
		return rules
	}
	rules = append(rules, rule(firewall.Accept{}, from, firewall.State{States: firewall.Established | firewall.Related}))
	for _, e := range t.ends {
		if e.guest.Is4() {
			rules = append(rules, rule(firewall.Accept{}, from, firewall.IP{Version: 4},
				firewall.Protocol{Number: firewall.ProtocolICMP}, firewall.ICMP{Version: 4, Type: icmpEcho}))
			continue
		}
		for _, kind := range []uint8{icmp6Echo, icmp6Solicitation, icmp6Advertisement} {
			rules = append(rules, rule(firewall.Accept{}, from, firewall.IP{Version: 6},
				firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: kind}))
		}
	}
	for _, p := range t.guard.Open {
		rules = append(rules, rule(firewall.Accept{}, append([]firewall.Match{from}, matchPorts(p)...)...))
	}
	return append(rules, rule(drop(firewall.NamespaceService), from))
}
