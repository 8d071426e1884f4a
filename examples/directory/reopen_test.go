package directory

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReopen: what another user puts in the place of a directory that was looked at is refused, and is not opened: to
// open a pipe would wait for who writes to it.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := reopen(fd, pipe); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a pipe: %v, want ENOTDIR", err)
	}
	root, err := reopen(fd, dir)
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
}
