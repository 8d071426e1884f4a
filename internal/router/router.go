// Package router makes the rules of a namespace that is a guest's next hop. It takes a description of the router, a
// Masquerade or a Routed, and returns the tables of nftables or iptables that forward, translate and refuse, and the
// tracked connections that the kernel has to forget. It is pure, and knows no Snapshot: what the rules depend on is in
// the description.
package router

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Router is a namespace that forwards what a guest sends and receives: the limits of the guest, and what it may send to
// the namespace itself.
type Router struct {
	Names netstate.Names
	Ends  Ends
	// Further are the guest's addresses in addition to those of Ends.
	Further []netip.Addr
	MAC     cache.MAC // the guest's
	Guard   infra.Guard
	// Most is the number of connections; 0: infra.DefaultMaxConnections.
	Most int
	// Unforwarded are the IP versions that the NIC did not forward before: only the guest's packets may pass.
	Unforwarded []ip.Version
	// NoARP: the NIC asks for no neighbours.
	NoARP bool
	// Allowed is where the guest may open connections; none: everywhere. Pinnable is where pins may lead; none: there
	// are no pins.
	Allowed, Pinnable []firewall.Destinations
	// Diverts lead what the guest opens to ports of the namespace. The sets of those of a policy have nothing in common.
	Diverts []firewall.Divert
	// Checksums are the IP versions of which a rule can complete checksums.
	Checksums []ip.Version
	// LocalSources says that a rule can match firewall.LocalSource.
	LocalSources bool
	// OtherLinks are, by IP version, the names of the other links by which the guest may leave. All6 says that the
	// whole namespace forwarded IPv6 before Setup.
	OtherLinks map[ip.Version][]string
	All6       bool

	iptables bool // the table becomes chains of iptables
}

// End is the guest's address and the gateway's, of one family.
type End struct{ Guest, Gateway netip.Addr }

// Ends are those of a guest, one for each family that it has.
type Ends []End

// Gateway is that of the version of IP; zero: there is no End of it.
func (list Ends) Gateway(v ip.Version) netip.Addr {
	for _, e := range list {
		if ip.Of(e.Guest) == v {
			return e.Gateway
		}
	}
	return netip.Addr{}
}

// Has reports whether there is one of the version of IP.
func (list Ends) Has(v ip.Version) bool { return list.Gateway(v).IsValid() }

// Versions are those of IP.
func (list Ends) Versions() (versions []ip.Version) {
	for _, e := range list {
		versions = append(versions, ip.Of(e.Guest))
	}
	return versions
}

// Guests are the guest's addresses.
func (list Ends) Guests() (guests []netip.Addr) {
	for _, e := range list {
		guests = append(guests, e.Guest)
	}
	return guests
}

// mostNextHops is the number of next hops that a guest may use without Guard.MaxNeighbours. A neighbour table keeps 128
// entries. Above 512 unused ones go after five seconds, and above 1024 no namespace gets a new one (gc_thresh1 to 3,
// net/core/neighbour.c). So one guest fills half of what is kept, and eight that scan at once leave half of the table
// to others.
const mostNextHops = 64

func (r Router) mostConnections() int {
	return cmp.Or(r.Most, infra.DefaultMaxConnections)
}

// answered accepts what the rules after it would accept: TCP and UDP of established connections, except the segments
// that reopened judges and ClampMSS changes. Most packets meet no other rule.
func answered() []firewall.Rule {
	known := firewall.State{States: firewall.Established}
	return []firewall.Rule{
		rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{Inverted: true}, known),
		rule(firewall.Accept{}, firewall.Protocol{Number: firewall.ProtocolUDP}, known),
	}
}

// limit drops a connection's first packet above MaxConnections. The kernel does not count TCP connections that have
// ended, though they stay in its table for two minutes (net/netfilter/nf_conncount.c). So their rate is limited, too.
func (r Router) limit() []firewall.Rule {
	count := rule(drop(firewall.ConnectionLimit), firewall.Connections{Over: uint32(r.mostConnections())})
	if r.iptables {
		return []firewall.Rule{count}
	}
	return []firewall.Rule{r.rate(), count}
}

func (r Router) rate() firewall.Rule {
	most := r.mostConnections()
	return rule(drop(firewall.ConnectionLimit), firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Rate{Packets: most, PerMinute: true, Burst: most, Over: true})
}

func (r Router) fromGuest() firewall.Match { return firewall.InInterface{Name: r.Names.Tap} }

func (r Router) toTap() firewall.Match { return firewall.OutInterface{Name: r.Names.Tap} }

// accepted is what the guest may send to the namespace.
func (r Router) accepted() []firewall.Rule {
	var rules []firewall.Rule
	if !r.iptables {
		rules = r.fromNeighbours()
	}
	return append(rules, rule(firewall.Jump{Chain: "outgoing"}, firewall.Unconfirmed{}), rule(firewall.Accept{}))
}

// opened is what others send to the guest that belongs to no connection.
func (r Router) opened() []firewall.Rule {
	rules := []firewall.Rule{rule(drop(firewall.NoConnection), firewall.State{States: firewall.Invalid | firewall.Untracked})}
	if !r.iptables {
		rules = append(rules, r.resumed(firewall.Unconfirmed{})...)
	}
	return append(rules, rule(firewall.Jump{Chain: "incoming"}, firewall.Unconfirmed{}))
}

// related passes errors about the guest's connections, and drops those about the namespace's own: the kernel calls an
// error related by the packet in it, whoever sends it.
func (r Router) related() []firewall.Rule {
	var rules []firewall.Rule
	for _, p := range r.sources() {
		for _, reply := range []bool{false, true} {
			rules = append(rules, rule(firewall.Accept{}, firewall.IP{Version: ip.Of(p.Addr())}, firewall.Origin{Prefix: p, Reply: reply}))
		}
	}
	return append(rules, rule(drop(firewall.NoConnection)))
}

// errors are those of the guest to the namespace. One about a smaller MTU is dropped: between the guest and the
// namespace no link is smaller, and the kernel would believe the error for the namespace's own addresses, as the packet
// in the error is translated back.
func (r Router) errors() []firewall.Rule {
	const icmpTooBig, icmp6TooBig = 4, 2 // a code of ICMP (RFC 792), a type of ICMPv6 (RFC 4443)
	var rules []firewall.Rule
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		tooBig := ip.Pick(v, firewall.ICMP{Version: v, Type: firewall.ICMPUnreachable, Code: icmpTooBig}, firewall.ICMP{Version: v, Type: icmp6TooBig})
		rules = append(rules, rule(drop(firewall.NoConnection), firewall.IP{Version: v}, firewall.Protocol{Number: firewall.ProtocolOfICMP(v)}, tooBig))
	}
	return append(rules, rule(firewall.Goto{Chain: "related"}))
}

// sources are the addresses that the guest sends from.
func (r Router) sources() []netip.Prefix {
	var list []netip.Prefix
	for _, e := range r.Ends {
		list = append(list, firewall.HostPrefix(e.Guest))
		if e.Guest.Is6() {
			list = append(list, firewall.HostPrefix(eui64.LinkLocal(r.MAC)))
		}
	}
	for _, a := range r.Further {
		list = append(list, firewall.HostPrefix(a))
	}
	for _, p := range r.Guard.Prefixes {
		if r.Ends.Has(ip.Of(p.Addr())) {
			list = append(list, p)
		}
	}
	return list
}

// toNamespace is what the guest may send to the namespace itself: in addition to the rules of more, what is diverted,
// what belongs to connections of the namespace, echo requests, neighbour discovery and Guard.Open. MaxConnections
// counts here too: each identifier of an echo request is a connection.
func (r Router) toNamespace(more ...firewall.Rule) []firewall.Rule {
	from := r.fromGuest()
	rules := r.toDiverts()
	if r.Guard.Off {
		return append(rules, rule(firewall.Jump{Chain: "accepted"}, from, firewall.State{States: firewall.New}))
	}
	rules = append(rules,
		rule(firewall.Accept{}, from, firewall.State{States: firewall.Established}),
		rule(firewall.Goto{Chain: "errors"}, from, firewall.State{States: firewall.Related}))
	rules = append(rules, more...)
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, from, firewall.IP{Version: v},
			firewall.Protocol{Number: firewall.ProtocolOfICMP(v)}, firewall.ICMP{Version: v, Type: ip.Pick[uint8](v, firewall.ICMPEcho, firewall.ICMP6Echo)}))
		if v == ip.V4 {
			continue
		}
		for _, kind := range []uint8{firewall.ICMP6Solicitation, firewall.ICMP6Advertisement} {
			rules = append(rules, rule(firewall.Accept{}, from, firewall.IP{Version: 6},
				firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: kind}))
		}
	}
	for _, p := range r.Guard.Open {
		rules = append(rules, rule(firewall.Goto{Chain: "accepted"}, append([]firewall.Match{from}, matchPorts(p)...)...))
	}
	return append(rules, rule(drop(firewall.NamespaceService), from))
}

// output drops what processes of the namespace send to the guest, or in the guest's place, by the links of the wiring.
// A process needs no capability to choose a link (SO_BINDTODEVICE, socket(7)). By the tap the namespace speaks to its
// guest, but not as a DHCP server.
func (r Router) output() []firewall.Rule {
	no := drop(firewall.NamespaceOutput)
	udp := firewall.Protocol{Number: firewall.ProtocolUDP}
	rules := []firewall.Rule{rule(no, firewall.OutInterface{Name: r.Names.Responder})}
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		client := ip.Pick[uint16](v, firewall.DHCPClient4, firewall.DHCPClient6)
		rules = append(rules, rule(no, r.toTap(), firewall.IP{Version: v}, udp, firewall.DestinationPort{Protocol: firewall.ProtocolUDP, First: client, Last: client}))
	}
	return rules
}

// loopback is before connections are tracked. A packet of the guest goes to the chain of its family, so packets to the
// guest meet one comparison a family. Without IPv6 for the guest, one router advertisement would give the namespace a
// default route through the guest. (With IPv6 forwarding on, a link takes no routes.)
func (r Router) loopback() []firewall.Rule {
	var rules []firewall.Rule
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		rules = append(rules, rule(firewall.Jump{Chain: loopbackChain(v)}, r.fromGuest(), firewall.IP{Version: v}))
	}
	return append(rules, r.noIPv6()...)
}

func (r Router) noIPv6() []firewall.Rule {
	if r.Ends.Has(6) {
		return nil
	}
	return []firewall.Rule{rule(drop(firewall.NoIPv6), r.fromGuest(), firewall.IP{Version: 6})}
}

// loopbacks are the chains that drop the guest's packets to and from the namespace's loopback addresses, and those of
// sourceRoutes. The guest's answers of a translated connection pass: here they still have the gateway's address.
func (r Router) loopbacks() []firewall.Chain {
	var chains []firewall.Chain
	for _, e := range r.Ends {
		v := ip.Of(e.Guest)
		rules := []firewall.Rule{
			rule(drop(firewall.LoopbackAddress), firewall.IP{Version: v}, firewall.Destination{Prefix: loopback(v)}),
			rule(drop(firewall.LoopbackAddress), firewall.IP{Version: v}, firewall.Source{Prefix: loopback(v)}),
		}
		if v == 6 && !r.iptables { // here, and not in a chain of its own, a packet of IPv4 and one to the guest do not meet it
			rules = append(rules, r.sourceRoutes()...)
		}
		chains = append(chains, firewall.Chain{Name: loopbackChain(v), Rules: rules})
	}
	return chains
}

func loopbackChain(version ip.Version) string { return fmt.Sprintf("loopback-%d", version) }

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
)

func loopback(v ip.Version) netip.Prefix { return ip.Pick(v, loopback4, loopback6) }

func rule(v firewall.Verdict, m ...firewall.Match) firewall.Rule {
	return firewall.Rule{Matches: m, Verdict: v}
}

func drop(why firewall.Reason) firewall.Drop { return firewall.Drop{Reason: why} }
