package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoUserNamespace means that the user namespace which owns a network namespace is not this process's, and not inside of
// this process's.
var ErrNoUserNamespace = errors.New("the user namespace that owns the network namespace is outside of this process's")

// InUserNamespace calls f with the number of a process in the user namespace that owns the network namespace. f can read
// /proc/PID/uid_map, which shows the numbers of this process's own user namespace beside those inside. The process does
// nothing, and ends when f returns, or when this process ends. Own says that the network namespace is owned by this
// process's own user namespace: then f is not called.
//
// A process of the container's may not exist: an engine makes the namespaces before its first process. So InUserNamespace
// makes one. It needs CAP_SYS_ADMIN, unless own is true. The error is ErrNoUserNamespace, or unix.EPERM without the
// capability.
//
// Source: user_namespaces(7), ioctl_ns(2), setns(2).
func InUserNamespace(ns *os.File, f func(pid int) error) (own bool, err error) {
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	runtime.KeepAlive(ns)
	if err == unix.EPERM {
		return false, fmt.Errorf("%w: %w", ErrNoUserNamespace, err)
	}
	if err != nil {
		return false, fmt.Errorf("user namespace of the network namespace: %w", err)
	}
	users := os.NewFile(uintptr(fd), "user namespace")
	defer users.Close()
	info, err := users.Stat()
	if err != nil {
		return false, err
	}
	mine, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false, err
	}
	if os.SameFile(info, mine) {
		return true, nil
	}
	// The child's number means the child only in a /proc of this process's PID namespace.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return false, fmt.Errorf("/proc is of another PID namespace, or cannot be read, so it does not show a child process: mount one (mount -t proc proc /proc): /proc/self is %q, %v", self, err)
	}
	return false, withChild(users, f)
}

// oneInside keeps the children of two calls apart: each would hold a copy of the other's socket, and both would stay if
// this process were killed.
var oneInside sync.Mutex

// withChild calls f with the number of a child process in the user namespace.
func withChild(users *os.File, f func(pid int) error) error {
	oneInside.Lock()
	defer oneInside.Unlock()
	// The child says by a byte that it is inside. The end of its waiting is that this process's socket is closed.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	here, there := pair[0], pair[1]
	letter := new([1]byte)
	at, enter := uintptr(unsafe.Pointer(letter)), "enter the user namespace of the network namespace"
	calls := []systemCall{
		{"close the socket", unix.SYS_CLOSE, [3]uintptr{uintptr(here)}},
		// The child has a copy of this process's memory, and root of the user namespace could trace it there (ptrace(2)).
		{"refuse to be traced", unix.SYS_PRCTL, [3]uintptr{unix.PR_SET_DUMPABLE, 0}},
		{enter, unix.SYS_SETNS, [3]uintptr{users.Fd(), unix.CLONE_NEWUSER}},
		{"answer", unix.SYS_WRITE, [3]uintptr{uintptr(there), at, 1}},
		{"wait", unix.SYS_READ, [3]uintptr{uintptr(there), at, 1}},
	}
	var failed error
	closed := false
	p, err := forked(calls, func(pid int) {
		unix.Close(there) // then the read ends when the child does
		closed = true
		var answer [1]byte
		n, err := unix.Read(here, answer[:])
		for err == unix.EINTR {
			n, err = unix.Read(here, answer[:])
		}
		if err == nil && n == 1 {
			failed = f(pid)
		}
		unix.Close(here)
	})
	runtime.KeepAlive(letter)
	runtime.KeepAlive(users)
	if !closed {
		unix.Close(here)
		unix.Close(there)
	}
	if err != nil {
		return err
	}
	if p.errno != 0 {
		return fmt.Errorf("%s: %w", calls[p.call].name, unix.Errno(p.errno))
	}
	return failed
}
