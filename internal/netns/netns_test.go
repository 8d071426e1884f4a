package netns_test

import (
	"errors"
	"os"
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestDo enters a namespace more often than there are threads. The process stays in its own namespace.
func TestDo(t *testing.T) {
	nstest.Need(t)
	ns := nstest.New(t, "do")
	inside, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		done := make(chan error)
		go func() {
			done <- netns.Do(ns.File, func() error {
				here, err := os.Readlink("/proc/thread-self/ns/net")
				if err == nil && here == inside {
					err = errors.New("still outside")
				}
				return err
			})
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != inside {
			t.Fatalf("the process is in %s, %v; want %s", now, err, inside)
		}
	}
	want := errors.New("the function's")
	if err := netns.Do(ns.File, func() error { return want }); err != want {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestIdentify(t *testing.T) {
	for _, path := range []string{"/dev/null", "/proc/self/ns/uts"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := netns.Identify(f); !errors.Is(err, netns.ErrNotNetNS) {
			t.Errorf("%s: %v, want ErrNotNetNS", path, err)
		}
		f.Close()
	}
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if id, err := netns.Identify(f); err != nil || id.Inode == 0 || len(id.BootID) != 36 {
		t.Errorf("identity %+v, %v", id, err)
	}
}
