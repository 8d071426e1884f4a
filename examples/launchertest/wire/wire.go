// Package wire is the privileged side of a launcher, and its test runs without root.
package wire

import (
	"context"
	"errors"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// NIC is what this launcher calls of phase1.NIC.
type NIC interface {
	Setup(context.Context, infra.Spec, ...phase1.SetupOption) (cache.Record, error)
	Teardown(context.Context, phase1.TeardownOptions) error
}

// Run wires the NIC while vm runs. Where the Spec's binding cannot work, the VM is behind a masquerade.
func Run(ctx context.Context, nic NIC, spec infra.Spec, vm func(cache.Record) error) (err error) {
	record, err := nic.Setup(ctx, spec)
	var refused *infra.RefusedError
	if errors.As(err, &refused) {
		spec.Binding = infra.Masquerade{}
		record, err = nic.Setup(ctx, spec)
	}
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, nic.Teardown(context.WithoutCancel(ctx), phase1.TeardownOptions{CutOff: true}))
	}()
	return vm(record)
}
