package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase1/launch"
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
	vm.Notify = func(e phase2.Event) {
		if e.Kind == "ready" {
			fmt.Println(e.Kind)
		}
	}
	return vm.Serve(ctx)
}

// launcher is the unprivileged launcher's process.
type launcher struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// startLauncher starts this program as the launcher: in the pod's namespace, as the owner, without privileges. It
// returns when the launcher is ready: before that, the launcher opens the guest's tap for a moment.
func startLauncher(pod lab.Namespace, state string, owner infra.Owner) (*launcher, error) {
	l := &launcher{cmd: exec.Command("/proc/self/exe", serveCommand, state)}
	l.cmd.Stderr = &l.log
	ready, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := launch.Start(l.cmd, pod.File, owner); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(ready, make([]byte, len("ready"))); err != nil {
		return nil, errors.Join(fmt.Errorf("the launcher is not ready: %w", err), l.stop())
	}
	return l, nil
}

// capabilities returns the process's capabilities in words, from /proc.
func (l *launcher) capabilities() (string, error) {
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
	if text != "CapEff 0000000000000000, CapBnd 0000000000000000, NoNewPrivs 1" {
		return "", fmt.Errorf("the launcher has privileges: %s", text)
	}
	return text, nil
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
