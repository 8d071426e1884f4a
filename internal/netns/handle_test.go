package netns_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// needHandles leaves the test out on a kernel before 6.18, which has no NS_GET_ID either.
func needHandles(t *testing.T) {
	t.Helper()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := unix.IoctlGetInt(int(own.Fd()), 0x8008b70d); err == unix.ENOTTY {
		nstest.Skip(t, "this kernel has no handles of namespaces")
	}
}

// TestFindByHandle: the kernel reports whether a namespace is alive, also of one that a socket alone keeps, and opens
// it.
func TestFindByHandle(t *testing.T) {
	nstest.Need(t)
	needHandles(t)
	t.Run("of a file", func(t *testing.T) {
		ns, id := heldByFile(t)
		defer ns.Close()
		checkOpens(t, find(t, id)[id], id)
	})
	t.Run("of a socket", func(t *testing.T) {
		socket, id := heldBySocket(t)
		defer unix.Close(socket)
		checkOpens(t, find(t, id)[id], id)
		checkPlaces(t, id) // no walk sees it
	})
	t.Run("gone", func(t *testing.T) {
		socket, id := heldBySocket(t)
		found := find(t, id)[id]
		checkOpens(t, found, id)
		unix.Close(socket)
		for end := time.Now().Add(time.Minute); len(find(t, id)) > 0; { // until the threads that have looked have ended
			if time.Now().After(end) {
				t.Fatal("it is found")
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := found.Open(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v, want fs.ErrNotExist", err)
		}
	})
}

// heldBySocket returns a socket that alone keeps a namespace.
func heldBySocket(t *testing.T) (socket int, id netns.Identity) {
	t.Helper()
	ns, id := heldByFile(t)
	end := make(chan error)
	go func() {
		end <- netns.Do(ns, func() (err error) {
			socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		})
	}()
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	ns.Close()
	return socket, id
}
