package nstest

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// Grant lets the user read and write the file by an entry of its access control list, as "setfacl -m u:UID:rw" does.
// The file's group and all others get nothing.
func Grant(t testing.TB, path string, uid int) {
	t.Helper()
	list := []byte{2, 0, 0, 0} // the version
	for _, e := range []struct {
		tag, permissions uint16
		id               uint32
	}{ // owner, user, group, mask, others
		{1, 6, 1<<32 - 1}, {2, 6, uint32(uid)}, {4, 0, 1<<32 - 1}, {16, 6, 1<<32 - 1}, {32, 0, 1<<32 - 1},
	} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.permissions)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	if err := unix.Setxattr(path, "system.posix_acl_access", list, 0); err != nil {
		t.Fatal(err)
	}
}
