package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
	"github.com/guestwire/guestwire/internal/router"
)

// forwarding is that of the guest. Most is the binding's MaxConnections. Unreached are the addresses that the guest
// looks for on its link in vain.
func (p *Plan) forwarding(nic netstate.Link, ends router.Ends, most int, unreached []policy.Range) (t router.Router, err error) {
	on := p.nicNetworks(nic)
	t = router.Router{Names: p.names, Unforwarded: unforwarded(p.found, p.names, nic.Index), Ends: ends, Guard: p.spec.Guard, MAC: p.Record.MAC, Most: most, NoARP: nic.NoARP,
		OtherLinks: map[int][]string{4: on.Forwarders.IPv4, 6: on.Forwarders.IPv6}, All6: forwardsAll6(p.found), Checksums: p.found.Checksums}
	by := policyOf(p.spec, on)
	if t.Allowed, err = by.Allowed(ends.Versions()); err != nil {
		return t, err
	}
	if len(t.Allowed) > 0 {
		p.addWarnings(warnIncomplete(by.Field(), p.found, p.names, ends)...)
	}
	t.Pinnable, err = by.Pinnable(ends.Versions(), unreached)
	p.policy = slices.Concat(t.Allowed, t.Pinnable)
	return t, err
}

// policyOf is the policy of the Spec for a NIC with the networks.
func policyOf(spec infra.Spec, on Networks) policy.Policy {
	p := policy.Policy{Egress: spec.Egress, Within: spec.EgressWithin, Networks: on.Networks, NextHops: on.NextHops}
	if spec.DNS != nil {
		p.Resolvers = spec.DNS.Servers
	}
	return p
}

// checkPolicy refuses a policy that no rule can keep. Another binding of infra.Auto may be able to.
func checkPolicy(spec infra.Spec, found netstate.Snapshot, nic netstate.Link) error {
	by := policyOf(spec, Networks{})
	if !by.IsSet() {
		return nil
	}
	if found.NoNFTables {
		return &cache.FieldError{Field: by.Field(), Reason: "this kernel has no nf_tables, which would look up where the guest's connections go: load them (modprobe nf_tables), then take the NIC down if it is wired (Teardown), and call Setup; or leave this field out"}
	}
	if !bindingOf(spec.Binding).traits().routes {
		return &infra.RefusedError{NIC: nic.Name, Binding: spec.Binding.Kind(), Reason: "egress is about connections, and nobody tracks the guest's there"}
	}
	return nil
}

// checkSources refuses proxies' sources of a family in which the guest has no address.
func checkSources(s *infra.Sidecar, kind cache.Kind, nic netstate.Link, ends router.Ends) error {
	if s == nil {
		return nil
	}
	for i, a := range s.Sources {
		if v := version(a); !ends.Has(v) {
			return &cache.FieldError{Field: fmt.Sprintf("binding.%s.sidecar.sources[%d]", kind, i), Reason: fmt.Sprintf("%v: %s has no IPv%d address to forward", a, nic.Name, v)}
		}
	}
	return nil
}
