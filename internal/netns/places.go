package netns

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// place is where a namespace was found. The text is for people: by the time that it is read, the path may lead to
// another file, which another user has put there.
type place struct {
	text string
	open func() (int, error) // as a reference (O_PATH)
}

// The kinds of places, in the order of Find's result.
const (
	ownMount = iota
	inProcess
	openFile
	otherMount
	kinds
)

// living is the namespace that has an inode number now. One cookie that is read is the cookie of all places.
type living struct {
	places [kinds]*place
	cookie uint64 // 0: not read
	closed bool   // a place could not be opened
	known  bool   // to be alive, so that it needs no place
}

// matches reports whether the namespace was found, and is the wanted one.
func (l *living) matches(wanted Identity) bool {
	return l.places != [kinds]*place{} && (l.cookie == 0 || wanted.Cookie == 0 || wanted.Cookie == l.cookie)
}

func (l *living) list() []place {
	var list []place
	for _, p := range l.places {
		if p == nil {
			continue
		}
		at := *p
		if l.closed && l.cookie == 0 {
			at.text += " (by its inode number)"
		}
		list = append(list, at)
	}
	return list
}

// openPlace opens the namespace with the inode number at a place, and returns its cookie; 0: this kernel has none.
func openPlace(want file, text string, open func() (int, error)) (ns *os.File, cookie uint64, err error) {
	fd, err := open()
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(fd)
	ns, err = openReference(fd, text)
	if errors.Is(err, ErrNotNetNS) {
		err = errMoved
	}
	if err != nil {
		return nil, 0, err
	}
	cookie, err = checkCookie(ns, want)
	if err != nil {
		ns.Close()
		return nil, 0, err
	}
	return ns, cookie, nil
}

// checkCookie returns the namespace's cookie. The error is errMoved if it is another namespace than the wanted one.
func checkCookie(ns *os.File, want file) (uint64, error) {
	id, err := Identify(ns)
	if err != nil {
		return 0, err
	}
	if id.Device != want.device || id.Inode != want.inode {
		return 0, errMoved
	}
	if own, err := identify(unix.AT_FDCWD, "/proc/thread-self/ns/net"); err == nil && own == want {
		err := id.AddCookie() // a caller without CAP_SYS_ADMIN is in this namespace already
		return id.Cookie, err
	}
	err = Do(ns, id.AddCookie)
	if errors.Is(err, unix.EPERM) {
		if cookie, ok := cookieOutside(ns); ok {
			return cookie, nil
		}
	}
	return id.Cookie, err
}

// openBelow opens a path below another root directory, as a reference only. No symbolic link is followed. In a
// container's mounts nothing is waited for, as a file system in user space may never answer (RESOLVE_CACHED; the way to
// a mount is in the cache, except on some file systems).
func openBelow(root, path string, container bool) (int, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	}
	if container {
		how.Resolve |= 0x20 // RESOLVE_CACHED (linux/openat2.h)
	}
	// A mount or a rename anywhere on the machine disturbs the way, for a moment.
	for try := 0; ; try++ {
		fd, err := unix.Openat2(at, path, &how)
		if err != unix.EAGAIN || try == disturbed {
			return fd, err
		}
		time.Sleep(time.Millisecond)
	}
}

// ended reports whether the error means that the process has ended, or has closed the file or left the namespace.
func ended(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, errMoved)
}

// errMoved means that a place has another file by now.
var errMoved = errors.New("another file")

// seesNode reports whether /proc shows the processes of the node's PID namespace, which is the first one.
func seesNode() bool {
	const first = 0xEFFFFFFC // PROC_PID_INIT_INO (linux/proc_ns.h)
	pids, err := identify(unix.AT_FDCWD, "/proc/1/ns/pid")
	if err != nil { // process 1 may have more rights than the caller
		pids, err = identify(unix.AT_FDCWD, "/proc/self/ns/pid")
	}
	return err == nil && pids.inode == first
}

// mounts are what one mountinfo shows: the mounts of a mount namespace that are below a root directory.
type mounts struct{ namespace, root file }

// disturbed is how often a way is tried again.
const disturbed = 20
