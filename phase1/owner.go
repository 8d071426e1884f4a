package phase1

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/child"
	"github.com/guestwire/guestwire/internal/idmap"
	"github.com/guestwire/guestwire/internal/tap"
)

// resolvedOwner is the owner of a configuration.
type resolvedOwner struct {
	infra.Owner             // with the numbers of this user namespace
	given       infra.Owner // as the configuration has it
}

// String says both, if they can differ.
func (o resolvedOwner) String() string {
	if !o.given.Inside && o.GID == 0 {
		return fmt.Sprintf("user %d (no group named)", o.UID)
	}
	if !o.given.Inside {
		return fmt.Sprintf("user %d, group %d", o.UID, o.GID)
	}
	text := fmt.Sprintf("user %d inside, %d on the node", o.given.UID, o.UID)
	if o.GID != 0 {
		text += fmt.Sprintf("; group %d inside, %d on the node", o.given.GID, o.GID)
	}
	return text
}

// resolveOwner returns the configuration's owner with the numbers of this user namespace.
func (c request) resolveOwner(ctx context.Context) (resolvedOwner, error) {
	o := resolvedOwner{Owner: c.Owner, given: c.Owner}
	o.Inside = false
	if !c.Owner.Inside {
		return o, idmap.CheckOwner(o.Owner)
	}
	n, release, err := c.openOwn()
	if err != nil {
		return o, err
	}
	defer release()
	if _, err := n.identify(); err != nil {
		return o, err
	}
	if err := checkRoot(); err != nil {
		return o, fmt.Errorf("namespace %s: %w", n.NetNS.Name(), err)
	}
	_, err = child.InUserNamespace(ctx, n.NetNS, func(pid int) error {
		uid, errUID := onNode("owner.uid", fmt.Sprintf("/proc/%d/uid_map", pid), o.UID)
		gid, errGID := onNode("owner.gid", fmt.Sprintf("/proc/%d/gid_map", pid), o.GID)
		if o.UID = uid; o.GID != 0 {
			o.GID = gid
			errUID = errors.Join(errUID, errGID)
		}
		return errUID
	})
	if errors.Is(err, child.ErrNoUserNamespace) {
		return o, fmt.Errorf("owner.inside: namespace %s: %w: call Setup in a user namespace around it", n.NetNS.Name(), err)
	}
	if errors.Is(err, unix.EPERM) {
		return o, fmt.Errorf("owner.inside: namespace %s: %w: it needs CAP_SYS_ADMIN", n.NetNS.Name(), err)
	}
	if err != nil {
		return o, err
	}
	return o, idmap.CheckOwner(o.Owner)
}

// onNode is the number that a user or group of another user namespace has in this one. The file is the uid_map or
// gid_map of a process there.
func onNode(field, path string, id uint32) (uint32, error) {
	mapped, err := idmap.Read(path)
	if err != nil {
		return id, err
	}
	number, ok := mapped.Outside(id)
	if !ok {
		return id, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d is not mapped in the user namespace that owns the network namespace, which has %v: name one of these, or leave owner.inside out if %[1]d is the number on the node", id, mapped)}
	}
	return number, nil
}

// checkTaps refuses an owner who could not open the devices of a tap, and a context in which no tap can be made.
func checkTaps(o resolvedOwner) error {
	err := checkDevice(o, tap.Device, tap.TunMinor, "taps", "the device that creates taps", "tun", "use a tap")
	return errors.Join(err, checkContext(o.SELinux))
}

// checkVhost refuses an owner who could not open the device of vhost, if the guest's network device uses it.
func checkVhost(o resolvedOwner, device cache.Device) error {
	if device.Driver != "vhost" {
		return nil
	}
	err := checkDevice(o, "/dev/vhost-net", tap.VhostMinor, "device.driver vhost", "the device of vhost", "vhost_net", "start the VM with vhost")
	if err != nil {
		err = fmt.Errorf("%w; or device.driver qemu", err)
	}
	return err
}

// checkDevice refuses an owner who cannot open the device, and another file in its place. The other arguments are for
// the message: the part of the
// configuration that needs the device, what the device is, its kernel module, and what the launcher could not do.
func checkDevice(o resolvedOwner, device string, minor uint32, part, what, module, purpose string) error {
	if o.OwnDevices {
		return nil
	}
	info, err := os.Stat(device)
	if err != nil {
		return fmt.Errorf("%s: %w: want %s (modprobe %s; in a container, --device %s)", part, err, what, module, device)
	}
	if err := tap.CheckDevice(device, minor); err != nil {
		return fmt.Errorf("%s: %w", part, err)
	}
	if may(o.Owner, device, info, 6) {
		return nil
	}
	way := "chmod 0666 " + device
	if info.Mode().Perm()&0o060 == 0o060 {
		way += ", or name a group above 0 that may (owner.gid, guestwire-agent -gid)"
	}
	return fmt.Errorf("owner: %w: %v cannot open %s (%s), so the launcher could not %s: %s", fs.ErrPermission, o, device, modeOf(info), purpose, way)
}

// checkContext refuses a context that this kernel does not know, and one that the policy does not let Setup take on.
func checkContext(context string) error {
	if context == "" {
		return nil
	}
	err := child.TryContext(context)
	if errors.Is(err, child.ErrNoSELinux) || errors.Is(err, unix.EINVAL) {
		return &cache.FieldError{Field: "owner.selinux", Reason: err.Error() + ": leave the field empty, or name the launcher's context (ps -Z)"}
	}
	if err != nil {
		return fmt.Errorf("owner.selinux: %w", err)
	}
	return nil
}

// checkReadable refuses a State in which the launcher could not read the record.
func checkReadable(o resolvedOwner, state string) error {
	for path, bits := state, fs.FileMode(5); ; path, bits = filepath.Dir(path), 1 {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		if !may(o.Owner, path, info, bits) {
			return fmt.Errorf("state directory %s: %w: %v cannot enter %s (%s), so the launcher could not read the record: chmod o+rx %s, or name a directory elsewhere",
				state, fs.ErrPermission, o, path, modeOf(info), infra.ShellWord(path))
		}
		if path == "/" {
			return nil
		}
	}
}

// may reports whether the file's mode and access control list grant the owner the bits of rwx. The owner is in the
// groups that this machine's user database says, in addition to its own. Source: acl(5), ACCESS CHECK ALGORITHM.
func may(o infra.Owner, path string, info fs.FileInfo, bits fs.FileMode) bool {
	stat := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	switch {
	case o.UID == 0:
		return true
	case o.UID == stat.Uid:
		return mode>>6&bits == bits
	}
	list := accessList(path)
	for _, e := range list {
		if e.Tag == aclUser && e.ID == o.UID {
			return mode>>3&fs.FileMode(e.Permissions)&bits == bits // with a list, the group's bits are its mask
		}
	}
	if list == nil {
		if mode&bits == bits && mode>>3&bits == bits {
			return true // whatever the groups are
		}
		list = []aclEntry{{Tag: aclFileGroup, Permissions: 7}}
	}
	isMember := false
	for _, e := range list {
		if e.Tag == aclFileGroup {
			e.ID = stat.Gid
		}
		if e.Tag != aclFileGroup && e.Tag != aclGroup || !inGroup(o, e.ID) {
			continue
		}
		if mode>>3&fs.FileMode(e.Permissions)&bits == bits {
			return true
		}
		isMember = true
	}
	return !isMember && mode&bits == bits
}

// aclEntry is an entry of an access control list, as the kernel stores it (include/uapi/linux/posix_acl_xattr.h).
type aclEntry struct {
	Tag, Permissions uint16
	ID               uint32
}

const (
	aclUser      = 2
	aclFileGroup = 4
	aclGroup     = 8
)

// accessList returns the file's access control list; nil: its mode says all.
func accessList(path string) []aclEntry {
	const name, version = "system.posix_acl_access", 4 // octets of it at the start
	size, err := unix.Getxattr(path, name, nil)
	if err != nil || size == 0 { // most files have none
		return nil
	}
	text := make([]byte, 1<<16)
	n, err := unix.Getxattr(path, name, text)
	if err != nil || n < version {
		return nil
	}
	list := make([]aclEntry, (n-version)/binary.Size(aclEntry{}))
	if _, err := binary.Decode(text[version:n], binary.LittleEndian, list); err != nil {
		return nil
	}
	return list
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
	return err == nil && slices.Contains(groups, strconv.FormatUint(uint64(gid), 10))
}

func modeOf(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("mode %04o, owner %d:%d", info.Mode().Perm(), stat.Uid, stat.Gid)
}
