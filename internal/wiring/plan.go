// Package wiring plans the wiring of a NIC: from the namespace as it was found and the Spec, it computes how
// the namespace must look, and the record, which describes the guest to Phase2. It is pure: the same input
// makes the same plan, so a journal needs no more than the input.
package wiring

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Plan is the wiring of one NIC: how the namespace was found, how it must look, and what the guest gets.
type Plan struct {
	// Record is for Phase2.
	Record cache.Record
	// Refused are the bindings that infra.Auto tried first, and why they cannot work.
	Refused []*infra.RefusedError

	spec    infra.Spec
	binding binding
	names   netstate.Names
	found   netstate.Snapshot
	// makeTables are what Tables calls.
	makeTables []func() []firewall.Table
	wanted     compare.State // its Tables are those of Tables
	// added are addresses and routes that a routed binding adds to the NIC, and that Teardown removes.
	added compare.Gone
	// networks are those of the last Setup; nil: as found. policy has the policy's sets.
	networks *Networks
	policy   []firewall.Destinations
	// programs are those of iptables by which the plan has chains.
	programs []firewall.Family
	// guests are the networks with the addresses of a guest whose connections the namespace tracks.
	guests []netip.Prefix
	// olderExchanges are for OlderConnections. translated are the namespace's own connections that the wiring translates.
	olderExchanges, translated []netstate.ConnectionsDel
}

// Binding is the Spec's binding, or what infra.Auto has become.
func (p *Plan) Binding() infra.Binding { return p.spec.Binding }

// Names are those of the wiring.
func (p *Plan) Names() netstate.Names { return p.names }

// Tables are the wanted tables of nftables, or of iptables, which are made at the first call. To make them is most of a
// plan, and a comparison with a namespace in which they stay (Snapshot.TablesStay) does without.
func (p *Plan) Tables() []firewall.Table {
	for _, tables := range p.makeTables {
		for _, t := range tables() {
			at := slices.IndexFunc(p.wanted.Tables, func(w firewall.Table) bool { return w.Family == t.Family })
			if at < 0 {
				p.wanted.Tables = append(p.wanted.Tables, t)
			} else {
				p.wanted.Tables[at].Chains = append(p.wanted.Tables[at].Chains, t.Chains...)
			}
		}
	}
	for i, t := range p.wanted.Tables {
		if p.makeTables != nil && t.Family.IPTables() == 0 {
			p.wanted.Tables[i] = t.Counted(p.names.NIC, !p.found.NoLog)
		}
	}
	p.makeTables = nil
	return p.wanted.Tables
}

// nic is the NIC as it was found.
func (p *Plan) nic() netstate.Link {
	nic, _ := p.found.Named(p.names.NIC) // Journal.Plan has seen it, or the binding does without
	return nic
}

// SysctlPaths are the sysctls that a Snapshot needs for comparing with the plan: the wanted ones, and those by which
// new links have IPv6 and others forward.
func (p *Plan) SysctlPaths() []string {
	paths := append(slices.Collect(maps.Keys(p.wanted.Sysctls)), netstate.NoIPv6)
	if p.traits().Routes {
		paths = append(paths, netstate.Forwarding6)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Hinders are the sysctls that a Snapshot needs for Hindrances.
func (p *Plan) Hinders() []string { return p.binding.asks(p.names).Hinders }

// traits are those of the binding.
func (p *Plan) traits() compare.Traits { return traitsOf(p.spec.Binding) }
