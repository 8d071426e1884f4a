package router

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A divert translates the destination of the guest's connections by the policy's sets, before all others of the
// namespace do (divert). The namespace takes what is translated in this way alone (toDiverts). If a target is no
// address of the namespace any more, its connections are refused where they would leave (astray).

const (
	// beforeDstNAT is before the namespace's own translations, and those of the wiring.
	beforeDstNAT = firewall.DstNAT - 10

	targetsChain    = "targets"
	divertedToChain = "to-divert"
	astrayChain     = "astray"
)

// unrouted are the destinations that no divert takes: those of groups, broadcast and the reserved ones.
func unrouted(v ip.Version) netip.Prefix {
	return ip.Pick(v, netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("ff00::/8"))
}

// divert leads what the guest opens to the targets.
func (r Router) divert() (chains []firewall.Chain) {
	c := firewall.Chain{Name: "divert", Type: "nat", Hook: firewall.Prerouting, Priority: beforeDstNAT}
	targets := firewall.Chain{Name: targetsChain}
	for _, v := range r.Ends.Versions() {
		if r.divertsAny(v) {
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.Destination{Prefix: unrouted(v)}))
		}
	}
	all := r.diverted()
	for _, d := range all {
		c.Rules = append(c.Rules, rule(firewall.Jump{Chain: targetsChain}, r.fromGuest(), firewall.IP{Version: d.Set.Version}, d.Set.Lookup()))
	}
	for _, d := range r.Diverts {
		to := firewall.DNAT{Address: d.Target.Addr(), Port: d.Target.Port()}
		for _, number := range d.Protocols {
			led := rule(to, r.fromGuest(), firewall.IP{Version: d.Set.Version}, firewall.Protocol{Number: number}, d.Set.Lookup())
			if !d.Resolver {
				targets.Rules = append(targets.Rules, led)
			} else {
				c.Rules = append(c.Rules, led)
			}
		}
	}
	if len(all) > 0 {
		chains = append(chains, targets)
	}
	return append(chains, c)
}

// diverted are the destinations of all diverts of a policy, a set of each version of IP, without targets. Most packets
// are in none, and meet one lookup.
func (r Router) diverted() (list []firewall.Divert) {
	for _, v := range r.Ends.Versions() {
		all := firewall.Divert{Set: firewall.Destinations{Name: firewall.DivertedSet(v), Version: v}}
		known := map[string]bool{} // sets; a target can have two ports
		for _, d := range r.Diverts {
			if d.Set.Version != v || d.Resolver {
				continue
			}
			if !known[d.Set.Name] {
				all.Set.Boxes = append(all.Set.Boxes, d.Set.Boxes...)
			}
			known[d.Set.Name] = true
			all.Protocols = append(all.Protocols, d.Protocols...)
		}
		if len(known) > 0 {
			slices.Sort(all.Protocols)
			all.Protocols = slices.Compact(all.Protocols)
			list = append(list, all)
		}
	}
	return list
}

func (r Router) divertsAny(v ip.Version) bool {
	return slices.ContainsFunc(r.Diverts, func(d firewall.Divert) bool { return d.Set.Version == v })
}

// addDiverts adds the sets and the chains to a table whose input has the rules of toDiverts.
func (r Router) addDiverts(table *firewall.Table) {
	if len(r.Diverts) == 0 {
		return
	}
	to, astray := firewall.Chain{Name: divertedToChain}, firewall.Chain{Name: astrayChain}
	leave := func(protocols []uint8, first firewall.FirstInDestinations) {
		for _, number := range protocols {
			astray.Rules = append(astray.Rules, rule(firewall.Refuse{Reason: firewall.NoEgress}, firewall.IP{Version: first.Version}, firewall.Protocol{Number: number}, first))
		}
	}
	for _, d := range r.Diverts {
		v := d.Set.Version
		if !slices.ContainsFunc(table.Destinations, func(o firewall.Destinations) bool { return o.Name == d.Set.Name }) {
			table.Destinations = append(table.Destinations, d.Set) // else another port of the same address
		}
		first := firewall.FirstInDestinations{Version: v, Set: d.Set.Name}
		for _, at := range r.atTarget(d) {
			to.Rules = append(to.Rules, rule(firewall.Goto{Chain: firewall.Diverted}, append(at, first)...))
		}
		if d.Resolver {
			leave(d.Protocols, first)
		}
	}
	for _, d := range r.diverted() {
		table.Destinations = append(table.Destinations, d.Set)
		leave(d.Protocols, firewall.FirstInDestinations{Version: d.Set.Version, Set: d.Set.Name})
	}
	counts := firewall.Chain{Name: firewall.Diverted, Rules: []firewall.Rule{
		rule(firewall.Continue{}, firewall.Unconfirmed{}, firewall.Count{}),
		rule(firewall.Jump{Chain: "accepted"}),
		rule(firewall.Accept{}),
	}}
	table.Chains = append(append(table.Chains, r.divert()...), to, counts, astray)
}

// atTarget matches packets to the target, by protocol.
func (r Router) atTarget(d firewall.Divert) (list [][]firewall.Match) {
	for _, number := range d.Protocols {
		list = append(list, []firewall.Match{firewall.IP{Version: d.Set.Version}, firewall.Protocol{Number: number}, firewall.Destination{Prefix: firewall.HostPrefix(d.Target.Addr())},
			firewall.DestinationPort{Protocol: number, First: d.Target.Port(), Last: d.Target.Port()}})
	}
	return list
}

// toDiverts accepts what comes to a target in the place of a destination that is diverted by now: each packet before
// the answer, as another list may hold by then. Chains of iptables accept by the target, and the table beside them
// looks at the destination, see divertedBeside.
func (r Router) toDiverts() (rules []firewall.Rule) {
	if !r.iptables {
		return r.divertedNow()
	}
	for _, d := range r.Diverts {
		for i, at := range r.atTarget(d) {
			from := r.translated()
			if leadsToItself(d, d.Protocols[i]) {
				from = r.opens()
			}
			rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, append(from, at...)...))
		}
	}
	return rules
}

// opens matches what the guest opens.
func (r Router) opens() []firewall.Match {
	return []firewall.Match{r.fromGuest(), firewall.State{States: firewall.New}}
}

// translated matches what the guest opens, and what some rule has sent elsewhere.
func (r Router) translated() []firewall.Match {
	return append(r.opens(), firewall.Translated{})
}

// leadsToItself reports whether the target is a destination that is diverted to it. To go there, a packet needs no
// translation.
func leadsToItself(d firewall.Divert, protocol uint8) bool {
	at := firewall.Pin{To: d.Target.Addr(), Protocol: protocol, Port: d.Target.Port()}
	return !at.To.IsLoopback() && slices.ContainsFunc(d.Set.Boxes, func(b firewall.Box) bool { return b.Has(at) })
}

// divertedNow looks at the destination. A beginning between the addresses and ports of a connection that is not
// forgotten is asked as well, see reopened: else the guest would reach a target to which no entry leads any more, also
// where the list diverts nothing any more. What connection tracking expects, as of FTP, is refused: it would arrive at
// the port that a message on the connection names.
func (r Router) divertedNow() (rules []firewall.Rule) {
	look := firewall.Jump{Chain: divertedToChain}
	for _, begins := range [][]firewall.Match{
		{firewall.Protocol{Number: firewall.ProtocolTCP}, synAlone},
		{firewall.Protocol{Number: firewall.ProtocolSCTP}, initSCTP},
	} {
		if len(r.Allowed) == 0 || len(r.Diverts) == 0 && r.Guard.Off {
			break // the targets stay, or all is open
		}
		again := slices.Concat([]firewall.Match{r.fromGuest()}, begins, []firewall.Match{firewall.State{States: firewall.Established}, firewall.Translated{}})
		if len(r.Diverts) > 0 {
			rules = append(rules, rule(look, again...))
		}
		rules = append(rules, rule(firewall.Refuse{Reason: firewall.NoEgress}, again...))
	}
	if len(r.Diverts) == 0 {
		return rules
	}
	rules = append(rules, rule(look, r.translated()...))
	for _, d := range r.Diverts {
		for i, at := range r.atTarget(d) {
			if leadsToItself(d, d.Protocols[i]) {
				rules = append(rules, rule(look, append(r.opens(), at...)...))
			}
		}
	}
	expected := append([]firewall.Match{r.fromGuest(), firewall.State{States: firewall.Related}, firewall.Translated{}}, noError...)
	return append(rules, rule(firewall.Refuse{Reason: firewall.NoEgress}, expected...))
}

// divertedBeside is for the table beside chains of iptables: it refuses what these accept by the target alone.
func (m Masquerade) divertedBeside() []firewall.Rule {
	rules := m.divertedNow()
	for _, d := range m.Diverts {
		for i, at := range m.atTarget(d) {
			isOpen := func(p infra.Ports) bool { return firewall.HasPort(syntax.Ports(p), d.Protocols[i], d.Target.Port()) }
			if !m.Guard.Off && !slices.ContainsFunc(m.Guard.Open, isOpen) {
				rules = append(rules, rule(firewall.Refuse{Reason: firewall.NoEgress}, append(m.translated(), at...)...))
			}
		}
	}
	return rules
}

// astrayOpen refuses what is diverted and would leave the namespace on a connection that is open: the target's address
// is gone, as IPv6's is from a link that goes down. It comes before what accepts established connections, and looks
// first at what few of these are.
func (r Router) astrayOpen() []firewall.Rule {
	if len(r.Diverts) == 0 {
		return nil
	}
	return []firewall.Rule{rule(firewall.Jump{Chain: astrayChain}, firewall.Translated{}, r.fromGuest(), firewall.State{States: firewall.Established})}
}

// astray refuses what is diverted and would leave the namespace.
func (r Router) astray(more ...firewall.Match) []firewall.Rule {
	if len(r.Diverts) == 0 {
		return nil
	}
	return []firewall.Rule{rule(firewall.Jump{Chain: astrayChain}, append(more, firewall.State{States: firewall.New}, firewall.Translated{})...)}
}
