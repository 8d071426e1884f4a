// Package vmm runs a VMM, or a program beside it, as a child of the unprivileged launcher. Package phase2 starts no
// process, for launchers that forbid exec.
package vmm

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/internal/command"
)

// Run calls Start, then Wait. It returns the error of the one that fails. If ctx has ended before, it returns
// context.Cause(ctx). A command of exec.CommandContext is an error, as that kills it when its context ends.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	return command.Run(ctx, cmd, grace, func() error { return Start(cmd) })
}

// Start is cmd.Start for a command that gets SIGKILL when this process ends, however it ends. Its children do not.
// If cmd.SysProcAttr has another Pdeathsig, it gets that signal.
func Start(cmd *exec.Cmd) error {
	given := cmd.SysProcAttr
	attributes := &syscall.SysProcAttr{}
	if given != nil {
		*attributes = *given
	}
	if attributes.Pdeathsig == 0 {
		attributes.Pdeathsig = syscall.SIGKILL
	}
	cmd.SysProcAttr = attributes
	defer func() { cmd.SysProcAttr = given }()
	return command.Start(cmd, onThread, cmd.Start)
}

// Wait returns the command's own end, as cmd.Wait does. When ctx ends, the command gets SIGTERM, also if it is stopped,
// and SIGKILL after ten seconds, or after cmd.WaitDelay if that is longer.
func Wait(ctx context.Context, cmd *exec.Cmd) error { return command.Wait(ctx, cmd, grace) }

// grace is the time between SIGTERM and SIGKILL. A test shortens it.
var grace = 10 * time.Second

func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}
