// Package wired has a NIC together with what a test wants of it.
package wired

import (
	"context"
	"errors"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// NIC is a NIC, and how it is set up and taken down.
type NIC struct {
	phase1.NIC
	infra.Spec
	phase1.Moving
	Down phase1.TeardownOptions
}

// Setup is that of the NIC, with Spec and Moving.
func (n NIC) Setup(ctx context.Context) (cache.Record, error) {
	return n.NIC.Setup(ctx, n.Spec, n.Moving)
}

// Plan is that of the NIC, with Spec and Moving.
func (n NIC) Plan(ctx context.Context) (*phase1.Preview, error) {
	return n.NIC.Plan(ctx, n.Spec, n.Moving)
}

// Teardown is that of the NIC, with the Spec's State.
func (n NIC) Teardown(ctx context.Context) error {
	o := n.Down
	o.State = n.State
	return n.NIC.Teardown(ctx, o)
}

// ForceTeardown is Teardown with Force, and what could not be restored.
func (n NIC) ForceTeardown(ctx context.Context) (lost []string, err error) {
	o := n.Down
	o.State, o.Force = n.State, true
	err = n.NIC.Teardown(ctx, o)
	var left *phase1.LeftError
	if errors.As(err, &left) {
		return left.What, left.Err
	}
	return nil, err
}
