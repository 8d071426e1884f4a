// Package undo finds the way back from a wiring: from the namespace as it was found, as it is now, and what the wiring
// has changed, it computes the operations. It asks no plan, so that no version of guestwire can refuse what another one
// has wired. It is pure.
//
//   - [Steps] serves Teardown, and a first Setup that fails.
//   - [Salvage] finds out, for a Teardown with Force, what a lost journal would say.
package undo

import (
	"maps"
	"slices"

	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// Steps are the operations that lead back to the namespace as it was found. The namespace may now be wired, half wired,
// damaged, or as it was found; then there are none. The error is infra.ErrNoNIC if the NIC has gone; then the
// operations are those that remove what guestwire created. It is infra.ErrWired if another link has the NIC's name:
// then nothing can be given back.
func Steps(found, now netstate.Snapshot, made compare.Made) ([]netstate.Op, error) {
	nic, _ := found.Named(made.NIC.Names.NIC)
	want := compare.State{Sysctls: map[string]string{}, Unwanted: made.Added, OffStack: found.OffStack}
	if made.ChangesNIC {
		want.Links = []netstate.Link{nic}
	}
	for _, path := range made.Sysctls {
		want.Sysctls[path] = sysctlBefore(found, path)
	}
	for _, a := range found.Addresses {
		if a.Link == nic.Index {
			want.Addresses = append(want.Addresses, a)
		}
	}
	want.LateLinkLocal = nic.NoCarrier && !slices.ContainsFunc(want.Addresses, func(a netstate.Address) bool {
		return a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast()
	})
	sources := compare.SourcesOf(nic.Index, found.Addresses)
	for _, r := range found.Routes {
		if r.Uses(nic.Index) || sources[r.PrefSrc] {
			want.Routes = append(want.Routes, r)
		}
	}
	want.Neighbours = found.PermanentNeighbours(nic.Index)
	return compare.StepsSince(found, now, want, made.NIC)
}

// Connections are those that the kernel must forget when the wiring has gone.
func Connections(made compare.Made) []netstate.ConnectionsDel {
	return slices.Concat(router.NetworkConnections(made.Guests), made.Translated)
}

// sysctlBefore is the value that a wiring has changed. The kernel makes the sysctls of bridges with the first bridge.
func sysctlBefore(found netstate.Snapshot, path string) string {
	if value, known := found.Sysctls[path]; known {
		return value
	}
	return netstate.DefaultBridgeCall
}

// Inherit takes the values of the sysctls that the whole namespace shares from the wiring of another NIC, which was
// wired earlier. So the last Teardown, of either NIC, leaves the namespace as it was before both.
func Inherit(found *netstate.Snapshot, earlier netstate.Snapshot, made compare.Made) {
	found.Sysctls = maps.Clone(found.Sysctls)
	for _, path := range netstate.Shared() {
		if _, there := found.Sysctls[path]; there && slices.Contains(made.Sysctls, path) {
			found.Sysctls[path] = sysctlBefore(earlier, path)
		}
	}
}
