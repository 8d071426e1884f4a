package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// loads are how often the Setups of a busy node are measured.
type loads struct {
	starts     int // rounds of agent setup as a process
	namespaces int // that are wired one after the other
	turns      int // rounds of Setups by one worker and by eight
}

// The targets of a busy node.
const (
	mostStart   = 4.0  // agent setup / ip -V
	mostGrowing = 1.05 // last hundred / first hundred
	leastAtOnce = 1.0  // eight workers / one
	workers     = 8
)

// measureMany measures Setup as a process beside the start of another program, Setup on a node with many wired namespaces, and
// Setups of eight workers at once.
func measureMany(ctx context.Context, w io.Writer, l loads) (err error) {
	if l.starts < 1 || l.namespaces < 10 || l.turns < 1 {
		return fmt.Errorf("-setups %d, -guests %d, -teardowns %d: want 1 or more of each", l.starts, l.namespaces/20, l.turns)
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	agent, err := build(ctx, dir, "agent", "examples/agent")
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("guestwire", state, "tmpfs", 0, "mode=711"); err != nil {
		return fmt.Errorf("tmpfs on %s: %w", state, err)
	}
	defer unix.Unmount(state, unix.MNT_DETACH)
	fmt.Fprintf(w, "Setups of a node. Linux %s, %d CPUs, %s.\n\n", release(), runtime.NumCPU(), runtime.Version())
	for _, part := range []func(context.Context, io.Writer, loads, string, string) error{measureStarts, measureGrowing, measureAtOnce} {
		if err := part(ctx, w, l, agent, state); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return nil
}

// timeProcess runs a program to its end, and returns how long that took. It does without os/exec, whose goroutines and pipes would
// count on both sides of a ratio.
func timeProcess(program string, args ...string) (time.Duration, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	begin := time.Now()
	pid, err := syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), 2}})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", program, err)
	}
	var status syscall.WaitStatus
	for {
		_, err = syscall.Wait4(pid, &status, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	took := time.Since(begin)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: status %#x", program, int(status))
	}
	return took, err
}

func agentSetup(agent string, b infra.Binding, p *pod) (time.Duration, error) {
	return timeProcess(agent, "setup", "-netns", p.path(), "-nic", nic, "-binding", b.Kind(), "-state", p.state, "-dir", p.node())
}

func timesText(samples []time.Duration) string {
	return spreadText(milliseconds(samples))
}

// spreadText is the median, and the quartiles.
func spreadText(values []float64) string {
	s := spreadOf(values)
	return fmt.Sprintf("%8.2f   (%.2f to %.2f)", s.mid, s.low, s.high)
}

// measureStarts runs agent setup as a process in fresh namespaces, beside ip -V, agent version, and Setup in this process.
func measureStarts(ctx context.Context, w io.Writer, l loads, agent, state string) (err error) {
	ipProgram, err := exec.LookPath("ip")
	if err != nil {
		return errors.New("ip is missing: make install, or install it")
	}
	var all []*pod
	defer func() { err = errors.Join(err, closePods(all)) }()
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Masquerade{}, infra.Redirect{}} {
		names := []string{"ip -V", "agent version", "agent setup", "Setup in one process"}
		samples := make([][]time.Duration, len(names))
		for round := -warmUp; round < l.starts; round++ {
			var two [2]*pod
			for i := range two {
				if two[i], err = newPod(ctx, state); err != nil {
					return err
				}
				all = append(all, two[i])
			}
			for _, p := range two {
				if err := p.waitSettled(ctx); err != nil {
					return err
				}
			}
			if err := sleep(ctx, settleTime); err != nil {
				return err
			}
			runs := []func() (time.Duration, error){
				func() (time.Duration, error) { return timeProcess(ipProgram, "-V") },
				func() (time.Duration, error) { return timeProcess(agent, "version") },
				func() (time.Duration, error) { return agentSetup(agent, binding, two[0]) },
				func() (time.Duration, error) { return timeSetup(ctx, binding, two[1]) },
			}
			for i := range runs {
				i = (i + round + warmUp) % len(runs)
				took, err := runs[i]()
				if err != nil {
					return err
				}
				if round >= 0 {
					samples[i] = append(samples[i], took)
				}
			}
		}
		fmt.Fprintf(w, "%s: processes, from start to end, ms; %d rounds\n", binding.Kind(), l.starts)
		for i, name := range names {
			fmt.Fprintf(w, "  %-42s %s\n", name, timesText(samples[i]))
		}
		ratio := pairs(samples[2], samples[0])
		fmt.Fprintf(w, "  %-42s %8.2f   %s\n\n", "agent setup / ip -V", ratio, verdict("%.2f", ratio, mostStart, false))
	}
	return nil
}

func timeSetup(ctx context.Context, binding infra.Binding, p *pod) (time.Duration, error) {
	begin := time.Now()
	_, err := phase1.Setup(ctx, phase1.Config{NetNS: p.file, Dir: p.node(), Spec: infra.Spec{NIC: nic, Binding: binding, State: p.state}})
	return time.Since(begin), err
}

// measureGrowing wires one namespace after the other, every second one by a process.
func measureGrowing(ctx context.Context, w io.Writer, l loads, agent, state string) (err error) {
	binding := infra.Masquerade{}
	var all []*pod
	defer func() { err = errors.Join(err, closePods(all)) }()
	var inside, processes []time.Duration
	batch := l.namespaces / 10
	for range 10 {
		begin := len(all)
		for range batch {
			p, err := newPod(ctx, state)
			if err != nil {
				return err
			}
			all = append(all, p)
		}
		for _, p := range all[begin:] {
			if err := p.waitSettled(ctx); err != nil {
				return err
			}
		}
		if err := sleep(ctx, 10*settleTime); err != nil {
			return err
		}
		for i, p := range all[begin:] {
			var took time.Duration
			if i%2 == 0 {
				took, err = timeSetup(ctx, binding, p)
				inside = append(inside, took)
			} else {
				took, err = agentSetup(agent, binding, p)
				processes = append(processes, took)
			}
			if err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(w, "%s: %d namespaces wired one after the other, ms a Setup\n", binding.Kind(), len(all))
	for _, way := range []struct {
		name    string
		samples []time.Duration
	}{{"in one process", inside}, {"agent setup", processes}} {
		n := len(way.samples) / 10
		first, last := way.samples[:n], way.samples[len(way.samples)-n:]
		ratio := ms(median(last)) / ms(median(first))
		fmt.Fprintf(w, "  %-42s %s\n  %-42s %s\n  %-42s %8.2f   %s\n", way.name+", first tenth", timesText(first), way.name+", last tenth", timesText(last),
			way.name+", last / first", ratio, verdict("%.2f", ratio, mostGrowing, false))
	}
	fmt.Fprintln(w)
	return nil
}

// measureAtOnce lets one worker and eight wire the same number of namespaces in one process, in turns.
func measureAtOnce(ctx context.Context, w io.Writer, l loads, _, state string) (err error) {
	const each = 5 // Setups of a worker in a turn
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Masquerade{}, infra.Redirect{}} {
		var ratios, one, many []float64
		for turn := -1; turn < l.turns; turn++ {
			var pods []*pod
			for range 2 * workers * each {
				p, err := newPod(ctx, state)
				if err != nil {
					return errors.Join(err, closePods(pods))
				}
				pods = append(pods, p)
			}
			for _, p := range pods {
				if err := p.waitSettled(ctx); err != nil {
					return errors.Join(err, closePods(pods))
				}
			}
			if err := sleep(ctx, 10*settleTime); err != nil {
				return errors.Join(err, closePods(pods))
			}
			var rates [2]float64
			for i := range rates {
				i = (i + turn + 1) % 2
				rate, err := wireAtOnce(ctx, binding, pods[i*workers*each:(i+1)*workers*each], []int{1, workers}[i])
				if err != nil {
					return errors.Join(err, closePods(pods))
				}
				rates[i] = rate
			}
			if err := closePods(pods); err != nil {
				return err
			}
			if turn >= 0 {
				one, many, ratios = append(one, rates[0]), append(many, rates[1]), append(ratios, rates[1]/rates[0])
			}
		}
		fmt.Fprintf(w, "%s: Setups a second in one process, %d rounds\n", binding.Kind(), l.turns)
		fmt.Fprintf(w, "  %-42s %s\n  %-42s %s\n", "1 worker", spreadText(one), fmt.Sprint(workers, " workers at once"), spreadText(many))
		fmt.Fprintf(w, "  %-42s %8.2f   %s\n\n", fmt.Sprint(workers, " workers / 1"), median(ratios), verdict("%.2f", median(ratios), leastAtOnce, true))
	}
	return nil
}

// wireAtOnce wires the pods by so many workers, and returns how many Setups a second that were.
func wireAtOnce(ctx context.Context, binding infra.Binding, pods []*pod, workers int) (float64, error) {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	begin := time.Now()
	for i := range workers {
		group.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(pods) {
					return
				}
				_, errs[i] = timeSetup(ctx, binding, pods[n])
			}
		})
	}
	group.Wait()
	return float64(len(pods)) / time.Since(begin).Seconds(), errors.Join(errs...)
}
