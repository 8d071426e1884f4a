package phase1

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// checkIDs refuses the number that means "no change" to the kernel.
func checkIDs(o infra.Owner) error {
	if o.UID == 1<<32-1 || o.GID == 1<<32-1 {
		return &cache.FieldError{Field: "owner", Reason: fmt.Sprintf("%d is no user's or group's number", uint32(1<<32-1))}
	}
	return nil
}

// checkTunDevice refuses an owner who could not open the device that hands out taps.
func checkTunDevice(o infra.Owner) error {
	const device = "/dev/net/tun"
	info, err := os.Stat(device)
	if err != nil {
		return fmt.Errorf("taps: %w: want the device that creates taps (modprobe tun; in a container, pass the device in)", err)
	}
	if may(o, info, 6) {
		return nil
	}
	return fmt.Errorf("owner: user %d, group %d cannot open %s (%s), so the launcher could not use a tap: chmod 0666 %[3]s, or name a group that may: %[5]w",
		o.UID, o.GID, device, modeOf(info), fs.ErrPermission)
}

// checkReadable refuses a State in which the launcher could not read the record.
func checkReadable(o infra.Owner, state string) error {
	for path, bits := state, fs.FileMode(5); ; path, bits = filepath.Dir(path), 1 {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		if !may(o, info, bits) {
			return fmt.Errorf("state directory %s: user %d, group %d cannot enter %s (%s), so the launcher could not read the record: chmod o+rx %[4]s, or name a directory elsewhere: %[6]w",
				state, o.UID, o.GID, path, modeOf(info), fs.ErrPermission)
		}
		if path == "/" {
			return nil
		}
	}
}

// may says whether the file's mode grants the owner the bits of rwx. The owner is in the groups that this machine's
// user database says, besides its own.
func may(o infra.Owner, info fs.FileInfo, bits fs.FileMode) bool {
	stat := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	switch {
	case o.UID == 0:
		return true
	case o.UID == stat.Uid:
		return mode>>6&bits == bits
	case mode&bits == bits && mode>>3&bits == bits:
		return true // whatever the groups are
	case inGroup(o, stat.Gid):
		return mode>>3&bits == bits
	}
	return mode&bits == bits
}

func inGroup(o infra.Owner, gid uint32) bool {
	if o.GID != 0 && o.GID == gid {
		return true
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(o.UID), 10))
	if err != nil {
		return false
	}
	groups, err := u.GroupIds()
	if err != nil {
		return false
	}
	for _, g := range groups {
		if g == strconv.FormatUint(uint64(gid), 10) {
			return true
		}
	}
	return false
}

func modeOf(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("mode %04o, owner %d:%d", info.Mode().Perm(), stat.Uid, stat.Gid)
}
