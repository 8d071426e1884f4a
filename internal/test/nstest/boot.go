package nstest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/guest"
)

// Record returns the record of a NIC in a state directory.
func Record(t testing.TB, state, nic string) cache.Record {
	t.Helper()
	dir, err := os.OpenRoot(state)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	r, err := cache.Read(dir, nic)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// OpenTap opens a tap in a pod's namespace. The caller closes it.
func OpenTap(t testing.TB, pod *os.File, name string) *os.File {
	t.Helper()
	var port *os.File
	var err error
	Eventually(t, func() error {
		err = netns.Do(pod, func() (err error) {
			port, err = tap.Open(name)
			return err
		})
		if errors.Is(err, unix.EBUSY) { // between fork and exec a child of another test has a copy of a file that is closed
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Boot attaches the embedded guest to the tap of a record in the pod's namespace. The guest ends with the test, if the
// test does not close it before.
func Boot(t testing.TB, pod *os.File, r cache.Record, name string) *guest.Guest {
	t.Helper()
	port := OpenTap(t, pod, r.Tap)
	g, err := guest.Start(guest.Config{Port: port, MAC: r.MAC, Name: name})
	if err != nil {
		port.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return g
}
