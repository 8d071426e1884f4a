package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestOpenSwapped: who holds a namespace by a descriptor can put another file there after Find has looked. That file is
// not opened: the caller does not wait for a FIFO, gets no terminal, and reads no file for the other user.
func TestOpenSwapped(t *testing.T) {
	nstest.Need(t)
	dir := t.TempDir()
	fifo, secret := filepath.Join(dir, "fifo"), filepath.Join(dir, "secret")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(secret, []byte("root's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	another, _ := heldByFile(t)
	for what, path := range map[string]string{
		"a FIFO": fifo, "a file of root's": secret, "a terminal": fmt.Sprintf("/dev/pts/%d", number),
		"another namespace": fmt.Sprintf("/proc/self/fd/%d", another.Fd()), "a namespace of another kind": "/proc/self/ns/uts",
	} {
		if what != "another namespace" {
			t.Run(what+" is no namespace", func(t *testing.T) {
				if _, err := netns.Open(path); !errors.Is(err, netns.ErrNotNetNS) {
					t.Errorf("%v, want ErrNotNetNS", err)
				}
			})
		}
		t.Run(what+", opened by handle", func(t *testing.T) { openSwapped(t, path) })
		t.Run(what+", opened by path", func(t *testing.T) {
			defer netns.WithoutHandles()()
			openSwapped(t, path)
		})
	}
	if tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		tty.Close()
		if id, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGSID); err == nil && id == os.Getpid() {
			t.Error("the terminal has become this process's")
		}
	}
}

// openSwapped finds a namespace, puts the other file in the place of the descriptor that holds it, and opens what was
// found.
func openSwapped(t *testing.T, path string) {
	ns, id := heldByFile(t)
	defer ns.Close()
	found := find(t, id)[id]
	checkOpens(t, found, id)
	other, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(other, int(ns.Fd()), unix.O_CLOEXEC)
		unix.Close(other)
	}
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		f, err := found.Open()
		if err == nil { // a thread that has looked into the namespace may be ending
			defer f.Close()
			var have netns.Identity
			if have, err = netns.Identify(f); err == nil && have.Inode == id.Inode {
				err = fs.ErrNotExist
			}
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v, want the namespace or fs.ErrNotExist", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Open waits")
	}
}
