package netns

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoName is the error of Named for a string that is no namespace's name.
var ErrNoName = errors.New("no network namespace's name")

// Named returns the identity whose Name is name: BOOT-INODE-COOKIE, such as 9c1e22f0-4026532281-17. BOOT is the first 8
// characters of the boot's id, INODE the number of the namespace's inode, COOKIE its cookie; both are decimal. If BOOT
// is that of this boot, BootID is the whole id, otherwise BOOT alone. The error is ErrNoName, or says why this boot is
// not known.
func Named(name string) (Identity, error) {
	parts := strings.Split(name, "-")
	if len(parts) != 3 || len(parts[0]) != bootPart {
		return Identity{}, fmt.Errorf("%q is %w", name, ErrNoName)
	}
	inode, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return Identity{}, fmt.Errorf("%q is %w: %w", name, ErrNoName, err)
	}
	cookie, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return Identity{}, fmt.Errorf("%q is %w: %w", name, ErrNoName, err)
	}
	id := Identity{BootID: parts[0], Inode: inode, Cookie: cookie}
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	if boot[:min(bootPart, len(boot))] == id.BootID {
		id.BootID = boot
	}
	// The namespaces of a boot are files of one file system.
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &stat); err != nil {
		return Identity{}, fmt.Errorf("network namespace's name %q: %w", name, err)
	}
	id.Device = stat.Dev
	return id, nil
}

// bootPart is how much of the BootID the name has.
const bootPart = 8
