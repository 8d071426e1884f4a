package phase1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/holders"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/undo"
)

// Teardown gives the namespace back as Setup found it, and removes the record and the journal. A NIC that is not wired
// is no error: Progress reports it. After all errors but the last nothing has changed.
//
//	ErrInUse           a process has the guest's tap open for two seconds: end the VM or unplug the NIC first
//	ErrHeld            another process holds the NIC
//	*cache.FieldError  the wiring has another State than TeardownOptions
//	ErrForAnother      the wiring has another For than TeardownOptions
//	infra.ErrWired     Dir has no journal of the wiring: name Setup's Dir, or set Force
//	infra.ErrWired     another link has the NIC's name: the text says how it becomes free
//	infra.ErrNoNIC     the NIC is gone; everything else is removed
//
// To unplug, see qemu.NIC.Unplug. With macvtap, sriov, passt and slirp there is no ErrInUse: guestwire does not see who
// uses the NIC.
//
// With Force the errors are
//
//	*LeftError         something could not be restored. All else is done
//	ErrNotWired        there is no journal, no record and no mark
//	ErrInUse, ErrHeld  as without Force
//	infra.ErrNoNIC     as without Force
//	infra.ErrWired     another link has the NIC's name
//	*cache.FieldError  Discard is set, or the wiring has another State
//	ErrForAnother      as without Force, if there is a journal
//	others             call Teardown with Force again, which reports what is lost
func (n NIC) Teardown(ctx context.Context, o TeardownOptions) error {
	if o.Force {
		return n.failed("forced teardown", n.force(ctx, o))
	}
	return n.failed("teardown", n.doWired(ctx, func(s *session) error {
		j, err := s.readJournal()
		if err != nil {
			return err
		}
		if j == nil {
			return s.tearDownUnwired()
		}
		if err := cmp.Or(j.checkState(o.State), checkFor(j.Spec.For, cmp.Or(o.For, j.Spec.For))); err != nil {
			return err
		}
		if err := s.checkHeld(o.CutOff); err != nil {
			return err
		}
		for _, what := range j.Lost { // by a Teardown with Force that was interrupted
			s.report.say("not known: %s", what)
		}
		if o.Discard {
			if done, err := s.discard(ctx, j, o.CutOff); done || err != nil {
				return err
			}
		}
		return s.takeDown(ctx, j, o.CutOff)
	}))
}

// discard removes record and journal, and leaves the wiring to end with its namespace. It does nothing, and returns
// false, if the NIC outlives the namespace: the kernel deletes links that have a kind of rtnetlink, and moves others to
// the machine's namespace, with the name and MAC that they have (default_device_exit_net). With cutOff it also returns
// false if a process has the guest's tap open: the tap, and with it the namespace, would last as long as the process.
// That another link has the NIC's name, so that nothing can be given back, is no error.
func (s *session) discard(ctx context.Context, j *journal, cutOff bool) (bool, error) {
	links, err := s.ns.Links()
	if err != nil {
		return false, err
	}
	found, known := j.Found.Named(s.nic)
	if !known {
		return false, nil
	}
	if found.Kind == "" && slices.ContainsFunc(links, func(l netstate.Link) bool { return l.Index == found.Index }) {
		return false, nil
	}
	_, _, err = s.undoSteps(j, false)
	used, taken := errors.Is(err, ErrInUse), errors.Is(err, infra.ErrWired)
	switch {
	case used && cutOff && !taken: // which Teardown can do
		return false, nil
	case used && !cutOff, err != nil && !used && !taken:
		return false, err
	}
	if err := s.findState(ctx, j.Spec.State); err != nil {
		return false, err
	}
	if err := s.removeRecord(); err != nil {
		return true, err
	}
	return true, s.removeJournal()
}

// takeDown undoes what the journal says, and removes record and journal.
func (s *session) takeDown(ctx context.Context, j *journal, cutOff bool) error {
	if err := s.findState(ctx, j.Spec.State); err != nil {
		return err
	}
	return s.undo(j, cutOff)
}

// tearDownUnwired is the Teardown of a NIC without a journal. A wiring whose journal is not here is an error.
func (s *session) tearDownUnwired() error {
	now, err := s.ns.Snapshot(netstate.NamesFor(s.nic, ""), nil, nil)
	if err != nil {
		return err
	}
	if err := s.explainMark(now, nil); err != nil {
		return err
	}
	s.report.say("NIC %s is not wired in this namespace: nothing is taken down%s", s.nic, s.mistyped())
	return s.removeJournal() // an interrupted Setup may have begun to write one
}

// explainMark returns err if no link or table has the mark of the NIC's wiring. If one has it, the journal is missing
// here: the error is infra.ErrWired, and says what to do.
func (s *session) explainMark(now netstate.Snapshot, err error) error {
	if !now.Bears(s.nic) {
		return err
	}
	return fmt.Errorf("%w, as links and tables of it say, but %s has no journal of it: name the directory that Setup used (guestwire-agent -dir); if the journal is lost, or was discarded (guestwire-agent teardown -discard), take the NIC down by force (TeardownOptions.Force, guestwire-agent teardown -force)",
		infra.ErrWired, s.node.Name())
}

// undoFailed is undo with new sockets. The old ones may still get an answer that could not be read, and
// until then the kernel takes no other question there.
func (s *session) undoFailed(j *journal) error {
	ns, err := kernel.Open()
	if err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	defer ns.Close()
	fresh := *s
	fresh.ns = ns
	return fresh.undo(j, true)
}

// undo gives the namespace back. The journal is removed last: without it, the rest could not be found. Unless cutOff is
// set, undo refuses before the first change if a process has a tap open that undo would delete.
func (s *session) undo(j *journal, cutOff bool) error {
	ops, gone, err := s.undoSteps(j, cutOff)
	if errors.Is(err, ErrInUse) {
		return err
	}
	if err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	left := s.removeRecord()
	err = s.restoreFound(j, ops, gone)
	if err == nil || errors.Is(err, infra.ErrNoNIC) {
		s.forgetConnections(context.Background(), undo.Connections(j.Made))
		if left == nil {
			left = s.removeJournal()
		}
	}
	switch gone := errors.Is(err, infra.ErrNoNIC); {
	case gone && left == nil:
		err = fmt.Errorf("%w: everything else is removed", err)
	case gone:
		err = errors.New(err.Error()) // ErrNoNIC says that everything else is removed
	}
	if err = errors.Join(left, err); err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	return nil
}

// removeRecord leaves the record of another namespace.
func (s *session) removeRecord() error {
	if s.state.Root == nil {
		return nil
	}
	r, err := recordHead(s.state.Root, s.nic)
	if err != nil {
		return err
	}
	if r.Namespace != "" && r.Namespace != s.identity.Name() {
		return nil
	}
	return cache.Remove(s.state.Root, s.nic)
}

// restoreFound does not end with the caller's context: half a way back is worse than a late one. If
// the NIC has gone, restoreFound says so when everything else is done.
func (s *session) restoreFound(j *journal, ops []netstate.Op, gone error) (err error) {
	for tried := 0; len(ops) > 0; tried++ {
		if tried == tries {
			return errors.New("the namespace keeps changing")
		}
		if err := s.ns.Apply(context.Background(), ops); err != nil {
			return err
		}
		// A NIC that came up gets its link-local address when the kernel notices the carrier, which can be later than
		// this look.
		if gone == nil { // else the kernel would look for a module of that name
			tap.NoticeCarrier(s.nic)
		}
		if ops, gone, err = s.undoSteps(j, true); err != nil {
			return err
		}
	}
	return gone
}

// undoSteps reads the namespace and returns what is left to undo. Gone is infra.ErrNoNIC if the NIC has gone. The error
// is infra.ErrWired if another link has the NIC's name. Unless cutOff is set, it is ErrInUse if a process has a tap
// open that the operations delete.
func (s *session) undoSteps(j *journal, cutOff bool) (ops []netstate.Op, gone, err error) {
	made := j.Made
	now, err := s.ns.SnapshotForUndo(made.NIC.Names, made.Sysctls, made.IPTables)
	if err != nil {
		return nil, nil, err
	}
	if made.Sysctls, err = s.notNeeded(made.Sysctls, now); err != nil {
		return nil, nil, err
	}
	ops, gone = undo.Steps(j.Found, now, made)
	if !cutOff {
		err = s.checkUnused(now.Links, ops)
	}
	if gone != nil && !errors.Is(gone, infra.ErrNoNIC) {
		err = errors.Join(err, gone)
	}
	return ops, gone, err
}

// checkUnused refuses operations that delete a tap which a process has open. Of the wiring's two taps, Phase2 has the
// responder's open, and notices its end.
func (s *session) checkUnused(links []netstate.Link, ops []netstate.Op) error {
	responder := netstate.NamesFor(s.nic, "").Responder
	for _, l := range links {
		if l.Tap == nil || l.Name == responder || !slices.ContainsFunc(ops, func(o netstate.Op) bool { return netstate.Deletes(o, l) }) {
			continue
		}
		used, err := s.ns.InUse(l)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%w: %s has tap %s open: detach the NIC from the VM or end the VM first, or cut the guest off (TeardownOptions.CutOff, guestwire-agent teardown -cut-off)",
				ErrInUse, holders.Name(context.Background(), l.Name), l.Name)
		}
	}
	return nil
}

// notNeeded are the sysctls that no other NIC of the namespace needs. All that NICs share are needed if a NIC is wired
// whose journal cannot be read here.
func (s *session) notNeeded(sysctls []string, now netstate.Snapshot) ([]string, error) {
	shared := netstate.Shared()
	if !slices.ContainsFunc(sysctls, func(path string) bool { return slices.Contains(shared, path) }) {
		return sysctls, nil
	}
	others, complete, err := s.otherJournals()
	if err != nil {
		return nil, err
	}
	var needed []string
	known := map[string]bool{s.nic: true}
	for _, other := range others {
		needed = append(needed, other.Made.Sysctls...)
		known[other.NIC] = true
	}
	for _, l := range now.Links {
		nic, marked := netstate.Marked(l.Alias)
		complete = complete && (!marked || known[nic])
	}
	return slices.DeleteFunc(slices.Clone(sysctls), func(path string) bool {
		return slices.Contains(shared, path) && (!complete || slices.Contains(needed, path))
	}), nil
}
