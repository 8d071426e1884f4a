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

// process is a running server.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{}
	err    error // valid when the process has ended
}

// startProcess runs a program in a namespace by setpriv(1), with further flags of setpriv in privileges. The program ends
// with this process at the latest.
func startProcess(namespace string, privileges []string, program ...string) (*process, error) {
	words := append([]string{"--net=" + namespacePath(namespace), "setpriv", "--pdeathsig", "KILL"}, privileges...)
	p := &process{cmd: exec.Command("nsenter", append(append(words, "--"), program...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that starts the process ends, so this thread waits.
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

// stop ends the process and waits for its end.
func (p *process) stop() error {
	if err := p.checkAlive(); err != nil {
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

// checkAlive returns an error if the process has ended by itself.
func (p *process) checkAlive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %w: %s", p.cmd.Args[len(p.cmd.Args)-1], errors.Join(p.err, errors.New("early")), p.output.String())
	default:
		return nil
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// cpu returns the CPU time of all threads, by schedstat. /proc/PID/stat counts ticks, which are much longer than a server's
// turns.
func (p *process) cpu() (time.Duration, error) {
	sum := 0
	err := p.forEachThread("schedstat", func(text string) error {
		used, _, _ := strings.Cut(text, " ")
		n, err := strconv.Atoi(used)
		sum += n
		return err
	})
	return time.Duration(sum), err
}

// switches returns the number of context switches of all threads, voluntary or not.
func (p *process) switches() (int, error) {
	sum := 0
	err := p.forEachThread("status", func(text string) error {
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

func (p *process) forEachThread(file string, f func(text string) error) error {
	if err := p.checkAlive(); err != nil {
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
	if err := p.checkAlive(); err != nil {
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

// waitQuiet waits until no thread has run for a while.
func (p *process) waitQuiet(ctx context.Context) error {
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
