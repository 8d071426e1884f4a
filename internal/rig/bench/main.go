// Command bench has six parts. The first compares Setup and Teardown, for each binding, with a C program that makes only
// the same system calls (floor/floor.c), and with a script of ip(8), tc(8), nft(8) and sysctl(8) for the same network. The
// second measures what the guest filter costs per frame. The third compares Phase2's responder with dnsmasq: exchanges,
// latency, CPU time, memory, and wake-ups while idle. The fourth measures what the CNI plugin adds to a pod's start, the fifth
// the memory of a node with many guests, the sixth what passes the limits of a guest. Compared programs take turns in one run.
//
// The command needs root, gcc, dnsmasq, the programs of the script, and Debian's containerd as "make install" unpacks it. It works in namespaces and mounts that end with it.
// The exit status is 0 if all ways had the same result, however fast they were.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/sandbox"
	"github.com/guestwire/guestwire/phase1"
)

func main() {
	setups := flag.Int("setups", 50, "rounds of Setup, for each binding")
	teardowns := flag.Int("teardowns", 15, "rounds of Teardown, for each binding")
	l := load{progress: os.Stderr, unplugged: time.Second}
	flag.IntVar(&l.rounds, "rounds", 7, "rounds of exchanges with the responders")
	flag.IntVar(&l.closed, "exchanges", 3000, "exchanges in a turn, one after the other")
	flag.DurationVar(&l.paced, "paced", time.Second, "length of a turn at a fixed pace")
	flag.IntVar(&l.leases, "leases", 5, "leases for each kind of guest")
	flag.IntVar(&l.packets, "packets", 1_000_000, "packets before the responders' memory is looked at again")
	flag.DurationVar(&l.idle, "idle", time.Minute, "time without a packet in which wake-ups are counted")
	var t traffic
	flag.IntVar(&t.sets, "sets", 4, "sets of namespaces for the datapath")
	flag.IntVar(&t.rounds, "turns", 50, "rounds of traffic in each set")
	flag.IntVar(&t.packets, "datagrams", 40, "bursts of UDP packets in a turn")
	flag.IntVar(&t.segments, "segments", 10, "bursts of TCP segments of 64 KiB in a turn")
	var s starts
	flag.IntVar(&s.calls, "calls", 30, "rounds of calls of the CNI plugin")
	flag.IntVar(&s.pods, "pods", 15, "rounds of pods that an engine starts")
	guests := flag.Int("guests", 50, "guests of a node whose memory is measured")
	m := limited{warm: 3 * time.Second}
	flag.Uint64Var(&m.bits, "bits", 100_000_000, "limit of bits a second")
	flag.Uint64Var(&m.packets, "pps", 5000, "limit of packets a second")
	flag.DurationVar(&m.counted, "counted", 5*time.Second, "time in which is counted what passes a limit")
	only := flag.String("only", "", "setup, datapath, responder, plugin, node or limits: that part alone")
	flag.Parse()
	err := sandbox.Enter()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = parts(ctx, os.Stdout, *only, *setups, *teardowns, t, l, s, m, *guests)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts runs the part named only, or all parts.
func parts(ctx context.Context, w io.Writer, only string, setups, teardowns int, t traffic, l load, s starts, m limited, guests int) error {
	switch only {
	case "setup":
		return run(ctx, w, setups, teardowns)
	case "datapath":
		return measureDatapath(ctx, w, t)
	case "responder":
		return measureResponders(ctx, w, l)
	case "plugin":
		return measurePlugin(ctx, w, s)
	case "node":
		return measureNode(ctx, w, guests)
	case "limits":
		return printLimits(ctx, w, m)
	case "":
		return errors.Join(run(ctx, w, setups, teardowns), measureDatapath(ctx, w, t), measureResponders(ctx, w, l),
			measurePlugin(ctx, w, s), measureNode(ctx, w, guests), printLimits(ctx, w, m))
	}
	return fmt.Errorf("%q is none of setup, datapath, responder, plugin, node, limits", only)
}

// run measures Setup and Teardown and prints the tables to w.
func run(ctx context.Context, w io.Writer, setups, teardowns int) error {
	if setups < 1 || teardowns < 1 {
		return fmt.Errorf("%d rounds of Setup and %d of Teardown, want 1 or more", setups, teardowns)
	}
	for _, program := range []string{"gcc", "ip", "tc", "nft", "sysctl", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The state directory is on a tmpfs, like /run.
	if err := unix.Mount("guestwire", dir, "tmpfs", 0, "mode=700"); err != nil {
		return fmt.Errorf("tmpfs on %s: %w", dir, err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	floor, err := startFloor(ctx, dir)
	if err != nil {
		return err
	}
	defer floor.stop()

	fmt.Fprintf(w, "Setup and Teardown of a NIC with an IPv4 and an IPv6 address and default routes, in milliseconds.\n"+
		"Linux %s, %d CPUs, %s; %d and %d rounds, in each of which every way has a turn in fresh namespaces.\n"+
		"A way sets up two in a row, and the second one counts.\n\n",
		release(), runtime.NumCPU(), runtime.Version(), setups, teardowns)
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Masquerade{}} {
		b, err := newBench(ctx, w, dir, floor, binding)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		if err := b.setup(ctx, setups); err != nil {
			return fmt.Errorf("%s, Setup: %w", binding.Kind(), err)
		}
		if err := b.teardown(ctx, teardowns); err != nil {
			return fmt.Errorf("%s, Teardown: %w", binding.Kind(), err)
		}
	}
	return nil
}

func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(name.Release[:])
}

// bench measures one binding.
type bench struct {
	w                                  io.Writer
	binding                            infra.Binding
	dir                                string
	floor                              *floor
	setupList, groupList, singleList   string // lists of the floor
	setupScript, teardownScript, sends string
}

func newBench(ctx context.Context, w io.Writer, dir string, f *floor, binding infra.Binding) (*bench, error) {
	b := &bench{w: w, binding: binding, dir: filepath.Join(dir, binding.Kind()), floor: f}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, err
	}
	return b, b.learn(ctx)
}

func (b *bench) config(p *pod) phase1.Config {
	return phase1.Config{NetNS: p.file, Dir: p.node(), Spec: infra.Spec{NIC: nic, Binding: b.binding, State: p.state}}
}

// way is one of the compared implementations.
type way struct {
	name string
	run  func(ctx context.Context, p *pod) (time.Duration, error)
}

func (b *bench) goWay(name string, call func(context.Context, phase1.Config) error) way {
	return way{name, func(ctx context.Context, p *pod) (time.Duration, error) {
		c := b.config(p)
		begin := time.Now()
		err := call(ctx, c)
		return time.Since(begin), err
	}}
}

func (b *bench) floorWay(name, list string) way {
	return way{name, func(_ context.Context, p *pod) (time.Duration, error) {
		return b.floor.run(list, p)
	}}
}

func (b *bench) scriptWay(name, script string) way {
	return way{name, func(ctx context.Context, p *pod) (time.Duration, error) {
		begin := time.Now()
		out, err := exec.CommandContext(ctx, "nsenter", "--net="+p.path(), "sh", "-e", script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return time.Since(begin), err
	}}
}

func (b *bench) setup(ctx context.Context, rounds int) error {
	untouched := func(context.Context, *pod) error { return nil }
	ways := []way{
		b.goWay("Setup", setup),
		b.floorWay("floor: the same calls, C", b.setupList),
		b.scriptWay("script: "+programs(b.setupScript), b.setupScript),
	}
	samples, err := b.compare(ctx, rounds, 2, untouched, ways)
	if err != nil {
		return err
	}
	faster := 1.0
	if b.binding.Kind() == (infra.Masquerade{}).Kind() {
		faster = 4
	}
	fmt.Fprintf(b.w, "%s: Setup (%s)\n", b.binding.Kind(), b.sends)
	report(b.w, ways, samples, 1, []target{
		{"Setup / floor", 0, 1, 1.35, false},
		{"script / Setup", 2, 0, faster, true},
	})
	return nil
}

func (b *bench) teardown(ctx context.Context, rounds int) error {
	wired := func(ctx context.Context, p *pod) error {
		if _, err := phase1.Setup(ctx, b.config(p)); err != nil {
			return err
		}
		journal, err := journalOf(p)
		if err != nil {
			return err
		}
		return os.Link(journal, filepath.Join(p.state, journalFile)) // the name in the floor's list
	}
	ways := []way{
		b.goWay("Teardown", phase1.Teardown),
		b.floorWay("floor: the same calls, C", b.groupList),
		b.floorWay("a link a call, C", b.singleList),
		b.scriptWay("script: "+programs(b.teardownScript), b.teardownScript),
	}
	samples, err := b.compare(ctx, rounds, 1, wired, ways)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "%s: Teardown\n", b.binding.Kind())
	report(b.w, ways, samples, 1, []target{{"Teardown / a link a call", 0, 2, 0.45, false}})
	return nil
}

// warmUp is the number of rounds that are not counted. After them the results of all ways are compared.
const warmUp = 3

// compare measures all ways in each round, in prepared namespaces, so that a drift of the machine affects all ways alike. A
// turn has runs runs, of which only the last one counts: the others fill the CPU's caches. All ways must leave the same
// namespace.
func (b *bench) compare(ctx context.Context, rounds, runs int, prepare func(context.Context, *pod) error, ways []way) (samples [][]time.Duration, err error) {
	samples = make([][]time.Duration, len(ways))
	var all []*pod
	defer func() { // at the end, as the kernel's cleanup would disturb the measurements
		err = errors.Join(err, closePods(all))
	}()
	for round := -warmUp; round < rounds; round++ {
		pods := make([]*pod, len(ways)*runs)
		for i := range pods {
			p, err := newPod(ctx, b.dir)
			if err != nil {
				return nil, err
			}
			all = append(all, p)
			pods[i] = p
		}
		for _, p := range pods {
			if err := errors.Join(p.waitSettled(ctx), prepare(ctx, p)); err != nil {
				return nil, err
			}
		}
		if err := sleep(ctx, settleTime); err != nil {
			return nil, err
		}
		for i := range ways {
			i = (i + round + warmUp) % len(ways)
			var took time.Duration
			for run := range runs {
				var err error
				if took, err = ways[i].run(ctx, pods[i*runs+run]); err != nil {
					return nil, fmt.Errorf("%s: %w", ways[i].name, err)
				}
			}
			if round >= 0 {
				samples[i] = append(samples[i], took)
			}
		}
		if round == -1 {
			if err := checkSame(ctx, ways, pods, runs); err != nil {
				return nil, err
			}
		}
	}
	return samples, nil
}

// settleTime is the time after which the kernel's work on new links is done.
const settleTime = 20 * time.Millisecond

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func setup(ctx context.Context, c phase1.Config) error {
	_, err := phase1.Setup(ctx, c)
	return err
}
