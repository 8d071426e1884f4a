package wiring

import "slices"

// Questions are what a first plan has to know of a namespace, in addition to what a Snapshot always holds.
type Questions struct {
	// Sysctls are paths below /proc/sys, with slashes. A plan may set them.
	Sysctls []string
	// Hinders are sysctls that only decide which bindings are refused. A journal has no values of them.
	Hinders []string
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
	// Tracking has the kernel load connection tracking first, whose sysctls are asked for.
	Tracking bool
	// Checksums asks for which versions of IP a rule can complete checksums. Each Setup asks again.
	Checksums bool
	// Shaper asks whether the kernel has what a limit toward the guest needs. Each Setup asks again.
	Shaper bool
	// LoopbackDNS asks for the resolver on loopback that the namespace's resolv.conf names.
	LoopbackDNS bool
}

// and returns the questions of both.
func (q Questions) and(o Questions) Questions {
	q.Sysctls = slices.Compact(slices.Sorted(slices.Values(slices.Concat(q.Sysctls, o.Sysctls))))
	q.Hinders = slices.Compact(slices.Sorted(slices.Values(slices.Concat(q.Hinders, o.Hinders))))
	q.Listeners = q.Listeners || o.Listeners
	q.Connections = q.Connections || o.Connections
	q.Dummy = q.Dummy || o.Dummy
	q.Gateways = q.Gateways || o.Gateways
	q.Log = q.Log || o.Log
	q.FlowTables = q.FlowTables || o.FlowTables
	q.Tracking = q.Tracking || o.Tracking
	q.Checksums = q.Checksums || o.Checksums
	q.Shaper = q.Shaper || o.Shaper
	q.LoopbackDNS = q.LoopbackDNS || o.LoopbackDNS
	return q
}
