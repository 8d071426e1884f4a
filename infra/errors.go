package infra

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/cache"
)

// Errors of phase1 that callers branch on.
var (
	// ErrWired: the NIC, or a name that its wiring needs, is in use already. It is fs.ErrExist
	// as well.
	ErrWired error = sentinel{"already wired", fs.ErrExist}

	// ErrNoNIC: the namespace has no link with the NIC's name. It is fs.ErrNotExist as well.
	ErrNoNIC error = sentinel{"no such link", fs.ErrNotExist}

	// ErrCollision: the namespace already reaches a network or an address of the Spec, or a
	// server lies in the guest's own network.
	ErrCollision = errors.New("network in use")
)

// sentinel is an error that is one of the standard library's as well.
type sentinel struct {
	text string
	is   error
}

func (e sentinel) Error() string        { return e.text }
func (e sentinel) Is(target error) bool { return target == e.is }

// RefusedError reports a binding that cannot work on a NIC, or with which the guest would lose too much.
type RefusedError struct {
	NIC     string     `json:"nic"`
	Binding cache.Kind `json:"binding"`
	Reason  string     `json:"reason"`

	// Losses are what the guest would not get. Empty: the binding cannot work.
	Losses []cache.Finding `json:"losses,omitempty"`

	// Instead is a binding that would work. Empty: none would.
	Instead cache.Kind `json:"instead,omitempty"`
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s binding: %s", e.Binding, e.Reason)
	if e.Instead != "" {
		text += "; " + string(e.Instead) + " would work"
	}
	return text
}
