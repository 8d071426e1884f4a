package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/tap"
)

// ErrNoSELinux means that the kernel runs without SELinux.
var ErrNoSELinux = errors.New("this kernel runs without SELinux")

// TryContext takes on the SELinux context as the creation of a tap does, and opens the device that creates taps. It
// changes nothing. The error is ErrNoSELinux, unix.EINVAL for what is no context of the policy, or fs.ErrPermission with
// the rules that the policy lacks.
func TryContext(context string) error {
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("context %s: %w", context, err)
	}
	if !strings.Contains(string(known), "\tselinuxfs\n") { // as is_selinux_enabled(3) asks
		return fmt.Errorf("context %s: %w", context, ErrNoSELinux)
	}
	return callsOn(tap.Device).in(context)
}

// systemCall is one of a series. The arguments of openat are path and flags. Any other call has as its first argument the
// file that the last openat has opened, and two more.
type systemCall struct {
	name   string // in errors
	number uintptr
	args   [2]uintptr
}

// systemCalls are prepared, so that a child process that cannot allocate memory can make them.
type systemCalls struct {
	list []systemCall
	keep []any // what args point to: on the heap, where nothing moves
}

// callsOn are those that open the file.
func callsOn(path string) *systemCalls {
	c := &systemCalls{}
	c.open(path)
	return c
}

func (c *systemCalls) open(path string) {
	c.list = append(c.list, systemCall{"open " + path, unix.SYS_OPENAT, [2]uintptr{c.text(path), unix.O_RDWR | unix.O_CLOEXEC}})
}

func (c *systemCalls) ioctl(name string, request, value uintptr) {
	c.list = append(c.list, systemCall{name, unix.SYS_IOCTL, [2]uintptr{request, value}})
}

// text is the address of the text with a NUL behind it.
func (c *systemCalls) text(s string) uintptr {
	b := append([]byte(s), 0)
	c.keep = append(c.keep, &b[0])
	return uintptr(unsafe.Pointer(&b[0]))
}

// progress is how far a series has come: the call that is being made, and the error of the one that failed.
type progress struct{ call, errno uintptr }

// here makes the calls in this thread, and closes the file.
func (c *systemCalls) here() error {
	defer runtime.KeepAlive(c)
	file := -1
	defer func() {
		if file >= 0 {
			unix.Close(file)
		}
	}()
	for _, call := range c.list {
		var errno unix.Errno
		if call.number == unix.SYS_OPENAT {
			at := unix.AT_FDCWD
			var opened uintptr
			if opened, _, errno = unix.Syscall6(call.number, uintptr(at), call.args[0], call.args[1], 0, 0, 0); errno == 0 {
				file = int(opened)
			}
		} else {
			_, _, errno = unix.Syscall(call.number, uintptr(file), call.args[0], call.args[1])
		}
		if errno != 0 {
			return fmt.Errorf("%s: %w", call.name, errno)
		}
	}
	return nil
}

// in makes the calls in the SELinux context.
func (c *systemCalls) in(context string) error {
	const attribute = "/proc/self/attr/current" // proc_pid_attr(5)
	enter := &systemCalls{}
	enter.open(attribute)
	enter.list = append(enter.list, systemCall{"write " + attribute, unix.SYS_WRITE, [2]uintptr{enter.text(context), uintptr(len(context))}})
	calls := append(enter.list, c.list...)
	p, err := forked(calls)
	runtime.KeepAlive(enter)
	runtime.KeepAlive(c)
	if err != nil {
		return fmt.Errorf("context %s: %w", context, err)
	}
	if p.errno == 0 {
		return nil
	}
	call, errno := calls[p.call], unix.Errno(p.errno)
	if needed := rulesFor(context, call, errno); needed != "" {
		return fmt.Errorf("%s in the context %s: %w: the policy has to allow %s; ausearch -m AVC shows what it has denied", call.name, context, errno, needed)
	}
	if call.number == unix.SYS_WRITE && errno == unix.EINVAL {
		return fmt.Errorf("the loaded policy has no context %s: %w", context, errno)
	}
	return fmt.Errorf("%s in the context %s: %w", call.name, context, errno)
}

// rulesFor names the rules without which SELinux denies the call; empty: something else has refused it.
func rulesFor(context string, call systemCall, errno unix.Errno) string {
	own, target := ownDomain(), domain(context)
	switch {
	case call.number == unix.SYS_WRITE && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s self:process setcurrent; allow %[1]s %s:process dyntransition;"`, own, target)
	case call.number == unix.SYS_OPENAT && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s tun_tap_device_t:chr_file { open read write ioctl };" (ls -Z %s shows the device's type)`, target, tap.Device)
	case call.number == unix.SYS_IOCTL && errno == unix.EACCES:
		return fmt.Sprintf(`"allow %s self:tun_socket { create relabelfrom relabelto };"`, target)
	case call.number == unix.SYS_IOCTL && errno == unix.EPERM:
		return fmt.Sprintf(`"allow %s self:capability net_admin;" (in a user namespace self:cap_userns)`, target)
	}
	return ""
}

// ownDomain is this process's.
func ownDomain() string {
	context, err := os.ReadFile("/proc/self/attr/current")
	if err != nil {
		return "this process's domain"
	}
	return domain(strings.TrimRight(string(context), "\x00\n"))
}

// domain is the type of a context, user:role:type:range.
func domain(context string) string {
	if parts := strings.Split(context, ":"); len(parts) >= 3 {
		return parts[2]
	}
	return context
}

// forked makes the calls in a child process.
//
// SELinux lets a thread change its context only if the process has no other thread (setcon(3)), and a Go program always
// has several. The child has one. It has a copy of all memory, and of all files: they are closed when it ends. It sends no
// signal when it ends, and a wait(2) for any child does not see it, so the caller's program does not notice it.
func forked(calls []systemCall) (progress, error) {
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
	var status unix.WaitStatus
	for {
		_, err = unix.Wait4(pid, &status, unix.WALL, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err == nil && status.Signaled() {
		err = fmt.Errorf("ended by %v", status.Signal())
	}
	if err != nil && err != unix.ECHILD { // that is another waiter's success
		return progress{}, fmt.Errorf("child process: %w", err)
	}
	return *p, nil
}

// fork returns the child's number. The child makes the calls until one fails, and ends, which closes its files. It must
// neither allocate, nor grow the stack, nor call what does: the runtime's other threads are not there, and may have held
// locks. Signals have to be blocked.
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
		if c.number == unix.SYS_OPENAT {
			at := unix.AT_FDCWD
			file, _, errno = syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), c.args[0], c.args[1], 0, 0, 0)
		} else {
			_, _, errno = syscall.RawSyscall(c.number, file, c.args[0], c.args[1])
		}
		if errno != 0 {
			p.errno = uintptr(errno)
			break
		}
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
