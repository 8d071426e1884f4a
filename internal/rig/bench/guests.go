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
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/phase1"
)

// measureNode measures the memory of a node with many guests: of the launchers, of what the kernel has for each wiring, and
// of the same number of pods of an engine.
func measureNode(ctx context.Context, w io.Writer, guests int) (err error) {
	if guests < 2 {
		return fmt.Errorf("%d guests, want 2 or more", guests)
	}
	for _, program := range []string{"go", "ip", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // the launcher's user must enter it
		return err
	}
	// The launcher's binary is not on a tmpfs, whose pages would count as memory of their own.
	launcher, err := build(ctx, dir, "launcher", "examples/launcher")
	if err != nil {
		return err
	}
	plugin, err := build(ctx, dir, "guestwire", "examples/cni")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Memory of a node with %d guests, each with a NIC wired by redirect, in KiB. Linux %s, %s.\n"+
		"PSS counts a page that n processes share as 1/n for each of them.\n\n", guests, release(), runtime.Version())
	if err := measureLaunchers(ctx, w, dir, launcher, guests); err != nil {
		return fmt.Errorf("launchers: %w", err)
	}
	if err := measureNodePods(ctx, w, dir, plugin, launcher, guests); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	return nil
}

// measureLaunchers wires namespaces, and starts a launcher for each.
func measureLaunchers(ctx context.Context, w io.Writer, dir, launcher string, guests int) (err error) {
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("guestwire", state, "tmpfs", 0, "mode=711"); err != nil {
		return fmt.Errorf("tmpfs on %s: %w", state, err)
	}
	defer unix.Unmount(state, unix.MNT_DETACH)
	var all []*pod
	var launchers []*process
	defer func() {
		for _, l := range launchers {
			err = errors.Join(err, l.stop())
		}
		err = errors.Join(err, closePods(all))
	}()
	for range guests {
		p, err := newPod(ctx, state)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.waitSettled(ctx); err != nil {
			return err
		}
	}
	owner := infra.Owner{UID: launcherUID, GID: launcherUID}
	kernel, known, err := kernelMemory(func() error {
		for _, p := range all {
			spec := infra.Spec{NIC: nic, Binding: infra.Redirect{}, Owner: owner, State: p.state}
			if _, err := phase1.Setup(ctx, phase1.Config{NetNS: p.file, Dir: p.node(), Spec: spec}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "  %-44s %10s %10s %10s\n", "launchers (launcher serve)", "PSS", "a guest", "private")
	for _, count := range []int{1, guests} {
		for len(launchers) < count {
			l, err := startLauncher(launcher, all[len(launchers)])
			if err != nil {
				return err
			}
			launchers = append(launchers, l)
		}
		if err := waitAllQuiet(ctx, launchers); err != nil {
			return err
		}
		var sum rollup
		for _, l := range launchers {
			r, err := readRollup(l.pid())
			if err != nil {
				return fmt.Errorf("%w: %s", err, l.output.String())
			}
			sum.add(r)
		}
		fmt.Fprintf(w, "  %-44s %10d %10d %10d\n", fmt.Sprintf("%d", count), sum.pss, sum.pss/count, sum.private/count)
	}
	if known {
		fmt.Fprintf(w, "  %-44s %10d %10d\n", "kernel: links, rules, filters of all wirings", kernel, kernel/guests)
	}
	fmt.Fprintln(w)
	return nil
}

// waitAllQuiet waits until none of the processes has run for a while.
func waitAllQuiet(ctx context.Context, all []*process) error {
	waits := make(chan error)
	for _, p := range all {
		go func() {
			err := p.waitQuiet(ctx)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, p.output.String())
			}
			waits <- err
		}()
	}
	var errs []error
	for range all {
		errs = append(errs, <-waits)
	}
	return errors.Join(errs...)
}

// rollup is the memory of processes, in KiB.
type rollup struct{ pss, private int }

func (r *rollup) add(o rollup) { r.pss, r.private = r.pss+o.pss, r.private+o.private }

// readRollup reads /proc/PID/smaps_rollup (proc(5)).
func readRollup(pid int) (r rollup, err error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			return r, fmt.Errorf("%s: %w", path, err)
		}
		switch f[0] {
		case "Pss:":
			r.pss = n
		case "Private_Clean:", "Private_Dirty:":
			r.private += n
		}
	}
	if r.pss == 0 {
		return r, fmt.Errorf("%s has no Pss", path)
	}
	return r, nil
}

// kernelMemory returns how much kernel memory f leaves in use, in KiB, as a memory cgroup of version 1 accounts it. Known is
// false where there is none.
func kernelMemory(f func() error) (used int, known bool, err error) {
	const parent = "/sys/fs/cgroup/memory"
	group := filepath.Join(parent, fmt.Sprintf("guestwire-bench-%d", os.Getpid()))
	usage := func() (int, error) {
		text, err := os.ReadFile(filepath.Join(group, "memory.kmem.usage_in_bytes"))
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if os.Mkdir(group, 0o755) != nil {
		return 0, false, f()
	}
	defer func() { err = errors.Join(err, os.Remove(group)) }()
	home, err := memoryCgroup()
	if _, missing := usage(); missing != nil || err != nil {
		return 0, false, f()
	}
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err := enter(group); err != nil {
		return 0, false, err
	}
	before, err := usage()
	err = errors.Join(err, f())
	runtime.GC()
	after, afterErr := usage()
	err = errors.Join(err, afterErr, enter(filepath.Join(parent, home)))
	return (after - before) >> 10, true, err
}

// memoryCgroup is this process's, below the mount of the memory hierarchy of version 1.
func memoryCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			return f[2], nil
		}
	}
	return "", errors.New("no memory cgroup")
}

// measureNodePods starts pods with a launcher each, and prints the memory of all processes of the node.
func measureNodePods(ctx context.Context, w io.Writer, dir, plugin, launcher string, guests int) (err error) {
	image := node.Image{Name: node.LauncherImage, Entrypoint: []string{"/bin/launcher"}, Files: map[string]node.File{"/bin/launcher": {From: launcher}}}
	e, stop, err := startEngine(ctx, dir, plugin, image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for range guests {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		p, _, err := e.run("redirect")
		if err == nil {
			_, err = p.StartContainer(p.Launcher("/run/guestwire"))
		}
		if err != nil {
			return err
		}
	}
	if err := sleep(ctx, idleTime); err != nil {
		return err
	}
	counts, sums, err := byProgram()
	if err != nil {
		return err
	}
	if counts["launcher"] != guests {
		return fmt.Errorf("%d launchers run in %d pods", counts["launcher"], guests)
	}
	fmt.Fprintf(w, "  %-44s %10s %10s\n", fmt.Sprintf("%d pods by containerd %s", guests, e.Version), "PSS", "a process")
	for _, program := range []string{"launcher", "containerd-shim", "busybox", "containerd"} {
		fmt.Fprintf(w, "  %-44s %10d %10d\n", fmt.Sprintf("%s: %d", program, counts[program]), sums[program].pss, sums[program].pss/max(1, counts[program]))
	}
	fmt.Fprintln(w)
	return nil
}

// idleTime is the time after which a launcher has nothing to do.
const idleTime = 2 * time.Second

// byProgram counts the processes of the node that Open has made, and their memory, by the names of their programs, which
// the kernel cuts after 15 characters.
func byProgram() (counts map[string]int, sums map[string]rollup, err error) {
	counts, sums = map[string]int{}, map[string]rollup{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains(string(cgroups), fmt.Sprintf("/guestwire-node-%d-", os.Getpid())) {
			continue // another one's, or it has ended
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue
		}
		r, err := readRollup(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		program := strings.TrimSpace(string(name))
		sum := sums[program]
		sum.add(r)
		counts[program], sums[program] = counts[program]+1, sum
	}
	return counts, sums, nil
}
