// Package command starts a command that the kernel kills when this process ends, and ends it in order.
package command

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start calls start on a thread that onThread provides. Start starts cmd with Pdeathsig. The kernel sends that signal
// when the thread ends which has started the command, so the thread waits there until the command has ended. Start
// returns the error of start.
func Start(cmd *exec.Cmd, onThread func(func() error) error, start func() error) error {
	started := make(chan error)
	go onThread(func() error {
		pid, err := 0, start()
		if err == nil {
			pid = cmd.Process.Pid
		}
		started <- err
		for err == nil { // until the command has ended, or was waited for. Its status stays for cmd.Wait
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) != unix.EINTR {
				break
			}
		}
		return nil
	})
	return <-started
}

// Run calls start, then Wait. If ctx has ended before, Run returns its cause, and starts nothing.
func Run(ctx context.Context, cmd *exec.Cmd, grace time.Duration, start func() error) error {
	if cmd.Cancel != nil {
		return errors.New("the command is of exec.CommandContext, which would kill it when its context ends: use exec.Command")
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	return Wait(ctx, cmd, grace)
}

// Wait returns the error of cmd.Wait. When ctx ends, the command gets SIGTERM, and SIGKILL after grace, or
// after cmd.WaitDelay if that is longer.
func Wait(ctx context.Context, cmd *exec.Cmd, grace time.Duration) error {
	if cmd.Process == nil {
		return cmd.Wait() // which says that it has not been started
	}
	waited, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		select {
		case <-waited:
			return
		case <-ctx.Done():
		}
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Process.Signal(syscall.SIGCONT) // or be stopped
		late := time.NewTimer(max(grace, cmd.WaitDelay))
		defer late.Stop()
		select {
		case <-waited:
		case <-late.C:
			_ = cmd.Process.Kill()
		}
	}()
	err := cmd.Wait()
	close(waited)
	<-asked
	return err
}
