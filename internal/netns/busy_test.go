package netns_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFindWhileMounting: mounts and renames elsewhere on the machine do not keep a mount of a container from being
// opened: then its cookie would not be read, and the namespace would be taken for another one that had its inode
// number.
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
			for range 100 {
				os.Rename(busy, busy+"2")
				os.Rename(busy+"2", busy)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	n := nstest.New(t, "busy")
	for i := range 20000 {
		fd, err := netns.OpenBelow("/", n.Path(), true)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		unix.Close(fd)
	}
}
