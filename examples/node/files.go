package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// replaceFile gives the file the text and the mode in one step: a reader sees the old file or the new one, also after a
// kill. It returns whether anything had to be changed. Two processes can call it at once: one waits for the other until
// ctx ends. The files that a killed call has left are removed by the next one.
func replaceFile(ctx context.Context, path string, text []byte, mode fs.FileMode) (changed bool, err error) {
	temporary := hiddenPath(path, ".new")
	if isSame(path, text, mode) && isGone(temporary) { // without a lock file, whose coming and going an engine would notice
		return false, nil
	}
	unlock, err := lockFile(ctx, path)
	if dir := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && isGone(dir) {
		return false, fmt.Errorf("no directory %s for %s: create it (mkdir -p %s), or name another one with its flag", dir, filepath.Base(path), dir)
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if isSame(path, text, mode) {
		return false, nil
	}
	err = writeSynced(temporary, text, mode)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		if undo := os.Remove(temporary); undo != nil && !errors.Is(undo, fs.ErrNotExist) {
			err = errors.Join(err, undo)
		}
		return false, err
	}
	return true, syncDir(path)
}

// removeFile removes the file, and what a killed replaceFile has left. It is no error if there is neither, or no
// directory.
func removeFile(ctx context.Context, path string) (removed bool, err error) {
	if isGone(path) && isGone(hiddenPath(path, ".new")) {
		return false, nil
	}
	unlock, err := lockFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	for _, name := range []string{hiddenPath(path, ".new"), path} {
		err := os.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		removed = err == nil
	}
	return removed, syncDir(path)
}

// hiddenPath is the name of a file that a call needs for a moment. It has no ending that a container engine reads.
func hiddenPath(path, ending string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+ending)
}

// lockFile keeps other calls from the file until unlock is called, or the process ends. Other users can open the
// directory, and a lock on it would be theirs to hold; nobody else can open the file that is locked. It is beside, and
// not in the directory of phase1.Lock, which the DaemonSet's container does not have. The holder removes it.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	name := hiddenPath(path, ".lock")
	for {
		unlock, err := tryLock(name)
		if err != syscall.EWOULDBLOCK {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process works on %s (fuser %s): %w", path, name, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// tryLock returns syscall.EWOULDBLOCK if another call has the lock, or has removed the file meanwhile.
func tryLock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
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
	if stat, ok := mine.Sys().(*syscall.Stat_t); mine.Mode()&^0o600 != 0 || !ok || int(stat.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("lock %s: mode %v of another program's file, which other users may hold: remove it", name, mine.Mode())
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if err == syscall.EINTR {
			err = syscall.EWOULDBLOCK
		}
		return nil, err
	}
	named, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(named, mine) {
		return nil, syscall.EWOULDBLOCK
	}
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(name) // a file that stays is free for the next call
		f.Close()
	}, nil
}

// syncDir makes the name of a file last, or its removal.
func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// readRegular reads a file that another program has made. It waits for nobody: a FIFO, among others, is an error.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) { // a socket
		err = fmt.Errorf("%w: it is not a regular file: move it away", err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file: move it away", path))
	}
	return io.ReadAll(f)
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func isSame(path string, text []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(text)) {
		return false
	}
	old, err := readRegular(path)
	return err == nil && bytes.Equal(old, text)
}

func writeSynced(path string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
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
