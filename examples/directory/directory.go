// Package directory works in a directory that a flag, the environment or a unit names, for a program with more rights
// than those who can write there. Each call on an [os.Root] is by the directory's descriptor: who puts another
// directory or a link in its place does not lead the call elsewhere.
//
// [Open] opens any directory. [Trusted] and [Make] open one that no other user can replace. [Write] puts a file there,
// and [Listen] a socket. [Lock] and [LockName] keep other calls away.
package directory

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
)

// Open opens a directory. A path through a directory in which another user than root and the caller can write leads to
// what lies there, and nowhere else: from there on it may have no symbolic link. The error is then fs.ErrPermission.
func Open(path string) (*os.Root, error) { return open(path, false) }

// Trusted opens a directory that no user but root and the caller can replace: the directory, those above it, and the
// symbolic links on the way are theirs. Others may write to a sticky directory such as /tmp, where they replace nothing
// of root's. The error is fs.ErrPermission for any other path.
//
// In a user namespace, what belongs to a user whom the namespace does not have may be root's of the machine. It is as
// good as root's where nobody else can write to the directory that it lies in.
func Trusted(path string) (*os.Root, error) { return open(path, true) }

// Make makes the directory if it is not there, with the mode whatever the umask is, and those above it with 0755. It
// opens it as Trusted does.
func Make(path string, mode fs.FileMode) (*os.Root, error) {
	dir, err := Trusted(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return dir, err
	}
	above, err := Make(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	if err := Mkdir(above, filepath.Base(path), mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return Trusted(path)
}

// Mkdir makes a directory with the mode, whatever the umask is. The error is fs.ErrExist if the name is there.
func Mkdir(dir *os.Root, name string, mode fs.FileMode) error {
	if err := dir.Mkdir(name, mode); err != nil {
		return named(dir, err)
	}
	made, err := dir.Open(name)
	if err != nil {
		return named(dir, err)
	}
	defer made.Close()
	return made.Chmod(mode)
}

// MkdirTemp makes and opens a directory that only the caller can enter. Its name begins with the prefix, and is the
// Root's base name. RemoveAll of dir removes it.
func MkdirTemp(dir *os.Root, prefix string) (*os.Root, error) {
	name := prefix + rand.Text()
	if err := dir.Mkdir(name, 0o700); err != nil {
		return nil, named(dir, err)
	}
	made, err := dir.OpenRoot(name)
	if err != nil {
		return nil, named(dir, err)
	}
	of, err := stat(made)
	if err == nil && (int(of.Uid) != os.Geteuid() || of.Mode&0o077 != 0) {
		err = fmt.Errorf("%s: replaced while it was made: %w", filepath.Join(dir.Name(), name), fs.ErrPermission)
	}
	if err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

// Write puts a file into the directory in one step: a temporary file is written, synced and renamed. The file has the
// mode, whatever the umask is. What another user has put in the place of one of the two is replaced, and never written
// to. Two calls for one name at a time need a lock (Lock).
func Write(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	temporary := Temporary(name)
	err := dir.Remove(temporary) // of a killed call, or another user's
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = writeSynced(dir, temporary, text, mode)
	}
	if err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		if undo := dir.Remove(temporary); undo != nil && !errors.Is(undo, fs.ErrNotExist) {
			err = errors.Join(err, undo)
		}
	}
	return named(dir, err)
}

// Temporary is the name under which Write writes. A killed call leaves it.
func Temporary(name string) string { return "." + name + ".new" }

func writeSynced(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode) // the umask has taken bits away
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Lock holds a name until unlock is called, or the process ends. It waits for another holder until ctx ends; the error
// then has the holder's process id, if that could be written. The name is a file with the mode 0600, which the holder
// removes: other users may be able to open the directory, and to lock that, but not the file. A file of another user's
// in its place is an error.
func Lock(ctx context.Context, dir *os.Root, name string) (unlock func(), err error) {
	const pauseMax = 50 * time.Millisecond
	for pause := time.Millisecond; ; pause = min(2*pause, pauseMax) {
		unlock, err := tryLock(dir, name)
		if err != syscall.EWOULDBLOCK {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			holder := "another process"
			if pid, err := dir.ReadFile(name); err == nil && len(pid) > 0 {
				holder = "process " + string(pid)
			}
			return nil, fmt.Errorf("%s works on it, and holds the lock %s: %w", holder, filepath.Join(dir.Name(), name), context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// LockName is Lock of a text of any length, in the directory of the node's journals (phase1.DefaultDir). It makes the
// directory if it is not there, and nothing above it, as phase1 does. What a killed process leaves, phase1.Forget
// removes. For a relative path the error is a *cache.FieldError.
func LockName(ctx context.Context, journals, text string) (unlock func(), err error) {
	switch {
	case os.Geteuid() != 0:
		return nil, fmt.Errorf("lock of %s: user %d is not root: run as root: %w", text, os.Geteuid(), fs.ErrPermission)
	case !filepath.IsAbs(journals):
		return nil, fmt.Errorf("lock of %s: %w", text, &cache.FieldError{Field: "dir", Reason: fmt.Sprintf("%q, want an absolute path, such as /run/guestwire.lock", journals)})
	}
	above, err := Trusted(filepath.Dir(journals))
	if err != nil {
		return nil, fmt.Errorf("journal directory: %w", err)
	}
	above.Close()
	dir, err := Make(journals, 0o700)
	if err != nil {
		return nil, fmt.Errorf("journal directory: %w", err)
	}
	sum := sha256.Sum256([]byte(text))
	release, err := Lock(ctx, dir, "name-"+hex.EncodeToString(sum[:8]))
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock of %s: %w", text, err)
	}
	return func() { release(); dir.Close() }, nil
}

// tryLock returns syscall.EWOULDBLOCK if another call has the lock, or has removed the file meanwhile.
func tryLock(dir *os.Root, name string) (unlock func(), err error) {
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock in %s: %w", filepath.Clean(dir.Name()), err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	mine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if stat, ok := mine.Sys().(*syscall.Stat_t); mine.Mode()&^0o600 != 0 || !ok || int(stat.Uid) != os.Geteuid() || stat.Nlink > 1 { // a second link may be root's file
		return nil, fmt.Errorf("lock %s: mode %v of another program's file, which may be in use or held by other users: remove it", filepath.Join(dir.Name(), name), mine.Mode())
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if err == syscall.EINTR {
			err = syscall.EWOULDBLOCK
		}
		return nil, err
	}
	named, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(named, mine) {
		return nil, syscall.EWOULDBLOCK
	}
	if err != nil {
		return nil, err
	}
	_ = f.Truncate(0)                               // a killed call's
	_, _ = f.WriteString(strconv.Itoa(os.Getpid())) // for who waits; a full disk keeps nobody from a lock
	return func() {
		_ = dir.Remove(name) // a file that stays is free for the next call
		f.Close()
	}, nil
}

// Listen makes a stream socket in the directory. Close leaves its name, which may be another's by then.
func Listen(dir *os.Root, name string) (*net.UnixListener, error) {
	path, done, err := within(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, named(dir, err)
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// Receive makes a datagram socket in the directory.
func Receive(dir *os.Root, name string) (*net.UnixConn, error) {
	path, done, err := within(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	return conn, named(dir, err)
}

// within is a path of the name that leads through the directory's descriptor, until done is called.
func within(dir *os.Root, name string) (path string, done func(), err error) {
	self, err := dir.Open(".")
	if err != nil {
		return "", nil, named(dir, err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(self.Fd())), name), func() { self.Close() }, nil
}

// named adds the directory to an error that names a file of it alone.
func named(dir *os.Root, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "in directory", Path: filepath.Clean(dir.Name()), Err: err}
}

// AsOwner runs f with the rights of the user to whom the directory belongs, on a thread that ends with it. Without
// root's rights, f has those of the caller.
func AsOwner(dir *os.Root, f func() error) error {
	of, err := stat(dir)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 || of.Uid == 0 {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // it is never unlocked
		result <- func() error {
			if err := errors.Join(unix.Setfsgid(int(of.Gid)), unix.Setfsuid(int(of.Uid))); err != nil {
				return err
			}
			if now, _ := unix.SetfsuidRetUid(-1); now != int(of.Uid) { // of a user whom this user namespace does not have
				return fmt.Errorf("%s: user %d, to whom it belongs, is not known here: %w", filepath.Clean(dir.Name()), of.Uid, fs.ErrPermission)
			}
			return f()
		}()
	}()
	return <-result
}

func stat(dir *os.Root) (*syscall.Stat_t, error) {
	info, err := dir.Stat(".")
	if err != nil {
		return nil, named(dir, err)
	}
	return info.Sys().(*syscall.Stat_t), nil
}
