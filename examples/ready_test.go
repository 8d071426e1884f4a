package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// manager is the socket of a service manager.
type manager int

func listenAsManager(t *testing.T, name string) manager {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1), unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return manager(fd)
}

// received is the next message, and the process that has sent it; empty: there is none.
func (m manager) received(t *testing.T) (message string, pid int) {
	t.Helper()
	text, control := make([]byte, 256), make([]byte, 256)
	n, rights, _, _, err := unix.Recvmsg(int(m), text, control, 0)
	if err == unix.EAGAIN {
		return "", 0
	}
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := unix.ParseSocketControlMessage(control[:rights])
	if err != nil || len(parsed) != 1 {
		t.Fatalf("%v, %v", parsed, err)
	}
	from, err := unix.ParseUnixCredentials(&parsed[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(text[:n]), int(from.Pid)
}

// greets is in QEMU's place: its monitor answers, and it runs until it is asked to end.
const greets = `for a; do case $a in socket,id=launcher-monitor,fd=*) fd=${a##*=};; esac; done
eval "echo '{\"QMP\": {}}' >&$fd"
trap 'kill $!; exit 0' TERM
sleep 600 &
wait`

// TestReady: guestwire-agent run tells the service manager when the guest is served, and QEMU runs. If one of them
// fails at its start, run says why, fails, and tells nothing. The message is the agent's own: a manager trusts no other
// process.
func TestReady(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	qemu := func(script ...string) []string {
		return append([]string{launcher, "qemu", "-state", n.State, "--"}, script...)
	}
	for _, c := range []struct {
		name    string
		command []string
		fails   string // what run says; empty: it succeeds
	}{
		{"serve", []string{launcher, "serve", "-state", n.State}, ""},
		{"QEMU", qemu("sh", "-c", greets, "qemu"), ""},
		{"no record", []string{launcher, "serve", "-state", n.State + "x"}, "run Phase1's Setup"},
		{"no resolv.conf", []string{launcher, "serve", "-state", n.State, "-resolv-conf", "/absent"}, "/absent: no such file"},
		{"no QEMU", qemu("/absent"), "/absent: no such file"},
		{"QEMU without its disk", qemu("sh", "-c", "echo no disk >&2; exit 3"), "no disk"},
	} {
		for i, socket := range []string{filepath.Join(nstest.Dir(t), "notify"), "@" + n.Pod.Name} {
			name := fmt.Sprintf("%s at %s", c.name, socket)
			if i > 0 && c.name != "serve" {
				continue
			}
			m, temporary := listenAsManager(t, socket), nstest.Dir(t)
			args := []string{"run", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", strconv.Itoa(nstest.LauncherUID), "--"}
			cmd := exec.CommandContext(t.Context(), nstest.Program(t, "examples/guestwire-agent"), append(args, c.command...)...)
			cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "TMPDIR="+temporary)
			var said nstest.Output
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			if c.fails != "" {
				if err := <-ended; err == nil || !strings.Contains(said.String(), c.fails) {
					t.Errorf("%s: %v, want %q in\n%s", name, err, c.fails, said.String())
				}
				if message, _ := m.received(t); message != "" {
					t.Errorf("%s: the manager is told %q", name, message)
				}
			} else {
				nstest.Eventually(t, func() error {
					message, pid := m.received(t)
					if message == "" {
						return fmt.Errorf("%s: nothing is said to the manager:\n%s", name, said.String())
					}
					if message != "READY=1" || pid != cmd.Process.Pid {
						t.Errorf("%s: %q by process %d, want READY=1 by %d", name, message, pid, cmd.Process.Pid)
					}
					return nil
				})
				if out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), "status", "-state", n.State); status > 0 && status != 8 || !strings.Contains(out, "(guestwire-launcher) has eth0-dhcp open") {
					t.Errorf("%s: the guest is not served yet: %d\n%s", name, status, out)
				}
				if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), <-ended); err != nil {
					t.Errorf("%s: %v\n%s", name, err, said.String())
				}
				if message, _ := m.received(t); message != "" {
					t.Errorf("%s: the manager is told %q as well", name, message)
				}
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
		}
	}
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
}
