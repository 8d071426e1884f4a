package phase1

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/holders"
	"github.com/guestwire/guestwire/internal/netns"
)

const DefaultDir = "/run/guestwire.lock" // NIC.Dir if empty; only root can enter it

// node is Phase1's own directory on a node, which only root can enter: another user who could open a lock could
// hold it. It has these entries:
//
//	4026532281              the lock of the namespace with this inode number, while a call works on it
//	state-1f0c2a...         the lock of a State directory, while a call writes or removes a record there
//	name-8d3b01...          the lock of a name of Lock's caller
//	hold-4026532281-eth0    the lock of a NIC, while a process holds it
//	9c1e22f0-4026532281-17  a directory for each namespace (netns.Identity.Name), with eth0.journal
//
// A killed call leaves its lock, which is free for the next call.
type node struct {
	*os.Root // nil: the directory is not there, so no journal is, and no call works on a namespace
	dir      string
}

// Name is the directory's path.
func (n node) Name() string { return n.dir }

func (n node) Close() {
	if n.Root != nil {
		n.Root.Close()
	}
}

// openNode opens the directory. It makes one that is not there, whoever comes first.
func openNode(path string) (node, error) {
	path, err := nodePath(path)
	if err != nil {
		return node{}, err
	}
	path = filepath.Clean(path)
	if err := checkRootParent(path); err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	if _, err := makeDirectory(path, 0o700); err != nil {
		return node{}, fmt.Errorf("journal directory (name another one where %s cannot be written): %w", filepath.Dir(path), err)
	}
	return openNodeAt(path)
}

// findNode is openNode, but an absentError if the directory is not there.
func findNode(path string) (node, error) {
	path, err := nodePath(path)
	if err != nil {
		return node{}, err
	}
	n, err := openNodeAt(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = absentError{path}
	}
	return n, err
}

// lookNode is findNode, but a node without a Root if the directory is not there.
func lookNode(path string) (node, error) {
	n, err := findNode(path)
	var absent absentError
	if errors.As(err, &absent) {
		return node{dir: absent.path}, nil
	}
	return n, err
}

// absentError says that the directory is not there.
type absentError struct{ path string }

func (e absentError) Error() string {
	return fmt.Sprintf("journal directory %s is not there: name the one that Setup used (NIC.Dir, guestwire-agent -dir)", e.path)
}

func (absentError) Is(target error) bool { return target == fs.ErrNotExist }

// mayLack reports whether the directory may be absent, as nothing was ever wired on the node. Any other directory was
// named, and may be mistyped.
func mayLack(path string) bool { return path == "" || filepath.Clean(path) == DefaultDir }

func nodePath(path string) (string, error) {
	return cmp.Or(path, DefaultDir), checkPath("dir", path, DefaultDir)
}

func openNodeAt(path string) (node, error) {
	if _, err := rootPath(path, 0o077); err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return node{}, fmt.Errorf("journal directory: %w", err)
	}
	return node{dir, path}, nil
}

// lockNamespace holds the namespace until the returned function is called, or the process ends.
func (n node) lockNamespace(ctx context.Context, identity netns.Identity, report progress) (unlock func(), err error) {
	return n.lock(ctx, namespaceLock(identity), report)
}

func namespaceLock(identity netns.Identity) string { return strconv.FormatUint(identity.Inode, 10) }

// lockState holds the State directory. A call takes it after the namespace's lock, and no call takes two.
func (n node) lockState(ctx context.Context, path string, report progress) (unlock func(), err error) {
	return n.lock(ctx, stateLock+digest(path), report)
}

// The beginnings of the names of locks that are not a namespace's.
const (
	stateLock = "state-"
	nameLock  = "name-"
	holdLock  = "hold-"
)

// Lock holds a name of the caller's choice on the node, such as a State, until unlock is called or the process ends. It
// waits for another holder until ctx ends; the error then names the holder. Lock needs root. dir and progress are
// NIC.Dir and NIC.Progress. An empty name is a *cache.FieldError.
func Lock(ctx context.Context, dir, name string, progress func(text string)) (unlock func(), err error) {
	if name == "" { // all callers that forget the name would wait for each other
		return nil, fmt.Errorf("lock: %w", &cache.FieldError{Field: "name", Reason: "missing: name what is held, such as the State"})
	}
	unlock, err = lockName(ctx, dir, name, progress)
	if err != nil {
		return nil, fmt.Errorf("lock of %s: %w", name, err)
	}
	return unlock, nil
}

func lockName(ctx context.Context, dir, name string, progress func(text string)) (unlock func(), err error) {
	if err := checkRoot(); err != nil {
		return nil, err
	}
	n, err := openNode(dir)
	if err != nil {
		return nil, err
	}
	release, err := n.lock(ctx, nameLock+digest(name), progress)
	if err != nil {
		n.Close()
		return nil, err
	}
	return func() {
		release()
		n.Close()
	}, nil
}

func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// lock waits until ctx ends.
func (n node) lock(ctx context.Context, name string, report progress) (unlock func(), err error) {
	if n.Root == nil {
		return func() {}, nil
	}
	const pauseMax = 50 * time.Millisecond
	begin, reported := time.Now(), false
	for pause := time.Millisecond; ; pause = min(2*pause, pauseMax) {
		if unlock, err = n.tryLock(name); err != unix.EWOULDBLOCK {
			return unlock, err
		}
		if !reported && time.Since(begin) >= slow {
			report.say("waits for another call, which holds %s: %s", filepath.Join(n.Name(), name), n.holder(name))
			reported = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another call works on it (%s): %w", n.holder(name), context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// tryLock returns unix.EWOULDBLOCK if another call holds the lock. The holder removes the file, so that none is
// left; a lock on a file that has lost its name is not the lock any more.
func (n node) tryLock(name string) (unlock func(), err error) {
	return n.tryLockFile(name, os.O_CREATE)
}

// tryLockFile is tryLock. Without os.O_CREATE the error is fs.ErrNotExist if no call has left the file.
func (n node) tryLockFile(name string, create int) (unlock func(), err error) {
	f, err := n.OpenFile(name, os.O_RDWR|create|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock in %s: %w", n.Name(), err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == unix.EWOULDBLOCK || err == unix.EINTR || err == nil && !n.hasName(f, name):
		f.Close()
		return nil, unix.EWOULDBLOCK
	case err != nil:
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: filepath.Join(n.Name(), name), Err: err}
	}
	return func() {
		_ = n.Remove(name) // a file that stays is free for the next call
		f.Close()
	}, nil
}

func (n node) hasName(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := n.Lstat(name)
	return err == nil && os.SameFile(mine, named)
}

// holder says which process holds the lock, as far as /proc/locks (proc_locks(5)) shows.
func (n node) holder(name string) string {
	const unknown = "a process that is not visible here"
	info, err := n.Lstat(name)
	if err != nil {
		return unknown
	}
	stat := info.Sys().(*syscall.Stat_t)
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	for line := range strings.Lines(string(locks)) {
		// "1: FLOCK  ADVISORY  WRITE 1234 00:19:5678 0 EOF"
		field := strings.Fields(line)
		if len(field) < 6 || field[1] != "FLOCK" || field[5] != file {
			continue
		}
		comm, err := os.ReadFile("/proc/" + field[4] + "/comm")
		pid, _ := strconv.Atoi(field[4])
		if err != nil {
			return unknown
		}
		return fmt.Sprintf("process %d (%s)", pid, holders.Program(pid, strings.TrimSpace(string(comm))))
	}
	return unknown
}

// namespaces are the names (netns.Identity.Name) of the namespaces that have journals, sorted.
func (n node) namespaces() ([]string, error) {
	entries, err := fs.ReadDir(n.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("journal directory: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// nics are the NICs of the namespace that have a journal, sorted; none if the namespace has no directory.
func (n node) nics(namespace string) ([]string, error) {
	if n.Root == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(n.FS(), namespace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journals: %w", err)
	}
	var nics []string
	for _, entry := range entries {
		nic, ok := strings.CutSuffix(entry.Name(), journalSuffix)
		if ok && !strings.HasPrefix(nic, ".") {
			nics = append(nics, nic)
		}
	}
	return nics, nil
}

// slow is how long a call waits before it reports what it waits for.
const slow = time.Second

// progress is NIC.Progress; nil: no one wants to know.
type progress func(text string)

// say waits until the caller's function has returned. The function runs on another thread: that of a call is in the
// pod's network, where a connection of the caller's would begin.
func (p progress) say(format string, args ...any) {
	if p == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		p(fmt.Sprintf(format, args...))
	}()
	<-said
}

// during says the text after the time slow, unless the returned function is called first. Call that function once;
// after it has returned, nothing is said.
func (p progress) during(format string, args ...any) (end func()) {
	if p == nil {
		return func() {}
	}
	said := make(chan struct{})
	t := time.AfterFunc(slow, func() {
		defer close(said)
		p.say(format, args...)
	})
	return func() {
		if !t.Stop() {
			<-said
		}
	}
}
