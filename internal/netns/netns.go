// Package netns runs functions in network namespaces.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNotNetNS says that a file is no network namespace.
var ErrNotNetNS = errors.New("not a network namespace")

// Identity tells namespaces apart, as long as the machine runs.
type Identity struct {
	BootID string `json:"bootID"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Cookie is never given twice, as an inode's number is; 0 before Linux 5.14.
	Cookie uint64 `json:"cookie,omitempty"`
}

// Name is the identity as a part of a file name.
func (i Identity) Name() string {
	return fmt.Sprintf("%.8s-%d-%d", i.BootID, i.Inode, i.Cookie)
}

// Identify returns the identity of the namespace that f is open at.
func Identify(f *os.File) (Identity, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return Identity{}, fmt.Errorf("namespace %s: %w", f.Name(), err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil && err != unix.ENOTTY {
		return Identity{}, fmt.Errorf("kind of the namespace %s: %w", f.Name(), err)
	}
	if fs.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		return Identity{}, fmt.Errorf("%s: %w: open /proc/PID/ns/net or /run/netns/NAME", f.Name(), ErrNotNetNS)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return Identity{}, fmt.Errorf("namespace %s: %w", f.Name(), err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identity of this boot: %w", err)
	}
	return Identity{BootID: string(boot[:min(36, len(boot))]), Device: stat.Dev, Inode: stat.Ino}, nil
}

// AddCookie completes the identity with the cookie of the calling thread's namespace
// (SO_NETNS_COOKIE, socket(7)).
func (i *Identity) AddCookie() error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cookie of the namespace: %w", err)
	}
	defer unix.Close(s)
	i.Cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil && err != unix.ENOPROTOOPT {
		return fmt.Errorf("cookie of the namespace: %w", err)
	}
	return nil
}

// Do calls f on a thread of its own in the namespace, and returns its error. The thread ends with
// the call. It needs CAP_SYS_ADMIN.
func Do(ns *os.File, f func() error) error {
	result := make(chan error, 1)
	go onThread(ns, f, result)
	err := <-result
	runtime.KeepAlive(ns)
	return err
}

func onThread(ns *os.File, f func() error, result chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread stays, and is what others see of the process. While it is held here,
		// the call gets another one.
		inner := make(chan error, 1)
		go onThread(ns, f, inner)
		result <- <-inner
		runtime.UnlockOSThread()
		return
	}
	// Never unlocked: the thread ends with the goroutine.
	if err := netns.Set(netns.NsHandle(ns.Fd())); err != nil {
		result <- fmt.Errorf("enter namespace %s (needs CAP_SYS_ADMIN): %w", ns.Name(), err)
		return
	}
	result <- f()
}
