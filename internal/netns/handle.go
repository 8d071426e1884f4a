package netns

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// handles opens network namespaces by their numbers, without a path: since Linux 6.18 a namespace has a file handle, as
// files of a disk have (open_by_handle_at(2), struct nsfs_file_handle of linux/nsfs.h).
type handles struct {
	own *os.File // a file of the namespaces' file system; nil: this kernel has no such handles
	// sure says that the kernel hides no namespace from the caller, so a handle without a namespace is that of one that
	// is gone.
	sure bool
}

var noHandles bool // for tests

// openHandles returns the zero value where namespaces do not open by handle.
func openHandles() handles {
	if noHandles || !idIsCookie() {
		return handles{}
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return handles{}
	}
	h := handles{own: own}
	id, err := Identify(own)
	number, errno := idOf(own)
	if err == nil && errno == 0 {
		id.Cookie = number
		var ns *os.File
		if ns, err = h.open(id); err == nil { // a filter of system calls may refuse it
			ns.Close()
		}
	}
	if err != nil || errno != 0 {
		own.Close()
		return handles{}
	}
	h.sure = seesAllNamespaces()
	return h
}

func (h handles) close() {
	if h.own != nil {
		h.own.Close()
	}
}

// lives reports whether the namespace is alive; known is false if the kernel does not say so.
func (h handles) lives(id Identity) (alive, known bool) {
	if h.own == nil || id.Cookie == 0 {
		return false, false
	}
	ns, err := h.open(id)
	if err == nil {
		ns.Close()
		return true, true
	}
	return false, h.sure && err == unix.ESTALE || err == errMoved
}

// open opens the namespace. The error is unix.ESTALE if there is none with this number and inode number, or if the
// caller may not see it, and errMoved if the identity's device is another one.
func (h handles) open(id Identity) (*os.File, error) {
	const kind = 0xf1 // FILEID_NSFS
	var handle [16]byte
	binary.NativeEndian.PutUint64(handle[:], id.Cookie)
	binary.NativeEndian.PutUint32(handle[8:], unix.CLONE_NEWNET)
	binary.NativeEndian.PutUint32(handle[12:], uint32(id.Inode))
	fd, err := unix.OpenByHandleAt(int(h.own.Fd()), unix.NewFileHandle(kind, handle[:]), unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	ns := os.NewFile(uintptr(fd), "network namespace "+id.Name())
	have, err := Identify(ns)
	if err == nil && (have.Device != id.Device || have.Inode != id.Inode) {
		err = errMoved
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// seesAllNamespaces reports whether the process has CAP_SYS_ADMIN in the machine's user namespace, and is in the
// machine's PID namespace, as later kernels want.
func seesAllNamespaces() bool {
	const firstUsers, firstPIDs = 0xEFFFFFFD, 0xEFFFFFFC // PROC_USER_INIT_INO, PROC_PID_INIT_INO (linux/proc_ns.h)
	users, err := identify(unix.AT_FDCWD, "/proc/self/ns/user")
	if err != nil || users.inode != firstUsers {
		return false
	}
	pids, err := identify(unix.AT_FDCWD, "/proc/self/ns/pid")
	if err != nil || pids.inode != firstPIDs {
		return false
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}
