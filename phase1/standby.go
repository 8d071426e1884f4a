package phase1

import (
	"context"
	"errors"
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Other is what the caller of NIC.Activate knows of the guest elsewhere. Set one field.
type Other struct {
	// Inactive is what [NIC.Deactivate] returned in the guest's last namespace. It serves for
	// one Activate in one namespace.
	Inactive *cache.Record `json:"inactive,omitempty"`

	// Gone vouches that the guest is active nowhere else: the other node is fenced, the other
	// namespace is gone, or the guest is restored from a file. Nothing checks that.
	Gone bool `json:"gone,omitempty"`
}

// Deactivate takes the guest's tap down. It returns a record with [cache.RoleInactive] and a higher Turn, with which
// NIC.Activate works in another namespace. Wiring and responder stay, and a VMM can keep the tap open.
//
// If the tap is down already, Deactivate only raises Turn. Activate of this NIC then accepts a record only if its Turn
// is higher than the raised one. Where the guest was never active, the record has [cache.RoleStandby], and serves for
// Activate in the namespace of Moving.From alone. It does not say whether another target of that namespace is active:
// with two targets, only the caller knows that.
//
// After an error the guest may be active or inactive: the next Deactivate reports which. The errors are those of Check,
// except *DriftError, and, before any change,
//
//	*infra.RefusedError  the binding has no tap of guestwire's
//	*cache.FieldError    the binding is routed, or Turn can go no higher
func (n NIC) Deactivate(ctx context.Context) (cache.Record, error) {
	var record cache.Record
	err := n.doWired(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		if err := plan.SetTurn(j.Turn.Deactivated()); err != nil {
			return err
		}
		if err := plan.Record.Validate(); err != nil { // its Turn may be too high
			return err
		}
		// The journal comes first: after a kill, Setup takes the tap down. Without the record, no other side is active.
		if err := s.writeJournal(j.of(plan)); err != nil {
			return err
		}
		if err := s.deactivate(plan); err != nil {
			return fmt.Errorf("the guest may be active still: %w", err)
		}
		if err := s.replaceRecord(ctx, j, plan.Record); err != nil {
			return fmt.Errorf("the guest is inactive, and its record is not written: Setup or Deactivate writes it as soon as it can: %w", err)
		}
		record = plan.Record
		return nil
	})
	return record, n.failed("deactivate", err)
}

// Activate ends standby: it repairs the wiring as Setup does, brings the guest's tap up, and returns the new record.
// other proves or vouches that the guest is inactive elsewhere. Activate of an active NIC is a repair.
//
// With the tap up, Activate asks the gateways that Setup asks: up to 0.33 s each, or 1 s if the MAC is not known.
//
// After an error the guest may be active: then call Deactivate. The errors are those of Setup, and
//
//	ErrNotWired        there was no Setup
//	*cache.FieldError  other has no field set, or both, or its record is not valid
//	ErrActive          its record is of this namespace, or names none
//	ErrActive          its record is of an active guest, or of a NIC on standby that does not come from here
//	ErrActive          its record is of a guest with another MAC
//	ErrActive          its record is of another namespace than that of Moving.From
//	ErrActive          its Turn is not higher than that here: call Deactivate there again
func (n NIC) Activate(ctx context.Context, other Other) (cache.Record, error) {
	var record cache.Record
	err := n.doWired(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		active, err := wiring.Activated(plan.Record, other.Inactive, other.Gone, func(namespace string) string { return withPlace(ctx, namespace) })
		if err != nil {
			return err
		}
		if err := plan.SetTurn(active); err != nil {
			return err
		}
		now, err := s.read(plan)
		if err != nil {
			return err
		}
		plan, now, _, err = plan.Present(now)
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		j.Begins = hasEgress(j.Spec) && request{}.guestBegins(j, plan, ops)
		// The journal comes first: after a kill the guest is inactive, and Activate or Setup brings the tap up.
		if err := s.writeJournal(j.of(plan)); err != nil {
			return err
		}
		if err := s.converge(ctx, plan, ops); err != nil {
			return err
		}
		if err := s.forgetOlder(ctx, plan, j, *j); err != nil {
			return err
		}
		j.Begins, j.Cut = false, nil
		if err := s.replaceRecord(ctx, j, plan.Record); err != nil {
			return err
		}
		record, err = s.learnGateways(ctx, j, plan)
		return err
	})
	if err != nil {
		return cache.Record{}, n.failed("activate", err)
	}
	return record, nil
}

// planOf returns the journal and its plan.
func (s *session) planOf() (*journal, *wiring.Plan, error) {
	j, err := s.wired()
	if err != nil {
		return nil, nil, err
	}
	plan, err := s.replan(j)
	return j, plan, err
}

// deactivate takes the guest's tap down. It does not end with the caller's context: the journal says that the tap is
// down.
func (s *session) deactivate(plan *wiring.Plan) error {
	for range tries {
		now, err := s.read(plan)
		if err != nil {
			return err
		}
		ops := plan.Deactivate(now)
		if len(ops) == 0 {
			return nil
		}
		if err := s.ns.Apply(context.Background(), ops); err != nil {
			return err
		}
	}
	return errors.New("another program keeps the tap up")
}

// replaceRecord writes the record into the journal's state directory, if there is one.
func (s *session) replaceRecord(ctx context.Context, j *journal, r cache.Record) error {
	if j.Spec.State == "" {
		return nil
	}
	if err := s.openState(j.Spec.State); err != nil {
		return err
	}
	if err := s.lockState(ctx); err != nil {
		return err
	}
	if err := s.checkRecord(ctx); err != nil {
		return err
	}
	return cache.Write(s.state.Root, r)
}

// learnGateways asks for the MACs of the guest's gateways, repairs the wiring if one is another than the plan's, and
// returns the record. J is the journal so far.
func (s *session) learnGateways(ctx context.Context, j *journal, plan *wiring.Plan) (cache.Record, error) {
	repaired, learned, err := s.askGateways(ctx, plan, true) // the VMM may wait for Activate
	if err != nil {                                          // the guest is active without it, as if the gateway did not answer
		s.report.say("NIC %s: the guest's gateways could not be asked for their MACs, the next Setup asks: %v", s.nic, err)
		return plan.Record, nil
	}
	if learned == nil {
		return plan.Record, nil
	}
	repaired.Record.Namespace = plan.Record.Namespace
	now, err := s.read(repaired)
	if err != nil {
		return plan.Record, err
	}
	ops, err := repaired.Steps(now) // the responder answers for the router
	if err == nil {
		err = s.writeJournal(j.of(repaired))
	}
	if err == nil {
		err = s.converge(ctx, repaired, ops)
	}
	if err == nil {
		err = s.writeRecord(repaired.Record)
	}
	return repaired.Record, err
}
