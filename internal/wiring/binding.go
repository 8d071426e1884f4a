package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// binding answers what the plan asks of a kind of binding. Each kind answers in a file of its own.
type binding interface {
	// asks are the questions about the namespace that a first plan depends on.
	asks(netstate.Names) Questions
	// wire puts the wanted state of the namespace and the guest's record into the plan. The error is an
	// *infra.RefusedError if the binding cannot work on the NIC.
	wire(p *Plan, nic netstate.Link) error
	traits() traits
}

// Questions are what a first plan has to know of a namespace, besides what a Snapshot always holds.
type Questions struct {
	// Sysctls are paths below /proc/sys, with slashes.
	Sysctls []string
	// Listeners asks which ports the namespace's own processes serve.
	Listeners bool
	// Connections asks for the ports of connections that are older than the wiring.
	Connections bool
	// Dummy asks whether the kernel has the link kind dummy.
	Dummy bool
	// Gateways asks for the MACs that the function Gateways names.
	Gateways bool
	// Log asks whether the kernel can report dropped packets to an nflog group.
	Log bool
	// FlowTables asks whether the kernel has flow tables, and whether rules of other programs see each packet that the
	// namespace forwards.
	FlowTables bool
}

// traits are what the comparison and the undoing have to know of a binding.
type traits struct {
	// whole: the NIC is the guest's, so the plan adds and removes the NIC's addresses, routes and neighbours.
	whole bool
	// mends: Undo also adds addresses and routes that the NIC lost while it was wired. redirect and macvtap
	// need that: wired by redirect, the namespace hears no router that would renew what the NIC loses, and a macvtap that Undo
	// takes down loses its addresses. Undo of a bridge adds them as the NIC is whole. Behind masquerade and
	// passt the NIC works as before, so its addresses and routes are left to the program that manages them.
	mends bool
	// leaves: the NIC can be absent, because the guest has it.
	leaves bool
	// direct: guestwire creates no tap, no filter and no responder.
	direct bool
	// routes: the namespace is the guest's next hop.
	routes bool
	// offStack: the NIC's addresses are the guest's, and the namespace does not take them as its own.
	offStack bool
	// bridged: the wiring has a bridge, with which the sysctls of netstate.BridgeCalls come.
	bridged bool
	// unseen names what Setup changes at the NIC and no one can see afterwards.
	unseen string
}

// selector finds the answers for a binding, or the bindings that Auto tries. A new kind of binding does not compile until it
// has a method here.
type selector struct {
	found binding
	tries []infra.Binding
}

func (s *selector) Bridge(b infra.Bridge)         { s.found = bridge{b} }
func (s *selector) Redirect(b infra.Redirect)     { s.found = redirect{b} }
func (s *selector) Masquerade(b infra.Masquerade) { s.found = masquerade{b} }
func (s *selector) Routed(b infra.Routed)         { s.found = routed{b} }
func (s *selector) Macvtap(b infra.Macvtap)       { s.found = macvtap{} }
func (s *selector) SRIOV(b infra.SRIOV)           { s.found = sriov{b} }
func (s *selector) Passt(b infra.Passt)           { s.found = passt{b} }
func (s *selector) Auto(b infra.Auto)             { s.tries = b.Bindings() }

// bindingOf returns the binding's answers, and for Auto those of the first binding that it tries.
func bindingOf(b infra.Binding) binding {
	var s selector
	infra.Visit(triesOf(b)[0], &s)
	return s.found
}

// triesOf are the bindings that a first plan tries: those of Auto, or the binding itself.
func triesOf(b infra.Binding) []infra.Binding {
	var s selector
	infra.Visit(b, &s)
	if s.found != nil {
		return []infra.Binding{b}
	}
	return s.tries
}

// kindsOf are the kinds that auto tries.
func kindsOf(a infra.Auto) []string {
	var kinds []string
	for _, b := range a.Bindings() {
		kinds = append(kinds, b.Kind())
	}
	return kinds
}

// Ask returns the questions for the first plan of a NIC.
func Ask(nic string, spec infra.Spec) Questions {
	var q Questions
	for _, b := range triesOf(spec.Binding) {
		asked := bindingOf(b).asks(netstate.NamesFor(nic, spec.Tap))
		q.Sysctls = append(q.Sysctls, asked.Sysctls...)
		q.Listeners = q.Listeners || asked.Listeners
		q.Connections = q.Connections || asked.Connections
		q.Dummy = q.Dummy || asked.Dummy
		q.Log = q.Log || asked.Log
		q.FlowTables = q.FlowTables || asked.FlowTables
		q.Gateways = q.Gateways || asked.Gateways
	}
	slices.Sort(q.Sysctls)
	q.Sysctls = slices.Compact(q.Sysctls)
	return q
}

// MakesTaps reports whether the binding creates taps, for which the launcher's user needs /dev/net/tun.
func MakesTaps(b infra.Binding) bool {
	return slices.ContainsFunc(triesOf(b), func(t infra.Binding) bool { return !bindingOf(t).traits().direct })
}
