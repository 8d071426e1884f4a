package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/wiring"
)

// session is one call on one namespace, on a thread in it, with the lock held.
type session struct {
	nic      string
	identity netns.Identity
	dir      *os.Root // nil: there is none, and none is needed
	ns       *kernel.Namespace
}

// do checks what all calls need, locks the namespace, and calls f on a thread in it.
func (c Config) do(ctx context.Context, mode stateMode, f func(*session) error) error {
	if err := c.checkNIC(); err != nil {
		return err
	}
	if c.NetNS == nil {
		return &cache.FieldError{Field: "netns", Reason: "missing: open /proc/PID/ns/net or /run/netns/NAME"}
	}
	identity, err := netns.Identify(c.NetNS)
	if err != nil {
		return err
	}
	if err := checkForeign(identity); err != nil {
		return fmt.Errorf("namespace %s: %w", c.NetNS.Name(), err)
	}
	unlock, err := lock(ctx, identity)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("namespace %s: user %d is not root: %w", c.NetNS.Name(), os.Geteuid(), err)
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", c.NetNS.Name(), err)
	}
	defer unlock()
	dir, err := openStateDir(c.State, mode)
	if err != nil {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	return netns.Do(c.NetNS, func() error {
		ns, err := kernel.Open()
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := identity.AddCookie(); err != nil {
			return err
		}
		return f(&session{nic: c.NIC, identity: identity, dir: dir, ns: ns})
	})
}

// checkNIC checks the NIC's name, of which those of files are made.
func (c Config) checkNIC() error {
	if err := syntax.CheckLinkName(c.NIC); err != nil {
		return &cache.FieldError{Field: "nic", Reason: err.Error()}
	}
	return nil
}

// checkForeign refuses the namespaces in which a mistake would cost the machine its network: the caller's own
// and that of process 1.
func checkForeign(identity netns.Identity) error {
	for _, path := range []string{"/proc/thread-self/ns/net", "/proc/1/ns/net"} {
		var stat unix.Stat_t
		err := unix.Stat(path, &stat)
		if errors.Is(err, fs.ErrPermission) {
			continue // process 1 is another container's, and so is its namespace
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		if stat.Dev == identity.Device && stat.Ino == identity.Inode {
			return fmt.Errorf("%w (%s): name the pod's", ErrOwnNamespace, path)
		}
	}
	return nil
}

// lockDir is root's alone: another user who could open a lock could hold it.
const lockDir = "/run/guestwire.lock"

// lock holds the namespace until the returned function is called, or the process ends.
func lock(ctx context.Context, identity netns.Identity) (func(), error) {
	if err := os.Mkdir(lockDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := checkRootOnly(lockDir, 0o077); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	path := fmt.Sprintf("%s/%d", lockDir, identity.Inode)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another call works on it: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// apply carries the operations out.
func (s *session) apply(ctx context.Context, ops []netstate.Op) error {
	if err := s.ns.Apply(ctx, ops); err != nil {
		return fmt.Errorf("NIC %s: %w", s.nic, err)
	}
	return nil
}

// read returns the namespace as it is now, as far as it concerns the plan.
func (s *session) read(plan *wiring.Plan) (netstate.Snapshot, error) {
	return s.ns.Snapshot(netstate.NamesFor(s.nic), plan.SysctlPaths(), plan.Tables())
}
