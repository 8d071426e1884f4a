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

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/infra"
)

// replaceFile gives the file the text and the mode in one step: a reader sees the old file or the new one, also after a
// kill. It returns whether anything had to be changed. Two processes can call it at once: one waits for the other until
// ctx ends. The files that a killed call has left are removed by the next one.
func replaceFile(ctx context.Context, path string, text []byte, mode fs.FileMode) (changed bool, err error) {
	dir, err := directory.Open(filepath.Dir(path))
	if dir := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("no directory %s for %s: create it (mkdir -p %s), or name another one with its flag", dir, filepath.Base(path), infra.ShellWord(dir))
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	if isSame(dir, name, text, mode) && isGone(dir, directory.Temporary(name)) { // without a lock file, whose coming and going an engine would notice
		return false, nil
	}
	unlock, err := directory.Lock(ctx, dir, "."+name+".lock") // no ending that a container engine reads
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := dir.Remove(directory.Temporary(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if isSame(dir, name, text, mode) {
		return false, nil
	}
	if err := directory.Write(dir, name, text, mode); err != nil {
		return false, err
	}
	return true, syncDir(dir)
}

// removeFile removes the file, and what a killed replaceFile has left. It is no error if there is neither, or no
// directory.
func removeFile(ctx context.Context, path string) (removed bool, err error) {
	dir, err := directory.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	if isGone(dir, name) && isGone(dir, directory.Temporary(name)) {
		return false, nil
	}
	unlock, err := directory.Lock(ctx, dir, "."+name+".lock") // no ending that a container engine reads
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	for _, name := range []string{directory.Temporary(name), name} {
		err := dir.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		removed = err == nil
	}
	return removed, syncDir(dir)
}

// syncDir makes the name of a file last, or its removal.
func syncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// mostRead is the size of a list or a binary that is read.
const mostRead = 256 << 20

// readRegular reads a file that another program has made. It waits for nobody: a FIFO, among others, is an error.
func readRegular(path string) ([]byte, error) {
	return readOpened(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// readOpened is readRegular of what was opened with O_NONBLOCK.
func readOpened(f *os.File, err error) ([]byte, error) {
	if errors.Is(err, syscall.ENXIO) { // a socket
		err = fmt.Errorf("%w: it is not a regular file: move it away", err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: move it away", f.Name())
	case info.Size() > mostRead:
		return nil, fmt.Errorf("%s has %d octets, want at most %d: move it away", f.Name(), info.Size(), mostRead)
	}
	return io.ReadAll(io.LimitReader(f, mostRead)) // it may grow meanwhile
}

func isGone(dir *os.Root, name string) bool {
	_, err := dir.Lstat(name)
	return errors.Is(err, fs.ErrNotExist)
}

func isSame(dir *os.Root, name string, text []byte, mode fs.FileMode) bool {
	info, err := dir.Lstat(name)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(text)) {
		return false
	}
	old, err := readOpened(dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0))
	return err == nil && bytes.Equal(old, text)
}
