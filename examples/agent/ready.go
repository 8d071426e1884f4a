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
)

// relayReady tells the service manager that the command is ready, as soon as the command says so. The command gets a
// socket of its own for that: a manager that took the command's messages would also let a VMM name itself the service's
// main process, and the agent would be killed before it gives the NIC back. Stop ends the relay.
func relayReady(cmd *exec.Cmd, user uint32) (stop func(), err error) {
	if !commandline.Supervised() {
		return func() {}, nil
	}
	path, conn, err := listenReady(user)
	if err != nil {
		return nil, fmt.Errorf("socket for the command's readiness: %w: name another directory (TMPDIR=DIR), or unset %s", err, commandline.ReadyVariable)
	}
	cmd.Env = append(os.Environ(), commandline.ReadyVariable+"="+path)
	done := make(chan struct{})
	go func() {
		defer close(done)
		message := make([]byte, 4096)
		for told := false; ; {
			n, err := conn.Read(message)
			if err != nil {
				return // closed by stop
			}
			if !told && slices.Contains(strings.Split(string(message[:n]), "\n"), commandline.ReadyMessage) {
				told = true
				if err := commandline.Ready(); err != nil {
					fmt.Fprintln(stderr, "agent: warning:", err)
				}
			}
		}
	}()
	return func() {
		conn.Close()
		<-done
		os.RemoveAll(filepath.Dir(path))
	}, nil
}

// listenReady makes a socket in a directory of its own, to which the user alone can write.
func listenReady(user uint32) (path string, conn *net.UnixConn, err error) {
	dir, err := os.MkdirTemp("", "guestwire-run-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "notify")
	if conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path}); err == nil {
		err = errors.Join(os.Chmod(path, 0o600), os.Chown(path, int(user), -1), os.Chmod(dir, 0o711))
		if err = cmp.Or(err, searchable(dir, user)); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return path, conn, nil
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
