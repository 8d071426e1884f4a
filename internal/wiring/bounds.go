package wiring

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// linkMTU is the MTU of the guest's link.
func (p *Plan) linkMTU(nic netstate.Link) int {
	mtu := min(nic.MTU, cache.MaxMTU)
	if p.spec.MTU != 0 {
		mtu = min(mtu, p.spec.MTU)
	}
	return mtu
}

// lowersMTU says whether the guest's link has a smaller MTU than the NIC because the Spec says so.
func (p *Plan) lowersMTU(nic netstate.Link) bool { return p.spec.MTU != 0 && p.spec.MTU < nic.MTU }

// checkMTU refuses an MTU that the guest's link cannot have.
func (p *Plan) checkMTU(nic netstate.Link) error {
	refuse := func(format string, args ...any) error {
		return &cache.FieldError{Field: "mtu", Reason: fmt.Sprintf("%d, ", p.spec.MTU) + fmt.Sprintf(format, args...)}
	}
	_, v6 := lease.Of(p.found, nic).Addresses()
	switch {
	case p.spec.MTU == 0:
		return nil
	case p.spec.MTU > nic.MTU:
		return refuse("but %s has %d: want at most that, or 0 for the same", nic.Name, nic.MTU)
	case p.spec.MTU < minMTUIPv6 && len(v6) > 0:
		return refuse("but the guest gets IPv6 (%v), which needs %d: want at least that", v6[0], minMTUIPv6)
	case p.lowersMTU(nic) && p.found.NoNFTables:
		return refuse("but this kernel has no nf_tables, without which longer packets of the guest pass: load them (modprobe nf_tables), or leave this field out")
	}
	return nil
}

// checkLimits refuses limits that no rule can keep.
func (p *Plan) checkLimits() error {
	if p.found.NoNFTables && p.spec.Limits != (cache.Limits{}) {
		return &cache.FieldError{Field: "limits", Reason: "this kernel has no nf_tables, which would count: load them (modprobe nf_tables), or leave this field out"}
	}
	return nil
}

// addBounds adds the rules that hold for all frames at the guest's tap, also with Guard.Off. What comes from the guest is
// bounded at the tap's ingress, before the guest filter. What goes to the guest is bounded where the binding's frames
// leave for the tap.
func (p *Plan) addBounds(nic netstate.Link) {
	fromGuest, toGuest := p.bounds(nic)
	if len(fromGuest) > 0 {
		at := p.table(firewall.NetDev)
		prepend(at, firewall.Chain{Name: "from-guest", Type: "filter", Hook: firewall.Ingress, Device: p.names.Tap, Priority: firewall.Filter}, fromGuest)
		addBoundChains(at, p.linkMTU(nic))
	}
	if len(toGuest) == 0 {
		return
	}
	if p.binding.traits().bridged {
		at := p.table(firewall.Bridge)
		toGuest = append([]firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: p.names.Tap, Not: true})}, toGuest...)
		prepend(at, firewall.Chain{Name: "to-tap", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.Filter}, toGuest)
		addBoundChains(at, p.linkMTU(nic))
		return
	}
	if p.binding.traits().routes {
		at := p.table(firewall.Inet)
		rules := append([]firewall.Rule{rule(firewall.Accept{}, firewall.OutInterface{Name: p.names.Tap, Not: true})}, toGuest...)
		at.Chains = append(at.Chains, firewall.Chain{Name: "to-tap", Type: "filter", Hook: firewall.Postrouting, Priority: firewall.Filter, Rules: rules})
		return
	}
	at := p.table(firewall.NetDev)
	prepend(at, firewall.Chain{Name: "to-guest", Type: "filter", Hook: firewall.Ingress, Device: nic.Name, Priority: firewall.Filter}, toGuest)
	addBoundChains(at, p.linkMTU(nic))
}

// bounds are the rules of each direction.
func (p *Plan) bounds(nic netstate.Link) (fromGuest, toGuest []firewall.Rule) {
	fromGuest, toGuest = limitRules(p.spec.Limits.FromGuest), limitRules(p.spec.Limits.ToGuest)
	if p.lowersMTU(nic) {
		longer := []firewall.Rule{
			rule(firewall.Jump{Chain: "long"}, firewall.Longer{Octets: uint32(p.linkMTU(nic))}),
			rule(firewall.Jump{Chain: "opening"}, is(firewall.ProtocolTCP), firewall.Opening{}),
		}
		fromGuest = append(fromGuest, longer...)
		if !p.binding.traits().routes { // there the namespace tells the sender
			toGuest = append(toGuest, longer...)
		}
	}
	return fromGuest, toGuest
}

// limitRules drop what is above the limit. They come first: what another rule drops has cost the node its time, too.
func limitRules(l cache.Limit) (rules []firewall.Rule) {
	if l.BitsPerSecond != 0 {
		rules = append(rules, rule(drop(firewall.RateLimit), firewall.Faster{Octets: l.BitsPerSecond / 8, Burst: uint32(cmp.Or(l.BurstBytes, cache.DefaultBurstBytes))}))
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

// longRules drop what is longer than the MTU, but for TCP and UDP that is not fragmented: the kernel may cut such packets
// into shorter ones when they leave (GSO), and no match tells.
func longRules() []firewall.Rule {
	return []firewall.Rule{
		rule(drop(firewall.TooLong), firewall.Carries{Version: 4}, anyFragment4),
		rule(drop(firewall.TooLong), firewall.Carries{Version: 6}, fragmentHeader6),
		rule(firewall.Return{}, is(firewall.ProtocolTCP)),
		rule(firewall.Return{}, is(firewall.ProtocolUDP)),
		rule(drop(firewall.TooLong)),
	}
}

// anyFragment4 is an IPv4 fragment, also the first; fragmentHeader6 an IPv6 packet whose first extension header says so.
var (
	anyFragment4    = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x3f, 0xff}, Not: true}
	fragmentHeader6 = firewall.Bytes{Header: firewall.Network, Offset: 6, Value: []byte{44}}
)

// openingRules lower the MSS in the two packets that open a TCP connection, so that no segment is longer than the MTU,
// whatever MTU the guest has set.
func openingRules(mtu int) []firewall.Rule {
	lower := func(v, headers int) firewall.Rule {
		return rule(firewall.LowerMSS{To: uint16(max(1, mtu-headers))}, firewall.Carries{Version: v}, is(firewall.ProtocolTCP))
	}
	return []firewall.Rule{lower(4, headers4), lower(6, headers6)}
}

// Octets of an IP header without options and a TCP header without options.
const headers4, headers6 = 20 + 20, 40 + 20

// table is the wanted nftables table of the family, which is added if it is not there.
func (p *Plan) table(family firewall.Family) *firewall.Table {
	at := slices.IndexFunc(p.wanted.Tables, func(t firewall.Table) bool { return t.Family == family })
	if at < 0 {
		at = len(p.wanted.Tables)
		p.wanted.Tables = append(p.wanted.Tables, firewall.Table{Family: family, Name: p.names.Table})
	}
	return &p.wanted.Tables[at]
}

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
