package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// A reader is what becomes of the pipe that a program has as standard output and standard error. It gets what the test
// has put into the pipe before.
type reader struct {
	name string
	full bool                          // the pipe is full from the start
	read func(r *os.File) (end func()) // reads, or does not
}

var readers = []reader{
	{"closed", false, func(r *os.File) func() { r.Close(); return func() {} }},
	{"full", true, func(*os.File) func() { return func() {} }},
	{"slow", true, func(r *os.File) func() {
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
		return func() { close(stop); <-ended }
	}},
}

// start starts the command with the reader at both of its outputs.
func (r reader) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	from, to := os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "outputs")
	defer to.Close()
	unix.SetNonblock(fds[1], true)
	for r.full {
		if _, err := unix.Write(fds[1], []byte{'.'}); err != nil {
			break
		}
	}
	unix.SetNonblock(fds[1], false)
	stop := r.read(from)
	cmd.Stdout, cmd.Stderr = to, to
	err := cmd.Start()
	t.Cleanup(func() {
		stop()
		from.Close()
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
	agent, launcher := nstest.Program(t, "examples/agent"), nstest.Program(t, "examples/launcher")
	node, exporter := nstest.Program(t, "examples/node"), nstest.Program(t, "examples/exporter")
	user := []string{"-uid", strconv.Itoa(nstest.LauncherUID), "-gid", strconv.Itoa(nstest.LauncherUID)}
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
		"agent exec launcher serve": func(t *testing.T, r reader) {
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Redirect{}, nil)
			cmd := exec.Command(agent, slices.Concat([]string{"exec", "-netns", n.Pod.Path()}, user, []string{"--", launcher, "serve", "-events", "-state", n.State})...)
			r.start(t, cmd)
			served(t, n)
			terminate(t, cmd, 0)
		},
		"agent run launcher serve": func(t *testing.T, r reader) {
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
		"agent exec launcher qemu": func(t *testing.T, r reader) {
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
