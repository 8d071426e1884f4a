package infra

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/cache"
)

// Errors of phase1's calls to tell apart.
var (
	// ErrWired: the NIC, or a name that its wiring needs, is in use by a wiring already. It is an fs.ErrExist.
	ErrWired error = sentinel{"already wired", fs.ErrExist}
	// ErrNoNIC: the namespace has no link with the NIC's name. It is an fs.ErrNotExist.
	ErrNoNIC error = sentinel{"no such link", fs.ErrNotExist}
	// ErrCollision: a masquerade network, the guest's address in it, or a prefix of its guard is in use in the namespace:
	// the namespace can reach it already.
	ErrCollision = errors.New("network in use")
)

// sentinel is an error that is one of the standard library's as well.
type sentinel struct {
	text string
	is   error
}

func (e sentinel) Error() string        { return e.text }
func (e sentinel) Is(target error) bool { return target == e.is }

// RefusedError says that a binding cannot work on a NIC, and which one could.
type RefusedError struct {
	NIC     string     `json:"nic"`
	Binding cache.Kind `json:"binding"`
	Reason  string     `json:"reason"`
	Instead cache.Kind `json:"instead,omitempty"` // another binding, or empty
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s binding on %s: %s", e.Binding, e.NIC, e.Reason)
	if e.Instead != "" {
		text += "; " + string(e.Instead) + " would work"
	}
	return text
}
