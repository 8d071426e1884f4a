package vmm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/phase2/vmm"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case "vmm":
		runVMM(os.Args[1])
	case "launcher":
		runLauncher()
	default:
		leak.Main(m)
	}
}

// self is this test binary as another program.
func self(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = name
	return cmd
}

// runVMM prints its number when it is ready, and ends as it is told.
func runVMM(how string) {
	asked := make(chan os.Signal, 1)
	if how != "signal" {
		signal.Notify(asked, syscall.SIGTERM)
	}
	fmt.Println(os.Getpid()) // it is ready
	switch how {
	case "itself":
		os.Exit(3)
	case "status 7", "status 0":
		<-asked
		os.Exit(int(how[len(how)-1] - '0'))
	case "stopped":
		<-asked // which comes only after SIGCONT
		os.Exit(8)
	}
	time.Sleep(time.Hour)
}

// runLauncher starts a VMM on a thread that ends before the VMM, and prints its number.
func runLauncher() {
	cmd, ended := self("vmm", "never"), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		ended <- vmm.Start(cmd)
	}()
	if err := <-ended; err != nil {
		panic(err)
	}
	for range 100 { // threads that Go starts and ends meanwhile
		go func() { runtime.LockOSThread(); ended <- nil }()
		<-ended
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		panic(err)
	}
	fmt.Println(cmd.Process.Pid)
	panic(cmd.Wait())
}

// TestRun: Run returns how the command has ended, by itself or since ctx has ended.
func TestRun(t *testing.T) {
	for _, c := range []struct{ how, want string }{
		{"itself", "exit status 3"},
		{"status 7", "exit status 7"},
		{"status 0", "<nil>"},
		{"signal", "signal: terminated"},
		{"stopped", "exit status 8"},
		{"never", "signal: killed"},
	} {
		t.Run(c.how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := self("vmm", c.how)
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cmd.Stdout = in
			if c.how == "never" {
				defer vmm.SetGrace(vmm.SetGrace(time.Millisecond))
			}
			ended := make(chan error, 1)
			go func() { ended <- vmm.Run(ctx, cmd); in.Close() }()
			var pid int
			if _, err := fmt.Fscanln(out, &pid); err != nil {
				t.Fatal(err)
			}
			if c.how == "stopped" {
				stop(t, pid)
			}
			if c.how != "itself" {
				cancel()
			}
			err = <-ended
			var exit *exec.ExitError
			if have := fmt.Sprint(err); have != c.want || err != nil && !errors.As(err, &exit) {
				t.Errorf("%s, want %s", have, c.want)
			}
			if cmd.SysProcAttr != nil {
				t.Error("the command has other attributes than before")
			}
		})
	}
}

// stop stops a process, and returns when the kernel has stopped it.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

// TestRunStartsNothing: without a program, after the end of ctx, and for a command that its context would kill.
func TestRunStartsNothing(t *testing.T) {
	over, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	for _, c := range []struct {
		ctx  context.Context
		cmd  *exec.Cmd
		want string
	}{
		{t.Context(), exec.Command("/nowhere"), "fork/exec /nowhere: no such file or directory"},
		{over, exec.Command("true"), "file already closed"},
		{t.Context(), exec.CommandContext(t.Context(), "true"), "the command is of exec.CommandContext, which would kill it when its context ends: use exec.Command"},
	} {
		if err := vmm.Run(c.ctx, c.cmd); err == nil || err.Error() != c.want || c.cmd.Process != nil {
			t.Errorf("%v: %v, want %s", c.cmd, err, c.want)
		}
	}
	for range 100 { // the end of ctx and of cmd.Wait are a race
		if err := vmm.Wait(over, exec.Command("true")); err == nil || err.Error() != "exec: not started" {
			t.Fatalf("Wait without Start: %v", err)
		}
	}
}

// TestThreads: a thread stays as long as its command, and no longer.
func TestThreads(t *testing.T) {
	count := func() int {
		tasks, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	before := count()
	for range 60 {
		if err := vmm.Run(t.Context(), exec.Command("true")); err != nil {
			t.Fatal(err)
		}
	}
	if after := count(); after > before+20 {
		t.Errorf("%d threads, and %d before 60 commands", after, before)
	}
}

// TestKilledLauncher: a VMM stays when the thread ends that called Start, and ends when the launcher gets SIGKILL.
func TestKilledLauncher(t *testing.T) {
	launcher := self("launcher")
	var complaints strings.Builder
	launcher.Stderr = &complaints
	out, err := launcher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	pid, child := 0, -1
	if _, err = fmt.Fscanln(out, &pid); err == nil {
		child, err = unix.PidfdOpen(pid, 0)
	}
	launcher.Process.Kill()
	launcher.Wait()
	if err != nil {
		t.Fatalf("the VMM has ended before its launcher: %v\n%s", err, complaints.String())
	}
	defer unix.Close(child)
	for fds := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}; ; {
		n, err := unix.Poll(fds, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0)
			t.Errorf("the VMM is alive a minute after its launcher: %v", err)
		}
		return
	}
}
