package wiring

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Journal is what a plan was made of.
type Journal struct {
	NIC   string            `json:"nic"`
	Found netstate.Snapshot `json:"found"`
	Spec  infra.Spec        `json:"spec"`
	// Networks are what the last Setup read anew; nil: as in Found.
	Networks *Networks `json:"networks,omitempty"`
	Turn
}

// seen is what all parts of a plan ask for: the Spec, the namespace and its NIC as they were found, and what follows
// from these, which is computed once.
type seen struct {
	spec   infra.Spec
	found  netstate.Snapshot
	nic    netstate.Link // has the index 0 if it is not there
	links  linkIndex
	on     lease.NIC      // the NIC, for what a lease can say
	v4, v6 []netip.Prefix // the NIC's, without IPv6 link-local ones
	own    []netip.Addr   // both
	// anew are the networks of the last Setup; nil: as found. networks are those by which the plan is computed.
	anew     *Networks
	networks Networks
	policy   policy.Policy
	owner    infra.Owner // has the numbers by which a tap is given to the Spec's owner
	mtu      int         // of the guest's link
}

// see returns what a plan of the journal sees.
func see(j Journal) seen {
	nic, there := j.Found.Named(j.NIC)
	if !there {
		nic.Name = j.NIC // the guest may have it already
	}
	s := seen{spec: j.Spec, found: j.Found, nic: nic, links: indexLinks(j.Found), on: lease.Of(j.Found, nic), anew: j.Networks, owner: j.Spec.Owner}
	s.v4, s.v6 = s.on.Addresses()
	s.own = slices.Concat(s.on.Own(ip.V4), s.on.Own(ip.V6))
	if s.anew != nil {
		s.networks = *s.anew
	} else {
		s.networks = s.foundNetworks()
	}
	s.policy = policyOf(s.spec, s.networks)
	if s.owner.Inside {
		s.owner = s.found.OnNode
	}
	s.mtu = min(nic.MTU, syntax.MaxMTU)
	if s.spec.MTU != 0 {
		s.mtu = min(s.mtu, s.spec.MTU)
	}
	return s
}

// policyOf is the policy of the Spec for a NIC with the networks.
func policyOf(spec infra.Spec, on Networks) policy.Policy {
	p := policy.Policy{Egress: spec.AllEgress(), Within: spec.EgressWithin, Networks: on.Networks, NextHops: on.NextHops, NAT64: spec.Options.NAT64}
	if spec.DNS != nil {
		p.Resolvers = spec.DNS.Servers
	}
	return p
}

// refuse is the error for a NIC on which the binding cannot work.
func (s *seen) refuse(reason string) error {
	return &infra.RefusedError{NIC: s.nic.Name, Binding: s.spec.Binding.Kind(), Reason: reason}
}

// lowersMTU reports whether the guest's link has a smaller MTU than the NIC because the Spec says so.
func (s *seen) lowersMTU() bool { return s.spec.MTU != 0 && s.spec.MTU < s.nic.MTU }

// minMTUIPv6 is the smallest MTU with which a link has IPv6 (RFC 8200 section 5).
const minMTUIPv6 = 1280

// triesOf are the bindings that a first plan tries: those of Auto, or the binding itself.
func triesOf(b infra.Binding) []infra.Binding {
	if auto, ok := b.(infra.Auto); ok {
		return auto.Bindings()
	}
	return []infra.Binding{b}
}

// traitsOf returns the binding's traits, and for Auto those of the first binding that it tries.
func traitsOf(b infra.Binding) compare.Traits { return compare.TraitsOf(triesOf(b)[0].Kind()) }

// traits are those of the binding.
func (s *seen) traits() compare.Traits { return traitsOf(s.spec.Binding) }

// guestAddresses are the NIC's addresses, which become the guest's; none: the guest's addresses are not known. A guest
// with another MAC than the NIC's makes another link-local address.
func (s *seen) guestAddresses(mac cache.MAC) (own []netip.Addr) {
	for _, a := range s.found.Addresses {
		if len(s.own) > 0 && a.Link == s.nic.Index && (a.Prefix.Addr() != eui64.LinkLocal(s.nic.MAC) || mac == s.nic.MAC) {
			own = append(own, a.Prefix.Addr())
		}
	}
	return own
}
