package router

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// Routed is a router whose guest has the NIC's addresses.
type Routed struct {
	Router
	Sidecar  *infra.Sidecar
	Excluded []infra.Ports
	// Own are the NIC's addresses, which are the guest's.
	Own []netip.Addr
	// Sources are what the namespace's addresses, the gateways, become at the NIC, by the version of IP.
	Sources map[ip.Version][]fib.Choice
}

// Tables are those of nftables.
func (r Routed) Tables() []firewall.Table { return append(r.completeChecksums(), r.table()) }

func (r Routed) table() firewall.Table {
	chains := []firewall.Chain{
		{Name: "first", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: r.first()},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: r.through()},
		{Name: "output", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter, Rules: r.output()},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: r.source()},
		{Name: "last", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.SrcNAT + 1, Rules: r.last()},
		{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: r.toNamespace(r.toProxies()...)},
	}
	if !r.Guard.Off {
		chains = append(chains, firewall.Chain{Name: "errors", Rules: r.errors()})
	}
	chains = append(chains,
		firewall.Chain{Name: "accepted", Rules: r.accepted()},
		firewall.Chain{Name: "opening", Rules: r.opening()},
		firewall.Chain{Name: "opened", Rules: append(r.resumed(firewall.Unconfirmed{}), rule(firewall.Jump{Chain: "incoming"}, firewall.Unconfirmed{}))},
		firewall.Chain{Name: "related", Rules: r.related()},
		firewall.Chain{Name: "outgoing", Rules: r.limit()},
		firewall.Chain{Name: "incoming", Rules: r.limit()})
	if len(r.Excluded) > 0 {
		chains = append(chains,
			firewall.Chain{Name: "excluded", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: r.ownPorts(firewall.InInterface{Name: r.Names.NIC})},
			firewall.Chain{Name: "own-excluded", Type: "nat", Hook: firewall.Output, Priority: firewall.DstNAT, Rules: r.ownPorts()})
	}
	chains = append(chains, r.loopbacks()...)
	chains = append(chains, r.completedSources()...)
	table := firewall.Table{Family: firewall.Inet, Name: r.Names.Table, Chains: chains}
	r.limitNeighbours(&table)
	r.addEgress(&table)
	r.addDiverts(&table)
	r.addOtherLinks(&table)
	return table
}

// toProxies accepts what a proxy's rule has sent to the namespace. The proxy's own connections are not the guest's, so
// Spec.Egress could not check them, and with it no proxy is reached.
func (r Routed) toProxies() []firewall.Rule {
	if len(r.Allowed) > 0 {
		return nil
	}
	return []firewall.Rule{rule(firewall.Goto{Chain: "accepted"}, r.fromGuest(), firewall.Translated{})}
}

// first is before connections are tracked and packets are routed. The gateway's addresses are for the guest and the
// namespace's own processes, as in Masquerade.toNamespace: no link but the tap and the loopback brings packets for
// them. Neighbour discovery for the NIC is the namespace's, and would be routed to the guest.
func (r Routed) first() []firewall.Rule {
	nic := firewall.InInterface{Name: r.Names.NIC}
	rules := r.loopback()
	for _, e := range r.Ends {
		rules = append(rules, rule(drop(firewall.NotForwarded), firewall.InInterface{Name: r.Names.Tap, Inverted: true}, firewall.InInterface{Name: "lo", Inverted: true},
			firewall.IP{Version: ip.Of(e.Guest)}, firewall.Destination{Prefix: firewall.HostPrefix(e.Gateway)}))
	}
	rules = append(rules, r.completed()...)
	if r.NoARP {
		return rules
	}
	hop6 := r.Ends.Gateway(ip.V6)
	if hop6.IsValid() { // as in the guest filter's chain asked
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: 6}, firewall.Protocol{Number: firewall.ProtocolICMPv6},
			firewall.ICMP{Version: 6, Type: firewall.ICMP6Solicitation}, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: hop6.AsSlice()}))
	}
	for _, a := range r.Own {
		if a.Is4() {
			continue
		}
		for _, kind := range []uint8{firewall.ICMP6Solicitation, firewall.ICMP6Advertisement} {
			rules = append(rules, rule(firewall.SetDestination{Address: hop6}, nic, firewall.IP{Version: 6}, firewall.Destination{Prefix: firewall.HostPrefix(a)},
				firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: kind}))
		}
	}
	return rules
}

// completed checks the sources of the guest's packets once more, in a chain for each family. Where the kernel completes
// checksums before this chain, it may have written into the source, after the guest filter has seen it.
func (r Routed) completed() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range r.completes() {
		v := ip.Of(e.Guest)
		rules = append(rules, rule(firewall.Jump{Chain: sourceChain(v)}, r.fromGuest(), firewall.IP{Version: v}))
	}
	return rules
}

// completes are the ends whose packets' sources are checked once more.
func (r Routed) completes() Ends {
	if len(r.Allowed) == 0 || r.Guard.Off {
		return nil
	}
	return r.Ends
}

func sourceChain(version ip.Version) string { return fmt.Sprintf("source-%d", version) }

// completedSources are the chains of completed. What is not forwarded passes: packets without a source, and those of
// link-local addresses, of which the guest filter knows more.
func (r Routed) completedSources() []firewall.Chain {
	local := []netip.Prefix{firewall.HostPrefix(netip.IPv4Unspecified()), firewall.HostPrefix(netip.IPv6Unspecified()), linkLocal6}
	var chains []firewall.Chain
	for _, e := range r.completes() {
		v := ip.Of(e.Guest)
		c := firewall.Chain{Name: sourceChain(v)}
		for _, p := range slices.Concat(r.Router.sources(), local) {
			if ip.Of(p.Addr()) == v && !(v == 6 && p.Addr().IsLinkLocalUnicast() && p != linkLocal6) {
				c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.Source{Prefix: p}))
			}
		}
		c.Rules = append(c.Rules, rule(drop(firewall.IPSpoof)))
		chains = append(chains, c)
	}
	return chains
}

var linkLocal6 = netip.MustParsePrefix("fe80::/10")

// through limits the connections of the guest and to the guest. What else comes in by the NIC is dropped, if the NIC
// did not forward before Setup.
//
// A segment that connection tracking does not know may be one of the namespace's own connections: such a segment is not
// translated back to the namespace's address. The guest would receive it, and its answer would reset the connection.
// Neither passes.
func (r Routed) through() []firewall.Rule {
	nic := firewall.InInterface{Name: r.Names.NIC}
	invalid := []firewall.Match{firewall.State{States: firewall.Invalid}, firewall.Protocol{Number: firewall.ProtocolTCP}}
	rules := append(append(r.astrayOpen(), answered()...),
		rule(drop(firewall.NoConnection), slices.Concat([]firewall.Match{r.toTap(), firewall.InInterface{Name: r.Names.Tap, Inverted: true}}, invalid)...),
		rule(drop(firewall.NoConnection), r.strays(invalid)...))
	rules = append(rules, r.reopened()...)
	rules = append(rules,
		rule(firewall.Jump{Chain: "opening"}, r.fromGuest(), firewall.State{States: firewall.New | firewall.Related}),
		r.toOtherLinks(r.fromGuest(), firewall.State{States: firewall.Untracked}),
		rule(firewall.Jump{Chain: "opened"}, r.toTap(), firewall.InInterface{Name: r.Names.Tap, Inverted: true}, firewall.State{States: firewall.New}),
		rule(firewall.ClampMSS{}, r.fromGuest(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.ClampMSS{}, r.toTap(), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
		rule(firewall.Accept{}, r.fromGuest()),
		rule(firewall.Accept{}, r.toTap()),
		rule(firewall.Accept{}, nic, firewall.State{States: firewall.Established | firewall.Related}))
	for _, v := range r.Unforwarded {
		rules = append(rules, rule(drop(firewall.NotForwarded), nic, firewall.IP{Version: v}))
	}
	return rules
}

// strays matches the guest's packets without a connection that must not pass: those that could reset one, and with
// Spec.Egress, which checks connections alone, all.
func (r Routed) strays(invalid []firewall.Match) []firewall.Match {
	if len(r.Allowed) > 0 {
		return []firewall.Match{r.fromGuest(), firewall.State{States: firewall.Invalid | firewall.Untracked}}
	}
	return slices.Concat([]firewall.Match{r.fromGuest()}, invalid, []firewall.Match{reset})
}

// reset matches a TCP segment with RST (RFC 9293 section 3.1), in a rule that matches TCP.
var reset = firewall.Bytes{Header: firewall.Transport, Offset: 13, Value: []byte{0}, Mask: []byte{4}, Inverted: true}

// opening is what the guest sends that belongs to no established connection.
func (r Routed) opening() []firewall.Rule {
	rules := append(r.checked(), rule(firewall.Goto{Chain: "related"}, firewall.State{States: firewall.Related}))
	rules = append(append(rules, r.toOtherLinks()), r.toNeighbours()...)
	return append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}))
}

// source gives the namespace's own connections the NIC's addresses. Connection tracking keeps them apart from the
// guest's. A proxy's connection from a loopback address gets a source that the guest can answer.
func (r Routed) source() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range r.Ends {
		for _, s := range r.Sources[ip.Of(e.Guest)] {
			rules = append(rules, rule(firewall.SNAT{Address: s.Address}, r.toNIC(e, s)...))
		}
		if r.Sidecar == nil {
			continue
		}
		for _, a := range r.Sidecar.Sources {
			if ip.Of(a) == ip.Of(e.Guest) {
				rules = append(rules, rule(firewall.SNAT{Address: e.Gateway}, r.toTap(), firewall.IP{Version: ip.Of(a)}, firewall.Source{Prefix: firewall.HostPrefix(a)}))
			}
		}
	}
	return rules
}

// ownPorts sends what comes to the excluded ports of the NIC's addresses to the namespace's own address.
func (r Routed) ownPorts(where ...firewall.Match) []firewall.Rule {
	var rules []firewall.Rule
	for _, a := range r.Own {
		to := append(slices.Clone(where), firewall.IP{Version: ip.Of(a)}, firewall.Destination{Prefix: firewall.HostPrefix(a)})
		for _, p := range r.Excluded {
			rules = append(rules, rule(firewall.DNAT{Address: r.Ends.Gateway(ip.Of(a))}, append(slices.Clone(to), matchPorts(p)...)...))
		}
	}
	return rules
}

// last gives the NIC's addresses to what leaves untranslated, such as the namespace's ICMP errors about packets of the
// guest.
func (r Routed) last() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range r.Ends {
		for _, s := range r.Sources[ip.Of(e.Guest)] {
			rules = append(rules, rule(firewall.SetSource{Address: s.Address}, r.toNIC(e, s)...))
		}
	}
	return rules
}

// toNIC matches the namespace's own packets that leave by the NIC and get the source.
func (r Routed) toNIC(e End, s fib.Choice) []firewall.Match {
	m := []firewall.Match{firewall.OutInterface{Name: r.Names.NIC}, firewall.IP{Version: ip.Of(e.Guest)}, firewall.Source{Prefix: firewall.HostPrefix(e.Gateway)}}
	if s.To.IsValid() {
		m = append(m, firewall.Destination{Prefix: s.To})
	}
	return m
}
