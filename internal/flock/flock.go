// Package flock locks names in a directory that other users cannot enter: a name is a file there, with flock(2). A
// process that is killed leaves its file, which is free for the next one.
package flock

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/holders"
)

// Slow is how long Lock waits before it says what it waits for.
const Slow = time.Second

// Lock holds the name until unlock is called or the process ends. It waits for another holder until ctx ends, and calls
// waits once when that takes long. The error of the end names the holder.
func Lock(ctx context.Context, dir *os.Root, name string, waits func(holder string)) (unlock func(), err error) {
	const pauseMax = 50 * time.Millisecond
	begin, said := time.Now(), false
	for pause := time.Millisecond; ; pause = min(2*pause, pauseMax) {
		if unlock, err = Try(dir, name, os.O_CREATE); err != unix.EWOULDBLOCK {
			return unlock, err
		}
		if !said && time.Since(begin) >= Slow {
			waits(Holder(dir, name))
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another call works on it (%s): %w", Holder(dir, name), context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Try is Lock, but unix.EWOULDBLOCK if another call holds the name. Create is os.O_CREATE, or zero: the error is then
// fs.ErrNotExist if no call has left the file. The holder removes the file; a lock on a file that has lost its name is
// not the lock any more.
func Try(dir *os.Root, name string, create int) (unlock func(), err error) {
	f, err := dir.OpenFile(name, os.O_RDWR|create|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock in %s: %w", dir.Name(), err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == unix.EWOULDBLOCK || err == unix.EINTR || err == nil && !hasName(dir, f, name):
		f.Close()
		return nil, unix.EWOULDBLOCK
	case err != nil:
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return func() {
		_ = dir.Remove(name) // a file that stays is free for the next call
		f.Close()
	}, nil
}

func hasName(dir *os.Root, f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := dir.Lstat(name)
	return err == nil && os.SameFile(mine, named)
}

// Holder says which process holds the lock, as far as /proc/locks (proc_locks(5)) shows.
func Holder(dir *os.Root, name string) string {
	const unknown = "a process that is not visible here"
	info, err := dir.Lstat(name)
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
