// Package statefile reads, writes and removes small files in a directory: records and journals. A reader
// sees a whole file or none. A link or a FIFO that another user put into the directory does not make a call
// leave the directory or wait.
package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// maxSize is more than the record or the journal of a namespace with 100,000 routes needs.
const maxSize = 1 << 26

// OpenDir opens a directory at a path that others may change. The slash at the end of its name makes the kernel refuse
// a FIFO there, and not wait until somebody writes.
func OpenDir(path string) (*os.Root, error) {
	dir, err := os.OpenRoot(strings.TrimSuffix(path, "/") + "/")
	var failed *fs.PathError
	if errors.As(err, &failed) {
		failed.Path = path
	}
	return dir, err
}

// Read returns the contents of a regular file in dir, at most 64 MiB. Any other kind of file is an error.
func Read(dir *os.Root, name string) ([]byte, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%v is no regular file", info.Mode())
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%d bytes, want at most %d", info.Size(), maxSize)
	}
	// Without O_NONBLOCK, opening a FIFO that has replaced the file since Lstat would wait for a writer.
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text bytes.Buffer
	text.Grow(int(info.Size()) + bytes.MinRead) // which takes one call, and one more to see the end
	_, err = text.ReadFrom(io.LimitReader(f, maxSize))
	return text.Bytes(), err
}

// Write puts a file into dir in one step: a temporary file is written, synced and renamed. The file has the
// mode, whatever the umask is. After an error the old file, if any, is still there.
func Write(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	if len(text) > maxSize {
		return fmt.Errorf("%d bytes, want at most %d", len(text), maxSize)
	}
	temporary := temporaryName(name)
	err := writeSynced(dir, temporary, text, mode)
	if err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		if undo := dir.Remove(temporary); undo != nil && !errors.Is(undo, fs.ErrNotExist) {
			err = errors.Join(err, undo)
		}
	}
	return err
}

// Remove removes a file from dir, and the temporary file of a Write that was killed. It is no error if
// there is neither.
func Remove(dir *os.Root, name string) error {
	for _, n := range []string{temporaryName(name), name} {
		err := dir.Remove(n)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// On a read-only file system the kernel does not look whether the file is there.
		if _, absent := dir.Lstat(n); !errors.Is(absent, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func temporaryName(name string) string { return "." + name + ".new" }

func writeSynced(dir *os.Root, name string, text []byte, mode fs.FileMode) error {
	const create = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := dir.OpenFile(name, create, mode)
	if errors.Is(err, fs.ErrExist) { // left by a Write that was killed, or put there by another user
		if err = dir.Remove(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			f, err = dir.OpenFile(name, create, mode)
		}
	}
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
