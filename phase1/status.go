package phase1

import (
	"context"
	"errors"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
)

// Report is what Status tells of one wired NIC.
type Report struct {
	Wiring
	// Record is what Setup told Phase2.
	Record cache.Record `json:"record"`
	// Drift says how kernel and record differ from what Setup left; nil: they do not.
	Drift *DriftError `json:"drift,omitempty"`
	// Drops are the counters of what the NIC's rules have dropped, as Drops returns them.
	Drops []DropCount `json:"drops"`
}

// Status reports who wired the NIC, whether the wiring is whole, and what its rules have dropped. It has Check's errors,
// except that a difference is a part of the report. With infra.ErrNoNIC, the NIC has gone, the report is there, too.
func (n NIC) Status(ctx context.Context) (*Report, error) {
	var report *Report
	err := n.doWired(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		w, _ := s.node.describe(s.identity.Name(), s.nic)
		found, _, err := netns.Find(ctx, []netns.Identity{s.identity})
		if err != nil {
			return err
		}
		w.setFound(found[s.identity])
		report = &Report{Wiring: w, Record: plan.Record}
		if report.Drops, err = dropCounts(s.ns, s.nic); err != nil {
			return err
		}
		err = s.check(ctx, j, plan)
		if errors.As(err, &report.Drift) {
			err = nil
		}
		return err
	})
	if err != nil && !errors.Is(err, infra.ErrNoNIC) {
		return nil, err
	}
	return report, err
}
