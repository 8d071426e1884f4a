package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
)

// target is one of the lists of the Spec.
type target struct {
	field string
	entry infra.Egress
}

// targets are those of the Spec.
func (s *seen) targets() (list []target) {
	add := func(name string, entries []infra.Egress) {
		for i, e := range entries {
			if e.Divert.Port() != 0 {
				list = append(list, target{fmt.Sprintf("%s[%d]", name, i), e})
			}
		}
	}
	all := s.spec.AllEgress()
	add("names", all[:len(all)-len(s.spec.Egress)])
	add("egress", s.spec.Egress)
	add("egressWithin", s.spec.EgressWithin)
	return list
}

// divertsToLoopback reports whether a target is a loopback address. The kernel takes packets for these from a link by a
// sysctl of the link alone.
func (p *Plan) divertsToLoopback() bool {
	return slices.ContainsFunc(p.diverted, func(d firewall.Divert) bool { return d.Target.Addr().IsLoopback() })
}

// addDiverts adds those of the policy, and that of the resolver. The error is a *cache.FieldError for a target that is
// the guest's.
func (p *Plan) addDiverts(ends router.Ends) error {
	for _, t := range p.targets() {
		a := t.entry.Divert.Addr()
		switch {
		case !a.IsValid() || slices.Contains(gatewaysOf(ends), a):
		case p.isGuests(a, ends):
			return &cache.FieldError{Field: t.field, Reason: fmt.Sprintf("%v is the guest's own address: want a port of the gateway, :%d, or an address of the namespace", a, t.entry.Divert.Port())}
		case !ends.Has(ip.Of(a)):
			p.warn("%s: %q refuses all, as the guest has no %v address", t.field, t.entry, ip.Of(a))
		case !a.IsLoopback() && !addressesOf(p.found)[a]:
			p.warn("%s: %q refuses if %v is no address of the namespace, as it was at the first Setup: add the address, or want :%d, a port of the gateway", t.field, t.entry, a, t.entry.Divert.Port())
		default:
			p.warnOtherVersion(t, ends)
		}
	}
	p.policy.Gateways = gatewaysOf(ends)
	p.warnOfGateway()
	diverts, err := p.policy.Diverts(ends.Versions())
	p.diverted = p.followed(diverts)
	p.addResolver(ends)
	p.addDNSProxy(ends)
	return cmp.Or(err, p.checkAsked())
}

// isGuests reports whether the address is one of the guest's.
func (p *Plan) isGuests(a netip.Addr, ends router.Ends) bool {
	return slices.Contains(ends.Guests(), a) || p.traits().OffStack && slices.Contains(p.own, a)
}

// warnOtherVersion warns of destinations that are refused because the target has no address of their version.
func (p *Plan) warnOtherVersion(t target, ends router.Ends) {
	for _, v := range ends.Versions() {
		has := func(n netip.Prefix) bool { return ip.Of(n.Addr()) == v }
		if to := syntax.Destinations(t.entry.To); v != ip.Of(t.entry.Divert.Addr()) && (slices.ContainsFunc(to, has) || len(to) == 0) {
			p.warn("%s: %q refuses what the guest opens by %v, as the target is an address of %v: want :%d, where the service listens at the gateway's addresses, to divert both", t.field, t.entry, v, ip.Of(t.entry.Divert.Addr()), t.entry.Divert.Port())
		}
	}
}

// warnOfGateway warns of diverts of the gateway's ports that an earlier entry decides: Validate does not know the
// gateway's addresses.
func (p *Plan) warnOfGateway() {
	const most = 64 // a record has no more of these warnings
	looks, index := 0, sync.OnceValue(p.policy.Index)
	for _, t := range p.targets() {
		ports := syntax.Ports(t.entry.Ports).Full()
		for _, a := range p.policy.Gateways {
			target := t.entry.Divert
			if t.entry.To != syntax.Gateway || len(p.spec.Egress) > 0 && strings.HasPrefix(t.field, "egressWithin") || target.Addr().IsValid() && ip.Of(target.Addr()) != ip.Of(a) {
				continue
			}
			if looks++; looks > most {
				return
			}
			if !target.Addr().IsValid() {
				target = netip.AddrPortFrom(a, target.Port())
			}
			if index().Decide(netip.AddrPortFrom(a, max(ports.First, 1)), firewall.Transports[ports.Protocol]).Target != target {
				p.warn("%s: %q does not decide of the gateway, %v, as an earlier entry does, or egressWithin: move it in front of that", t.field, t.entry, a)
			}
		}
	}
}

func gatewaysOf(ends router.Ends) (list []netip.Addr) {
	for _, e := range ends {
		list = append(list, e.Gateway)
	}
	return list
}
