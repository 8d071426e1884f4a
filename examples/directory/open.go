package directory

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// open walks to the directory, one descriptor after the other: what was looked at is what is opened.
func open(path string, trusted bool) (*os.Root, error) {
	real, err := filepath.Abs(path)
	for range 40 { // as many links as the kernel follows (MAXSYMLINKS of linux/namei.h)
		if err != nil {
			return nil, err
		}
		var dir *os.Root
		if dir, real, err = walk(real, trusted); dir != nil {
			return dir, nil
		}
	}
	return nil, cmp.Or(err, error(&fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}))
}

// walk opens the directory at a path without symbolic links. If there is a link that may be followed, walk returns no
// directory, and the path with the link's target in its place.
func walk(path string, trusted bool) (dir *os.Root, target string, err error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	defer func() { unix.Close(fd) }()
	at := place{path: "/"}
	names := strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
	var others error // who could have put something else here
	for i := 0; ; i++ {
		above := at.stat
		if err := unix.Fstat(fd, &at.stat); err != nil {
			return nil, "", &fs.PathError{Op: "stat", Path: at.path, Err: err}
		}
		if others = cmp.Or(others, at.check(above)); others != nil && trusted {
			return nil, "", others
		}
		switch at.stat.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFLNK:
			if others != nil {
				return nil, "", fmt.Errorf("%s: a symbolic link that another user can replace: name the directory that it leads to: %w", at.path, others)
			}
			link := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(fd, "", link)
			if err != nil {
				return nil, "", &fs.PathError{Op: "readlink", Path: at.path, Err: err}
			}
			if target = string(link[:n]); !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(at.path), target)
			}
			return nil, filepath.Join(append([]string{target}, names[i:]...)...), nil
		default:
			return nil, "", &fs.PathError{Op: "open", Path: at.path, Err: unix.ENOTDIR}
		}
		if i == len(names) {
			dir, err := reopen(fd, at.path)
			return dir, "", err
		}
		at.path = filepath.Join(at.path, names[i])
		next, err := unix.Openat(fd, names[i], unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, "", &fs.PathError{Op: "open", Path: at.path, Err: err}
		}
		unix.Close(fd)
		fd = next
	}
}

// place is a directory, or a symbolic link, on the way.
type place struct {
	path string
	stat unix.Stat_t
}

// check refuses what another user could have put here, and a directory in which another user could replace what root
// makes. Above is the directory that the place lies in; zero of the root directory.
func (p place) check(above unix.Stat_t) error {
	owned := p.stat.Uid == 0 || int(p.stat.Uid) == os.Geteuid()
	if isOutside(p.stat.Uid) { // which may be any user, the caller as well
		owned = above.Mode&0o022 == 0
	}
	closed := p.stat.Mode&unix.S_IFMT == unix.S_IFLNK || p.stat.Mode&0o022 == 0 || p.stat.Mode&unix.S_ISVTX != 0
	if owned && closed {
		return nil
	}
	return fmt.Errorf("%s (owner %d, mode %04o): others than root can replace what lies there: %w", p.path, p.stat.Uid, p.stat.Mode&0o7777, fs.ErrPermission)
}

// reopen returns the directory that is open as a Root with the path, and a slash, as its name. With the slash the
// kernel opens nothing but a directory: what another user has put there meanwhile, such as a pipe, would keep root
// waiting.
func reopen(fd int, path string) (*os.Root, error) {
	var wanted unix.Stat_t
	if err := unix.Fstat(fd, &wanted); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	dir, err := os.OpenRoot(strings.TrimSuffix(path, "/") + "/")
	if err != nil {
		return nil, err
	}
	have, err := stat(dir)
	if err == nil && (have.Dev != wanted.Dev || have.Ino != wanted.Ino) {
		err = fmt.Errorf("%s: replaced while it was opened: %w", path, fs.ErrPermission)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// outside is the number that the kernel shows for the users whom this user namespace does not have; -1: it has all.
var outside = sync.OnceValue(func() int64 {
	number, maps := int64(-1), ""
	if text, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		fmt.Sscan(string(text), &number)
	}
	if text, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		maps = string(text)
	}
	for line := range strings.Lines(maps) {
		var first, beyond, count int64
		if n, _ := fmt.Sscan(line, &first, &beyond, &count); n == 3 && first <= number && number < first+count {
			return -1 // a user of that number is one of the namespace
		}
	}
	return number
})

func isOutside(uid uint32) bool { return int64(uid) == outside() }
