// Package directory works in a directory that a flag, the environment or a unit names, for a program with more rights
// than those who can write there. Each call on an [os.Root] is by the directory's descriptor: who puts another
// directory or a link in its place does not lead the call elsewhere.
//
// [Open] opens any directory. [Trusted] and [Make] open one that no other user can replace. [Write] puts a file there,
// and [Listen] a socket.
package directory

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
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

// Make makes the directory if it is not there, and those above it, with the mode 0755 whatever the umask is. It opens
// it as Trusted does.
func Make(path string) (*os.Root, error) {
	dir, err := Trusted(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return dir, err
	}
	above, err := Make(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer above.Close()
	name := filepath.Base(path)
	if err := Mkdir(above, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return Trusted(path)
}

// Mkdir makes a directory with the mode 0755, whatever the umask is. The error is fs.ErrExist if the name is there.
func Mkdir(dir *os.Root, name string) error {
	if err := dir.Mkdir(name, 0o755); err != nil {
		return named(dir, err)
	}
	made, err := dir.Open(name)
	if err != nil {
		return named(dir, err)
	}
	defer made.Close()
	return made.Chmod(0o755)
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
// to. Two calls for one name at a time need a lock (phase1.Lock).
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
