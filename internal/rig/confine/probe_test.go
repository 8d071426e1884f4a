package confine

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// probe makes this program try what a launcher that a guest has taken over would try, print a line for each, and end.
const probe = "GUESTWIRE_CONFINE_PROBE"

// attempts are what no launcher needs.
var attempts = []struct {
	name string
	try  func() error
}{
	{"netlink", func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW) }},
	{"tcp", func() error { return socket(unix.AF_INET, unix.SOCK_STREAM) }},
	{"unix", func() error { return socket(unix.AF_UNIX, unix.SOCK_STREAM) }},
	{"program", func() error { return exec.Command("/bin/true").Run() }},
	{"shadow", func() error { return opened("/etc/shadow", os.O_RDONLY) }},
	{"passwd", func() error { return opened("/etc/passwd", os.O_RDONLY) }},
	{"sysctl", func() error { return opened("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY) }},
	{"file", func() error {
		f, err := os.CreateTemp("/var/tmp", "confine")
		if err == nil {
			f.Close()
			os.Remove(f.Name())
		}
		return err
	}},
	{"namespace", func() error { return unix.Unshare(unix.CLONE_NEWUTS) }},
	{"memfd", func() error {
		fd, err := unix.MemfdCreate("confine", 0)
		unix.Close(fd)
		return err
	}},
	{"kill", func() error { return unix.Kill(os.Getpid(), 0) }},
}

func socket(domain, kind int) error {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func opened(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// beProbe prints what succeeds, and what is denied.
func beProbe() {
	var can, cannot []string
	for _, a := range attempts {
		if err := a.try(); err == nil {
			can = append(can, a.name)
		} else if os.IsPermission(err) {
			cannot = append(cannot, a.name)
		} else {
			fmt.Printf("%s: %v\n", a.name, err)
		}
	}
	fmt.Printf("can: %s\ncannot: %s\n", strings.Join(can, " "), strings.Join(cannot, " "))
}
