package nstest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns a new pseudoterminal (pty(7)), which is nobody's controlling terminal. What is written to the master
// is what a user types; what the terminal shows is read from the master. Both are closed with the test.
func Terminal(t testing.TB) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(os.NewSyscallError("TIOCSPTLCK", err))
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(os.NewSyscallError("TIOCGPTPEER", errno))
	}
	terminal = os.NewFile(fd, "terminal")
	t.Cleanup(func() { terminal.Close() })
	return master, terminal
}
