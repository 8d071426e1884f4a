package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase1/launch"
)

// execute runs the command of the command line.
func execute(_ context.Context, o *options) error {
	queueLog()
	signals, stop := passedOn()
	defer stop()
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return runCommand(cmd, o, signals)
}

// passedOn are the signals that the command gets, and SIGTSTP.
func passedOn() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, commandline.NotIgnored(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGTSTP)...)
	return c, func() { signal.Stop(c) }
}

// runCommand starts the command as the owner, in the namespace if one is named, and waits for its end. Signals are
// passed on. The error is a commandError if the command ends with another status than 0.
func runCommand(cmd *exec.Cmd, o *options, signals <-chan os.Signal) error {
	cmd.Env = reachable(cmd.Environ(), o.Owner.UID)
	if err := launch.Start(cmd, o.NetNS, o.Owner, o.groups...); err != nil {
		return commandline.NotStarted(err)
	}
	if os.Getpid() == 1 {
		defer reapOrphans(cmd.Process.Pid)()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	for {
		select {
		case s := <-signals:
			if err := passOn(s, cmd.Process.Pid); err != nil {
				return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
			}
		case <-ended:
			err := cmd.Wait()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return said(commandError{statusOf(exit.ProcessState)})
			}
			return err
		}
	}
}

// reachable returns the variables without those that name a directory of the agent's user to which the command's user
// cannot write, as pam_tmpdir and pam_systemd set for root.
func reachable(variables []string, user uint32) []string {
	return slices.DeleteFunc(variables, func(variable string) bool {
		name, dir, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"TMPDIR", "HOME", "XDG_RUNTIME_DIR"}, name) && writable(dir, user) != nil
	})
}

// passOn sends the command the signal. The command has a session of its own, so a terminal's signal reaches its
// processes by the agent alone. The number is the command's as long as no one has waited for it.
func passOn(s os.Signal, pid int) error {
	switch {
	case s == syscall.SIGTSTP:
		return nil // the shell and the command would read the terminal at the same time
	case s != syscall.SIGTERM && s != syscall.SIGHUP && inForeground():
		pid = -pid // the process group, as the terminal does
	}
	if err := unix.Kill(pid, s.(syscall.Signal)); err != nil && err != unix.ESRCH { // a group may be empty
		return fmt.Errorf("pass %v on to the command: %w", s, err)
	}
	return nil
}

// reapOrphans waits for the processes that a container's process 1 inherits from those that end, until stop is called.
// The command is left to its own Wait.
func reapOrphans(command int) (stop func()) {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	select {
	case ends <- syscall.SIGCHLD: // for those that have ended already
	default:
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range ends {
			for {
				var orphan unix.Siginfo
				err := unix.Waitid(unix.P_ALL, 0, &orphan, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
				pid := childOf(&orphan)
				if err != nil || pid == 0 || pid == command {
					break // the command's end ends this, too
				}
				unix.Wait4(pid, nil, 0, nil)
			}
		}
	}()
	return func() {
		signal.Stop(ends)
		close(ends)
		<-done
	}
}

// childOf is si_pid (sigaction(2)): three ints come before it, and it is aligned as a pointer.
func childOf(s *unix.Siginfo) int {
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(s), 8+unsafe.Sizeof(uintptr(0)))))
}

// inForeground reports whether the agent's process group is the one that the terminal sends its signals to.
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
