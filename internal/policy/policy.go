// Package policy computes where a guest may open connections. It is pure, and knows no rule.
//
//   - A [Policy] has the lists of a Spec and what their names mean in a namespace. [Policy.Allowed] and [Policy.Pinnable]
//     return the sets of destinations by which rules decide,
//     and [Policy.Diverts] those that lead to a port of the namespace instead.
//   - [Judged] judges, by these sets as the kernel has them, the connections that are open already.
package policy

import (
	"net/netip"

	"github.com/guestwire/guestwire/infra"
)

// Policy is where a guest may open connections: the lists of a Spec, and what their names mean in a namespace. Without
// entries it allows everything.
type Policy struct {
	Egress, Within []infra.Egress // Spec.Egress and Spec.EgressWithin
	// Networks are those of the NIC's link, without the next hops in them: what nic-networks means.
	Networks []netip.Prefix
	NextHops []netip.Addr
	// Resolvers are the Spec's.
	Resolvers []netip.Addr
	// Gateways are the guest's, one of a version of IP at most.
	Gateways []netip.Addr
	// NAT64 is the prefix of the site's translator. Its addresses, and those of 64:ff9b::/96, are IPv4 addresses, too.
	NAT64 netip.Prefix
}

// IsSet reports whether the policy has entries.
func (p Policy) IsSet() bool { return len(p.Egress)+len(p.Within) > 0 }

// Field is the field of the policy, for errors about all of it.
func (p Policy) Field() string {
	if len(p.Egress) == 0 {
		return "egressWithin"
	}
	return "egress"
}
