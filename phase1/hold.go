package phase1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// hold is a NIC that this process holds, by the lock with that name in NIC.Dir.
type hold struct {
	dir, lock string
	released  atomic.Bool
}

// holds reports whether the value holds the NIC of the namespace: a copy may have got another Name, NetNS or Dir.
func (n NIC) holds(inode uint64) bool {
	h := n.hold
	return h != nil && !h.released.Load() && h.dir == n.Dir && h.lock == holdName(inode, n.Name)
}

// Hold keeps the NIC for this process until release is called or the process ends. Until then Hold, and Teardown and
// ForceTeardown without CutOff, return ErrHeld, whose text names the holder. Teardown and ForceTeardown of the returned
// NIC are not refused, and Setup never is. The link need not exist yet.
func (n NIC) Hold(ctx context.Context) (held NIC, release func(), err error) {
	err = n.do(ctx, func(s *session) error { // no other call looks meanwhile whether the NIC is held, by taking its lock
		node, err := openNodeAt(s.node.Name())
		if err != nil {
			return err
		}
		name := holdName(s.identity.Inode, s.nic)
		unlock, err := node.tryLock(name)
		if err != nil {
			defer node.Close()
			return node.explainHeld(name, err)
		}
		held = n
		held.hold = &hold{dir: n.Dir, lock: name}
		release = func() {
			held.hold.released.Store(true)
			unlock()
			node.Close()
		}
		return nil
	})
	return held, release, n.failed("hold", err)
}

// holder is the name of this program, as journals have it.
func holder() string { return filepath.Base(os.Args[0]) }

func holdName(inode uint64, nic string) string { return fmt.Sprintf("%s%d-%s", holdLock, inode, nic) }

// explainHeld returns the error of tryLock, in words.
func (n node) explainHeld(name string, err error) error {
	if err != unix.EWOULDBLOCK {
		return err
	}
	holder := n.holder(name)
	if strings.HasPrefix(holder, fmt.Sprintf("process %d ", os.Getpid())) {
		return fmt.Errorf("%w: %s, this one: use the NIC that Hold returned, or release it first", ErrHeld, holder)
	}
	return fmt.Errorf("%w: %s: end it first", ErrHeld, holder)
}

// elsewhere returns ErrHeld if another process holds the NIC.
func (s *session) elsewhere() error {
	if s.node.Root == nil {
		return nil
	}
	name := holdName(s.identity.Inode, s.nic)
	if _, err := s.node.Lstat(name); err != nil {
		return nil
	}
	unlock, err := s.node.tryLock(name)
	if err != nil {
		return s.node.explainHeld(name, err)
	}
	unlock() // a process that was killed has left it
	return nil
}

// checkHeld refuses to end the wiring of a NIC that another process holds, unless the guest may be cut off.
func (s *session) checkHeld(cutOff bool) error {
	if s.held || cutOff {
		return nil
	}
	if err := s.elsewhere(); err != nil {
		return fmt.Errorf("%w, or cut the guest off (TeardownOptions.CutOff, agent teardown -cut-off)", err)
	}
	return nil
}

// heldBy returns who holds the NIC, for the journal.
func (s *session) heldBy(j journal) (string, error) {
	if s.held {
		return holder(), nil
	}
	err := s.elsewhere()
	if errors.Is(err, ErrHeld) {
		s.report.say("NIC %s: %s holds it, and may end the wiring when it ends", s.nic, s.node.holder(holdName(s.identity.Inode, s.nic)))
		return j.HeldBy, nil
	}
	return "", err
}

// While holds the NIC, and calls Setup, then f, then Teardown with CutOff. Teardown works also after ctx has ended.
//
// A wiring that a killed While of this program left is used again. If spec does not fit it, as for another guest, that
// wiring is taken down first. Two programs count as the same if their files have the same name. Any other wiring is
// infra.ErrWired.
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
		return n.failed("setup", fmt.Errorf("%w, and not by %s, which would hold it: a VM may be using it: take that wiring down first (Teardown)", infra.ErrWired, holder()))
	}
	down := TeardownOptions{CutOff: true}
	record, err := n.Setup(ctx, spec)
	if earlier != nil && errors.Is(err, infra.ErrWired) {
		progress(n.Progress).say("NIC %s: an earlier %s was killed and had another configuration: its wiring is taken down first", n.Name, holder())
		if err = n.Teardown(ctx, down); err == nil {
			record, err = n.Setup(ctx, spec)
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
	if record.Inactive { // the killed call's guest, which may be active in another namespace
		progress(n.Progress).say("NIC %s: the guest is inactive since a Deactivate, and nothing passes before an Activate", n.Name)
	}
	return f(record)
}
