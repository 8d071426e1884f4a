package launch_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1/launch"
)

// TestLaunchTerminal: a command that has the caller's terminal as its standard files can use the terminal as QEMU's
// -nographic does. It cannot push input that the caller's shell would read, nor make the terminal its own.
func TestLaunchTerminal(t *testing.T) {
	const helper = "GUESTWIRE_TEST_TERMINAL"
	switch os.Getenv(helper) {
	case "caller": // the terminal is its controlling terminal
		report := os.NewFile(3, "report")
		fmt.Fprintln(report, "caller: push:", pushInput(0))
		cmd := exec.Command(os.Args[0], "-test.run=^TestLaunchTerminal$")
		cmd.Env = append(os.Environ(), helper+"=command")
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{report}
		if err := launch.Start(cmd, nil, nstest.Owner()); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return
	case "command":
		attackTerminal(os.NewFile(3, "report"))
		useTerminal(t)
		return
	}
	nstest.Need(t)
	self := nstest.Dir(t) + "/launch.test" // where every user can execute it
	nstest.Run(t, "install", "-m", "755", os.Args[0], self)
	master, terminal := nstest.Terminal(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	caller := exec.Command(self, "-test.run=^TestLaunchTerminal$")
	caller.Env = append(os.Environ(), helper+"=caller")
	caller.Stdin, caller.Stdout, caller.Stderr, caller.ExtraFiles = terminal, terminal, terminal, []*os.File{w}
	caller.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	err = caller.Start()
	w.Close()
	terminal.Close() // a read from the master ends when the caller has ended
	if err != nil {
		t.Fatal(err)
	}
	screen := bufio.NewReader(master)
	for line := ""; err == nil && !strings.HasSuffix(line, "raw\r\n"); {
		line, err = screen.ReadString('\n')
		t.Logf("the terminal shows %q, %v", line, err)
	}
	fmt.Fprint(master, "typed\x03") // in raw mode Ctrl-C is for the command
	report, errReport := io.ReadAll(r)
	if err := errors.Join(err, errReport, caller.Wait()); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(report)) {
		who, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		attack, result, _ := strings.Cut(what, ": ")
		want := "operation not permitted"
		if attack == "open /dev/tty" {
			want = "no such device or address"
		}
		// Since Linux 6.2, TIOCSTI is for root alone where dev.tty.legacy_tiocsti is 0.
		if good := result == want || attack == "push" && result == "input/output error"; good != (who == "command") {
			t.Errorf("%s: %s: %s", who, attack, result)
		}
	}
	if n := strings.Count(string(report), "command: "); n != 10 {
		t.Errorf("%d attempts of the command:\n%s", n, report)
	}
}

// attackTerminal tries to get at the terminal of the caller's session.
func attackTerminal(report io.Writer) {
	tty, err := unix.Open("/dev/tty", unix.O_RDWR, 0)
	var errno unix.Errno
	errors.As(err, &errno)
	fmt.Fprintln(report, "command: open /dev/tty:", err)
	if err == nil {
		fmt.Fprintln(report, "command: push:", pushInput(tty))
	}
	for fd := range 3 {
		fmt.Fprintln(report, "command: push:", pushInput(fd))
		fmt.Fprintln(report, "command: take the terminal:", unix.IoctlSetInt(fd, unix.TIOCSCTTY, 0))
		fmt.Fprintln(report, "command: steal the terminal:", unix.IoctlSetInt(fd, unix.TIOCSCTTY, 1))
	}
}

// pushInput pushes a letter into the input of the terminal, as if it was typed (ioctl_tty(2)).
func pushInput(fd int) error {
	letter := byte('#')
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&letter)))
	if errno != 0 {
		return errno
	}
	return nil
}

// useTerminal reads from the terminal in raw mode.
func useTerminal(t *testing.T) {
	mode, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	raw := *mode
	raw.Lflag &^= unix.ICANON | unix.ISIG | unix.ECHO
	if err := unix.IoctlSetTermios(0, unix.TCSETSF, &raw); err != nil { // which forgets what the caller has pushed
		t.Fatal(err)
	}
	fmt.Println("raw")
	text := make([]byte, len("typed\x03"))
	if _, err := io.ReadFull(os.Stdin, text); err != nil || string(text) != "typed\x03" {
		t.Errorf("%q, %v", text, err)
	}
	if err := unix.IoctlSetTermios(0, unix.TCSETS, mode); err != nil {
		t.Error(err)
	}
}
