package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a long-running program in the node.
type Process struct {
	Name string
	// Log is the file with all that the program prints.
	Log string
	// Pid is the program's process, as seen from outside.
	Pid int
	// Ended is closed when the program has ended. Err is valid then.
	Ended chan struct{}
	// Err is nil if the program ended with 0.
	Err error

	enter int // nsenter's process
}

// child waits until nsenter has its child.
func (p *Process) child(cmd *exec.Cmd) (int, error) {
	path := fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)
	for {
		text, err := os.ReadFile(path)
		if pid := strings.Fields(string(text)); len(pid) > 0 {
			return strconv.Atoi(pid[0])
		}
		select {
		case <-p.Ended:
			return 0, errors.Join(errors.New("the program ended at once"), p.Err)
		case <-time.After(time.Millisecond):
		}
		if err != nil {
			return 0, err
		}
	}
}

// stopTime is how long Stop waits.
const stopTime = time.Minute

// Signal sends a signal to the program. nsenter(1) stops when the program stops, and then wakes the program when it is
// woken itself.
func (p *Process) Signal(s syscall.Signal) error {
	err := syscall.Kill(p.Pid, s)
	if err == nil && s == syscall.SIGCONT {
		err = syscall.Kill(p.enter, s)
	}
	return err
}

// Stop ends the program by SIGTERM and waits for its end. Its exit status does not matter.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

// Kill ends the program by SIGKILL and waits for its end.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

func (p *Process) end(s syscall.Signal) error {
	select {
	case <-p.Ended:
		return nil
	default:
	}
	if err := p.Signal(s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%v of %s: %w", s, p.Name, err)
	}
	select {
	case <-p.Ended:
		return nil
	case <-time.After(stopTime):
		return fmt.Errorf("%s runs %v after %v", p.Name, stopTime, s)
	}
}

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string { return tail(p.Log, lines) }

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
