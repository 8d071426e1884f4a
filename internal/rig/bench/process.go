package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase2/vmm"
)

// process is a running server.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
	over   bool  // stop was called
	err    error // valid when the process has ended
}

// startProcess runs a program in a namespace as root, or as a user without capabilities. The program ends with this
// process at the latest.
func (s *scope) startProcess(n lab.Namespace, user int, program ...string) (*process, error) {
	words := []string{"--net=" + path(n), "setpriv", "--pdeathsig", "KILL"}
	if user != 0 {
		id := strconv.Itoa(user)
		words = append(words, "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps", "-all", "--no-new-privs")
	}
	p := &process{cmd: exec.Command("nsenter", append(append(words, "--"), program...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := vmm.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", program[0], err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	s.atEnd(p.stop)
	return p, nil
}

// stop ends the process and waits for its end. A second call does nothing.
func (p *process) stop() error {
	if p.over {
		return nil
	}
	p.over = true
	if err := p.checkAlive(); err != nil {
		return err
	}
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		err = errors.Join(err, p.cmd.Process.Kill())
		<-p.ended
	}
	return err
}

// checkAlive returns an error if the process has ended by itself.
func (p *process) checkAlive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%v has ended: %w: %s", p.cmd.Args, errors.Join(p.err, errors.New("early")), p.output.String())
	default:
		return nil
	}
}

// cpu returns the CPU time of all threads.
func (p *process) cpu() (time.Duration, error) { return cpuOf(p.cmd.Process.Pid) }

func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, clock_getcpuclockid(3)
	var used unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduled), &used)
	return time.Duration(used.Nano()), err
}

// memory returns the numbers of /proc/PID/smaps_rollup in KiB (proc(5)). In Pss a page that n processes share counts as
// 1/n.
func (p *process) memory() (map[string]float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	numbers := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		var number float64
		name, value, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscan(value, &number); err == nil {
			numbers[name] = number
		}
	}
	return numbers, err
}
