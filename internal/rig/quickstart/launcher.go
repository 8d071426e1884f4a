package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase2"
)

// serveCommand is the argument with which this program runs as the launcher.
const serveCommand = "serve-as-launcher"

// serve serves the guest, as a launcher does.
func serve(state string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	vm, err := phase2.Open(state)
	if err != nil {
		return err
	}
	vm.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	return vm.Serve(ctx)
}

// launcher is the unprivileged launcher's process.
type launcher struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// startLauncher starts this program as the launcher: in the pod's namespace, as the owner, with empty capability
// sets that cannot grow again.
func startLauncher(pod namespace, state string, owner infra.Owner) (*launcher, error) {
	l := &launcher{cmd: exec.Command("/proc/self/exe", serveCommand, state)}
	l.cmd.Stderr = &l.log
	l.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: owner.UID, Gid: owner.GID},
		Pdeathsig:  syscall.SIGKILL,
	}
	// A child inherits the privileges of the thread that starts it, so this thread drops them first. Pdeathsig
	// is sent when this thread ends, so the thread waits for the child.
	started := make(chan error, 1)
	go func() {
		err := pod.Do(func() error {
			if err := dropPrivileges(); err != nil {
				return err
			}
			if err := l.cmd.Start(); err != nil {
				return err
			}
			started <- nil
			var info unix.Siginfo
			// WNOWAIT: stop reaps the child.
			return unix.Waitid(unix.P_PID, l.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		})
		started <- err
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the launcher: %w", err)
	}
	return l, nil
}

func dropPrivileges() error {
	for capability := 0; capability <= unix.CAP_LAST_CAP; capability++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// capabilities returns the process's capabilities in words, from /proc, after its exec.
func (l *launcher) capabilities() (string, error) {
	for range 200 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.cmd.Process.Pid))
		if err != nil {
			return "", err
		}
		var words []string
		for line := range strings.Lines(string(status)) {
			if field, value, _ := strings.Cut(line, ":"); field == "CapEff" || field == "CapBnd" || field == "NoNewPrivs" {
				words = append(words, field+" "+strings.TrimSpace(value))
			}
		}
		text := strings.Join(words, ", ")
		if text == "CapEff 0000000000000000, CapBnd 0000000000000000, NoNewPrivs 1" {
			return text, nil
		}
		time.Sleep(10 * time.Millisecond) // the child has not called exec yet
	}
	return "", errors.New("the launcher has capabilities")
}

// stop ends the launcher by SIGTERM. A second call does nothing.
func (l *launcher) stop() error {
	if l.cmd.ProcessState != nil {
		return nil
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("the launcher: %w\n%s", err, l.log.String())
	}
	return nil
}
