package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// replaceFile gives the file the text and the mode in one step: a reader sees the old file or the new one, also after a kill.
// It returns whether anything had to be changed. The directory is locked meanwhile, so two processes can call it at once. The
// temporary file of a killed call is removed by the next one.
func replaceFile(path string, text []byte, mode fs.FileMode) (changed bool, err error) {
	dir, err := lockDir(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	temporary := temporaryName(path)
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
	return true, dir.Sync()
}

// removeFile removes the file, and the temporary file of a killed replaceFile. It is no error if there is neither, or no
// directory.
func removeFile(path string) (removed bool, err error) {
	dir, err := lockDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	for _, name := range []string{temporaryName(path), path} {
		err := os.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		removed = err == nil
	}
	return removed, dir.Sync()
}

// temporaryName has no ending that a container engine reads.
func temporaryName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// lockDir opens the directory and waits for its lock, which Close gives back.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock of %s: %w", path, err)
	}
	return dir, nil
}

func isSame(path string, text []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(text)) {
		return false
	}
	old, err := os.ReadFile(path)
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
