package netns_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// heldByFile returns a namespace that this process's descriptor alone keeps.
func heldByFile(t *testing.T) (ns *os.File, id netns.Identity) {
	t.Helper()
	err := netns.OnThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns, mustIdentify(t, fmt.Sprintf("/proc/self/fd/%d", ns.Fd()))
}

// TestFindUnsharedFiles: a thread can have open files of its own.
func TestFindUnsharedFiles(t *testing.T) {
	nstest.Need(t)
	ns, id := heldByFile(t)
	held, let, ended := make(chan string), make(chan bool), make(chan error, 1)
	go func() {
		ended <- netns.OnThread(func() error {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				return err
			}
			held <- fmt.Sprintf("/proc/%d/task/%d/fd/%d", os.Getpid(), unix.Gettid(), ns.Fd())
			<-let
			return nil
		})
	}()
	select {
	case err := <-ended:
		t.Fatal(err)
	case place := <-held:
		ns.Close()
		checkPlaces(t, id, place)
	}
	close(let)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFindEnds: a walk ends with its context, between the parts of a table of open files too.
func TestFindEnds(t *testing.T) {
	nstest.Need(t)
	cause := errors.New("enough")
	t.Run("before the walk", func(t *testing.T) {
		defer netns.WithoutHandles()()
		gone := mustIdentify(t, "/proc/self/ns/net")
		gone.Inode, gone.Cookie = 1, 1
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, _, err := netns.Find(ctx, []netns.Identity{gone}); !errors.Is(err, cause) {
			t.Errorf("%v, want %v", err, cause)
		}
	})
	t.Run("within a table", func(t *testing.T) {
		var files []*os.File
		for range 5000 {
			f, err := os.Open("/proc/self/ns/uts")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files = append(files, f)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		looked := netns.LookAtFiles(ctx, func(n int) {
			if n == 100 {
				cancel(cause)
			}
		})
		if looked < 100 || looked > 1000 {
			t.Errorf("looked at %d of %d open files, and the context ended at the 100th", looked, len(files))
		}
	})
}

// TestFindTables: tasks that share a table of open files are known, so that the table is read once.
func TestFindTables(t *testing.T) {
	nstest.Need(t)
	has := netns.Tables()
	if main := strconv.Itoa(os.Getpid()); has(main) || !has(main) {
		t.Fatal("a process's table is not known, the second time alone")
	}
	for _, unshare := range []bool{false, true} { // in this order: an ended thread's table cannot be compared
		t.Run(map[bool]string{false: "a thread", true: "a thread with a table of its own"}[unshare], func(t *testing.T) {
			if err := netns.OnThread(func() error {
				if unshare {
					if err := unix.Unshare(unix.CLONE_FILES); err != nil {
						return err
					}
				}
				if known := has(strconv.Itoa(unix.Gettid())); known == unshare {
					return fmt.Errorf("its table is known: %v, want %v", known, !unshare)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
