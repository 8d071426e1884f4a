package phase1

import (
	"context"
	"maps"
	"slices"

	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
)

// askFlows adds to found the sysctls of a log of connections that no earlier Setup of this NIC has asked for. What a
// wired NIC of the namespace has set counts as it was found there.
func (s *session) askFlows(found *netstate.Snapshot, made compare.Made) error {
	asked := func(path string) bool {
		_, has := found.Sysctls[path]
		return has || slices.Contains(made.Sysctls, path)
	}
	paths := slices.DeleteFunc(netstate.OfFlows(), asked)
	if len(paths) == 0 {
		return nil
	}
	found.Sysctls, found.ReadOnly = maps.Clone(found.Sysctls), slices.Clone(found.ReadOnly)
	return s.look(func() error {
		if err := kernel.ReadSysctls(found, paths); err != nil {
			return err
		}
		others, _, err := s.otherJournals()
		for _, other := range others {
			for _, path := range paths {
				if value, known := other.Found.Sysctls[path]; known && slices.Contains(other.Made.Sysctls, path) {
					found.Sysctls[path] = value
				}
			}
		}
		return err
	})
}

// giveFlowsBack gives the sysctls of a log of connections back if the Spec wants none any more, and leaves them to
// another NIC of the namespace that does. The journal has them no longer then: what others set later is theirs. After a
// kill the next Setup does so, or Teardown.
func (s *session) giveFlowsBack(ctx context.Context, j journal) error {
	paths := slices.DeleteFunc(netstate.OfFlows(), func(path string) bool { return !slices.Contains(j.Made.Sysctls, path) })
	if j.Spec.Flows || len(paths) == 0 {
		return nil
	}
	others, complete, err := s.otherJournals()
	if err != nil || !complete {
		return err
	}
	var now netstate.Snapshot
	if err := kernel.ReadSysctls(&now, paths); err != nil {
		return err
	}
	var ops []netstate.Op
	for _, path := range paths {
		needs := func(o *journal) bool { return o.Spec.Flows && slices.Contains(o.Made.Sysctls, path) }
		if before, known := j.Found.Sysctls[path]; known && now.Sysctls[path] != before && !slices.ContainsFunc(others, needs) {
			ops = append(ops, netstate.SysctlSet{Path: path, Value: before})
		}
	}
	if err := s.ns.Apply(ctx, ops); err != nil {
		return err
	}
	left, err := s.readJournal() // which may have changed since
	if err != nil || left == nil {
		return err
	}
	given := func(path string) bool { return slices.Contains(paths, path) }
	left.Made.Sysctls = slices.DeleteFunc(left.Made.Sysctls, given)
	left.Found.ReadOnly = slices.DeleteFunc(left.Found.ReadOnly, given)
	maps.DeleteFunc(left.Found.Sysctls, func(path, _ string) bool { return given(path) })
	if err := s.writeJournal(*left); err != nil {
		return err
	}
	s.writeSight()
	return nil
}
