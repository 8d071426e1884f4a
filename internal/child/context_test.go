package child

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestForked: the child makes the calls in order until one fails, the error says which, and the program notices nothing
// of the child: no signal, no file, no process.
func TestForked(t *testing.T) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	path := t.TempDir() + "/file"
	write := func(calls *Calls, text string) {
		calls.list = append(calls.list, systemCall{"write " + text, unix.SYS_WRITE, [3]uintptr{opened, calls.text(text), uintptr(len(text))}, 0})
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	calls := CallsOn(path)
	write(calls, "abc")
	write(calls, "def")
	calls.Ioctl("TUNSETOWNER", unix.TUNSETOWNER, 0)
	write(calls, "ghi")
	defer runtime.KeepAlive(calls)
	p, err := inChild(calls.list, nil)
	if err != nil || p != (progress{call: 3, errno: uintptr(unix.ENOTTY)}) {
		t.Errorf("%+v, %v; want ENOTTY of call 3", p, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "abcdef" {
		t.Errorf("the child has written %q, %v", text, err)
	}
	if err := calls.inThread(); !errors.Is(err, unix.ENOTTY) || !strings.HasPrefix(err.Error(), "TUNSETOWNER: ") {
		t.Errorf("the same calls in this process: %v", err)
	}
	if err := CallsOn(path + "/none").inThread(); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file that is not there: %v", err)
	}
	select {
	case s := <-children:
		t.Errorf("the child sent %v", s)
	default:
	}
}

// TestForkedOften: children and the runtime do not get into each other's way while it collects garbage, grows stacks,
// preempts and starts threads.
func TestForkedOften(t *testing.T) {
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					grow(100, make([]byte, 1<<12))
					runtime.GC()
				}
			}
		})
	}
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for range 100 {
				calls := CallsOn("/dev/null")
				calls.open("/nowhere")
				p, err := inChild(calls.list, nil)
				runtime.KeepAlive(calls)
				if err != nil || p != (progress{call: 1, errno: uintptr(unix.ENOENT)}) {
					t.Errorf("%+v, %v; want ENOENT of call 1", p, err)
					return
				}
			}
		})
	}
	forks.Wait()
	close(stop)
	busy.Wait()
}

func grow(depth int, b []byte) byte {
	var frame [256]byte
	if depth == 0 {
		return b[0]
	}
	frame[depth%256] = b[depth]
	return grow(depth-1, b) + frame[0]
}

// TestRules: an error names the rules that the policy lacks.
func TestRules(t *testing.T) {
	const context = "system_u:system_r:svirt_t:s0:c1,c2"
	calls := CallsOn("/dev/net/tun")
	calls.Ioctl("TUNSETIFF", unix.TUNSETIFF, 0)
	write := systemCall{number: unix.SYS_WRITE}
	for _, c := range []struct {
		call  systemCall
		errno unix.Errno
		want  string
	}{
		{write, unix.EACCES, "svirt_t:process dyntransition;"},
		{write, unix.EINVAL, ""},
		{calls.list[0], unix.EACCES, "allow svirt_t tun_tap_device_t:chr_file { open read write ioctl };"},
		{calls.list[1], unix.EACCES, "allow svirt_t self:tun_socket { create relabelfrom relabelto };"},
		{calls.list[1], unix.EPERM, "allow svirt_t self:capability net_admin;"},
		{calls.list[1], unix.EBUSY, ""},
	} {
		if have := rulesFor(context, c.call, c.errno); !strings.Contains(have, c.want) || (have == "") != (c.want == "") {
			t.Errorf("%s, %v: %q, want %q", c.call.name, c.errno, have, c.want)
		}
	}
}

func TestMain(m *testing.M) { nstest.Main(m) }
