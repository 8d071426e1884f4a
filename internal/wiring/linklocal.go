package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// linkLocal is how the filter learns the link-local addresses that the guest makes up (RFC 7217, RFC 8981), besides the
// one of its MAC. The guest announces such an address by duplicate address detection (RFC 4862 section 5.4). It can use
// the address after the time in which an owner would have answered, and only while no other station uses it.
type linkLocal struct {
	learns  bool
	hears   bool         // the table of the guest filter also sees what the network sends
	routers []netip.Addr // link-local addresses that are the routers'
	macs    []cache.MAC  // the guest's
}

// Sets of link-local addresses.
const (
	setLocal      = "link-local"       // the guest's
	setNewLocal   = "link-local-new"   // those of the guest's whose owner could still answer
	setNeighbours = "link-local-other" // those of other stations
)

const (
	maxLocal      = 2
	maxNeighbours = 1024

	// Lives of elements, in milliseconds. A host waits for an answer for one second (RetransTimer, RFC 4861 section 10).
	detectionTime = 900
	localTime     = 24 * 60 * 60 * 1000
	// A neighbour that claims the guest's address takes it from the guest for so long.
	neighbourTime = 10 * 60 * 1000
)

var linkLocal64 = netip.MustParsePrefix("fe80::/64")

func (p *Plan) linkLocal(nic netstate.Link, g guest) linkLocal {
	l := linkLocal{macs: g.macs}
	l.learns = !g.anyAddress && !slices.ContainsFunc(g.prefixes, func(p netip.Prefix) bool {
		return p.Bits() <= linkLocal64.Bits() && p.Overlaps(linkLocal64)
	})
	if p.Record.Binding == cache.BindingMasquerade {
		return l // the guest's only neighbour is the bridge, whose address comes from its MAC
	}
	for _, r := range routesOf(p.found, nic, false) {
		if linkLocal64.Contains(r.Gateway) && !slices.Contains(l.routers, r.Gateway) {
			l.routers = append(l.routers, r.Gateway)
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
		{Name: setNewLocal, Of: firewall.DiscoveryTarget, Size: maxLocal, Milliseconds: detectionTime},
	}
	if l.hears {
		sets = append(sets, neighbourSet)
	}
	return sets
}

var neighbourSet = firewall.Set{Name: setNeighbours, Of: firewall.DiscoveryTarget, Size: maxNeighbours, Milliseconds: neighbourTime}

// Octets of the target in a message of neighbour discovery, and of the source in the IPv6 header.
var (
	localTarget = firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:8]}
	localSource = firewall.Bytes{Header: firewall.Network, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:8]}
)

// detected continues with an address that the guest wants to use and that is not known as the guest's.
func (l linkLocal) detected() []firewall.Rule {
	if !l.learns {
		return nil
	}
	return []firewall.Rule{rule(firewall.Goto{Chain: "new-local"}, localTarget)}
}

// learn takes an address that the guest has made up. It leaves out what belongs to others, or may: addresses that come
// from a MAC (EUI-64), those that an administrator writes by hand (fe80::1), and those of known stations. It leaves out
// a message that receivers ignore, or that goes to one station only (RFC 4861 section 7.1.1): then an owner's silence
// says nothing.
func (l linkLocal) learn(pass firewall.Verdict) []firewall.Rule {
	const identifier = 16 // offset of the target's interface identifier
	network := func(offset int, not bool, value ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Network, Offset: offset, Value: value, Not: not}
	}
	transport := func(offset int, not bool, value ...byte) firewall.Match {
		return firewall.Bytes{Header: firewall.Transport, Offset: offset, Value: value, Not: not}
	}
	spoof := drop(firewall.NeighbourSpoof)
	rules := []firewall.Rule{
		rule(spoof, network(7, true, 255)),                                             // hop limit
		rule(spoof, transport(1, true, 0)),                                             // code
		rule(spoof, network(24, true, 0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff)), // to a solicited-node group
		rule(spoof, firewall.Bytes{Header: firewall.Ethernet, Value: []byte{0x33, 0x33, 0xff}, Not: true}),
		rule(spoof, transport(identifier, false, 0, 0, 0, 0)),
		rule(spoof, transport(identifier+3, false, 0xff, 0xfe)),
	}
	for _, r := range l.routers {
		rules = append(rules, rule(spoof, transport(8, false, r.AsSlice()...)))
	}
	if l.hears {
		rules = append(rules, rule(spoof, firewall.InSet{Part: firewall.DiscoveryTarget, Set: setNeighbours}))
	}
	add := []firewall.Match{firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: setLocal}, firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: setNewLocal}}
	return append(rules,
		rule(pass, firewall.InSet{Part: firewall.DiscoveryTarget, Set: setLocal}),
		rule(pass, append([]firewall.Match{network(4, false, 0, 24)}, add...)...),
		rule(pass, append([]firewall.Match{network(4, false, 0, 32), transport(25, false, 1)}, add...)...)) // with one option, such as a nonce
}

// own matches an address that is the guest's.
func (l linkLocal) own(part firewall.Part) []firewall.Match {
	m := []firewall.Match{
		firewall.InSet{Part: part, Set: setLocal},
		firewall.InSet{Part: part, Set: setNewLocal, Not: true},
	}
	if l.hears {
		m = append(m, firewall.InSet{Part: part, Set: setNeighbours, Not: true})
	}
	return m
}

// source lets pass what comes from such an address.
func (l linkLocal) source(pass firewall.Verdict) []firewall.Rule {
	if !l.learns {
		return nil
	}
	used := firewall.AddToSet{Part: firewall.RawSource6, Set: setLocal, Renew: true}
	return []firewall.Rule{rule(pass, append(l.own(firewall.RawSource6), used)...)}
}

// advertised continues with an advertisement of such an address.
func (l linkLocal) advertised(next firewall.Goto) []firewall.Rule {
	if !l.learns {
		return nil
	}
	return []firewall.Rule{rule(next, l.own(firewall.DiscoveryTarget)...)}
}

// hear notes the addresses of other stations from what they send in ICMPv6: from their sources, and from the addresses
// that they detect or advertise. A frame with the guest's MAC has come back from the network.
func (l linkLocal) hear() []firewall.Rule {
	var foreign []firewall.Match
	for _, m := range l.macs {
		foreign = append(foreign, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: m[:], Not: true})
	}
	note := func(part firewall.Part, m ...firewall.Match) firewall.Rule {
		m = append(m, firewall.AddToSet{Part: part, Set: setNeighbours, Renew: true})
		return rule(firewall.Continue{}, slices.Concat(foreign, m)...)
	}
	return []firewall.Rule{
		note(firewall.RawSource6, localSource),
		note(firewall.DiscoveryTarget, firewall.Carries{Version: 6}, fromUnspecified, is(firewall.ProtocolICMPv6), firewall.ICMP{Version: 6, Type: icmp6Solicitation}, localTarget),
		note(firewall.DiscoveryTarget, firewall.Carries{Version: 6}, is(firewall.ProtocolICMPv6), firewall.ICMP{Version: 6, Type: icmp6Advertisement}, localTarget),
	}
}

// defend drops what the guest sends under an address of another station. It is for a table that hears the network
// where the guest filter does not.
func (l linkLocal) defend() []firewall.Rule {
	v6, icmp6 := firewall.Carries{Version: 6}, is(firewall.ProtocolICMPv6)
	target := firewall.InSet{Part: firewall.DiscoveryTarget, Set: setNeighbours}
	return []firewall.Rule{
		rule(drop(firewall.NeighbourSpoof), v6, fromUnspecified, icmp6, firewall.ICMP{Version: 6, Type: icmp6Solicitation}, target),
		rule(drop(firewall.NeighbourSpoof), v6, icmp6, firewall.ICMP{Version: 6, Type: icmp6Advertisement}, target),
		rule(drop(firewall.IPSpoof), v6, localSource, firewall.InSet{Part: firewall.RawSource6, Set: setNeighbours}),
	}
}

// needsNoDefence are the conditions that most packets meet, by the first octets of a link-local source.
func needsNoDefence() []firewall.Match {
	return []firewall.Match{
		firewall.Bytes{Header: firewall.Network, Offset: 8, Value: linkLocal64.Addr().AsSlice()[:4], Not: true},
		firewall.Protocol{Number: firewall.ProtocolICMPv6, Not: true},
	}
}
