package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// sandboxCalls are the calls on one sandbox.
type sandboxCalls struct {
	paths
	id  string
	dir string   // of the records
	ns  *os.File // nil: not known
}

// nic is the NIC in the namespace that is open.
func (s sandboxCalls) nic(name string) phase1.NIC {
	return phase1.NIC{NetNS: s.ns, Name: name, Dir: s.Dir, Progress: progress}
}

// end takes a NIC down if its namespace is there, and forgets it if not.
func (s sandboxCalls) end(ctx context.Context, nic string) error {
	var first error
	if s.ns != nil {
		// Another namespace can have the path by now. Teardown changes nothing there, and the record stays.
		had := s.hasRecord(nic)
		if first = s.teardown(ctx, nic); first == nil && had && !s.hasRecord(nic) {
			return nil
		}
	}
	err := s.forget(ctx, nic, true)
	if errors.Is(err, phase1.ErrAlive) {
		err = s.teardownFound(ctx, nic)
	}
	if err != nil {
		return errors.Join(first, err)
	}
	return nil
}

// endLost takes a NIC down whose sandbox has no directory: the directory was removed, or the list has another state
// since. The journal of the NIC, which the namespace leads to, then names a directory of the sandbox.
func (s sandboxCalls) endLost(ctx context.Context, nic string) error {
	if _, err := os.Lstat(cmp.Or(s.Dir, phase1.DefaultDir)); s.ns == nil || errors.Is(err, fs.ErrNotExist) {
		return errNothing
	}
	report, err := phase1.NIC{NetNS: s.ns, Name: nic, Dir: s.Dir}.Status(ctx)
	switch {
	case errors.Is(err, phase1.ErrNotWired), errors.Is(err, phase1.ErrOwnNamespace):
		return errNothing
	case report == nil:
		return err
	case filepath.Base(report.State) != s.id:
		return errNothing // the path is that of another sandbox by now
	}
	s.dir, s.State = report.State, podsandbox.State(filepath.Dir(report.State))
	return errors.Join(s.end(ctx, nic), s.State.Release(ctx, s.lock, s.id))
}

// forgetKilled removes the journals of earlier ADDs whose namespaces are gone: nothing in the directory leads to that
// of an ADD which was killed before it had a record. An error is reported: the journals are then a GC's.
func (s sandboxCalls) forgetKilled(ctx context.Context, nic string) {
	err := phase1.Forget(ctx, phase1.Gone{NIC: nic, State: s.dir, Dir: s.Dir, Progress: progress})
	if err != nil && !errors.Is(err, phase1.ErrAlive) && !errors.Is(err, fs.ErrNotExist) {
		say("what an earlier ADD has left of NIC %s: %v", nic, err)
	}
}

// forget removes what is left of a NIC whose namespace is gone. The error is phase1.ErrAlive if the namespace is there.
// Ended says that the engine has ended the sandbox. Then a namespace that is not found is gone also where the plugin
// does not see all processes of the machine: on a node that is itself a container, such as those of kind.
func (s sandboxCalls) forget(ctx context.Context, nic string, ended bool) error {
	if err := phase1.Forget(ctx, phase1.Gone{NIC: nic, State: s.dir, Dir: s.Dir, Own: ended, Progress: progress}); err != nil && !errors.Is(err, fs.ErrNotExist) { // after a boot the directory is gone
		return err
	}
	return s.ended(nic)
}

// teardown takes a NIC down in the namespace that is open.
func (s sandboxCalls) teardown(ctx context.Context, nic string) error {
	o := phase1.TeardownOptions{CutOff: true, State: s.dir}
	err := s.nic(nic).Teardown(ctx, o)
	if errors.Is(err, infra.ErrWired) { // another link has the NIC's name, so the wiring ends with the namespace
		o.Discard = true
		if discarded := s.nic(nic).Teardown(ctx, o); discarded == nil {
			say("NIC %s stays wired until its namespace is deleted: %v", nic, err)
			err = nil
		}
	}
	if err != nil && !errors.Is(err, infra.ErrNoNIC) || s.hasRecord(nic) {
		return err
	}
	return s.ended(nic)
}

// teardownFound takes a NIC down in a namespace that the engine does not name any more, and that a process holds.
func (s sandboxCalls) teardownFound(ctx context.Context, nic string) error {
	wirings, err := phase1.List(ctx, s.Dir)
	if err != nil {
		return err
	}
	for _, w := range wirings {
		if w.NIC != nic || !sameDir(w.State, s.dir) {
			continue
		}
		err = fmt.Errorf("NIC %s: %w: it is at %s", nic, phase1.ErrAlive, strings.Join(w.FoundAt, ", "))
		ns, openErr := w.Open(ctx)
		if errors.Is(openErr, fs.ErrNotExist) { // gone meanwhile
			return s.forget(ctx, nic, true)
		}
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		defer ns.Close()
		s.ns = ns
		if tried := s.teardown(ctx, nic); tried != nil || s.hasRecord(nic) {
			return errors.Join(err, tried)
		}
		return nil
	}
	if !s.hasRecord(nic) { // another call has taken it down meanwhile
		return s.ended(nic)
	}
	return fmt.Errorf("NIC %s: %w, and its journal is lost", nic, phase1.ErrAlive)
}

// hasRecord reports whether the NIC has a record, or may have one.
func (s sandboxCalls) hasRecord(nic string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, nic+".json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// ended removes what is left of a NIC that is not wired any more: the note, and what a killed call left of a record.
func (s sandboxCalls) ended(nic string) error {
	root, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return errors.Join(cache.Remove(root, nic), s.State.End(s.id, nic))
}

// sameDir reports whether a wiring's directory, whose path is without symbolic links, is the other one.
func sameDir(real, dir string) bool {
	if real == filepath.Clean(dir) {
		return true
	}
	a, err := os.Stat(real)
	if err != nil {
		return false
	}
	b, err := os.Stat(dir)
	return err == nil && os.SameFile(a, b)
}
