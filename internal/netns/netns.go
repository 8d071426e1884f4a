// Package netns identifies, opens, enters and finds network namespaces.
//
//   - [Open] opens one by a path, and nothing but a network namespace. [Identify] returns its [Identity].
//   - [Do] runs a function in a namespace, on a thread that ends with the call. [Visit] is for a function that leaves the
//     thread as it was.
//   - [Find] returns which of some identities are alive, and where. [Found.Open] opens one of them.
package netns

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Open opens the network namespace at a path. The error is ErrNotNetNS if another kind of file is there, which is not
// opened.
func Open(path string) (*os.File, error) {
	if path == "" {
		return nil, fmt.Errorf("open a network namespace: no path is named, such as /run/netns/NAME: %w", fs.ErrNotExist)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return openReference(fd, path)
}

// openReference opens what fd refers to (O_PATH), if it is a network namespace. Another file is not opened: to open a
// FIFO would wait, and to open a device can do anything.
func openReference(fd int, name string) (*os.File, error) {
	own, err := identify(unix.AT_FDCWD, "/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("the caller's own namespace: %w", err)
	}
	// fstatfs(2) would ask the file's file system, which may be a process that does not answer.
	other, err := identify(fd, "")
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	if other.device != own.device {
		return nil, notNetNS(name)
	}
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	ns := os.NewFile(uintptr(opened), name)
	if _, err := Identify(ns); err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// Do calls f on a new thread in the namespace ns, and returns the error of f. The thread leaves the namespace, and ends
// with the call. Goroutines that f starts run outside of the namespace.
//
// Do needs CAP_SYS_ADMIN (setns(2)).
func Do(ns *os.File, f func() error) error { return do(ns, f, func() {}) }

// Visit is Do for an f that changes nothing else of its thread. The thread is used again, unless it cannot leave the
// namespace: to end it would make a short call a fifth slower.
func Visit(ns *os.File, f func() error) error { return do(ns, f, runtime.UnlockOSThread) }

func do(ns *os.File, f func() error, left func()) error {
	return OnThread(func() error {
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("the caller's own namespace: %w", err)
		}
		defer own.Close()
		if err := Enter(ns); err != nil {
			return err
		}
		defer func() { // a thread that ends is there for a moment after the call, and would keep the namespace
			if Enter(own) == nil {
				left()
			}
		}()
		return f()
	})
}

// Enter takes the calling thread into the namespace. The thread must not be unlocked there: see OnThread.
func Enter(ns *os.File) error {
	err := netns.Set(netns.NsHandle(ns.Fd()))
	runtime.KeepAlive(ns)
	if err != nil {
		return fmt.Errorf("enter namespace %s (needs CAP_SYS_ADMIN): %w", ns.Name(), err)
	}
	return nil
}

// OnThread calls f on a thread that ends with the call, and returns the error of f. So f may change what belongs to
// the thread. Goroutines that f starts run on other threads. If f ends its goroutine by runtime.Goexit, as t.Fatal
// does, so does the caller's.
func OnThread(f func() error) error {
	result := make(chan error, 1)
	go onThread(f, result)
	err, returned := <-result
	if !returned {
		runtime.Goexit()
	}
	return err
}

func onThread(f func() error, result chan<- error) {
	defer close(result)
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// /proc/PID shows the main thread's namespace and capabilities, and the main thread cannot end before
		// the process. While this goroutine holds the main thread, the inner one gets another thread.
		inner := make(chan error, 1)
		go onThread(f, inner)
		if err, returned := <-inner; returned {
			result <- err
		}
		runtime.UnlockOSThread()
		return
	}
	// A thread that f does not unlock, as Visit does, ends with the goroutine.
	result <- f()
}
