// Package wiring plans the wiring of a NIC: from the namespace as it was found and the Spec, it computes how
// the namespace must look, and the record, which describes the guest to Phase2. It is pure: the same input
// makes the same plan, so a journal needs no more than the input.
package wiring

import (
	"net/netip"

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

	seen
	binding binding
	names   netstate.Names
	// services are those of the namespace of which the record warns.
	services map[netstate.Listener]string
	// routers is the number of losses by links that are said to route.
	routers int
	// described are what Tables makes tables of, and hasTables says that it did.
	described []described
	hasTables bool
	wanted    compare.State // its Tables are those of Tables
	// added are addresses and routes that a routed binding adds to the NIC, and that Teardown removes.
	added compare.Gone
	// sets are those of the policy, and diverted what leads elsewhere.
	sets     []firewall.Destinations
	diverted []firewall.Divert
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

// Journal returns what must be kept while the plan is in force.
func (p *Plan) Journal() Journal {
	return Journal{NIC: p.names.NIC, Found: p.found, Spec: p.spec, Networks: p.anew, Turn: turnOf(p.Record)}
}

// Tables are the wanted tables of nftables, or of iptables, which are made at the first call. To make them is most of a
// plan, and a comparison with a namespace in which they stay (Snapshot.TablesStay) does without.
func (p *Plan) Tables() []firewall.Table {
	if p.hasTables {
		return p.wanted.Tables
	}
	p.hasTables = true
	for _, d := range p.described {
		for _, t := range d.Tables() {
			if t.Family.IPTables() == 0 {
				t = t.Counted(p.names.NIC, !p.found.NoLog)
			}
			p.wanted.Tables = append(p.wanted.Tables, t)
		}
	}
	return p.wanted.Tables
}

// described is a description of which tables are made. Two of a plan have no table of the same family.
type described interface{ Tables() []firewall.Table }

// binding answers what the plan asks of a kind of binding. Each kind answers in a file of its own.
type binding interface {
	// asks are the questions about the namespace that a first plan depends on.
	asks(netstate.Names) Questions
	// wire puts the wanted state of the namespace and the guest's record into the plan. The error is an
	// *infra.RefusedError if the binding cannot work on the NIC.
	wire(p *Plan) error
	// sameGuest reports whether a running guest keeps its network if the wiring changes from the binding to the other,
	// which has the same kind.
	sameGuest(infra.Binding) bool
	// wiredAs is what sameGuest compares in addition to the kind, for messages; empty: nothing.
	wiredAs() string
	// makesMAC reports whether the guest's MAC is computed from Spec.Guest.
	makesMAC() bool
}

// mover is a binding that takes more than the guest's MAC from the record of a guest that moves here, or refuses it.
type mover interface {
	// takeOver returns the binding with what it leaves zero as in the record. The error names a field of the binding,
	// after the prefix.
	takeOver(prefix string, from cache.Record) (infra.Binding, error)
}
