package phase1

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// Deactivate takes the guest's tap down. It returns a record with Standby and a higher Turn, with which NIC.Activate
// works in another namespace. Wiring and responder stay, and a VMM can keep the tap open.
//
// If the guest is on standby already, Deactivate only raises Turn. Activate of this NIC then accepts a record only if
// its Turn is higher than the raised one.
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
		if err := plan.SetTurn(nextTurn(j.Turn)); err != nil {
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

// nextTurn is the Turn after a Deactivate. A target that was never active is one Turn lower than a source on standby,
// to which the guest can go back after one Deactivate of the target.
func nextTurn(t wiring.Turn) wiring.Turn {
	if t.Standby {
		t.Turn++
	}
	return wiring.Turn{Standby: true, Inactive: true, Turn: t.Turn + 1}
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
//	ErrActive          its record is of an active guest, or of one that waits for Activate
//	ErrActive          its record is of a guest with another MAC
//	ErrActive          its record is of another namespace than that of Moving.From
//	ErrActive          its Turn is not higher than that here: call Deactivate there again
func (n NIC) Activate(ctx context.Context, other Other) (cache.Record, error) {
	if err := other.check(); err != nil {
		return cache.Record{}, n.failed("activate", err)
	}
	var record cache.Record
	err := n.doWired(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		if j.Standby {
			turn, err := other.turn(ctx, plan.Record)
			if err == nil {
				err = j.checkSource(ctx, plan.Record, other.Inactive)
			}
			if err != nil {
				return err
			}
			if err := plan.SetTurn(wiring.Turn{Turn: turn}); err != nil {
				return err
			}
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

// check refuses the zero value, and one with both fields.
func (o Other) check() error {
	switch {
	case o.Inactive == nil && !o.Gone:
		return &cache.FieldError{Field: "other", Reason: "missing: name the record that Deactivate returned for the guest's other side (inactive), or vouch that the other side is gone for good (gone)"}
	case o.Inactive != nil && o.Gone:
		return &cache.FieldError{Field: "other", Reason: "inactive and gone: name one of them"}
	case o.Inactive == nil:
		return nil
	}
	var field *cache.FieldError
	if err := o.Inactive.Validate(); errors.As(err, &field) {
		return &cache.FieldError{Field: "other.inactive." + field.Field, Reason: field.Reason}
	} else if err != nil {
		return err
	}
	return nil
}

// turn returns the Turn of an active record, if the guest is inactive elsewhere.
func (o Other) turn(ctx context.Context, own cache.Record) (uint64, error) {
	switch q := o.Inactive; {
	case o.Gone:
		return own.Turn, nil
	case q.MAC != own.MAC:
		return 0, fmt.Errorf("%w: the record is of the guest %v, and this one is %v: name the record of this guest's other side; for a guest that moves here, Teardown, and Setup with its record as from (Moving.From, guestwire-agent setup -from)", ErrActive, q.MAC, own.MAC)
	case q.Namespace == own.Namespace:
		return 0, fmt.Errorf("%w: the record is of this namespace, %s: name the record of the other side", ErrActive, withPlace(ctx, q.Namespace))
	case q.Namespace == "":
		return 0, fmt.Errorf("%w: the record names no namespace: name the one that Deactivate returned", ErrActive)
	case q.Standby && !q.Inactive:
		return 0, fmt.Errorf("%w: the record of namespace %s waits for its own Activate, and says nothing of the guest's source: call Deactivate where the guest is, and name the record that it returns", ErrActive, withPlace(ctx, q.Namespace))
	case !q.Standby:
		return 0, fmt.Errorf("%w: the record of namespace %s is of an active guest: call Deactivate there, and name the record that it returns", ErrActive, withPlace(ctx, q.Namespace))
	case q.Turn <= own.Turn:
		return 0, fmt.Errorf("%w: the record of namespace %s has the turn %d, and this namespace knows the turn %d: call Deactivate there until its turn is higher than %[4]d, and name the record that it returns", ErrActive, withPlace(ctx, q.Namespace), q.Turn, own.Turn)
	default:
		return q.Turn, nil
	}
}

// checkSource refuses, when the guest comes here for the first time, the record of another namespace than its source:
// the guest may be inactive there since an earlier move, and active elsewhere. Where the guest has been here, it can
// come back from anywhere. A record From that was written for a target that waits does not name the source.
func (j *journal) checkSource(ctx context.Context, own cache.Record, inactive *cache.Record) error {
	from := j.From
	if from == nil || inactive == nil || own.Turn > from.Turn || from.Standby && !from.Inactive {
		return nil
	}
	if slices.Contains([]string{"", own.Namespace, inactive.Namespace}, from.Namespace) {
		return nil
	}
	return fmt.Errorf("%w: the record is of namespace %s, and the guest comes from namespace %s (Moving.From, guestwire-agent setup -from): call Deactivate there, and name the record that it returns",
		ErrActive, withPlace(ctx, inactive.Namespace), withPlace(ctx, from.Namespace))
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
