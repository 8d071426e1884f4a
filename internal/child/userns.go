package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoUserNamespace means that the user namespace which owns a network namespace is not this process's, and not inside
// of this process's.
var ErrNoUserNamespace = errors.New("the user namespace that owns the network namespace is outside of this process's")

// InUserNamespace calls f with the number of a process in the user namespace that owns the network namespace. f can
// read /proc/PID/uid_map, which shows the numbers of this process's own user namespace beside those inside. The process
// does nothing, and ends when f returns, or when this process ends. Own says that the network namespace is owned by
// this process's own user namespace: then f is not called. The owner and the root of the user namespace can stop the
// process before it has answered (SIGSTOP): then InUserNamespace returns when ctx is done.
//
// A process of the container's may not exist: an engine makes the namespaces before its first process. So
// InUserNamespace makes one. It needs CAP_SYS_ADMIN, unless own is true. The error is ErrNoUserNamespace, or unix.EPERM
// without the capability.
//
// Source: user_namespaces(7), ioctl_ns(2), setns(2).
func InUserNamespace(ctx context.Context, ns *os.File, f func(pid int) error) (own bool, err error) {
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
	return false, withChild(ctx, users, f)
}

// oneInside has room for one call. It keeps the children of two calls apart: each would hold a copy of the other's
// socket.
var oneInside = make(chan struct{}, 1)

// withChild calls f with the number of a child process in the user namespace.
func withChild(ctx context.Context, users *os.File, f func(pid int) error) error {
	select {
	case oneInside <- struct{}{}:
		defer func() { <-oneInside }()
	case <-ctx.Done():
		return fmt.Errorf("another call is in a user namespace: %w", context.Cause(ctx))
	}
	// The child says by a byte that it is inside, and waits until this process's socket is closed, at the latest when
	// this process ends.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	here, there := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "child's socket")
	defer here.Close()
	defer there.Close()
	if err := unix.SetNonblock(pair[1], false); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	letter := new([1]byte)
	at, enter := uintptr(unsafe.Pointer(letter)), "enter the user namespace of the network namespace"
	calls := []systemCall{
		{"close the socket", unix.SYS_CLOSE, [3]uintptr{uintptr(pair[0])}, 0},
		// The child has a copy of this process's memory, and root of the user namespace could trace it there
		// (ptrace(2)).
		{"refuse to be traced", unix.SYS_PRCTL, [3]uintptr{unix.PR_SET_DUMPABLE, 0}, 0},
		{enter, unix.SYS_SETNS, [3]uintptr{users.Fd(), unix.CLONE_NEWUSER}, 0},
		// A child that is stopped does not notice that the socket is closed. To enter takes this signal away.
		{"end with the parent", unix.SYS_PRCTL, [3]uintptr{unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)}, 0},
		{"answer", unix.SYS_WRITE, [3]uintptr{uintptr(pair[1]), at, 1}, 0},
		{"wait", unix.SYS_READ, [3]uintptr{uintptr(pair[1]), at, 1}, 0},
	}
	answered := false
	var failed error
	p, err := inChild(calls, func(pid int) {
		there.Close() // then the read ends when the child does
		defer context.AfterFunc(ctx, func() { here.SetReadDeadline(time.Unix(1, 0)) })()
		_, failed = here.Read(make([]byte, 1))
		switch answered = failed == nil; {
		case answered:
			failed = f(pid)
		case errors.Is(failed, os.ErrDeadlineExceeded):
			failed = context.Cause(ctx)
		}
	})
	runtime.KeepAlive(letter)
	runtime.KeepAlive(users)
	switch {
	case err != nil:
		return err
	case p.errno != 0 && !answered && ctx.Err() == nil:
		return fmt.Errorf("%s: %w", calls[p.call].name, unix.Errno(p.errno))
	case !answered:
		return fmt.Errorf("%s: a child process did not answer, as the owner of the user namespace may have stopped or ended it: %w", enter, failed)
	}
	return failed
}
