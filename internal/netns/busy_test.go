package netns_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFindWhileMounting: mounts and renames elsewhere on the machine do not keep Find from reading a cookie, so no
// namespace is taken for another one that had its inode number.
func TestFindWhileMounting(t *testing.T) {
	nstest.Need(t)
	busy := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if unix.Mount("busy", busy, "tmpfs", 0, "size=4k") == nil {
				unix.Unmount(busy, unix.MNT_DETACH)
			}
			os.Rename(busy, busy+"2")
			os.Rename(busy+"2", busy)
		}
	}()
	defer func() { close(stop); <-stopped }()
	if out, err := exec.Command("ip", "netns", "add", "busy").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer exec.Command("ip", "netns", "del", "busy").Run()
	f, err := os.Open("/run/netns/busy")
	if err != nil {
		t.Fatal(err)
	}
	id, err := netns.Identify(f)
	if err == nil {
		err = netns.Do(f, id.AddCookie)
	}
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if id.Cookie == 0 {
		nstest.Skip(t, "this kernel has no cookies of namespaces")
	}
	gone := id
	gone.Cookie++
	for range 1000 {
		places, _, err := netns.Find([]netns.Identity{id, gone})
		if err != nil {
			t.Fatal(err)
		}
		if len(places[gone]) > 0 || len(places[id]) == 0 || strings.Contains(places[id][0], "inode") {
			t.Fatalf("found %q, and %q of a namespace that is gone", places[id], places[gone])
		}
	}
}
