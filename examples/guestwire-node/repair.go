package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// repairOnce repairs each wired NIC of the node that is not as recorded. It goes on after one that cannot be repaired.
func (o *options) repairOnce(ctx context.Context) error {
	wirings, err := phase1.List(ctx, o.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the directory nothing was ever wired
		return err
	}
	var errs []error
	for _, w := range wirings {
		if err := o.repairNIC(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("%s in %s: %w", w.NIC, w.Namespace, err))
		}
	}
	return errors.Join(errs...)
}

// repairNIC leaves a namespace, a NIC or a wiring that is gone: it is the engine's DEL's, or the sweep's.
func (o *options) repairNIC(ctx context.Context, w phase1.Wiring) error {
	ns, err := w.Open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.dir}
	var drift *phase1.DriftError
	switch err := nic.Check(ctx); {
	case errors.Is(err, phase1.ErrNotWired), errors.Is(err, infra.ErrNoNIC):
		return nil
	case !errors.As(err, &drift):
		return err
	case len(drift.Repair) == 0: // a Setup leaves it, too
		return nil
	}
	if _, err := nic.Repair(ctx); err != nil {
		return err
	}
	o.repaired.Add(1)
	o.log.Warn("repair", "nic", w.NIC, "namespace", w.Namespace, "state", w.State, "differences", len(drift.Differs), "first", drift.Differs[0].String())
	return nil
}
