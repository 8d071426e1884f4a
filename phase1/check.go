package phase1

import (
	"context"
	"fmt"
	"reflect"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Check compares the kernel with what Setup left. The error is a *DriftError if the kernel or the record
// differs, ErrNotWired if there was no Setup, infra.ErrNoNIC if the NIC has gone. Check uses
// NetNS, State and NIC of the configuration only, and needs what Setup needs.
func Check(ctx context.Context, c Config) error {
	return c.do(ctx, openState, func(s *session) error {
		journal, err := s.readJournal()
		if err != nil {
			return err
		}
		if journal == nil {
			return fmt.Errorf("NIC %s: %w by a Setup with the state directory %s", c.NIC, ErrNotWired, c.State)
		}
		plan, err := s.replan(journal)
		if err != nil {
			return err
		}
		if err := s.verify(plan); err != nil {
			return err
		}
		if record, err := cache.Read(s.dir, c.NIC); err != nil || !reflect.DeepEqual(record, plan.Record) {
			differs := fmt.Sprintf("record %s.json is not as it was written", c.NIC)
			if err != nil {
				differs = err.Error()
			}
			return &DriftError{NIC: c.NIC, Differs: []string{differs}, Missing: []string{"write the record " + c.NIC + ".json anew"}}
		}
		return nil
	})
}

// verify looks at the kernel: a plan is carried out when nothing is left to do.
func (s *session) verify(plan *wiring.Plan) error {
	now, err := s.read(plan)
	if err != nil {
		return err
	}
	differs, steps, err := plan.Differences(now)
	if err != nil || len(steps) == 0 {
		return err
	}
	e := &DriftError{NIC: s.nic, Differs: differs}
	for _, op := range steps {
		e.Missing = append(e.Missing, op.String())
	}
	return e
}
