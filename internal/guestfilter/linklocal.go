package guestfilter

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// linkLocal is how the filter learns the link-local addresses that the guest makes up (RFC 7217, RFC 8981), beside the
// one of its MAC. The guest announces such an address by duplicate address detection (RFC 4862 section 5.4), and can
// use it after the time in which an owner would have answered. An address belongs to who uses it first, the guest or
// another station: so a guest gets no neighbour's address, and a neighbour that claims the guest's does not silence the
// guest.
//
// A guest that makes up another address at each boot, or each VM in turn in one namespace, uses many, one after
// another. The first ones are known for long, as a guest may be silent for long. When their places are taken, further
// ones are known for an hour after their last use: so there is room again after an hour, whatever the guest has sent.
type linkLocal struct {
	learns      bool
	more        int            // places of setMoreLocal
	seesNetwork bool           // the table of the guest filter also sees what the network sends
	routers     []netip.Addr   // link-local addresses that are the routers'
	macs        []cache.MAC    // the guest's
	static      []netip.Prefix // link-local addresses that are the guest's in any case
}

// Sets of link-local addresses.
const (
	setLocal      = "link-local"           // the guest's
	setMoreLocal  = "link-local-more"      // the guest's beside them
	setNewLocal   = "link-local-new"       // those of the guest's whose owner could still answer
	setUsed       = "link-local-used"      // those from which the guest has sent
	setMoreUsed   = "link-local-used-more" // and more of them
	setNeighbours = "link-local-other"     // those of other stations
)

const (
	maxLocal      = 4  // a kernel tries four addresses if others answer for them (IDGEN_RETRIES)
	maxNew        = 16 // an element takes its place until the kernel removes it, a second or two after its life
	maxUsed       = 16
	maxMore       = 256
	maxMoreRouted = 16 // the namespace notes each as a neighbour, see MostSources
	maxNeighbours = 1024

	// Lives of elements, in milliseconds. A host waits for an answer for one second (RetransTimer, RFC 4861 section
	// 10).
	detectionTime = 900
	localTime     = 7 * 24 * 60 * 60 * 1000
	moreTime      = 60 * 60 * 1000
	neighbourTime = 60 * 60 * 1000
)

var linkLocal64 = netip.MustParsePrefix("fe80::/64")

func (g guest) linkLocal() linkLocal {
	l := linkLocal{macs: g.macs, more: maxMore}
	l.learns = !g.anyAddress && !slices.ContainsFunc(g.prefixes, func(p netip.Prefix) bool {
		return p.Bits() <= linkLocal64.Bits() && p.Overlaps(linkLocal64)
	})
	for _, p := range g.prefixes {
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			l.static = append(l.static, p)
		}
	}
	if g.Routed {
		l.more = maxMoreRouted
		return l // the guest's only neighbour is the namespace's link, whose address comes from its MAC
	}
	for _, r := range g.Gateways {
		if linkLocal64.Contains(r) && !slices.Contains(l.routers, r) {
			l.routers = append(l.routers, r)
		}
	}
	slices.SortFunc(l.routers, netip.Addr.Compare)
	return l
}

// sets are those of the guest filter's table.
func (l linkLocal) sets() []firewall.Set {
	if !l.learns {
		return nil
	}
	sets := []firewall.Set{
		{Name: setLocal, Of: firewall.DiscoveryTarget, Size: maxLocal, Milliseconds: localTime},
		{Name: setMoreLocal, Of: firewall.DiscoveryTarget, Size: l.more, Milliseconds: moreTime},
		{Name: setNewLocal, Of: firewall.DiscoveryTarget, Size: maxNew, Milliseconds: detectionTime},
	}
	if l.seesNetwork {
		sets = append(sets, usageSets...)
	}
	return sets
}

// usageSets are those of the table that sees what the network sends.
var usageSets = []firewall.Set{
	{Name: setUsed, Of: firewall.DiscoveryTarget, Size: maxUsed, Milliseconds: localTime},
	{Name: setMoreUsed, Of: firewall.DiscoveryTarget, Size: maxMore, Milliseconds: moreTime},
	{Name: setNeighbours, Of: firewall.DiscoveryTarget, Size: maxNeighbours, Milliseconds: neighbourTime},
}

// Octets of the target in a message of neighbour discovery, and of the source in the IPv6 header.
var (
	localTarget = firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:8]}
	localSource = firewall.Bytes{Header: firewall.Network, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:8]}
)

// detected continues with an address that the guest has made up and that is not known as the guest's. It leaves out
// what belongs to others, or may: addresses that come from a MAC (EUI-64), those that an administrator writes by hand
// (fe80::1), and those of known stations. It leaves out a message that receivers ignore, or that goes to one station
// only (RFC 4861 section 7.1.1): then an owner's silence says nothing.
func (l linkLocal) detected() []firewall.Rule {
	if !l.learns {
		return nil
	}
	const identifier = 16 // offset of the target's interface identifier
	network := func(offset int, value ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: offset, Value: value}
	}
	transport := func(offset int, not bool, value ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: value, Inverted: not}
	}
	m := []firewall.Match{
		localTarget,
		network(7, 255),        // hop limit
		transport(1, false, 0), // code
		network(24, 0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff), // to a solicited-node group
		firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0x33, 0x33, 0xff}},
		transport(identifier, true, 0, 0, 0, 0),
		transport(identifier+3, true, 0xff, 0xfe),
	}
	if l.seesNetwork {
		m = append(m, firewall.InSet{Part: firewall.DiscoveryTarget, Set: setNeighbours, Inverted: true})
	}
	var rules []firewall.Rule
	for _, r := range l.routers { // a rule each, as a rule has 128 expressions at most, and neighbours can make more routers
		rules = append(rules, rule(drop(firewall.NeighbourSpoof), transport(8, false, r.AsSlice()...)))
	}
	return append(rules, rule(firewall.Goto{Chain: "new-local"}, m...))
}

// learn takes an address that detected has let pass. It is new first: without a place there, it is not learned.
func (l linkLocal) learn(pass firewall.Verdict) []firewall.Rule {
	var rules []firewall.Rule
	for _, set := range setsOfGuest {
		rules = append(rules, rule(pass, firewall.InSet{Part: firewall.DiscoveryTarget, Set: set}))
	}
	for _, form := range [][]firewall.Match{
		{firewall.Bytes{Header: firewall.Network, Offset: 4, Value: []byte{0, 24}}},
		{firewall.Bytes{Header: firewall.Network, Offset: 4, Value: []byte{0, 32}}, firewall.Bytes{Header: firewall.Transport, Offset: 25, Value: []byte{1}}}, // with one option, such as a nonce
	} {
		for _, set := range setsOfGuest {
			rules = append(rules, rule(pass, append(slices.Clone(form),
				firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: setNewLocal}, firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: set})...))
		}
	}
	return rules
}

// setsOfGuest are the sets of the guest's addresses. An address takes the first place that is free.
var setsOfGuest = []string{setLocal, setMoreLocal}

// ofGuest matches an address of the set that is the guest's.
func (l linkLocal) ofGuest(part firewall.Part, set string) []firewall.Match {
	m := []firewall.Match{
		firewall.InSet{Part: part, Set: set},
		firewall.InSet{Part: part, Set: setNewLocal, Inverted: true},
	}
	if l.seesNetwork {
		m = append(m, firewall.InSet{Part: part, Set: setNeighbours, Inverted: true})
	}
	return m
}

// source lets pass what comes from such an address.
func (l linkLocal) source(pass firewall.Verdict) []firewall.Rule {
	if !l.learns {
		return nil
	}
	var rules []firewall.Rule
	for _, set := range setsOfGuest {
		own := l.ofGuest(firewall.RawSource6, set)
		if l.seesNetwork {
			rules = append(rules, rule(noteUsed, own...))
		}
		rules = append(rules, rule(pass, append(slices.Clone(own), firewall.AddToSet{Part: firewall.RawSource6, Set: set, Renew: true})...))
	}
	return rules
}

// noteUsed notes that the guest has sent from an address, in the first set with a place.
var noteUsed = firewall.Jump{Chain: "note-used"}

func used() []firewall.Rule {
	return []firewall.Rule{
		rule(firewall.Return{}, firewall.AddToSet{Part: firewall.RawSource6, Set: setUsed, Renew: true}),
		rule(firewall.Return{}, firewall.AddToSet{Part: firewall.RawSource6, Set: setMoreUsed, Renew: true}),
	}
}

// advertised continues with an advertisement of such an address.
func (l linkLocal) advertised(next firewall.Goto) []firewall.Rule {
	if !l.learns {
		return nil
	}
	var rules []firewall.Rule
	for _, set := range setsOfGuest {
		rules = append(rules, rule(next, l.ofGuest(firewall.DiscoveryTarget, set)...))
	}
	return rules
}

// noteOthers notes the addresses of other stations from what they send in ICMPv6: from their sources, and from the
// addresses that they detect or advertise, in messages that a host accepts (RFC 4861 section 7.1): a router lowers the
// hop limit, so nothing from beyond counts. It notes no address that the guest uses. A frame with the guest's MAC has
// come back from the network. The packets are ICMPv6 in IPv6.
func (l linkLocal) noteOthers() []firewall.Rule {
	var rules []firewall.Rule
	for _, m := range l.macs {
		rules = append(rules, rule(firewall.Return{}, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:]}))
	}
	// of ends the chain for an address of the guest: the source in the network header, the target in the message.
	of := func(header firewall.Header, part firewall.Part) {
		for _, p := range l.static {
			rules = append(rules, rule(firewall.Return{}, firewall.Bytes{Header: header, Offset: 8, Value: p.Addr().AsSlice(), Mask: firewall.Mask(p)}))
		}
		rules = append(rules, rule(firewall.Return{}, firewall.InSet{Part: part, Set: setUsed}), rule(firewall.Return{}, firewall.InSet{Part: part, Set: setMoreUsed}))
	}
	note := func(part firewall.Part, m ...firewall.Match) {
		rules = append(rules, rule(firewall.Continue{}, append(m, firewall.AddToSet{Part: part, Set: setNeighbours, Renew: true})...))
	}
	valid := []firewall.Match{
		firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{firewall.ProtocolICMPv6, 255}}, // next header, hop limit
		localTarget,
	}
	message := func(kind byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Value: []byte{kind, 0}} // type, code
	}
	of(firewall.Network, firewall.RawSource6)
	note(firewall.RawSource6, localSource)
	of(firewall.Transport, firewall.DiscoveryTarget)
	note(firewall.DiscoveryTarget, append([]firewall.Match{fromUnspecified, message(firewall.ICMP6Solicitation)}, valid...)...)
	note(firewall.DiscoveryTarget, append([]firewall.Match{message(firewall.ICMP6Advertisement)}, valid...)...)
	return rules
}

// defend drops what the guest sends under an address of another station. It is for a table that sees what the
// network sends, where the guest filter does not.
func (l linkLocal) defend() []firewall.Rule {
	v6, icmp6 := firewall.Carries{Version: 6}, ofProtocol(firewall.ProtocolICMPv6)
	target := firewall.InSet{Part: firewall.DiscoveryTarget, Set: setNeighbours}
	return []firewall.Rule{
		rule(drop(firewall.NeighbourSpoof), v6, fromUnspecified, icmp6, messageType(firewall.ICMP6Solicitation), target),
		rule(drop(firewall.NeighbourSpoof), v6, icmp6, messageType(firewall.ICMP6Advertisement), target),
		rule(drop(firewall.IPSpoof), v6, localSource, firewall.InSet{Part: firewall.RawSource6, Set: setNeighbours}),
		rule(noteUsed, v6, localSource),
	}
}

// needsNoDefence are the conditions that most packets meet, by the first octets of a link-local source.
func needsNoDefence() []firewall.Match {
	return []firewall.Match{
		firewall.Bytes{Header: firewall.Network, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:4], Inverted: true},
		firewall.Protocol{Number: firewall.ProtocolICMPv6, Inverted: true},
	}
}
