package infra

import (
	"errors"
	"fmt"
	"io/fs"
)

// ErrWired says that the NIC, or a name that its wiring needs, is in use by a wiring already. It is an
// fs.ErrExist.
var ErrWired = fmt.Errorf("already wired: %w", fs.ErrExist)

// ErrNoNIC says that the namespace has no link with the NIC's name. It is an fs.ErrNotExist.
var ErrNoNIC = fmt.Errorf("no such link: %w", fs.ErrNotExist)

// ErrCollision says that a masquerade network overlaps one that the namespace can reach already.
var ErrCollision = errors.New("network in use")

// RefusedError says that a binding cannot work on a NIC, and which one could.
type RefusedError struct {
	NIC     string
	Binding string
	Reason  string
	Instead string // another binding, or empty
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s binding on %s: %s", e.Binding, e.NIC, e.Reason)
	if e.Instead != "" {
		text += "; " + e.Instead + " would work"
	}
	return text
}
