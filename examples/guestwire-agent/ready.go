package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
)

// relayReady tells the service manager that the command is ready, as soon as the command says so. The command gets a
// socket of its own for that: a manager that took the command's messages would also let a VMM name itself the service's
// main process, and the agent would be killed before it gives the NIC back. Stop ends the relay.
func relayReady(cmd *exec.Cmd, user uint32) (stop func(), err error) {
	if !commandline.Supervised() {
		return func() {}, nil
	}
	s, err := listenReady(user)
	if err != nil {
		return nil, fmt.Errorf("socket for the command's readiness: %w: set TMPDIR to a directory that only root can replace, and that user %d can enter (TMPDIR=/run), or unset %s", err, user, commandline.ReadyVariable)
	}
	cmd.Env = append(os.Environ(), commandline.ReadyVariable+"="+s.path())
	done := make(chan struct{})
	go func() {
		defer close(done)
		message := make([]byte, 4096)
		for told := false; ; {
			n, err := s.conn.Read(message)
			if err != nil {
				return // closed by stop
			}
			if !told && slices.Contains(strings.Split(string(message[:n]), "\n"), commandline.ReadyMessage) {
				told = true
				if err := commandline.Ready(); err != nil {
					fmt.Fprintln(stderr, "guestwire-agent: warning:", err)
				}
			}
		}
	}()
	return func() {
		s.conn.Close()
		<-done
		s.remove()
	}, nil
}

// readySocket is a socket in a directory of its own, to which the user alone can write.
type readySocket struct {
	in, dir *os.Root // of the temporary files, and the socket's own
	conn    *net.UnixConn
}

// listenReady makes the socket where temporary files are (TMPDIR). A directory in which another user could replace it
// is refused: what root then gives to the user could be any file.
func listenReady(user uint32) (*readySocket, error) {
	in, err := directory.Trusted(os.TempDir())
	if err != nil {
		return nil, err
	}
	return listenIn(in, user)
}

// listenIn makes the socket, and owns the directory from then on.
func listenIn(in *os.Root, user uint32) (s *readySocket, err error) {
	s = &readySocket{in: in}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	if s.dir, err = directory.MkdirTemp(in, "guestwire-run-"); err != nil {
		return s, err
	}
	if s.conn, err = directory.Receive(s.dir, "notify"); err != nil {
		return s, err
	}
	err = errors.Join(s.dir.Chmod("notify", 0o600), s.dir.Lchown("notify", int(user), -1), s.dir.Chmod(".", 0o711))
	if err = cmp.Or(err, searchable(filepath.Dir(s.path()), user)); err != nil {
		s.conn.Close()
	}
	return s, err
}

func (s *readySocket) path() string {
	return filepath.Join(s.in.Name(), filepath.Base(s.dir.Name()), "notify")
}

func (s *readySocket) remove() error {
	defer s.in.Close()
	if s.dir == nil {
		return nil
	}
	return errors.Join(s.dir.Close(), s.in.RemoveAll(filepath.Base(s.dir.Name())))
}

// writable refuses a directory to which the user cannot write, as far as searchable knows.
func writable(dir string, user uint32) error {
	if err := searchable(dir, user); err != nil || user == 0 {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	mode, of := info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Uid
	if of == user && mode&0o200 == 0 || of != user && mode&0o022 == 0 {
		return fmt.Errorf("%w: user %d cannot write to %s (mode %#o)", fs.ErrPermission, user, dir, mode)
	}
	return nil
}

// searchable refuses a directory that the user cannot enter: the command could not reach its socket, and the service
// manager would wait until it takes the start for failed. Groups and access control lists are not asked for.
func searchable(dir string, user uint32) error {
	if user == 0 {
		return nil
	}
	for path := dir; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		mode, of := info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Uid
		if of == user && mode&0o100 == 0 || of != user && mode&0o011 == 0 {
			return fmt.Errorf("%w: user %d cannot enter %s (mode %#o)", fs.ErrPermission, user, path, mode)
		}
		if path == filepath.Dir(path) {
			return nil
		}
	}
}
