package wiring

import (
	"errors"
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
)

// Turn has the values of the record that say where a guest that moves is active.
type Turn struct {
	Role   cache.Role `json:"role,omitempty"`
	Source string     `json:"source,omitempty"`
	Turn   uint64     `json:"turn,omitempty"`
}

func turnOf(r cache.Record) Turn { return Turn{r.Role, r.Source, r.Turn} }

// ErrActive is that of phase1.
var ErrActive = errors.New("the guest may be active in another namespace")

// FirstTurn is that of a first Setup in the namespace, with a record from elsewhere or nil. The error is ErrActive.
func FirstTurn(namespace string, b infra.Binding, from *cache.Record, standby bool) (t Turn, err error) {
	if standby {
		t.Role = cache.RoleStandby
	}
	if from == nil {
		return t, nil
	}
	switch t.Turn = from.Turn; {
	case standby && from.Role == cache.RoleInactive:
		t.Turn-- // so that from allows Activate
	case standby, from.Role == cache.RoleInactive, from.Role == cache.RoleActive && from.Namespace == namespace:
	case MakesTaps(b), !compare.TraitsOf(from.Binding).Direct:
		return t, fmt.Errorf("%w: from is the record of an active guest, or of one that waits for Activate: set Standby (guestwire-agent setup -standby), and call Activate once the guest is inactive there; or name the record that Deactivate returns there", ErrActive)
	}
	source := from.Namespace
	if from.Role == cache.RoleStandby {
		source = from.Source
	}
	if standby && source != namespace {
		t.Source = source
	}
	return t, nil
}

// Deactivated is the Turn after a Deactivate. A target that was never active is one Turn lower than an inactive source,
// to which the guest can go back after one Deactivate of the target.
func (t Turn) Deactivated() Turn {
	if t.Role == cache.RoleActive {
		return Turn{Role: cache.RoleInactive, Turn: t.Turn + 1}
	}
	t.Turn += 2
	return t
}

// Activated is the Turn of own after an Activate by the record q, which proves that the guest is active nowhere else,
// or by a caller who vouches for that (gone). The error is ErrActive, or a *cache.FieldError. Place adds to a namespace
// where it is.
//
// The record of an inactive namespace proves nothing to a target that comes from another one: the guest may be inactive
// there since an earlier move. That of one on standby proves it only to its source, which is inactive itself, and which
// has no other target.
func Activated(own cache.Record, q *cache.Record, gone bool, place func(namespace string) string) (Turn, error) {
	err := validate("other.inactive.", q)
	switch {
	case q == nil && !gone:
		return Turn{}, &cache.FieldError{Field: "other", Reason: "missing: name the record that Deactivate returned for the guest's other side (inactive), or vouch that the other side is gone for good (gone)"}
	case q != nil && gone:
		return Turn{}, &cache.FieldError{Field: "other", Reason: "inactive and gone: name one of them"}
	case err != nil:
		return Turn{}, err
	case gone, own.Role == cache.RoleActive:
		return Turn{Turn: own.Turn}, nil
	case q.MAC != own.MAC:
		return Turn{}, fmt.Errorf("%w: the record is of the guest %v, and this one is %v: name the record of this guest's other side; for a guest that moves here, Teardown, and Setup with its record as from (Moving.From, guestwire-agent setup -from)", ErrActive, q.MAC, own.MAC)
	case q.Namespace == own.Namespace:
		return Turn{}, fmt.Errorf("%w: the record is of this namespace, %s: name the record of the other side", ErrActive, place(q.Namespace))
	case q.Namespace == "":
		return Turn{}, fmt.Errorf("%w: the record names no namespace: name the one that Deactivate returned", ErrActive)
	case q.Role == cache.RoleActive:
		return Turn{}, fmt.Errorf("%w: the record of namespace %s is of an active guest: call Deactivate there, and name the record that it returns", ErrActive, place(q.Namespace))
	case q.Role == cache.RoleStandby && (own.Role == cache.RoleStandby || q.Source != own.Namespace):
		return Turn{}, fmt.Errorf("%w: the record of namespace %s waits for its own Activate, and so allows one only in the inactive namespace that it comes from (Moving.From, guestwire-agent setup -from): call Deactivate where the guest is, and name the record that it returns", ErrActive, place(q.Namespace))
	case own.Source != "" && own.Source != q.Namespace:
		return Turn{}, fmt.Errorf("%w: the record is of namespace %s, and the guest comes from namespace %s (Moving.From, guestwire-agent setup -from): call Deactivate there, and name the record that it returns", ErrActive, place(q.Namespace), place(own.Source))
	case q.Turn <= own.Turn:
		return Turn{}, fmt.Errorf("%w: the record of namespace %s has the turn %d, and this namespace knows the turn %d: call Deactivate there until its turn is higher than %[4]d, and name the record that it returns", ErrActive, place(q.Namespace), q.Turn, own.Turn)
	}
	return Turn{Turn: q.Turn}, nil
}

// validate is Validate of a record from elsewhere, or nil, with the prefix before the field.
func validate(prefix string, r *cache.Record) (err error) {
	if r != nil {
		err = r.Validate()
	}
	if field := (*cache.FieldError)(nil); errors.As(err, &field) {
		return &cache.FieldError{Field: prefix + field.Field, Reason: field.Reason}
	}
	return err
}
