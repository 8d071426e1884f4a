// Package child makes system calls in a child process with one thread, where the kernel or SELinux wants that.
//
//   - [Calls.Make] takes a series of calls on one file, and an SELinux context. It returns the error of the call that
//     failed. Taps are made by it. Without a context there is no child.
//   - [TryContext] takes an SELinux context, and returns why no tap can be made in it.
//   - [InUserNamespace] takes a network namespace and a function. It calls the function with the number of a child in
//     the user namespace that owns the network namespace.
//
// The child is a copy of this process without its other threads. Nothing of Go's runtime may run in it: see fork.
package child

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemCall is one of a series.
type systemCall struct {
	name   string // in errors
	number uintptr
	args   [3]uintptr
	// ignored is an error that does not end the series; 0: there is none.
	ignored uintptr
}

// opened as the first argument of a call stands for the file that the last openat of the series has opened.
const opened = ^uintptr(0)

// Calls is a series of system calls on one file. They are prepared, so that a child process that cannot allocate memory
// can make them.
type Calls struct {
	list []systemCall
	keep []unsafe.Pointer // what args point to: on the heap, where nothing moves

	check   func() error // see Check
	checked int          // the number of the call after check
}

// Check has f called before the next call of the series. Its error ends the series. A child process does not call it:
// Make with a context leaves it out.
func (c *Calls) Check(f func() error) { c.check, c.checked = f, len(c.list) }

// CallsOn returns a series that opens the file. The series grows by Ioctl, IoctlPointer and TryIoctl.
func CallsOn(path string) *Calls {
	c := &Calls{}
	c.open(path)
	return c
}

func (c *Calls) open(path string) {
	at := unix.AT_FDCWD
	c.list = append(c.list, systemCall{"open " + path, unix.SYS_OPENAT, [3]uintptr{uintptr(at), c.text(path), unix.O_RDWR | unix.O_CLOEXEC}, 0})
}

// Ioctl adds an ioctl(2) with a number.
func (c *Calls) Ioctl(name string, request, value uintptr) { c.TryIoctl(name, request, value, 0) }

// IoctlPointer adds an ioctl(2) with an address. What is there stays as long as c.
func (c *Calls) IoctlPointer(name string, request uintptr, value unsafe.Pointer) {
	c.Ioctl(name, request, c.at(value))
}

// TryIoctl adds an ioctl(2) that may fail with the error ignored. 0 ignores none.
func (c *Calls) TryIoctl(name string, request, value uintptr, ignored unix.Errno) {
	c.list = append(c.list, systemCall{name, unix.SYS_IOCTL, [3]uintptr{opened, request, value}, uintptr(ignored)})
}

// text is the address of the text with a NUL after it.
func (c *Calls) text(s string) uintptr {
	b := append([]byte(s), 0)
	return c.at(unsafe.Pointer(&b[0]))
}

// at is the address as an argument.
func (c *Calls) at(p unsafe.Pointer) uintptr {
	c.keep = append(c.keep, p)
	return uintptr(p)
}

// progress is how far a series has come: the call that is being made, and the error of the one that failed.
type progress struct{ call, errno uintptr }

// inThread makes the calls in this thread, and closes the file. A program that this process is starting may have a copy
// of it until it is executed. Until then the tap is in use for other processes, so inThread waits.
func (c *Calls) inThread() error {
	defer runtime.KeepAlive(c)
	file := -1
	defer func() {
		if file >= 0 {
			unix.Close(file)
			AwaitForks()
		}
	}()
	for i, call := range c.list {
		if c.check != nil && i == c.checked {
			if err := c.check(); err != nil {
				return err
			}
		}
		first := call.args[0]
		if first == opened {
			first = uintptr(file)
		}
		result, _, errno := unix.Syscall(call.number, first, call.args[1], call.args[2])
		if errno != 0 && uintptr(errno) != call.ignored {
			return fmt.Errorf("%s: %w", call.name, errno)
		}
		if call.number == unix.SYS_OPENAT {
			file = int(result)
		}
	}
	return nil
}

// AwaitForks waits until no program that this process is starting has copies of descriptors that this process has
// closed before. In the exec, which may go on when AwaitForks returns, it closes them.
func AwaitForks() {
	syscall.ForkLock.RLock()
	//lint:ignore SA2001 to wait is all that is wanted
	syscall.ForkLock.RUnlock()
}

// inChild makes the calls in a child process, and returns when the child has ended. Meanwhile, if it is not nil, is
// called with the child's number while the child runs; then the child is killed, as others may have stopped it.
//
// Some calls are for a process with one thread alone, and a Go program always has several: SELinux lets such a process
// change its context (setcon(3)), and the kernel lets it enter a user namespace (setns(2)). The child has one thread.
// It has a copy of all memory, and of all files: they are closed when it ends. It sends no signal when it ends, and a
// wait(2) for any child does not see it, so the caller's program does not notice it.
func inChild(calls []systemCall, meanwhile func(pid int)) (progress, error) {
	// Other memory is a copy. No pipe: SELinux would check whether the context may write to one of this process's.
	shared, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(progress{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return progress{}, fmt.Errorf("memory shared with a child process: %w", err)
	}
	defer unix.Munmap(shared)
	p := (*progress)(unsafe.Pointer(&shared[0]))
	p.errno = uintptr(unix.ECHILD) // until the child says otherwise
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A handler of Go's would run in the child, where the runtime has no threads.
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return progress{}, fmt.Errorf("block signals: %w", err)
	}
	pid, errno := fork(calls, p)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return progress{}, fmt.Errorf("unblock signals: %w", err)
	}
	if errno != 0 {
		return progress{}, fmt.Errorf("child process: %w", errno)
	}
	killed := false
	if meanwhile != nil {
		child, _ := os.FindProcess(pid) // holds a pidfd, as another waiter may take the child's status; there is no error on Linux
		meanwhile(pid)
		killed = child.Kill() == nil
		child.Release()
	}
	var status unix.WaitStatus
	for {
		_, err = unix.Wait4(pid, &status, unix.WALL, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err == nil && status.Signaled() && !killed {
		err = fmt.Errorf("ended by %v", status.Signal())
	}
	if err != nil && err != unix.ECHILD { // that is another waiter's success
		return progress{}, fmt.Errorf("child process: %w", err)
	}
	return *p, nil
}

// fork returns the child's number. The child makes the calls until one fails, and ends, which closes its files. It must
// neither allocate, nor grow the stack, nor call what does: the runtime's other threads are not there, and may have
// held locks. Signals have to be blocked.
//
//go:noinline
//go:nosplit
//go:norace
//go:nocheckptr
func fork(calls []systemCall, p *progress) (pid int, errno syscall.Errno) {
	// No flags: not even a signal at the end. The order of the arguments differs between architectures, zeros do not.
	child, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, 0, 0, 0, 0, 0, 0)
	if errno != 0 || child != 0 {
		return int(child), errno
	}
	p.errno = 0
	var file uintptr
	for i := range calls {
		c := &calls[i]
		p.call = uintptr(i)
		first := c.args[0]
		if first == opened {
			first = file
		}
		result, _, errno := syscall.RawSyscall(c.number, first, c.args[1], c.args[2])
		if errno != 0 && uintptr(errno) != c.ignored {
			p.errno = uintptr(errno)
			break
		}
		if c.number == unix.SYS_OPENAT {
			file = result
		}
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
