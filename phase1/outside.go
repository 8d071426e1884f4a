package phase1

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/guestwire/guestwire/internal/idmap"
)

// An owner from outside is a user whom this user namespace does not have: the kernel shows all such users as one number
// (overflowuid, 65534). In a user namespace the machine's root is one of them, to whom / and /run belong, and no
// capability of the namespace is good for their files. A process of the namespace can never be one of them. But any
// user of the machine may be, and the machine's root cannot be distinguished from the others. So:
//
//   - the directories that Phase1 writes to, State and Dir, have to be of this namespace's root;
//   - above them, and for symbolic links on the way, an owner from outside is as good as root, if no other user can
//     write to the directory where the file lies. Then the path was made by the owners of the directories on it, whom
//     the caller trusts by naming it. Without these owners no path would do, as / is one of their directories;
//   - in a directory that others can write to, such as /tmp, any user of the machine could have made the file: it is
//     refused, and so is each directory above that others can write to without the sticky bit.

// outsideUID is the number that the kernel shows for users from outside. Only is false if no file with this number is
// known to be of such a user: this user namespace has a user of that number, or is the machine's.
var outsideUID = sync.OnceValues(func() (uid uint32, only bool) {
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, false
	}
	ids, err := idmap.Read("/proc/self/uid_map")
	return uint32(number), err == nil && !ids.Has(uint32(number))
})

func isOutside(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	uid, only := outsideUID()
	return ok && only && stat.Uid == uid
}

// mayBeOutside reports whether files of users from outside have the number of this user, whom the user namespace has:
// then the two cannot be distinguished.
func mayBeOutside(uid uint32) bool {
	ids, err := idmap.Read("/proc/self/uid_map")
	number, _ := outsideUID()
	return err == nil && !ids.All() && uid == number && uid != 0
}

// checkTrusted accepts a file that root owns. It also accepts a file of an unmapped user, if only that user or root can
// write to its directory. A file with one of the mode bits is refused.
func checkTrusted(path string, info fs.FileInfo, bits fs.FileMode) error {
	if !isOutside(info) || info.Mode().Perm()&bits != 0 {
		return checkRootOnly(path, info, bits)
	}
	if path == "/" {
		return nil
	}
	above, err := os.Lstat(filepath.Dir(path))
	if err == nil && above.Mode().Perm()&0o022 != 0 {
		err = fmt.Errorf("%s: any user outside of this user namespace may have put it into %s, which others can write to: name another path: %w", path, filepath.Dir(path), fs.ErrPermission)
	}
	return err
}
