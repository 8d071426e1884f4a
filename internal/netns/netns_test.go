package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

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
	// What f changes of its thread ends with the thread.
	if err := netns.Do(ns.File, func() error { return unix.Unshare(unix.CLONE_NEWNS) }); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		mounts, err := os.Readlink("/proc/self/ns/mnt")
		tasks, failed := filepath.Glob("/proc/self/task/*/ns/mnt")
		for _, task := range tasks {
			if other, gone := os.Readlink(task); gone == nil && other != mounts {
				err = errors.Join(err, fmt.Errorf("%s is %s, and the process's %s", task, other, mounts))
			}
		}
		return errors.Join(err, failed)
	})
}

// TestVisitWithoutWayBack: a thread that cannot leave the namespace ends. No thread stays there, or comes back without
// its capabilities.
func TestVisitWithoutWayBack(t *testing.T) {
	nstest.Need(t)
	ns := nstest.New(t, "stuck")
	stat, err := ns.File.Stat()
	if err != nil {
		t.Fatal(err)
	}
	threads := func() (inside int) {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil || len(tasks) == 0 {
			t.Fatal("no threads:", err)
		}
		for _, task := range tasks {
			if info, err := os.Stat(task); err == nil && os.SameFile(info, stat) {
				inside++
			}
		}
		return inside
	}
	left := func(who string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); threads() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s stays in the namespace", who)
			}
		}
	}
	left("the thread that made it") // it ends after the call
	err = netns.Visit(ns.File, func() error {
		if n := threads(); n != 1 {
			return fmt.Errorf("%d threads in the namespace, want one", n)
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		return unix.Capset(&header, &make([]unix.CapUserData, 2)[0])
	})
	if err != nil {
		t.Fatal(err)
	}
	left("a thread")
	if err := netns.Visit(ns.File, func() error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestGoexit: a function that ends its goroutine, as t.Fatal does, ends the caller's too, which would wait for ever.
func TestGoexit(t *testing.T) {
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- netns.OnThread(func() error {
			runtime.Goexit()
			return nil
		})
	}()
	if err, returned := <-ended; returned {
		t.Errorf("OnThread returned %v", err)
	}
}

// TestIdentifyAgain: what could not be read once is read later. The limit is of a process of its own.
func TestIdentifyAgain(t *testing.T) {
	const child = "GUESTWIRE_TEST_IDENTIFY"
	if os.Getenv(child) == "" {
		again := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
		again.Env = append(os.Environ(), child+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, full := netns.Identify(f)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if _, err := netns.Identify(f); full == nil || err != nil {
		t.Errorf("without a file to open %v, want an error; then %v", full, err)
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

// TestNoCookie: a kernel without cookies is refused. A filter of system calls stands in for one.
func TestNoCookie(t *testing.T) {
	const option = 16 + 2*8 // struct seccomp_data of linux/seccomp.h: the third argument's low half
	err := without(t, []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETSOCKOPT, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: option},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SO_NETNS_COOKIE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOPROTOOPT)},
	}, func() error {
		var id netns.Identity
		return id.AddCookie()
	})
	if !errors.Is(err, unix.ENOPROTOOPT) || !strings.Contains(err.Error(), "Linux 5.14") {
		t.Errorf("error %v, want ENOPROTOOPT, and the version that is needed", err)
	}
}

// TestOpenAsksNoFileSystem: a file system in user space need not answer statfs(2). It is not asked what the file is.
func TestOpenAsksNoFileSystem(t *testing.T) {
	err := without(t, []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSTATFS, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
	}, func() error {
		_, err := netns.Open(os.DevNull)
		return err
	})
	if !errors.Is(err, netns.ErrNotNetNS) {
		t.Errorf("error %v, want ErrNotNetNS", err)
	}
}

// without calls f on a thread whose system calls pass the filter, which begins with the call's number (seccomp(2)).
func without(t *testing.T, filter []unix.SockFilter, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		filter := slices.Concat([]unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}, filter,
			[]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		}
		if err != nil {
			t.Error(err)
		}
		done <- f()
	}()
	return <-done
}
