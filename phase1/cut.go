package phase1

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/wiring"
)

// CutRefused ends the guest's connections that Spec.Egress would not allow now, and returns their number. They stay
// open otherwise, after a Setup with another list, and after the life of a Pin. What others opened to the guest goes
// on, such as UDP that the other side still sends (docs/explanation/security.md). The errors are those of Check but a
// *DriftError, and one of a kernel that does not list connections.
func (n NIC) CutRefused(ctx context.Context) (cut int, err error) {
	err = n.doWired(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		end := s.report.during("cuts connections that are refused now")
		defer end()
		cut, err = s.cutRefused(ctx, j, plan)
		return err
	})
	return cut, n.failed("cut", err)
}

func (s *session) cutRefused(ctx context.Context, j *journal, plan *wiring.Plan) (cut int, err error) {
	sets := plan.EgressSets()
	if len(sets) == 0 {
		return 0, nil
	}
	now, err := s.read(plan)
	if err != nil {
		return 0, err
	}
	for i := range sets {
		if sets[i].Boxes, err = s.ns.Boxes(plan.Names().Table, sets[i]); err != nil {
			return 0, err
		}
	}
	refused := plan.Judge(now, sets)
	judge := func(c kernel.Connection) bool { return refused(c.From, c.To, c.Protocol) }
	cut, err = s.ns.CutConnections(ctx, judge)
	if !errors.Is(err, unix.EBUSY) {
		return cut, err
	}
	more, err := s.cutOffloaded(ctx, j, plan, judge)
	return cut + more, err
}

// cutOffloaded removes the flow table until the kernel has released its connections: before Linux 6.4 the kernel
// forgets none that are in a flow table. The others go on by the rules.
func (s *session) cutOffloaded(ctx context.Context, j *journal, plan *wiring.Plan, refused func(kernel.Connection) bool) (cut int, err error) {
	without := j.Journal
	without.Found.FlowTables = false
	rules, err := without.Plan()
	if err != nil {
		return 0, err
	}
	if err := s.reach(ctx, rules); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.reach(context.WithoutCancel(ctx), plan)) }()
	for deadline := time.Now().Add(kernel.LetGo); ; {
		more, err := s.ns.CutConnections(ctx, refused)
		cut += more
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return cut, err
		}
		select {
		case <-ctx.Done():
			return cut, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// reach brings the kernel to the state that the plan wants.
func (s *session) reach(ctx context.Context, plan *wiring.Plan) error {
	now, err := s.read(plan)
	if err != nil {
		return err
	}
	ops, err := plan.Steps(now)
	if err != nil {
		return err
	}
	return s.converge(ctx, plan, ops)
}
