package launch

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
)

// showLinks makes the calling thread see the links of its network namespace in /sys, as ip-netns(8) does, in a mount
// namespace of its own. What is mounted below /sys, such as cgroups, is there as before. Where the caller may not
// mount, as in most containers, /sys stays that of the caller's network namespace.
func showLinks() {
	var had unix.Statfs_t
	if unix.Statfs("/sys", &had) != nil || had.Type != unix.SYSFS_MAGIC || unix.Unshare(unix.CLONE_NEWNS) != nil {
		return
	}
	// What others mount and unmount later, they do here, too, except on the /sys that is covered below, and not the
	// reverse.
	if unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") != nil {
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
