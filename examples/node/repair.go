package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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
		// A NIC or a namespace that is gone is the engine's DEL's, or the sweep's.
		if err := o.repairNIC(ctx, w); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s in %s: %w", w.NIC, w.Namespace, err))
		}
	}
	return errors.Join(errs...)
}

func (o *options) repairNIC(ctx context.Context, w phase1.Wiring) error {
	ns, err := w.Open(ctx)
	if err != nil {
		return err
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.dir}
	var drift *phase1.DriftError
	if err := nic.Check(ctx); !errors.As(err, &drift) || len(drift.Repair) == 0 {
		if drift != nil {
			return nil // what a Setup leaves
		}
		return err
	}
	if _, err := nic.Repair(ctx); err != nil {
		return err
	}
	o.repaired.Add(1)
	o.log.Warn("repair", "nic", w.NIC, "namespace", w.Namespace, "state", w.State, "differences", len(drift.Differs), "first", drift.Differs[0].Text)
	return nil
}
