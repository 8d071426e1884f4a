package guestfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// linkLocal4 has the address that a host takes which gets no lease (RFC 3927).
var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

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
		if !g.has(ip.V4) {
			addresses = append(addresses, rule(drop(firewall.NoFamily), sender(linkLocal4)),
				rule(drop(firewall.NoFamily), arpOperation(1), sender(firewall.HostPrefix(netip.IPv4Unspecified())), arpTarget(linkLocal4)))
		}
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
	note := firewall.AddToSet{Part: part, Set: setOfAskers(ip.Of(p.Addr())), Renew: true}
	return []firewall.Rule{
		rule(pass, append(slices.Clone(sender), note)...),
		rule(drop(firewall.NeighbourLimit), sender...),
	}
}

func setOfAskers(v ip.Version) string { return fmt.Sprintf("askers-%d", v) }

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
