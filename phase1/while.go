package phase1

import (
	"cmp"
	"context"
	"errors"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
)

// While holds the NIC, and calls Setup, then f, then Teardown with CutOff. Teardown works also after ctx has ended.
//
// Without spec.For the wiring is for this program, by the name of its file. A wiring for the same one, such as a killed
// While left, is used again. With Egress, what its guest had open ends. If spec does not fit it, as for another guest,
// that wiring is taken down first. Any other wiring is ErrForAnother.
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
	spec.For = cmp.Or(spec.For, holder())
	down := TeardownOptions{CutOff: true, For: spec.For}
	setup := func() (cache.Record, error) {
		record, err := request{NIC: n, Spec: spec, newGuest: true}.setup(ctx) // f starts the guest
		return record, n.failed("setup", err)
	}
	record, err := setup()
	if taken := (compare.TakenError)(nil); earlier != nil && errors.Is(err, infra.ErrWired) && !errors.Is(err, ErrForAnother) && !errors.As(err, &taken) {
		progress(n.Progress).say("NIC %s: what is wired for %.80q has another configuration: it is taken down first", n.Name, spec.For)
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
