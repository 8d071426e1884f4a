package tap

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// The minor numbers of the devices of taps and of vhost (Documentation/admin-guide/devices.txt), whose major number is
// 10.
const (
	TunMinor   = 200
	VhostMinor = 238
)

// CheckDevice says what lies at the path, and how to repair that, if it is another file than the character device with
// the minor number: unix.ENODEV. A path at which nothing lies is no error.
func CheckDevice(path string, minor uint32) error {
	var at unix.Stat_t
	if err := unix.Stat(path, &at); err != nil || at.Mode&unix.S_IFMT == unix.S_IFCHR && at.Rdev == unix.Mkdev(10, minor) {
		return nil
	}
	kinds := map[uint32]string{unix.S_IFREG: "a regular file", unix.S_IFDIR: "a directory", unix.S_IFCHR: "another device"}
	return fmt.Errorf("%s is %s: %w: rm -d %[1]s; mknod -m 666 %[1]s c 10 %[4]d (in a container, --device %[1]s)",
		path, cmp.Or(kinds[at.Mode&unix.S_IFMT], "a file of another kind"), unix.ENODEV, minor)
}
