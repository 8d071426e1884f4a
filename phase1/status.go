package phase1

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Report is what Status returns.
type Report struct {
	Wiring

	// Record is what the last Setup, Activate or Deactivate returned. Warnings of services that the
	// namespace has no more are left out, and those of targets of diverts at which nobody listens
	// are added.
	Record cache.Record `json:"record"`

	// Drift is how kernel and record differ from what Setup left. Nil: they do not.
	Drift *DriftError `json:"drift,omitempty"`
	Counters

	// Egress and EgressWithin are the lists of the last Setup's Spec.
	Egress       []infra.Egress `json:"egress,omitempty"`
	EgressWithin []infra.Egress `json:"egressWithin,omitempty"`
}

// Status returns who wired the NIC, how it differs from what Setup left, and its counters. It waits for gateways as
// Check does. The errors are those of Check, except *DriftError. With infra.ErrNoNIC Status also returns a report.
func (n NIC) Status(ctx context.Context) (*Report, error) {
	var report *Report
	err := n.read(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		w := j.describe(s.identity.Name(), s.nic)
		if err := s.find(ctx, &w, n.NetNS); err != nil {
			return err
		}
		report = &Report{Wiring: w, Record: plan.Record, Egress: j.Spec.Egress, EgressWithin: j.Spec.EgressWithin}
		if report.Record.Warnings, err = s.warningsNow(plan); err != nil {
			return err
		}
		if report.Counters, err = counters(s.ns, s.nic, plan.Record.Tap, plan.Record.ResponderTap); err != nil {
			return err
		}
		if err := report.findProcesses(ctx); err != nil {
			return err
		}
		if plan.Record.Passt != nil {
			if err := report.findPasst(ctx, s.nic); err != nil {
				return err
			}
		}
		err = s.check(ctx, j, plan)
		if errors.As(err, &report.Drift) {
			err = nil
		}
		return err
	})
	if err != nil && !errors.Is(err, infra.ErrNoNIC) {
		report = nil
	}
	return report, n.failed("status", err)
}

// find sets FoundAt. The path by which the caller has opened the namespace is one, if it still leads there; else find
// looks at all processes of the node. A path in /proc may be that of a thread. Opened is nil with NIC.Own.
func (s *session) find(ctx context.Context, w *Wiring, opened *os.File) error {
	var at unix.Stat_t
	if opened != nil && filepath.IsAbs(opened.Name()) && !strings.HasPrefix(opened.Name(), "/proc/") &&
		unix.Stat(opened.Name(), &at) == nil && at.Dev == s.identity.Device && at.Ino == s.identity.Inode {
		w.FoundAt = []string{opened.Name()}
		return nil
	}
	found, _, err := netns.Find(ctx, []netns.Identity{s.identity})
	if err == nil {
		w.setFound(found[s.identity])
	}
	return err
}

// warningsNow returns the warnings of a plan of the journal, which are those of the first Setup, without those of
// services that have ended since, and with those of targets of diverts at which nobody listens.
func (s *session) warningsNow(plan *wiring.Plan) ([]string, error) {
	if !plan.ServicesChange() {
		return plan.Record.Warnings, nil
	}
	now, err := s.ns.Listeners()
	return plan.WarningsNow(now), err
}
