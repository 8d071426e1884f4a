package kernel

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

const sysctlRoot = "/proc/sys/"

// readSysctls reads the values of the paths, with single blanks between their words. Paths that the kernel does
// not have are left out.
func readSysctls(s *netstate.Snapshot, paths []string) error {
	for _, path := range paths {
		var value [256]byte
		n, err := sysctl(path, unix.O_RDONLY, value[:], unix.Read)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if s.Sysctls == nil {
			s.Sysctls = map[string]string{}
		}
		s.Sysctls[path] = strings.Join(strings.Fields(string(value[:n])), " ")
	}
	return nil
}

// ReadOnlySysctls returns the paths that the caller cannot write, among those that the kernel has. Container engines
// mount /proc/sys read-only, all of it or with exceptions.
func ReadOnlySysctls(paths []string) ([]string, error) {
	var list []string
	for _, path := range paths {
		fd, err := unix.Open(sysctlRoot+path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			unix.Close(fd)
		case err == unix.EROFS || err == unix.EACCES || err == unix.EPERM:
			list = append(list, path)
		case err != unix.ENOENT:
			return nil, &fs.PathError{Op: "open", Path: sysctlRoot + path, Err: err}
		}
	}
	return list, nil
}

func writeSysctl(o netstate.SysctlSet) error {
	rtnl.Lock()
	defer rtnl.Unlock()
	_, err := sysctl(o.Path, unix.O_WRONLY, []byte(o.Value+"\n"), unix.Write) // an empty list needs a line, too
	return err
}

// sysctl reads or writes a value in one system call: the kernel takes each write for a whole value.
func sysctl(path string, flags int, value []byte, f func(int, []byte) (int, error)) (int, error) {
	fd, err := unix.Open(sysctlRoot+path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: sysctlRoot + path, Err: err}
	}
	defer unix.Close(fd)
	n, err := f(fd, value)
	if err != nil {
		return 0, &fs.PathError{Op: "read or write", Path: sysctlRoot + path, Err: err}
	}
	return n, nil
}
