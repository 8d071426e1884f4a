package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/phase1"
)

// execute runs the command of the command line.
func execute(_ context.Context, o *options) error {
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return runCommand(cmd, o)
}

// runCommand starts the command as the owner, in the namespace if one is named, and waits for its end. Signals are passed
// on. The error is a commandError if the command ends with another status than 0.
func runCommand(cmd *exec.Cmd, o *options) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	if err := phase1.Launch(cmd, o.NetNS, o.Owner, o.groups...); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGINT && inForeground() {
				continue // the terminal tells the whole process group
			}
			if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return errors.Join(err, cmd.Process.Kill(), <-ended)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return said(commandError{statusOf(exit.ProcessState)})
			}
			return err
		}
	}
}

// inForeground says whether the agent's process group is the one that the terminal sends its signals to.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// commandError is the end of a command with another status than 0, which is the agent's then.
type commandError struct{ status int }

func (e commandError) Error() string { return fmt.Sprintf("the command ended with %d", e.status) }

// statusOf is what a shell says of the process.
func statusOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
