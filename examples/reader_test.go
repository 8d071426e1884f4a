package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// A reader is what becomes of the other end of a program's standard output and standard error.
type reader struct {
	name string
	full bool                                              // it takes nothing from the start
	open func(t *testing.T) (outputs *os.File, end func()) // end is called at the end of the test
}

var readers = []reader{
	{"closed", false, func(t *testing.T) (*os.File, func()) {
		r, w := newPipe(t, false)
		r.Close()
		return w, func() {}
	}},
	{"full", true, func(t *testing.T) (*os.File, func()) {
		r, w := newPipe(t, true)
		return w, func() { r.Close() }
	}},
	{"slow", true, func(t *testing.T) (*os.File, func()) {
		r, w := newPipe(t, true)
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for one := make([]byte, 1); ; {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					_, _ = r.Read(one) // the pipe is full
				}
			}
		}()
		return w, func() {
			close(stop)
			<-ended
			r.Close()
		}
	}},
	{"socket", false, func(t *testing.T) (*os.File, func()) { // as of a journald that was restarted
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(pair[0])
		return os.NewFile(uintptr(pair[1]), "socket"), func() {}
	}},
	{"no space", false, func(t *testing.T) (*os.File, func()) {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f, func() {}
	}},
}

func newPipe(t *testing.T, full bool) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	for full {
		if _, err := unix.Write(fds[1], []byte{'.'}); err != nil {
			break
		}
	}
	for _, fd := range fds {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
	}
	return os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "outputs")
}

// start starts the command with the reader at both of its outputs.
func (r reader) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	outputs, end := r.open(t)
	defer outputs.Close()
	cmd.Stdout, cmd.Stderr = outputs, outputs
	err := cmd.Start()
	t.Cleanup(func() {
		end()
		if err == nil && cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// await wants the command to end with the status.
func await(t *testing.T, cmd *exec.Cmd, status int) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		<-ended
		t.Error("it does not end")
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("it ended with %v, want status %d", cmd.ProcessState, status)
	}
}

// appears waits for a file.
func appears(t *testing.T, path string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		_, err := os.Stat(path)
		return err
	})
}

// TestReaders: what reads a program's log and events can close them, stop and crawl. The guest is answered, and gets
// the time to shut down.
func TestReaders(t *testing.T) {
	nstest.Need(t)
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	node, exporter := nstest.Program(t, "examples/guestwire-node"), nstest.Program(t, "examples/guestwire-exporter")
	user := nstest.OwnerFlags()
	served := func(t *testing.T, n nstest.Network) {
		t.Helper()
		g := nstest.Boot(t, n.Pod.File, nstest.Record(t, n.State, "eth0"), "guest")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := g.DHCPv4(ctx); err != nil {
			t.Errorf("the guest is not served: %v", err)
		}
	}
	programs := map[string]func(*testing.T, reader){
		"guestwire-agent exec guestwire-launcher serve": func(t *testing.T, r reader) {
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Redirect{}, nil)
			cmd := exec.Command(agent, slices.Concat([]string{"exec", "-netns", n.Pod.Path()}, user, []string{"--", launcher, "serve", "-events", "-state", n.State})...)
			r.start(t, cmd)
			served(t, n)
			terminate(t, cmd, 0)
		},
		"guestwire-agent run guestwire-launcher serve": func(t *testing.T, r reader) {
			n := nstest.NewNetwork(t)
			before := n.Pod.Settled()
			cmd := exec.Command(agent, slices.Concat([]string{"run", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "auto", "-state", n.State}, user,
				[]string{"--", launcher, "serve", "-events", "-state", n.State})...)
			r.start(t, cmd)
			appears(t, filepath.Join(n.State, "eth0.json"))
			served(t, n)
			terminate(t, cmd, 0)
			nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Dump()) })
		},
		"guestwire-agent exec guestwire-launcher qemu": func(t *testing.T, r reader) {
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Redirect{}, nil)
			ready := filepath.Join(nstest.Dir(t), "ready")
			// In QEMU's place, with complaints that nobody reads.
			const script = `fd=${*##*launcher-monitor,fd=}; fd=${fd%% *}; seq 10000 >&2; >"$0"
while read -r line <&$fd; do case $line in *system_powerdown*) exit 3;; esac; done`
			cmd := launcherWith(t, n, []string{"-shutdown", "1m"}, "sh", "-c", script, ready)
			if err := os.Chmod(filepath.Dir(ready), 0o777); err != nil {
				t.Fatal(err)
			}
			r.start(t, cmd)
			appears(t, ready)
			terminate(t, cmd, 3)
		},
		"guestwire-node": func(t *testing.T, r reader) {
			dir := nstest.Dir(t)
			damaged := filepath.Join(dir, "10-net.conflist")
			if err := os.WriteFile(damaged, nil, 0o644); err != nil { // which it logs
				t.Fatal(err)
			}
			cmd := exec.Command(node, "run", "-cni-bin=", "-nri=", "-cni-conf", dir, "-state", filepath.Join(dir, "state"), "-dir", filepath.Join(dir, "locks"))
			r.start(t, cmd)
			if err := os.WriteFile(damaged, []byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "ptp"}]}`), 0o644); err != nil {
				t.Fatal(err)
			}
			appears(t, filepath.Join(dir, "00-guestwire.conflist"))
			terminate(t, cmd, 0)
		},
		"exporter": func(t *testing.T, r reader) {
			cmd := exec.Command(exporter, "-dir", "/dev/null")
			r.start(t, cmd)
			await(t, cmd, 1)
		},
	}
	for name, program := range programs {
		for _, r := range readers {
			t.Run(name+"/"+r.name, func(t *testing.T) {
				if r.full { // each program gives its reader a second at the end
					nstest.Long(t)
				}
				t.Parallel()
				program(t, r)
			})
		}
	}
}

// terminate sends SIGTERM, and wants the status.
func terminate(t *testing.T, cmd *exec.Cmd, status int) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	await(t, cmd, status)
}
