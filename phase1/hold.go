package phase1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/flock"
)

// holds reports whether the value holds the NIC of the namespace: a copy may have got another Name, NetNS or Dir.
func (n NIC) holds(inode uint64) bool {
	h := n.hold
	return h != nil && !h.released.Load() && h.dir == n.Dir && h.lock == holdName(inode, n.Name)
}

// Hold keeps the NIC for this process until release is called or the process ends. Until then Hold, and Teardown
// without CutOff, return ErrHeld, whose text names the holder. Teardown of the returned NIC is not refused, and Setup
// never is. The link need not exist yet.
func (n NIC) Hold(ctx context.Context) (held NIC, release func(), err error) {
	err = n.do(ctx, func(s *session) error { // no other call looks meanwhile whether the NIC is held, by taking its lock
		node, err := openNodeAt(s.node.Name())
		if err != nil {
			return err
		}
		name := holdName(s.identity.Inode, s.nic)
		unlock, err := flock.Try(node.Root, name, os.O_CREATE)
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

// holder is the name of this program, as journals have it. A program that has started itself by /proc/self/exe has the
// name of its file: else all such programs were the same one.
func holder() string {
	name := filepath.Base(os.Args[0])
	if file, err := os.Executable(); name == "exe" && err == nil {
		name = filepath.Base(file)
	}
	return name
}

func holdName(inode uint64, nic string) string { return fmt.Sprintf("%s%d-%s", holdLock, inode, nic) }

// errHeldHere is ErrHeld by this process.
var errHeldHere = fmt.Errorf("%w", ErrHeld)

// explainHeld returns the error of tryLock, in words.
func (n node) explainHeld(name string, err error) error {
	if err != unix.EWOULDBLOCK {
		return err
	}
	holder := flock.Holder(n.Root, name)
	if strings.HasPrefix(holder, fmt.Sprintf("process %d ", os.Getpid())) {
		return fmt.Errorf("%w: %s, this one: use the NIC that Hold returned, or release it first", errHeldHere, holder)
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
	unlock, err := flock.Try(s.node.Root, name, os.O_CREATE)
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
		return fmt.Errorf("%w, or cut the guest off (TeardownOptions.CutOff, guestwire-agent teardown -cut-off)", err)
	}
	return nil
}

// checkFor refuses a call for another one than the wiring's.
func checkFor(wired, wanted string) error {
	if wired == wanted {
		return nil
	}
	return fmt.Errorf("%w: for %s, and this call is for %s: name the same one (Spec.For, guestwire-agent -for), or take that wiring down first, without naming one (Teardown, guestwire-agent teardown)", ErrForAnother, whom(wired), whom(wanted))
}

// whom is For in a text.
func whom(one string) string {
	if one == "" {
		return "nobody"
	}
	return fmt.Sprintf("%.80q", one)
}

// checkFor is for a later Setup. It may name nobody while another process holds the NIC.
func (s *session) checkFor(wired, wanted string) error {
	err := checkFor(wired, wanted)
	if err == nil || wanted != "" || s.held {
		return err
	}
	if held := s.look(s.elsewhere); !errors.Is(held, ErrHeld) {
		return cmp.Or(held, err)
	}
	s.report.say("NIC %s: %s holds it, and may end the wiring when it ends", s.nic, flock.Holder(s.node.Root, holdName(s.identity.Inode, s.nic)))
	return nil
}
