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
func OpenTap(t testing.TB, pod *os.File, name string) (port *os.File) {
	t.Helper()
	Attach(t, pod, func() (err error) {
		port, err = tap.Open(name)
		return err
	})
	return port
}

// Attach attaches to a tap in a pod's namespace as f does. Until its exec has closed them, a child of another test has
// copies of the files that were closed meanwhile: as long as that, f is called again.
func Attach(t testing.TB, pod *os.File, f func() error) {
	t.Helper()
	var err error
	Eventually(t, func() error {
		if err = netns.Do(pod, f); errors.Is(err, unix.EBUSY) {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Boot attaches the embedded guest to the tap of a record in the pod's namespace. The guest ends with the test, if the
// test does not close it before. The test's attribute guest says in the log that there was one.
func Boot(t testing.TB, pod *os.File, r cache.Record, name string) *guest.Guest {
	t.Helper()
	port := OpenTap(t, pod, r.Tap)
	g, err := guest.Start(guest.Config{Port: port, MAC: r.MAC, Name: name})
	if err != nil {
		port.Close()
		t.Fatal(err)
	}
	t.Attr("guest", name)
	t.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return g
}
