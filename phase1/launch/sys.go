package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/etcnetns"
	"github.com/guestwire/guestwire/internal/netns"
)

// ownFiles makes the calling thread see the files of its network namespace ns, as ip-netns(8) does, in a mount
// namespace of its own: its links in /sys, and in /etc the files of /etc/netns/NAME. Where the caller may not mount, as
// in most containers, /sys stays that of the caller's network namespace. Files in /etc/netns/NAME are an error then.
func ownFiles(ns *os.File) error {
	var of unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &of); err != nil {
		return &fs.PathError{Op: "stat", Path: ns.Name(), Err: err}
	}
	config := etcnetns.Dir(of.Ino)
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		// What others mount and unmount later, they do here, too, except on what is covered below, and not the reverse.
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	}
	if err == nil {
		showLinks()
	}
	if config == "" {
		return nil
	}
	var files []os.DirEntry
	if err == nil {
		files, err = os.ReadDir(config)
	}
	for _, f := range files {
		over := filepath.Join("/etc", f.Name())
		if _, missing := os.Lstat(over); errors.Is(missing, fs.ErrNotExist) {
			continue
		}
		if failed := unix.Mount(filepath.Join(config, f.Name()), over, "", unix.MS_BIND, ""); err == nil && failed != nil {
			err = &fs.PathError{Op: "mount on", Path: over, Err: failed}
		}
	}
	if err != nil {
		return fmt.Errorf("put the files of %s over those of /etc, as ip netns exec does: %w: correct the file there; or call guestwire-agent exec by nsenter --net=PATH, without -netns, and the command gets the machine's files", config, err)
	}
	return nil
}

// showLinks mounts the links of the calling thread's network namespace on /sys. What is mounted below /sys, such as
// cgroups, is there as before.
func showLinks() {
	var had unix.Statfs_t
	if unix.Statfs("/sys", &had) != nil || had.Type != unix.SYSFS_MAGIC {
		return
	}
	paths, err := mountsOn("/sys")
	if err != nil {
		return
	}
	hidden := map[string]int{} // the mounts' roots, by path
	defer func() {
		for _, fd := range hidden {
			unix.Close(fd)
		}
	}()
	for _, path := range paths {
		if hidden[path], err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			delete(hidden, path)
			return
		}
	}
	const kept = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC // statfs(2) has the same numbers
	if unix.Mount("sysfs", "/sys", "sysfs", uintptr(had.Flags)&kept, "") != nil {
		return
	}
	for path, fd := range hidden {
		if unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), path, "", unix.MS_BIND|unix.MS_REC, "") != nil {
			_ = unix.Unmount("/sys", unix.MNT_DETACH) // it is the thread's own
			return
		}
	}
}

// mountsOn returns the paths of the mounts that lie on the mount at a path, and not on each other.
func mountsOn(path string) (on []string, err error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	id := ""
	for line := range strings.Lines(string(text)) { // ID PARENT DEVICE ROOT PATH ... (proc_pid_mountinfo(5))
		if f := strings.Fields(line); f[4] == path {
			id = f[0] // the last one lies on top
		}
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[1] == id {
			on = append(on, netns.MountPath(f[4]))
		}
	}
	return on, nil
}
