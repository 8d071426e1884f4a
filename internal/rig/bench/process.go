package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server at work.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
	err    error // once it has ended
}

// startProcess runs a program in a namespace, by way of setpriv(1) with more of its flags. It ends with
// this process at the latest.
func startProcess(namespace string, privileges []string, program ...string) (*process, error) {
	words := append([]string{"--net=" + namespacePath(namespace), "setpriv", "--pdeathsig", "KILL"}, privileges...)
	p := &process{cmd: exec.Command("nsenter", append(append(words, "--"), program...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	started := make(chan error)
	go func() {
		// The signal comes at the end of the thread that starts the process, so this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program[0], err)
	}
	return p, nil
}

// stop ends the process and returns when it has ended.
func (p *process) stop() error {
	if err := p.alive(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(5 * time.Second):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// alive is an error if the process has ended by itself.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %w: %s", p.cmd.Args[len(p.cmd.Args)-1], errors.Join(p.err, errors.New("early")), p.output.String())
	default:
		return nil
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// cpu is what all threads have used, by the scheduler's clock: the one of /proc/PID/stat counts
// ticks, and a server's turns are much shorter.
func (p *process) cpu() (time.Duration, error) {
	sum := 0
	err := p.eachThread("schedstat", func(text string) error {
		used, _, _ := strings.Cut(text, " ")
		n, err := strconv.Atoi(used)
		sum += n
		return err
	})
	return time.Duration(sum), err
}

// switches is how often a thread was put onto a processor: it had slept, or had to make way.
func (p *process) switches() (int, error) {
	sum := 0
	err := p.eachThread("status", func(text string) error {
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(line, ":")
			if !strings.HasSuffix(name, "voluntary_ctxt_switches") {
				continue
			}
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return err
			}
			sum += n
		}
		return nil
	})
	return sum, err
}

func (p *process) eachThread(file string, f func(text string) error) error {
	if err := p.alive(); err != nil {
		return err
	}
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", p.pid(), file))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil {
			err = f(string(text))
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, os.ErrNotExist) { // the thread has ended
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// status reads a value of /proc/PID/status, such as VmRSS in KiB.
func (p *process) status(field string) (float64, error) {
	if err := p.alive(); err != nil {
		return 0, err
	}
	path := fmt.Sprintf("/proc/%d/status", p.pid())
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}

// quiet returns when no thread has run for a while.
func (p *process) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for last := -1; ; {
		now, err := p.switches()
		if err != nil {
			return err
		}
		if now == last {
			return nil
		}
		last = now
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("wait for process %d to have nothing to do: %w", p.pid(), err)
		}
	}
}
