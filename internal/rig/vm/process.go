package vm

import (
	"errors"
	"os"
	"os/exec"

	"github.com/guestwire/guestwire/internal/netns"
)

// process is a program with its child processes in a PID namespace of their own. All end with the namespace's first
// process, which ends with the calling process.
type process struct {
	cmd  *exec.Cmd
	file string        // its output
	done chan struct{} // closed when the process has ended
}

// run starts the process from a thread in the network namespace and waits for its end. Pdeathsig is sent when this
// thread ends, and the thread ends with the call, so the call must wait.
func (p *process) run(namespace *os.File, started chan<- error) {
	defer close(p.done)
	err := netns.Do(namespace, func() error {
		err := p.cmd.Start()
		started <- err
		if err == nil {
			// A killed process always ends with an error.
			_ = p.cmd.Wait()
		}
		return nil
	})
	if err != nil {
		started <- err
	}
}

// kill ends the process and all its children, and waits until they have ended.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-p.done
	return err
}

// log returns the process's output.
func (p *process) log() string {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
