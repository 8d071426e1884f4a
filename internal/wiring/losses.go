package wiring

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/served"
	"github.com/guestwire/guestwire/internal/servers"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A plan knows what the namespace reaches and the guest will not. Each such thing is a loss in the record. A binding
// with a grave loss is refused, and Auto takes the binding with the fewest losses. Which binding keeps a thing is known
// by a plan of that binding, and by nothing else.

// lose adds a loss to the record.
func (p *Plan) lose(kind, what, why string, args ...any) {
	p.Record.Losses = append(p.Record.Losses, cache.Loss{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)})
}

// isGrave reports whether a binding is refused for the loss.
func isGrave(l cache.Loss) bool { return l.Kind == "family" }

// graveLosses are those for which the binding is refused.
func (p *Plan) graveLosses() []cache.Loss {
	return slices.DeleteFunc(slices.Clone(p.Record.Losses), func(l cache.Loss) bool { return !isGrave(l) })
}

// isTemporary reports whether a later Setup may give the guest what is lost, with the same binding.
func isTemporary(l cache.Loss) bool { return l.Kind == "gateway" }

// isOfClient reports whether the loss depends on the guest's DHCP client or on the Spec alone, and not on the binding.
func isOfClient(l cache.Loss) bool { return l.Kind == "option" }

// lost returns a number that is higher for a plan that loses more; 0: nothing that Auto would choose by.
func (p *Plan) lost() int {
	const grave = 1 << 20 // more than any number of other losses
	weight := 0
	for _, l := range p.Record.Losses {
		switch {
		case isGrave(l):
			weight += grave
		case !isTemporary(l) && !isOfClient(l):
			weight++
		}
	}
	return weight
}

// weigh is lost, and more for a masquerade: that it hides the NIC's address counts more than what else can be lost,
// except a family.
func (p *Plan) weigh() int {
	const hidden = 1 << 19
	if t := p.binding.traits(); t.routes && !t.offStack {
		return p.lost() + hidden
	}
	return p.lost()
}

// keeps reports whether the guest of the plan gets what another plan loses.
func (p *Plan) keeps(lost cache.Loss) bool {
	return !slices.ContainsFunc(p.Record.Losses, func(l cache.Loss) bool { return l.Kind == lost.Kind && l.What == lost.What })
}

// refuseLosses returns the refusal of a plan whose guest would lose too much; nil: it does not, or the Spec accepts it.
func (p *Plan) refuseLosses() *infra.RefusedError {
	if grave := p.graveLosses(); len(grave) > 0 && !p.spec.AcceptLosses {
		refusal := p.refusedFor(grave)
		refusal.Reason += `; "acceptLosses": true in the configuration takes that`
		return refusal
	}
	return nil
}

// refusedFor is the refusal of a binding for its losses.
func (p *Plan) refusedFor(losses []cache.Loss) *infra.RefusedError {
	var texts []string
	for _, l := range losses {
		l.Keeps = ""
		texts = append(texts, l.String())
	}
	reason := "the guest would lose " + strings.Join(texts, ", ")
	return &infra.RefusedError{NIC: p.names.NIC, Binding: p.spec.Binding.Kind(), Reason: reason, Losses: losses}
}

// others are the plans of the other bindings that would work on the NIC, with the MAC that the Spec's binding names.
// The one that loses least comes first.
func others(networks *Networks, found netstate.Snapshot, nic string, spec infra.Spec) []*Plan {
	var plans []*Plan
	asked := spec.Binding.Kind()
	auto := infra.Auto{}
	if b := answersOf(spec.Binding); b != nil {
		auto.MAC = b.givenMAC()
	}
	for _, b := range auto.Bindings() {
		spec.Binding = b
		if b.Kind() == asked || spec.Validate() != nil {
			continue
		}
		if p, err := newPlan(networks, found, nic, spec); err == nil {
			plans = append(plans, p)
		}
	}
	slices.SortStableFunc(plans, func(a, b *Plan) int { return a.weigh() - b.weigh() })
	return plans
}

// instead is the binding that would work in the place of the plan's, with a tap that can be down; empty: none would.
func (p *Plan) instead() cache.Kind {
	for _, o := range others(p.networks, p.found, p.names.NIC, p.spec) {
		if o.refuseLosses() == nil && !o.binding.traits().offStack {
			return o.spec.Binding.Kind()
		}
	}
	return ""
}

// nameKeepers names for each loss a binding that keeps it.
func (p *Plan) nameKeepers(others []*Plan) {
	losses := slices.Clone(p.Record.Losses)
	for i, l := range losses {
		for _, o := range others {
			if o.keeps(l) && len(o.graveLosses()) == 0 {
				losses[i].Keeps = o.spec.Binding.Kind()
				break
			}
		}
	}
	p.Record.Losses = losses
}

// choose returns the plan for Auto: the first one without a loss, else the one that loses least. The others say what
// they lose in comparison.
func choose(plans []*Plan) (chosen *Plan, passed []*infra.RefusedError) {
	chosen = slices.MinFunc(plans, func(a, b *Plan) int { return a.weigh() - b.weigh() })
	for _, p := range plans {
		if p == chosen {
			break
		}
		lost := slices.DeleteFunc(slices.Clone(p.Record.Losses), func(l cache.Loss) bool { return isTemporary(l) || isOfClient(l) || !chosen.keeps(l) })
		if len(lost) > 0 {
			passed = append(passed, p.refusedFor(lost))
		}
	}
	return chosen, passed
}

// AskOthers are the questions for the plans of the other bindings, which say what would work in the place of a
// binding that is refused or loses something. None: err is another one, or Auto has asked them.
func AskOthers(nic string, spec infra.Spec, p *Plan, err error) (q Questions, needed bool) {
	var refused *infra.RefusedError
	lossless := err == nil && len(p.Record.Losses) == 0
	auto, is := spec.Binding.(infra.Auto)
	if all := is && len(auto.Bindings()) == len(infra.Auto{}.Bindings()); all || lossless || err != nil && !errors.As(err, &refused) {
		return Questions{}, false
	}
	q = Ask(nic, spec)
	spec.Binding = infra.Auto{}
	q = q.and(Ask(nic, spec))
	q.Gateways = false // asked before, or no reason to send and to wait: auto does not choose by a gateway that is silent
	return q, true
}

// loseFurther adds the addresses of a family but the first.
func (p *Plan) loseFurther(addresses []netip.Prefix, why string, args ...any) {
	for _, a := range addresses[1:] {
		p.lose("address", a.Addr().String(), why, args...)
	}
}

// loseUnsent adds what the responder cannot send. What does not fit beside a resolv.conf is known to the responder
// alone, which warns of it.
func (p *Plan) loseUnsent() {
	r := &p.Record
	if r.ResponderTap == "" {
		return
	}
	var dns cache.DNS
	if r.DNS != nil {
		dns.Servers, _ = servers.Leased(r).Reachable(r.DNS.Servers) // loseServers says what is left out
		dns.Search, _ = servers.Search(&r.Options, r.DNS.Search)    // Validate has refused a bad name
	}
	r.Losses = slices.Concat(r.Losses, served.OtherFamily(r), served.TooLong4(r, dns.Servers, dns.Search), served.TooMany6(r))
}

// loseServers adds the Spec's resolvers and time servers that the responder does not offer. Those of a resolv.conf are
// known to Phase2 alone.
func (p *Plan) loseServers() {
	if p.Record.ResponderTap == "" {
		return
	}
	given := p.Record.Options.NTP
	if p.Record.DNS != nil {
		given = slices.Concat(p.Record.DNS.Servers, given)
	}
	_, left := servers.Leased(&p.Record).Reachable(given)
	for _, l := range left {
		p.lose("server", l.What, "%s", l.Why)
	}
}

// loseOfNamespace adds what of the namespace no guest of the NIC can learn, whatever the binding's lease has.
func (p *Plan) loseOfNamespace(nic netstate.Link) {
	learned := lease.Of(p.found, nic).Tables()
	routes := p.binding.traits().routes // the namespace's rules and tables decide
	v4, v6 := lease.Of(p.found, nic).Addresses()
	own := map[bool][]netip.Prefix{false: v4, true: v6}
	rules := 0
	for _, r := range p.found.Rules {
		ofGuest := func(a netip.Prefix) bool { return !r.Source.IsValid() || r.Source.Contains(a.Addr()) }
		if (r.Other || !learned[r.Table]) && slices.ContainsFunc(own[r.IPv6], ofGuest) {
			rules++
		}
	}
	if rules > 0 && !routes {
		p.lose("policy-rule", fmt.Sprintf("rules of the namespace (%d)", rules), "a guest cannot learn policy rules by DHCP")
	}
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) && !learned[r.Table] && !routes {
			learned[r.Table] = true
			p.lose("policy-rule", fmt.Sprintf("table %d", r.Table), "its routes through %s are not the guest's, as no policy rule sends all of the guest's packets there", nic.Name)
		}
	}
	p.loseFamily(nic, 4)
	p.loseFamily(nic, 6)
	p.loseOtherLinks(nic)
	p.loseShared(nic)
	if !routes {
		p.loseAddresses(nic)
		guest := p.Record.MTU // with routes the namespace says what fits
		for _, r := range lease.Of(p.found, nic).Routes(true) {
			if r.MTU >= syntax.MinMTU && r.MTU < guest {
				p.lose("mtu", fmt.Sprintf("%d to %v", r.MTU, r.Destination), "the guest gets %d, as IPv6 needs that", guest)
			}
		}
	}
	if nic.MTU > syntax.MaxMTU {
		p.lose("mtu", fmt.Sprint(nic.MTU), "the guest gets %d, as a tap has no more", syntax.MaxMTU)
	}
}

// loseAddresses adds the addresses that the namespace has on a link without a way out, and at which it answers by the
// NIC (anycast, direct server return, BGP to the host). A namespace that the network does not reach any more answers
// nothing.
func (p *Plan) loseAddresses(nic netstate.Link) {
	v4, v6 := lease.Of(p.found, nic).Addresses()
	onNIC := func(a netip.Addr) bool { return slices.Contains(addressesIn(slices.Concat(v4, v6)), a) }
	for _, a := range p.found.Addresses {
		own := a.Prefix.Addr()
		isFamily := func(l cache.Loss) bool { return l.Kind == "family" && l.What == fmt.Sprintf("IPv%d", version(own)) }
		if slices.ContainsFunc(p.Record.Losses, isFamily) || onNIC(own) {
			continue // that loss says it; the guest has the address
		}
		if link, _ := p.found.Link(a.Link); isInner(link) && !isWired(p.found, link) && own.IsGlobalUnicast() {
			p.lose("address", own.String(), "it is on %s, and the namespace answers nothing by %s any more: add it in the guest, and %v to guard.prefixes", link.Name, p.names.NIC, single(own))
		}
	}
}

// loseShared adds the NIC's addresses that another link has too, at which the namespace answers there.
func (p *Plan) loseShared(nic netstate.Link) {
	for _, other := range p.found.Links {
		if other.Index == nic.Index || other.Loopback || isWired(p.found, other) {
			continue
		}
		if both := sharedAddresses(p.found, nic, other); len(both) > 0 {
			p.lose("other-link", fmt.Sprintf("%s: %v", other.Name, both), "it has these addresses too, and packets that arrive there reach the namespace: wire it too")
		}
	}
}

// isInner reports whether the link leads nowhere, so that its addresses are reached by the other links.
func isInner(link netstate.Link) bool { return link.Loopback || link.Kind == "dummy" }

// loseFamily adds a family of which the NIC has no address, though the namespace sends by it: the addresses are another
// link's, such as the loopback's (unnumbered, BGP to the host).
func (p *Plan) loseFamily(nic netstate.Link, of int) {
	on := lease.Of(p.found, nic)
	v4, v6 := on.Addresses()
	if own := map[int][]netip.Prefix{4: v4, 6: v6}[of]; len(own) > 0 || len(on.Routes(of == 4)) == 0 {
		return
	}
	for _, a := range p.found.Addresses {
		link, _ := p.found.Link(a.Link)
		if isInner(link) && version(a.Prefix.Addr()) == of && a.Prefix.Addr().IsGlobalUnicast() {
			p.lose("family", fmt.Sprintf("IPv%d", of), "%s has no IPv%d address, and the namespace sends by it from %v of %s", nic.Name, of, a.Prefix.Addr(), link.Name)
			return
		}
	}
}
