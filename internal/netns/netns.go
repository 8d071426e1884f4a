// Package netns runs functions in network namespaces.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotNetNS means that a file is not a network namespace.
var ErrNotNetNS = errors.New("not a network namespace")

// Identity distinguishes network namespaces, also those of different boots.
type Identity struct {
	BootID string `json:"bootID"` // of /proc/sys/kernel/random/boot_id
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Cookie is unique within a boot, while the kernel reuses inode numbers; 0: not read.
	Cookie uint64 `json:"cookie,omitempty"`
}

// Name returns the identity as a part of a file name: BOOT-INODE-COOKIE, see Named.
func (i Identity) Name() string {
	return fmt.Sprintf("%.8s-%d-%d", i.BootID, i.Inode, i.Cookie)
}

// Identify returns the identity of the network namespace that f refers to, without the Cookie. The error is
// ErrNotNetNS if f is another kind of file.
func Identify(f *os.File) (Identity, error) {
	var of unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &of); err != nil {
		return Identity{}, fmt.Errorf("namespace %s: %w", f.Name(), err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil && err != unix.ENOTTY {
		return Identity{}, fmt.Errorf("kind of the namespace %s: %w", f.Name(), err)
	}
	if of.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		return Identity{}, notNetNS(f.Name())
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return Identity{}, fmt.Errorf("namespace %s: %w", f.Name(), err)
	}
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	return Identity{BootID: boot, Device: stat.Dev, Inode: stat.Ino}, nil
}

// Open opens the network namespace at a path. The error is ErrNotNetNS if another kind of file is there, which is not
// opened.
func Open(path string) (*os.File, error) {
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

func notNetNS(name string) error {
	return fmt.Errorf("%s: %w: open /proc/PID/ns/net or /run/netns/NAME", name, ErrNotNetNS)
}

var knownBootID atomic.Pointer[string]

func bootID() (string, error) {
	if id := knownBootID.Load(); id != nil {
		return *id, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identity of this boot: %w", err)
	}
	id := string(boot[:min(36, len(boot))])
	knownBootID.Store(&id)
	return id, nil
}

// AddCookie sets the Cookie to that of the calling thread's namespace (SO_NETNS_COOKIE). Call it in the namespace that
// the identity belongs to. A kernel before Linux 5.14 has none, and the journal of a namespace that is gone could be
// taken for that of a new one.
func (i *Identity) AddCookie() error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cookie of the namespace: %w", err)
	}
	defer unix.Close(s)
	i.Cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == unix.ENOPROTOOPT {
		err = fmt.Errorf("this kernel cannot distinguish a namespace from an earlier one: guestwire needs Linux 5.14 or a later version: %w", err)
	}
	if err != nil {
		return fmt.Errorf("cookie of the namespace: %w", err)
	}
	return nil
}

// IsFirst reports whether the namespace is the kernel's first network namespace, the machine's own, also if no process
// of it can be seen, or /proc/sys is masked. Call it in that namespace. The error means that it cannot be known.
//
// Linux 6.18 gives the first namespace an inode number of its own (linux/nsfs.h); the same version brought NS_GET_ID.
// Before, cookies are counted from 1, and the first namespace alone has the settings of the whole machine below
// /proc/sys/net.
func IsFirst(ns *os.File) (bool, error) {
	const (
		firstInode  = 0xeffffff9 // NET_NS_INIT_INO
		firstCookie = 1
	)
	_, errno := idOf(ns)
	if errno == 0 {
		var stat unix.Stat_t
		if err := unix.Fstat(int(ns.Fd()), &stat); err != nil {
			return false, fmt.Errorf("namespace %s: %w", ns.Name(), err)
		}
		if stat.Ino == firstInode {
			return true, nil
		}
	} else if errno != unix.ENOTTY {
		return false, fmt.Errorf("namespace %s: %w", ns.Name(), errno)
	}
	var i Identity
	if err := i.AddCookie(); err != nil || i.Cookie == firstCookie {
		return err == nil, err
	}
	if errno == 0 {
		return false, nil
	}
	_, err := os.Stat("/proc/sys/net/core/netdev_budget")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return err == nil, nil
}

// idOf returns the kernel's number of the namespace, which is as unique as the cookie. The error is ENOTTY before Linux
// 6.18.
func idOf(ns *os.File) (id uint64, errno unix.Errno) {
	const getID = 0x8008b70d // NS_GET_ID
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, ns.Fd(), getID, uintptr(unsafe.Pointer(&id)))
	runtime.KeepAlive(ns)
	return id, errno
}

// cookieOutside returns the namespace's cookie for a caller that cannot enter it; false: the kernel does not report.
// Since Linux 6.18 the number is the cookie. This is not documented, so idIsCookie checks it.
func cookieOutside(ns *os.File) (cookie uint64, ok bool) {
	if !idIsCookie() {
		return 0, false
	}
	id, errno := idOf(ns)
	return id, errno == 0
}

var idIsCookie = sync.OnceValue(func() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	defer own.Close()
	var i Identity
	id, errno := idOf(own)
	return errno == 0 && i.AddCookie() == nil && i.Cookie == id
})

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
