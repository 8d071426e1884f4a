package phase1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/tap"
)

// checkIDs refuses the number that means "no change" to the kernel, and users and groups that this user namespace does
// not have, to whom no tap can be given.
func checkIDs(o infra.Owner) error {
	if o.UID == 1<<32-1 || o.GID == 1<<32-1 {
		return &cache.FieldError{Field: "owner", Reason: fmt.Sprintf("%d is no user's or group's number", uint32(1<<32-1))}
	}
	return errors.Join(checkMapped("owner.uid", "/proc/self/uid_map", o.UID), checkMapped("owner.gid", "/proc/self/gid_map", o.GID))
}

// checkTaps refuses an owner who could not open the devices of a tap, and a context in which no tap can be made.
func checkTaps(spec infra.Spec) error {
	err := checkDevice(spec.Owner, tap.Device, "taps", "the device that creates taps", "tun", "use a tap")
	return errors.Join(err, checkContext(spec.Owner.SELinux))
}

// checkVhost refuses an owner who could not open the device of vhost, if the guest's network device is to use it.
func checkVhost(spec infra.Spec) error {
	if spec.Device.Driver != "vhost" {
		return nil
	}
	err := checkDevice(spec.Owner, "/dev/vhost-net", "device.driver vhost", "the device of vhost", "vhost_net", "start the VM with vhost")
	if err != nil {
		err = fmt.Errorf("%w; or device.driver qemu", err)
	}
	return err
}

// checkDevice refuses an owner who cannot open the device. The other arguments are for the message: the part of the
// configuration that needs the device, what the device is, its kernel module, and what the launcher could not do.
func checkDevice(o infra.Owner, device, part, what, module, purpose string) error {
	info, err := os.Stat(device)
	if err != nil {
		return fmt.Errorf("%s: %w: want %s (modprobe %s; in a container, --device %s)", part, err, what, module, device)
	}
	if may(o, info, 6) {
		return nil
	}
	return fmt.Errorf("owner: user %d, group %d cannot open %s (%s), so the launcher could not %s: chmod 0666 %[3]s, or name a group that may: %[6]w",
		o.UID, o.GID, device, modeOf(info), purpose, fs.ErrPermission)
}

// checkContext refuses a context that this kernel does not know, and one that the policy does not let Setup take on.
func checkContext(context string) error {
	if context == "" {
		return nil
	}
	err := kernel.TryContext(context)
	if errors.Is(err, kernel.ErrNoSELinux) || errors.Is(err, unix.EINVAL) {
		return &cache.FieldError{Field: "owner.selinux", Reason: err.Error() + ": leave the field empty, or name the launcher's context (ps -Z)"}
	}
	if err != nil {
		return fmt.Errorf("owner.selinux: %w", err)
	}
	return nil
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
