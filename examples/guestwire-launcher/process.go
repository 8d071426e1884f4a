package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/commandline"
)

// patience is the time that passt has to start, and QEMU to end after SIGTERM.
const patience = 10 * time.Second

// process is a program that dies with the launcher.
type process struct {
	*exec.Cmd
	ended chan struct{} // closed when it has ended
}

// start starts the command. It gets SIGKILL when the launcher ends, in whatever way. A terminal's Ctrl-C reaches it by
// the launcher alone, unless it reads from the launcher's terminal.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: cmd.Stdin == nil || !readsTerminal()}
	cmd.WaitDelay = time.Second // for its standard error, which a process that it started may keep open
	p, started := &process{cmd, make(chan struct{})}, make(chan error)
	go func() {
		// The kernel sends the signal when the thread ends that started the command, so this thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := commandline.NotStarted(cmd.Start())
		started <- err
		if err == nil {
			_ = cmd.Wait() // cmd.ProcessState has the status
			close(p.ended)
		}
	}()
	return p, <-started
}

// readsTerminal reports whether standard input is the terminal of the launcher's session. From another process group,
// a read of it would stop the process.
func readsTerminal() bool {
	_, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil
}

// stop ends the process by SIGTERM, or by SIGKILL if that takes too long. It returns when the process has ended.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGTERM) // the process may have ended
	_ = p.Process.Signal(syscall.SIGCONT) // or may be stopped
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.Process.Kill()
		<-p.ended
	}
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
