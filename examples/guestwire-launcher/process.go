package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/phase2/vmm"
)

// patience is the time that passt has to start.
const patience = 10 * time.Second

// process is a program that dies with the launcher.
type process struct {
	*exec.Cmd
	end   context.CancelFunc
	ended chan struct{} // closed when it has ended
}

// start starts the command. A terminal's Ctrl-C reaches it by the launcher alone, unless it reads from the launcher's
// terminal.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: cmd.Stdin == nil || !readsTerminal()}
	cmd.WaitDelay = time.Second // for its standard error, which a process that it started may keep open
	if err := vmm.Start(cmd); err != nil {
		return nil, commandline.NotStarted(err)
	}
	ctx, end := context.WithCancel(context.Background())
	p := &process{cmd, end, make(chan struct{})}
	go func() {
		_ = vmm.Wait(ctx, cmd) // cmd.ProcessState has the status
		end()
		close(p.ended)
	}()
	return p, nil
}

// readsTerminal reports whether standard input is the terminal of the launcher's session. From another process group,
// a read of it would stop the process.
func readsTerminal() bool {
	_, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil
}

// stop ends the process by SIGTERM, or by SIGKILL if that takes too long. It returns when the process has ended.
func (p *process) stop() {
	p.end()
	<-p.ended
}

// err is a statusError unless the process has ended with 0.
func (p *process) err() error {
	status := p.ProcessState.ExitCode()
	if s, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		status = 128 + int(s.Signal())
	}
	if status == 0 {
		return nil
	}
	return statusError{status}
}

// statusError is the status of a process that did not end with 0. It is the launcher's status then.
type statusError struct{ status int }

func (e statusError) Error() string { return fmt.Sprintf("status %d", e.status) }

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
