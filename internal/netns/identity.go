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
	if err := unix.Fstatfs(int(f.Fd()), &of); err == unix.EBADF {
		return Identity{}, fmt.Errorf("namespace %s: %w: keep the file open until the call has ended", f.Name(), os.ErrClosed)
	} else if err != nil {
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

func notNetNS(name string) error {
	return fmt.Errorf("%s: %w: open /proc/PID/ns/net or /run/netns/NAME", name, ErrNotNetNS)
}

var knownBootID atomic.Pointer[string]

func bootID() (string, error) {
	if id := knownBootID.Load(); id != nil {
		return *id, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: this /proc has processes alone: give the program a whole one (ProcSubset=all in a unit of systemd, a mount of proc without subset=pid)", err)
	}
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

// file is the identity of a file.
type file struct{ device, inode uint64 }

// identify follows a link of /proc below a directory that is open; with an empty link the file is the open one. It does
// not ask the file system to which the link leads, which may be a remote one.
func identify(directory int, link string) (file, error) {
	var s unix.Statx_t
	err := unix.Statx(directory, link, unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &s)
	return file{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, err
}
