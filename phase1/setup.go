package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Setup wires the NIC, and writes the record. If the NIC is wired already, Setup repairs what is missing,
// and changes nothing if nothing is. On an error of a first Setup the namespace is as it was found; after an
// error of a later one the wiring stays, as a guest may be using it.
//
// A wired NIC can get another DNS, Options and Device: the record changes, and a running Serve
// follows it. It can get another Guard, and a masquerade other Ports, Excluded, Loopback, Sidecar and
// MaxConnections: the rules are replaced at once, and established connections go on. What
// [infra.SameGuest] refuses is infra.ErrWired.
//
// Setup needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN. It waits until ctx ends for other calls on the same
// namespace, of other processes too; all of them have to share /run/guestwire.lock. The errors to tell
// apart: *cache.FieldError for a bad configuration, *infra.RefusedError if the binding cannot work on
// the NIC, infra.ErrNoNIC, infra.ErrWired, infra.ErrCollision, ErrOwnNamespace, *infra.StepError for an
// operation that the kernel refused, fs.ErrPermission for a State that others than root can write and for an
// Owner who cannot open /dev/net/tun.
func Setup(ctx context.Context, c Config) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.do(ctx, createState, func(s *session) error {
		plan, now, resumed, err := s.plan(ctx, c.Spec)
		if err != nil {
			return err
		}
		ops, err := plan.Steps(now)
		if err != nil {
			return err
		}
		if err := s.writeJournal(plan.Journal()); err != nil {
			return err
		}
		if err = s.converge(ctx, plan, ops); err == nil {
			err = cache.Write(s.dir, plan.Record)
		}
		if err != nil && !resumed {
			err = errors.Join(err, s.undoFailed(plan))
		}
		return err
	})
}

// check refuses a bad configuration before the namespace is looked at.
func (c Config) check() error {
	if err := c.Spec.Validate(); err != nil {
		return err
	}
	return checkOwner(c.Spec)
}

// checkOwner refuses an owner who could not open the device that hands out taps, if the binding makes one.
func checkOwner(spec infra.Spec) error {
	o := spec.Owner
	if o.UID == 1<<32-1 || o.GID == 1<<32-1 {
		return &cache.FieldError{Field: "owner", Reason: fmt.Sprintf("%d is no user's or group's number", uint32(1<<32-1))}
	}
	if !wiring.MakesTaps(spec.Binding) {
		return nil
	}
	const device = "/dev/net/tun"
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		return fmt.Errorf("taps: %w: want the device that creates taps (modprobe tun; in a container, pass the device in)", &fs.PathError{Op: "stat", Path: device, Err: err})
	}
	const readWrite = 6
	granted := stat.Mode & readWrite
	switch {
	case o.UID == 0:
		return nil
	case o.UID == stat.Uid:
		granted = stat.Mode >> 6 & readWrite
	case o.GID != 0 && o.GID == stat.Gid:
		granted = stat.Mode >> 3 & readWrite
	}
	if granted != readWrite {
		return fmt.Errorf("owner: user %d, group %d cannot open %s (mode %04o, owner %d:%d), so the launcher could not use a tap: chmod 0666 %[3]s, or name a group that may: %[7]w",
			o.UID, o.GID, device, stat.Mode&0o777, stat.Uid, stat.Gid, fs.ErrPermission)
	}
	return nil
}

// plan computes the wiring, and reads the namespace as it is now. If there is a journal, the plan is made of
// the namespace as the first Setup found it, and resumed is true.
func (s *session) plan(ctx context.Context, spec infra.Spec) (plan *wiring.Plan, now netstate.Snapshot, resumed bool, err error) {
	journal, err := s.readJournal()
	if err != nil {
		return nil, now, false, err
	}
	if journal == nil {
		plan, now, err = s.firstPlan(ctx, spec)
		return plan, now, false, err
	}
	if _, auto := spec.Binding.(infra.Auto); auto {
		spec.Binding = journal.Spec.Binding
	}
	if err := infra.SameGuest(journal.Spec, spec); err != nil {
		return nil, now, false, err
	}
	if plan, err = wiring.NewPlan(journal.Found, spec); err != nil {
		return nil, now, true, err
	}
	now, err = s.read(plan)
	return plan, now, true, err
}

// firstPlan computes the wiring of a NIC that has no journal.
func (s *session) firstPlan(ctx context.Context, spec infra.Spec) (*wiring.Plan, netstate.Snapshot, error) {
	questions := wiring.Ask(spec)
	now, err := s.ns.Snapshot(netstate.NamesFor(spec.NIC), questions.Sysctls, nil)
	if err != nil {
		return nil, now, err
	}
	found := now
	others, err := s.otherJournals()
	if err != nil {
		return nil, now, err
	}
	for _, other := range others {
		wiring.Inherit(&found, other.Journal)
	}
	if err := s.answer(ctx, &found, spec.NIC, questions); err != nil {
		return nil, now, err
	}
	plan, err := wiring.NewPlan(found, spec)
	if err != nil {
		return nil, now, err
	}
	return plan, now, kernel.HavePrograms(plan.Tables())
}

// answer adds to the snapshot what a first plan needs besides.
func (s *session) answer(ctx context.Context, found *netstate.Snapshot, nic string, questions wiring.Questions) error {
	var err error
	if questions.Listeners {
		if found.Listeners, err = s.ns.Listeners(); err != nil {
			return err
		}
	}
	if questions.Dummy {
		if found.Dummy, err = s.ns.HasDummy(); err != nil {
			return err
		}
	}
	link, ok := found.Named(nic)
	if !ok || !questions.Gateways {
		return nil // without the NIC, NewPlan says so
	}
	for _, gateway := range wiring.Gateways6(*found, link) {
		neighbour, ok, err := s.ns.Resolve(ctx, link.Index, gateway)
		if err != nil {
			return err
		}
		if ok {
			found.Neighbours = append(found.Neighbours, neighbour)
		}
	}
	return nil
}

// tries is how often the namespace is looked at again, which is more than the kernel is known to need.
const tries = 4

// converge carries out the operations, and what is left to do then: the kernel removes and adds
// addresses and routes of its own when a damaged link goes down, comes up, or gets IPv6.
func (s *session) converge(ctx context.Context, plan *wiring.Plan, ops []netstate.Op) error {
	for range tries {
		if len(ops) == 0 {
			return nil
		}
		if err := s.apply(ctx, ops); err != nil {
			return err
		}
		now, err := s.read(plan)
		if err != nil {
			return err
		}
		if ops, err = plan.Steps(now); err != nil {
			return err
		}
	}
	return s.verify(plan)
}
