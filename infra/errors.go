package infra

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/cache"
)

// Errors of phase1 that callers branch on.
var (
	ErrWired     error = sentinel{"already wired", fs.ErrExist}   // the NIC or a name of its wiring is in use; fs.ErrExist
	ErrNoNIC     error = sentinel{"no such link", fs.ErrNotExist} // the NIC is not in the namespace; fs.ErrNotExist
	ErrCollision       = errors.New("network in use")             // the namespace reaches a network of the Spec already
)

// sentinel is an error that is one of the standard library's as well.
type sentinel struct {
	text string
	is   error
}

func (e sentinel) Error() string        { return e.text }
func (e sentinel) Is(target error) bool { return target == e.is }

// RefusedError reports a binding that cannot work on a NIC.
type RefusedError struct {
	NIC     string     `json:"nic"`
	Binding cache.Kind `json:"binding"`
	Reason  string     `json:"reason"`
	Instead cache.Kind `json:"instead,omitempty"` // another binding, which can; or empty
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s binding: %s", e.Binding, e.Reason)
	if e.Instead != "" {
		text += "; " + string(e.Instead) + " would work"
	}
	return text
}
