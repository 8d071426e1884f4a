package router

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// destinations is the chain of what the guest opens: it returns if the guest may.
func (r Router) destinations() firewall.Chain {
	c := firewall.Chain{Name: "egress"}
	allow := firewall.Return{}
	for _, s := range r.Allowed {
		c.Rules = append(c.Rules, rule(allow, firewall.IP{Version: s.Version}, s.Lookup()))
	}
	for _, s := range r.Pinnable { // a set that the kernel replaces is empty for a moment, in which nothing is pinnable
		v := s.Version
		c.Rules = append(c.Rules, rule(allow, firewall.IP{Version: v}, s.Lookup(), firewall.InDestinations{Version: v, Set: firewall.PinSet(v)}))
	}
	c.Rules = append(c.Rules, rule(firewall.Refuse{Reason: firewall.NoEgress}))
	return c
}

// pins are the sets of what is pinned.
func (r Router) pins() (sets []firewall.Set) {
	for _, s := range r.Pinnable {
		if s.AllPorts {
			continue
		}
		sets = append(sets, firewall.NewPinSet(s.Version))
	}
	return sets
}

// allowedChain counts and returns. Its rule stays when those of egress change, and so does the count.
func allowedChain() firewall.Chain {
	return firewall.Chain{Name: firewall.Allowed, Rules: []firewall.Rule{rule(firewall.Return{}, firewall.Count{})}}
}

// addEgress adds the sets and the chain to a table that has a chain with the rules of checked.
func (r Router) addEgress(table *firewall.Table) {
	if len(r.Allowed) == 0 {
		return
	}
	table.Destinations = slices.Concat(r.Allowed, r.Pinnable)
	table.Sets = append(table.Sets, r.pins()...)
	table.Chains = append(table.Chains, r.destinations(), allowedChain(), r.behindTap(), r.unanswered(), r.asGuest(), r.foreign())
}

// asGuest drops what a process of the namespace opens as the guest, or to the guest in the name of another host: the
// guest could go on with it. A socket can have such an address from before Setup, and needs no capability to bind one
// (IP_FREEBIND, ip(7); IPV6_FREEBIND, ipv6(7)). Multicast is not forwarded, so the guest cannot go on with that.
// Answers, as those of a transparent proxy, open nothing. The chain comes after NAT, which may lead to the guest.
func (r Router) asGuest() firewall.Chain {
	c := firewall.Chain{Name: "as-guest", Type: "filter", Hook: firewall.Output, Priority: firewall.Filter}
	for _, v := range r.Ends.Versions() {
		c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: v}, firewall.Destination{Prefix: multicast(v)}))
	}
	c.Rules = append(c.Rules, rule(firewall.Jump{Chain: foreignChain}, firewall.Unconfirmed{}, firewall.Original{}))
	return c
}

// foreignChain judges the first packets of connections by their addresses. Where no rule can match the namespace's own
// addresses, only the guest's are refused: the namespace can have others in the guest's prefixes.
const foreignChain = "foreign"

func (r Router) foreign() firewall.Chain {
	c := firewall.Chain{Name: foreignChain}
	judge := func(p netip.Prefix, m ...firewall.Match) {
		for _, from := range m {
			c.Rules = append(c.Rules, rule(drop(firewall.NamespaceOutput), firewall.IP{Version: ip.Of(p.Addr())}, from))
		}
	}
	if !r.LocalSources {
		for _, a := range append(r.Ends.Guests(), r.Further...) {
			judge(firewall.HostPrefix(a), firewall.Source{Prefix: firewall.HostPrefix(a)})
		}
		return c
	}
	c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.LocalSource{}))
	if r.Guard.Off { // the guest may have any address
		c.Rules = append(c.Rules, rule(drop(firewall.NamespaceOutput)))
		return c
	}
	for _, p := range r.sources() {
		judge(p, firewall.Source{Prefix: p}, firewall.Origin{Prefix: p, Reply: true})
	}
	return c
}

func multicast(v ip.Version) netip.Prefix {
	return ip.Pick(v, netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8"))
}

// sourceRoutes drops the guest's packets with a routing header before they are routed. The namespace would send such a
// packet on to a destination of the guest's choice, which no rule has checked.
func (r Router) sourceRoutes() []firewall.Rule {
	if len(r.Allowed) == 0 || !r.Ends.Has(6) {
		return nil
	}
	return []firewall.Rule{rule(drop(firewall.ExtensionHeader), r.fromGuest(), firewall.IP{Version: 6}, firewall.RoutingHeader{})}
}

// checked looks up what the guest sends before the other side has answered: each packet, as another list may hold by
// then. A connection that connection tracking expects, as of FTP, is looked up like any other one; an ICMP error
// belongs to the connection that it is about, see unanswered. The first packet of what is allowed is counted. Packets
// that go back to the guest's tap are no egress: see behindTap.
func (r Router) checked(more ...firewall.Match) []firewall.Rule {
	rules := r.astray(more...)
	if len(r.Allowed) == 0 {
		return rules
	}
	toTap := append(slices.Clone(more), r.toTap())
	out := append(slices.Clone(more), firewall.OutInterface{Name: r.Names.Tap, Inverted: true})
	with := func(v firewall.Verdict, m ...firewall.Match) firewall.Rule { return rule(v, slices.Concat(out, m)...) }
	return append(rules,
		rule(firewall.Jump{Chain: behindTapChain}, toTap...),
		with(firewall.Jump{Chain: "egress"}, firewall.State{States: firewall.New}),
		with(firewall.Jump{Chain: "egress"}, append([]firewall.Match{firewall.State{States: firewall.Related}}, noError...)...),
		with(firewall.Jump{Chain: unansweredChain}, firewall.State{States: firewall.Related}, firewall.Unanswered{}),
		with(firewall.Jump{Chain: firewall.Allowed}, firewall.Unconfirmed{}))
}

// noError matches what is no ICMP error, of what belongs to other connections.
var noError = []firewall.Match{firewall.Protocol{Number: firewall.ProtocolICMP, Inverted: true}, firewall.Protocol{Number: firewall.ProtocolICMPv6, Inverted: true}}

// Where a packet says that it begins a connection: the flags SYN without ACK and RST of TCP (RFC 9293 section 3.1), the
// type of the first chunk of SCTP (RFC 9260 section 3.2), and that of a packet of DCCP (RFC 4340 section 5.1).
var (
	synAlone = firewall.Bytes{Header: firewall.Transport, Offset: 13, Value: []byte{0x02}, Mask: []byte{0x16}}
	initSCTP = firewall.Bytes{Header: firewall.Transport, Offset: 12, Value: []byte{1}}
	askDCCP  = firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: []byte{0}, Mask: []byte{0x1e}}
)

const protocolDCCP = 33

// authenticated matches IPv6 packets with an authentication header (RFC 4302). For nf_tables that is the packet's
// protocol (nft_set_pktinfo_ipv6 in net/netfilter), and for connection tracking the one behind it. So no rule sees
// where such a packet begins a connection.
func (r Router) authenticated() []firewall.Match {
	const protocolAH = 51
	return []firewall.Match{firewall.IP{Version: 6}, firewall.Protocol{Number: protocolAH}}
}

// reopened judges a connection that begins between the addresses and ports of one that connection tracking has not
// forgotten: the kernel calls each of its packets established. A guest can make the other side forget at any time. So
// the beginning is looked up like that of a new connection, and counts for MaxConnections' rate, in both directions. It
// comes before what accepts established connections.
func (r Router) reopened() []firewall.Rule {
	known := firewall.State{States: firewall.Established}
	begins := func(v firewall.Verdict, protocol uint8, sign firewall.Match, more ...firewall.Match) firewall.Rule {
		return rule(v, append(more, firewall.Protocol{Number: protocol}, sign, known)...)
	}
	var rules []firewall.Rule
	if len(r.Allowed) > 0 {
		out := []firewall.Match{r.fromGuest(), firewall.OutInterface{Name: r.Names.Tap, Inverted: true}}
		look := firewall.Jump{Chain: "egress"}
		rules = append(rules,
			begins(look, firewall.ProtocolTCP, synAlone, out...),
			begins(look, firewall.ProtocolSCTP, initSCTP, out...),
			begins(look, protocolDCCP, askDCCP, out...))
		if r.Ends.Has(6) {
			rules = append(rules, rule(look, slices.Concat(out, r.authenticated(), []firewall.Match{known})...))
		}
	}
	return append(rules,
		begins(firewall.Jump{Chain: "outgoing"}, firewall.ProtocolTCP, synAlone, r.fromGuest()),
		begins(firewall.Jump{Chain: "incoming"}, firewall.ProtocolTCP, synAlone, r.toTap(), firewall.InInterface{Name: r.Names.Tap, Inverted: true}))
}

// unansweredChain looks up the guest's ICMP errors about connections of its own that nobody has answered: an error
// about a packet that has not come carries the guest's data, wherever the policy leads by then. The guest may say to
// others that their first packet failed.
const unansweredChain = "unanswered"

func (r Router) unanswered() firewall.Chain {
	c := firewall.Chain{Name: unansweredChain}
	for _, p := range r.sources() {
		c.Rules = append(c.Rules, rule(firewall.Jump{Chain: "egress"}, firewall.IP{Version: ip.Of(p.Addr())}, firewall.Origin{Prefix: p}))
	}
	return c
}

// behindTapChain drops what the guest sends to itself in the name of a host that is not behind its tap. Such a packet
// would be a connection that the host has opened, and the guest's packets to the host its answers.
const behindTapChain = "own-source"

func (r Router) behindTap() firewall.Chain {
	c := firewall.Chain{Name: behindTapChain}
	for _, p := range r.sources() {
		if p.Bits() >= syntax.MinNetwork { // no route leads to a shorter one: see the wiring's routeGuardPrefixes
			c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: ip.Of(p.Addr())}, firewall.Source{Prefix: p}))
		}
	}
	c.Rules = append(c.Rules, rule(drop(firewall.IPSpoof)))
	return c
}

// resumed drops a first packet from outside that is not the first one of its connection. When a connection of the
// guest is cut, the other side's next packet may come before the guest's. Connection tracking would take the rest of
// the connection for one that others have opened, and the guest's packets for answers. UDP has no such beginning. Where
// an authentication header hides the beginning, the packet is dropped. Nothing comes from outside by the loopback link:
// a process has sent that by a packet socket, whose packets do not pass asGuest.
func (r Router) resumed(more ...firewall.Match) []firewall.Rule {
	if len(r.Allowed) == 0 {
		return nil
	}
	goesOn := initSCTP
	goesOn.Inverted = true
	of := func(protocol uint8, m firewall.Match) firewall.Rule {
		return rule(drop(firewall.NoConnection), append(slices.Clone(more), firewall.Protocol{Number: protocol}, m)...)
	}
	rules := []firewall.Rule{
		rule(drop(firewall.NamespaceOutput), append(slices.Clone(more), firewall.InInterface{Name: "lo"})...),
		of(firewall.ProtocolTCP, firewall.Opening{Inverted: true}),
		of(firewall.ProtocolSCTP, goesOn),
	}
	if r.Ends.Has(6) {
		rules = append(rules, rule(drop(firewall.NoConnection), slices.Concat(more, r.authenticated())...))
	}
	return rules
}
