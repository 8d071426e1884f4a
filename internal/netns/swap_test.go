package netns_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

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
			if _, err := netns.Open(path); !errors.Is(err, netns.ErrNotNetNS) {
				t.Errorf("%s: %v, want ErrNotNetNS", what, err)
			}
		}
		for _, handles := range []bool{false, true} {
			ns, id := heldByFile(t)
			end := func() {}
			if !handles {
				end = netns.WithoutHandles()
			}
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
					t.Errorf("%s in the namespace's place: %v, want the namespace or fs.ErrNotExist", what, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s in the namespace's place: Open waits", what)
			}
			end()
			ns.Close()
		}
	}
	if tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		tty.Close()
		if id, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGSID); err == nil && id == os.Getpid() {
			t.Error("the terminal has become this process's")
		}
	}
}

// TestFindByHandle: the kernel reports whether a namespace is alive, also of one that a socket alone keeps, and opens
// it.
func TestFindByHandle(t *testing.T) {
	nstest.Need(t)
	needHandles(t)
	ns, id := heldByFile(t)
	checkOpens(t, find(t, id)[id], id)
	socket, end := -1, make(chan error)
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
	found := find(t, id)[id]
	checkOpens(t, found, id)
	checkPlaces(t, id) // no walk sees it
	unix.Close(socket)
	for end := time.Now().Add(time.Minute); len(find(t, id)) > 0; { // until the threads that have looked have ended
		if time.Now().After(end) {
			t.Fatal("a namespace that is gone is found")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := found.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a namespace that is gone: %v, want fs.ErrNotExist", err)
	}
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
	defer netns.WithoutHandles()()
	gone := mustIdentify(t, "/proc/self/ns/net")
	gone.Inode, gone.Cookie = 1, 1
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, _, err := netns.Find(ctx, []netns.Identity{gone}); !errors.Is(err, cause) {
		t.Errorf("after the end of the context: %v, want %v", err, cause)
	}
	var files []*os.File
	for range 5000 {
		f, err := os.Open("/proc/self/ns/uts")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	looked := netns.LookAtFiles(ctx, func(n int) {
		if n == 100 {
			cancel(cause)
		}
	})
	if looked < 100 || looked > 1000 {
		t.Errorf("looked at %d of %d open files, and the context ended at the 100th", looked, len(files))
	}
}

// TestFindTables: tasks that share a table of open files are known, so that the table is read once.
func TestFindTables(t *testing.T) {
	nstest.Need(t)
	has := netns.Tables()
	if main := strconv.Itoa(os.Getpid()); has(main) || !has(main) {
		t.Error("a process's table is not known, the second time alone")
	}
	for _, unshare := range []bool{false, true} {
		if err := netns.OnThread(func() error {
			if unshare {
				if err := unix.Unshare(unix.CLONE_FILES); err != nil {
					return err
				}
			}
			if has(strconv.Itoa(unix.Gettid())) == unshare {
				return fmt.Errorf("a thread that has unshared its table, %v, is taken for one that has not", unshare)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}
