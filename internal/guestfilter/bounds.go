package guestfilter

import (
	"cmp"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
)

// addBounds adds the rules that hold for all frames at the guest's tap, also with Guard.Off. What comes from the guest
// is bounded at the tap's ingress, before the guest filter. What goes to the guest is no longer than the MTU where the
// binding's frames leave for the tap; the tap itself limits its rate (netstate.Shape).
func (g guest) addBounds(t *tables) {
	fromGuest, toGuest := g.bounds()
	if len(fromGuest) > 0 {
		at := t.table(firewall.NetDev)
		prepend(at, firewall.Chain{Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.Tap, Priority: firewall.Filter}, fromGuest)
		addBoundChains(at, g.MTU)
	}
	if len(toGuest) == 0 {
		return
	}
	if g.Bridged {
		at := t.table(firewall.Bridge)
		toGuest = append([]firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: g.Names.Tap, Inverted: true})}, toGuest...)
		prepend(at, firewall.Chain{Name: "to-tap", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.Filter}, toGuest)
		addBoundChains(at, g.MTU)
		return
	}
	at := t.table(firewall.NetDev)
	prepend(at, firewall.Chain{Name: "to-guest", Type: "filter", Hook: firewall.Ingress, Device: g.Names.NIC, Priority: firewall.Filter}, toGuest)
	addBoundChains(at, g.MTU)
}

// bounds are the rules of each direction.
func (g guest) bounds() (fromGuest, toGuest []firewall.Rule) {
	fromGuest = limitRules(g.Limit)
	if g.MTU != 0 {
		longer := []firewall.Rule{
			rule(firewall.Jump{Chain: "long"}, firewall.Longer{Octets: uint32(g.MTU)}),
			rule(firewall.Jump{Chain: "opening"}, ofProtocol(firewall.ProtocolTCP), firewall.Opening{}),
		}
		fromGuest = append(fromGuest, longer...)
		if !g.Routed { // there the namespace reports it to the sender
			toGuest = longer
		}
	}
	return fromGuest, toGuest
}

// defaultBurst is cache.Limit's BurstBytes if none are given: one packet of the greatest length.
const defaultBurst = 1 << 16

// limitRules drop what is above the limit. They come first: what another rule drops has cost the node its time, too.
func limitRules(l cache.Limit) (rules []firewall.Rule) {
	if l.BitsPerSecond != 0 {
		rules = append(rules, rule(drop(firewall.RateLimit), firewall.Faster{Octets: l.BitsPerSecond / 8, Burst: uint32(cmp.Or(l.BurstBytes, defaultBurst))}))
	}
	if l.PacketsPerSecond != 0 {
		rules = append(rules, rule(drop(firewall.RateLimit), firewall.Rate{Packets: int(l.PacketsPerSecond), Burst: int(cmp.Or(l.BurstPackets, l.PacketsPerSecond)), Over: true}))
	}
	return rules
}

// addBoundChains adds the chains to which the bounds jump, unless the table has them.
func addBoundChains(t *firewall.Table, mtu int) {
	jumps := func(chain string) bool {
		to := firewall.Jump{Chain: chain}
		return slices.ContainsFunc(t.Chains, func(c firewall.Chain) bool {
			return slices.ContainsFunc(c.Rules, func(r firewall.Rule) bool { return r.Verdict == firewall.Verdict(to) })
		})
	}
	there := func(name string) bool {
		return slices.ContainsFunc(t.Chains, func(c firewall.Chain) bool { return c.Name == name })
	}
	for _, c := range []firewall.Chain{{Name: "long", Rules: longRules()}, {Name: "opening", Rules: openingRules(mtu)}} {
		if jumps(c.Name) && !there(c.Name) {
			t.Chains = append(t.Chains, c)
		}
	}
}

// longRules drop what is longer than the MTU, but for TCP and UDP that is not fragmented: the kernel may cut such
// packets into shorter ones when they leave (GSO), and no match shows that.
func longRules() []firewall.Rule {
	return []firewall.Rule{
		rule(drop(firewall.TooLong), firewall.Carries{Version: 4}, anyFragment4),
		rule(drop(firewall.TooLong), firewall.Carries{Version: 6}, fragmentHeader6),
		rule(firewall.Return{}, ofProtocol(firewall.ProtocolTCP)),
		rule(firewall.Return{}, ofProtocol(firewall.ProtocolUDP)),
		rule(drop(firewall.TooLong)),
	}
}

// anyFragment4 is an IPv4 fragment, also the first; fragmentHeader6 an IPv6 packet whose first extension header says
// so.
var (
	anyFragment4    = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x3f, 0xff}, Inverted: true}
	fragmentHeader6 = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{44}}
)

// openingRules lower the MSS in the two packets that open a TCP connection, so that no segment is longer than the MTU,
// whatever MTU the guest has set.
func openingRules(mtu int) []firewall.Rule {
	lower := func(v ip.Version, headers int) firewall.Rule {
		return rule(firewall.LowerMSS{To: uint16(max(1, mtu-headers))}, firewall.Carries{Version: v}, ofProtocol(firewall.ProtocolTCP))
	}
	return []firewall.Rule{lower(ip.V4, headers4), lower(ip.V6, headers6)}
}

// Octets of an IP header without options and a TCP header without options.
const headers4, headers6 = 20 + 20, 40 + 20

// prepend puts the rules before those of the base chain at the same place, or adds the chain.
func prepend(t *firewall.Table, base firewall.Chain, rules []firewall.Rule) {
	at := slices.IndexFunc(t.Chains, func(c firewall.Chain) bool { return c.Hook == base.Hook && c.Device == base.Device })
	if at < 0 {
		base.Rules = rules
		t.Chains = append(t.Chains, base)
		return
	}
	t.Chains[at].Rules = append(rules, t.Chains[at].Rules...)
}
