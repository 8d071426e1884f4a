// Command bench has ten parts. The first compares Setup and Teardown, for each binding, with a C program that makes only
// the same system calls (floor/floor.c), with a script of ip(8), tc(8), nft(8) and sysctl(8) for the same network, and with
// the sequences of KubeVirt and tc-redirect-tap for a similar one (sequences.go), and Check with a dump of the namespace. The
// second measures what the guest filter costs per frame. The third compares Phase2's responder with dnsmasq: exchanges,
// latency, CPU time, memory, and wake-ups while idle. The fourth measures what the CNI plugin adds to a pod's start, the fifth
// the memory of a node with many guests, the sixth what passes the limits of a guest, the seventh what a guest's programs
// get through guestwire, passt and slirp4netns, the eighth what redirect gains by a tap's queues, the ninth Setup on a busy
// node, and the tenth tells where the time of Setup goes. Compared programs take turns in one run.
//
// The command needs root, gcc, dnsmasq, passt, the programs of the script, and Debian's containerd and slirp4netns as
// "make install" unpacks them. It works in namespaces and mounts that end with it.
// The exit status is 0 if all ways had the same result, however fast they were.
package main

import (
	"bytes"
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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase1"
)

func main() {
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if err = sandbox.Enter(); err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		if o.record != "" {
			err = record(ctx, o.record)
		} else {
			err = runParts(os.Stdout, o.parts(ctx), o.only, o.document)
		}
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options is the command line.
type options struct {
	setups, teardowns, traced, guests int
	record, earlier                   string
	load                              load
	traffic                           traffic
	queued                            queued
	throughput                        throughput
	starts                            starts
	limited                           limited
	only, document                    string
}

const usage = `Usage: bench [-only PART] [-document FILE] [FLAG ...]

Bench compares guestwire with programs that do the same, which take turns in one run. Compare the ratios it prints, not the times
of two runs. It needs root, and what "make install" installs, and works in namespaces that end with it.

    bench -only setup -setups 5 -teardowns 3         one part, in a minute: enough to see that it works
    bench -only setup -document docs/performance.md  one part, with its table in the document replaced
    bench                                            all parts, with the default rounds, which takes long

Each flag tells the part that it belongs to.

`

// parseOptions parses the command line. The text of -help goes to out, and the error is flag.ErrHelp then.
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{
		load:       load{progress: os.Stderr, unplugged: time.Second},
		limited:    limited{warm: 3 * time.Second},
		queued:     queued{turn: 20 * time.Millisecond},
		throughput: throughput{warm: 500 * time.Millisecond},
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // main prints the error, and not the whole usage behind it
	f.Usage = func() {
		fmt.Fprint(out, usage)
		f.SetOutput(out)
		f.PrintDefaults()
	}
	f.StringVar(&o.only, "only", "", "run the `PART` alone: "+strings.Join(o.partNames(), ", "))
	f.StringVar(&o.document, "document", "", "replace in `FILE`, such as docs/performance.md, the tables of the parts that run; timeline draws setup.svg beside it")

	f.IntVar(&o.setups, "setups", 50, "setup, many: `ROUNDS` of Setup, of Check, and of agent setup as a process, for each binding")
	f.IntVar(&o.teardowns, "teardowns", 15, "setup: `ROUNDS` of Teardown, for each binding, of about half a second; many: rounds with one worker and with eight")

	f.StringVar(&o.record, "record", "", "setup: write the calls of this build's floor to `FILE` (tar.gz), and measure nothing")
	f.StringVar(&o.earlier, "earlier", "", "setup: the `FILE` of another build's -record, whose floor takes turns with this one (default: that of commit "+recordedCommit+")")

	f.IntVar(&o.traced, "traced", 21, "timeline: `ROUNDS` of Setup that are traced, for each binding; the picture shows the one of the middle")

	f.IntVar(&o.traffic.sets, "sets", 8, "datapath: `SETS` of fresh namespaces; a datapath's speed differs by set")
	f.IntVar(&o.traffic.rounds, "turns", 25, "datapath: `ROUNDS` of traffic in each set")
	f.IntVar(&o.traffic.packets, "datagrams", 40, "datapath: `BURSTS` of UDP packets in a turn")
	f.IntVar(&o.traffic.segments, "segments", 10, "datapath: `BURSTS` of TCP segments of 64 KiB in a turn")

	f.IntVar(&o.queued.sets, "queuesets", 4, "queues: `SETS` of fresh namespaces")
	f.IntVar(&o.queued.rounds, "queueturns", 15, "queues: `ROUNDS` in each set")

	f.IntVar(&o.throughput.rounds, "streams", 5, "throughput: `ROUNDS` of a guest's streams through guestwire, passt and slirp4netns")
	f.DurationVar(&o.throughput.counted, "streamed", 700*time.Millisecond, "throughput: `LENGTH` of a stream's turn")

	f.IntVar(&o.load.rounds, "rounds", 7, "responder: `ROUNDS` of exchanges with each server")
	f.IntVar(&o.load.closed, "exchanges", 3000, "responder: `EXCHANGES` in a turn, one after the other")
	f.DurationVar(&o.load.paced, "paced", time.Second, "responder: `LENGTH` of a turn at a fixed pace, which tells latencies")
	f.IntVar(&o.load.leases, "leases", 5, "responder: `LEASES` for each kind of guest")
	f.IntVar(&o.load.packets, "packets", 1_000_000, "responder: `PACKETS` of a flood, before the servers' memory is looked at again")
	f.DurationVar(&o.load.idle, "idle", time.Minute, "responder: `LENGTH` of the time without a packet in which wake-ups are counted")
	f.StringVar(&o.load.base, "base", "", "responder: `PATH` of another commit's launcher, beside which this one is measured instead of dnsmasq")

	f.IntVar(&o.starts.calls, "calls", 30, "plugin: `ROUNDS` of calls of the CNI plugin")
	f.IntVar(&o.starts.pods, "pods", 15, "plugin: `ROUNDS` of pods that containerd starts")

	f.IntVar(&o.guests, "guests", 50, "node: `GUESTS` of a node whose memory is measured; many: 20 times as many namespaces are wired")

	f.Uint64Var(&o.limited.bits, "bits", 100_000_000, "limits: `LIMIT` of bits a second")
	f.Uint64Var(&o.limited.packets, "pps", 5000, "limits: `LIMIT` of packets a second")
	f.DurationVar(&o.limited.counted, "counted", 5*time.Second, "limits: `LENGTH` of the time in which is counted what passes")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag: a part is named by -only, and bench -help tells the flags", f.Arg(0))
	}
	if o.only != "" && !slices.Contains(o.partNames(), o.only) {
		return o, fmt.Errorf("-only %s: the parts are %s", o.only, strings.Join(o.partNames(), ", "))
	}
	if o.only == "" {
		return o, nil
	}
	var other error
	f.Visit(func(set *flag.Flag) {
		belongs := strings.Contains(set.Usage, o.only+": ") || strings.Contains(set.Usage, o.only+", ")
		if !belongs && set.Name != "only" && set.Name != "document" {
			other = fmt.Errorf("-%s: the part %s has no such flag; bench -help tells the part of each", set.Name, o.only)
		}
	})
	return o, other
}

// picture is the path of the time lines' picture, beside the document; empty: there is no document.
func (o options) picture() string {
	if o.document == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(o.document), "setup.svg")
}

func (o options) partNames() []string {
	var names []string
	for _, p := range o.parts(context.Background()) {
		names = append(names, p.name)
	}
	return names
}

func (o options) parts(ctx context.Context) []part {
	return []part{
		{"setup", func(w io.Writer) error { return run(ctx, w, o.setups, o.teardowns, o.earlier) }},
		{"timeline", func(w io.Writer) error { return measureTimelines(ctx, w, o.traced, o.picture()) }},
		{"datapath", func(w io.Writer) error { return measureDatapath(ctx, w, o.traffic) }},
		{"queues", func(w io.Writer) error { return measureQueues(ctx, w, o.queued) }},
		{"throughput", func(w io.Writer) error { return printThroughput(ctx, w, o.throughput) }},
		{"responder", func(w io.Writer) error { return measureResponders(ctx, w, o.load) }},
		{"plugin", func(w io.Writer) error { return measurePlugin(ctx, w, o.starts) }},
		{"node", func(w io.Writer) error { return measureNode(ctx, w, o.guests) }},
		{"many", func(w io.Writer) error {
			return measureMany(ctx, w, loads{starts: o.setups, namespaces: 20 * o.guests, turns: o.teardowns})
		}},
		{"limits", func(w io.Writer) error { return printLimits(ctx, w, o.limited) }},
	}
}

// part is a part of the command, which prints its tables.
type part struct {
	name string
	run  func(w io.Writer) error
}

// runParts runs the part named only, or all parts if only is empty. What a part prints also replaces what the document has of that part;
// document empty: there is none.
func runParts(w io.Writer, parts []part, only, document string) error {
	var errs []error
	if document != "" {
		if err := checkPart(document, only); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		var text bytes.Buffer
		err := p.run(io.MultiWriter(w, &text))
		if err == nil && document != "" {
			err = replacePart(document, p.name, text.String())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// newStateDir makes a directory on a tmpfs, like /run, for state, journals and the floor.
func newStateDir() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "guestwire-bench-"); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("guestwire", dir, "tmpfs", 0, "mode=700"); err != nil {
		return "", nil, errors.Join(fmt.Errorf("tmpfs on %s: %w", dir, err), os.Remove(dir))
	}
	return dir, func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		os.RemoveAll(dir)
	}, nil
}

var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}}

// run measures Setup, Check and Teardown and prints the tables to w. earlier is the file of a recording; empty: that of
// recordedCommit.
func run(ctx context.Context, w io.Writer, setups, teardowns int, earlier string) error {
	if setups < 1 || teardowns < 1 {
		return fmt.Errorf("%d rounds of Setup and %d of Teardown, want 1 or more", setups, teardowns)
	}
	for _, program := range []string{"gcc", "ip", "tc", "nft", "sysctl", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	dir, remove, err := newStateDir()
	if err != nil {
		return err
	}
	defer remove()
	floor, err := startFloor(ctx, dir, floorSource)
	if err != nil {
		return err
	}
	defer floor.stop()
	base, err := startEarlier(ctx, dir, earlier)
	if err != nil {
		return err
	}
	defer base.stop()

	machine, err := describeMachine()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Setup, Check and Teardown of a NIC with an IPv4 and an IPv6 address and default routes, in milliseconds.\n"+
		"Linux %s, %d CPUs, %s; %d and %d rounds, in each of which every way has a turn in fresh namespaces.\n"+
		"A way sets up or checks two in a row, and the second one counts.\n%s\n\n",
		release(), runtime.NumCPU(), runtime.Version(), setups, teardowns, machine)
	for _, binding := range bindings {
		b, err := newBench(ctx, w, dir, floor, binding)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		b.earlier = base
		if err := b.setup(ctx, setups); err != nil {
			return fmt.Errorf("%s, Setup: %w", binding.Kind(), err)
		}
		if err := b.check(ctx, setups); err != nil {
			return fmt.Errorf("%s, Check: %w", binding.Kind(), err)
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
	dummy, log                         bool // the kernel has the link kind, and the log of dropped frames
	earlier                            *earlier
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
	name  string
	run   func(ctx context.Context, p *pod) (time.Duration, error)
	apart bool                 // what it leaves differs from what the others leave, as it must
	used  func() time.Duration // the CPU time of the last run; nil: not known
}

func (b *bench) goWay(name string, call func(context.Context, phase1.Config) error) way {
	var used time.Duration
	run := func(ctx context.Context, p *pod) (time.Duration, error) {
		c := b.config(p)
		begin, before := time.Now(), processTime()
		err := call(ctx, c)
		used = processTime() - before
		return time.Since(begin), err
	}
	return way{name: name, run: run, used: func() time.Duration { return used }}
}

// processTime is the CPU time of this process, of all threads: also of the garbage collection that a call causes.
func processTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

func (b *bench) floorWay(name, list string) way {
	return way{name: name, used: func() time.Duration { return b.floor.used }, run: func(_ context.Context, p *pod) (time.Duration, error) {
		return b.floor.run(list, p)
	}}
}

func (b *bench) scriptWay(name, script string) way {
	return way{name: name, run: func(ctx context.Context, p *pod) (time.Duration, error) {
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
	faster := 1.0
	if b.binding.Kind() == (infra.Masquerade{}).Kind() {
		faster = 4
	}
	targets := []target{{"Setup / floor", 0, 1, 1.30, false}, {"script / Setup", 2, 0, faster, true}}
	note, err := b.earlier.fits(b)
	if err != nil {
		return err
	}
	if note == "" {
		name := "floor of " + b.earlier.name
		targets = append(targets, target{"floor / " + name, 1, len(ways), leastFloor, false})
		ways = append(ways, b.earlier.way(b.binding))
	}
	if peer, ok := b.peer(); ok {
		targets = append(targets, target{name: strings.TrimPrefix(peer.name, "the ") + " / Setup", a: len(ways)})
		ways = append(ways, peer)
	}
	samples, err := b.compare(ctx, rounds, 2, untouched, ways)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "%s: Setup (%s)\n", b.binding.Kind(), b.sends)
	if err := b.describeFloors(note); err != nil {
		return err
	}
	report(b.w, ways, samples, 1, "floor", targets)
	return nil
}

func (b *bench) teardown(ctx context.Context, rounds int) error {
	wired := func(ctx context.Context, p *pod) error {
		if err := setup(ctx, b.config(p)); err != nil {
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
	report(b.w, ways, samples, 1, "floor", []target{{"Teardown / a link a call", 0, 2, 0.45, false}})
	return nil
}

// warmUp is the number of rounds that are not counted. After them the results of all ways are compared.
const warmUp = 3

// measured are the times, and the CPU times if they are known, by way and round.
type measured struct{ times, used [][]time.Duration }

// compare measures all ways in each round, in prepared namespaces, so that a drift of the machine affects all ways alike. A
// turn has runs runs, of which only the last one counts: the others fill the CPU's caches. All ways must leave the same
// namespace, but those apart.
func (b *bench) compare(ctx context.Context, rounds, runs int, prepare func(context.Context, *pod) error, ways []way) (samples measured, err error) {
	samples = measured{make([][]time.Duration, len(ways)), make([][]time.Duration, len(ways))}
	var all []*pod
	defer func() { // at the end, as the kernel's cleanup would disturb the measurements
		err = errors.Join(err, closePods(all))
	}()
	for round := -warmUp; round < rounds; round++ {
		pods := make([]*pod, len(ways)*runs)
		for i := range pods {
			p, err := newPod(ctx, b.dir)
			if err != nil {
				return samples, err
			}
			all = append(all, p)
			pods[i] = p
		}
		for _, p := range pods {
			if err := errors.Join(p.waitSettled(ctx), prepare(ctx, p)); err != nil {
				return samples, err
			}
		}
		if err := sleep(ctx, settleTime); err != nil {
			return samples, err
		}
		for i := range ways {
			i = (i + round + warmUp) % len(ways)
			var took time.Duration
			for run := range runs {
				var err error
				if took, err = ways[i].run(ctx, pods[i*runs+run]); err != nil {
					return samples, fmt.Errorf("%s: %w", ways[i].name, err)
				}
			}
			if round >= 0 {
				samples.times[i] = append(samples.times[i], took)
				if ways[i].used != nil {
					samples.used[i] = append(samples.used[i], ways[i].used())
				}
			}
		}
		if round == -1 {
			if err := checkSame(ctx, ways, pods, runs); err != nil {
				return samples, err
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
