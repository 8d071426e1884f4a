package phase1

import (
	"context"
	"errors"
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
)

// While holds the NIC, and calls Setup, then f, then Teardown with CutOff. Teardown works also after ctx has ended.
//
// A wiring that a killed While of this program left is used again. With Egress, what its guest had open ends. If
// spec does not fit it, as for another guest, that wiring is taken down first. Two programs count as the same if
// their files have the same name. Any other wiring is infra.ErrWired.
//
// The errors are those of Hold, Setup, f and Teardown, except infra.ErrNoNIC of Teardown: the NIC may end before f
// does.
func (n NIC) While(ctx context.Context, spec infra.Spec, f func(cache.Record) error) (err error) {
	n, release, err := n.Hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	var earlier *journal
	err = n.do(ctx, func(s *session) (err error) {
		earlier, err = s.readJournal()
		return err
	})
	if err != nil {
		return n.failed("setup", err)
	}
	if earlier != nil && earlier.HeldBy != holder() {
		return n.failed("setup", fmt.Errorf("%w, and not by %s, which would hold it: a VM may be using it: take that wiring down first (Teardown, guestwire-agent teardown)", infra.ErrWired, holder()))
	}
	down := TeardownOptions{CutOff: true}
	setup := func() (cache.Record, error) {
		record, err := request{NIC: n, Spec: spec, newGuest: true}.setup(ctx) // f starts the guest
		return record, n.failed("setup", err)
	}
	record, err := setup()
	if taken := (compare.TakenError)(nil); earlier != nil && errors.Is(err, infra.ErrWired) && !errors.As(err, &taken) {
		progress(n.Progress).say("NIC %s: an earlier %s was killed and had another configuration: its wiring is taken down first", n.Name, holder())
		if err = n.Teardown(ctx, down); err == nil {
			record, err = setup()
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		back := n.Teardown(context.WithoutCancel(ctx), down)
		if !errors.Is(back, infra.ErrNoNIC) { // the namespace's network may have ended before f
			err = errors.Join(err, back)
		}
	}()
	if record.Role == cache.RoleInactive { // the killed call's guest, which may be active in another namespace
		progress(n.Progress).say("NIC %s: the guest is inactive since a Deactivate, and nothing passes before an Activate", n.Name)
	}
	return f(record)
}
