package kernel

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

const sysctlRoot = "/proc/sys/"

// readSysctls reads the values of the paths that the dump of links has not, with single blanks between their words.
// Paths that the kernel does not have are left out. Those to set are opened for writing, too: ReadOnly has the ones
// that the caller cannot write. Container engines mount /proc/sys read-only, all of it or with exceptions.
func readSysctls(s *netstate.Snapshot, read, set []string) error {
	for i, path := range slices.Concat(set, read) {
		if _, has := s.Sysctls[path]; has {
			continue
		}
		if link := ofLink6(path); link != "" {
			if _, there := s.Named(link); !there {
				continue
			}
		}
		var value [256]byte
		flags := unix.O_RDONLY
		if i < len(set) {
			flags = unix.O_RDWR
		}
		n, err := sysctl(path, flags, value[:], unix.Read)
		if flags == unix.O_RDWR && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			s.ReadOnly = append(s.ReadOnly, path)
			n, err = sysctl(path, unix.O_RDONLY, value[:], unix.Read)
		}
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

// ReadSysctls reads sysctls of the calling thread's namespace that the caller may set, as Snapshot does.
func ReadSysctls(s *netstate.Snapshot, set []string) error { return readSysctls(s, nil, set) }

// settings6 are the indices of a link's IPv6 sysctls in what a dump of links says (DEVCONF_*, linux/ipv6.h).
var settings6 = map[string]int{"forwarding": 0, "accept_ra": 3, "seg6_enabled": 44, "rpl_seg_enabled": 51, "force_forwarding": 59}

// ofLink6 is the link of an IPv6 sysctl; empty: it is no link's.
func ofLink6(path string) string {
	rest, is := strings.CutPrefix(path, "net/ipv6/conf/")
	link, _, _ := strings.Cut(rest, "/")
	if !is || link == "all" || link == "default" {
		return ""
	}
	return link
}

// addSettings6 adds those of the sysctls that a link's message has, in an array of 4 octets each. An older kernel has a
// shorter one.
func addSettings6(s *netstate.Snapshot, link string, m []byte, sysctls []string) {
	for _, path := range sysctls {
		index, is := settings6[path[strings.LastIndexByte(path, '/')+1:]]
		if !is || ofLink6(path) != link {
			continue
		}
		if settings := attribute(m, unix.SizeofIfInfomsg, unix.IFLA_AF_SPEC, unix.AF_INET6, inet6Conf); len(settings) >= 4*(index+1) {
			if s.Sysctls == nil {
				s.Sysctls = map[string]string{}
			}
			s.Sysctls[path] = strconv.Itoa(int(int32(netlink.U32(settings[4*index:]))))
		}
	}
}

// attribute is the attribute at the end of the path of nested ones, which begin at octet n; nil: there is none.
func attribute(b []byte, n int, path ...uint16) (value []byte) {
	_ = netlink.EachAttribute(b, n, func(kind uint16, v []byte) error {
		if kind == path[0] {
			value = v
		}
		return nil
	})
	if len(path) > 1 {
		return attribute(value, 0, path[1:]...)
	}
	return value
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
