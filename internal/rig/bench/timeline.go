package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A timeline tells of one Setup in which part of the kernel each moment went, by the trace of the Go runtime (runtime/trace): it
// has the begin, the end and the stack of each system call. A call belongs to the lane, and to the phase, of the functions in
// its stack, so the product needs no marks for this.

// traceLane is a row of the picture. A call belongs to the first lane with a function in its stack.
type traceLane struct {
	name      string
	functions []string // parts of names; none: all other calls
}

const module = "github.com/guestwire/guestwire/"

var callLanes = []traceLane{
	{"nftables", []string{
		module + "internal/kernel.(*Namespace).sendTables", module + "internal/kernel.(*Namespace).readTables",
		module + "internal/kernel.(*Namespace).knowTables", module + "internal/kernel.(*Namespace).HasLog", module + "internal/kernel.(*Namespace).CanOffload",
	}},
	{"rtnetlink", []string{module + "internal/kernel.(*socket)."}},
	{"taps", []string{module + "internal/kernel.addTap"}},
	{"sysctl", []string{module + "internal/kernel.sysctl", module + "internal/kernel.ReadOnlySysctls"}},
	{"files, locks, threads", nil},
}

// The lanes that are no system calls of Setup.
const (
	goLane   = "Go code"
	waitLane = "waits for a CPU"
	gcLane   = "garbage collection"
)

var phases = []traceLane{
	{"look", []string{module + "internal/kernel.(*Namespace).Snapshot"}},
	{"apply", []string{module + "internal/kernel.(*Namespace).Apply"}},
	{"journal", []string{module + "phase1.(*session).writeJournal"}},
	{"record", []string{module + "cache.Write"}},
}

// find returns the name of the first lane with a function in the stack; empty: there is none.
func find(lanes []traceLane, stack []string) string {
	for _, l := range lanes {
		if l.functions == nil {
			return l.name
		}
		for _, f := range l.functions {
			if slices.ContainsFunc(stack, func(frame string) bool { return strings.Contains(frame, f) }) {
				return l.name
			}
		}
	}
	return ""
}

// span is a time in a lane, since the begin of Setup.
type span struct {
	lane, phase string
	begin, end  time.Duration
}

// timeline is a traced Setup.
type timeline struct {
	total time.Duration
	spans []span // by begin
}

// sum returns the time in a lane, and how many spans it has.
func (t *timeline) sum(lane string) (sum time.Duration, n int) {
	for _, s := range t.spans {
		if s.lane == lane {
			sum += s.end - s.begin
			n++
		}
	}
	return sum, n
}

const traceCategory = "guestwire-bench"

// traceSetup traces f, and leaves the trace in the file.
func traceSetup(ctx context.Context, path string, f func() error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := trace.Start(file); err != nil {
		return err
	}
	defer trace.Stop()
	trace.Log(ctx, traceCategory, "begin")
	err = f()
	trace.Log(ctx, traceCategory, "end")
	return err
}

// readTrace reads a trace with the go command, as no library of the standard ones does.
func readTrace(ctx context.Context, path string) (*timeline, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "trace", "-d=parsed", path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool trace: %w: %s", err, stderr.String())
	}
	return parseTrace(bytes.NewReader(text))
}

// event is an event of a trace as "go tool trace -d=parsed" prints it: a line of words, then a stack.
type event struct {
	goroutine string // that the event happened on
	kind      string
	at        time.Duration
	words     string
	stack     []string
}

var eventLine = regexp.MustCompile(`^M=\S+ P=\S+ G=(\S+) (\w+) Time=(\d+) ?(.*)$`)

func parseEvents(r io.Reader) ([]event, error) {
	var events []event
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := eventLine.FindStringSubmatch(line); m != nil {
			ns, err := strconv.ParseInt(m[3], 10, 64)
			if err != nil {
				return nil, err
			}
			events = append(events, event{goroutine: m[1], kind: m[2], at: time.Duration(ns), words: m[4]})
			continue
		}
		if frame, ok := strings.CutPrefix(line, "\t"); ok && len(events) > 0 && !strings.HasPrefix(frame, "\t") {
			e := &events[len(events)-1]
			e.stack = append(e.stack, frame)
		}
	}
	return events, lines.Err()
}

var transition = regexp.MustCompile(`^GoID=(\S+) (\w+)->(\w+)`)

// parseTrace returns the time line of what is between the marks of traceSetup.
func parseTrace(r io.Reader) (*timeline, error) {
	events, err := parseEvents(r)
	if err != nil {
		return nil, err
	}
	mark := func(message string) int {
		return slices.IndexFunc(events, func(e event) bool {
			return e.kind == "Log" && strings.Contains(e.words, fmt.Sprintf("Category=%q Message=%q", traceCategory, message))
		})
	}
	first, last := mark("begin"), mark("end")
	if first < 0 || last < first {
		return nil, errors.New("the trace has no marks of a Setup")
	}
	begin, end := events[first].at, events[last].at
	// The goroutines of the Setup: the one that calls, and those with its functions in a stack.
	ours := map[string]bool{events[first].goroutine: true}
	for _, e := range events[first:last] {
		if slices.ContainsFunc(e.stack, func(f string) bool { return strings.HasPrefix(f, module) }) {
			ours[e.goroutine] = true
		}
	}
	t := &timeline{total: end - begin}
	type state struct {
		name, lane, phase string
		since             time.Duration
	}
	states := map[string]state{events[first].goroutine: {name: "Running", lane: goLane, since: begin}}
	ended := func(s state, at time.Duration) {
		if s.lane != "" {
			t.spans = append(t.spans, span{s.lane, s.phase, s.since - begin, at - begin})
		}
	}
	collects := time.Duration(-1)
	for _, e := range events[first : last+1] {
		switch {
		case e.kind == "RangeBegin" && strings.Contains(e.words, `"GC concurrent mark phase"`):
			collects = e.at
		case e.kind == "RangeEnd" && strings.Contains(e.words, `"GC concurrent mark phase"`) && collects >= 0:
			t.spans = append(t.spans, span{gcLane, "", collects - begin, e.at - begin})
			collects = -1
		}
		m := transition.FindStringSubmatch(e.words)
		if e.kind != "StateTransition" || m == nil || !ours[m[1]] {
			continue
		}
		ended(states[m[1]], e.at)
		now := state{name: m[3], since: e.at}
		switch now.name {
		case "Running":
			now.lane = goLane
		case "Syscall":
			now.lane, now.phase = find(callLanes, e.stack), find(phases, e.stack)
		}
		states[m[1]] = now
	}
	for _, s := range states {
		ended(s, end)
	}
	if collects >= 0 {
		t.spans = append(t.spans, span{gcLane, "", collects - begin, end - begin})
	}
	slices.SortFunc(t.spans, func(a, b span) int { return int(a.begin - b.begin) })
	t.addWaits()
	return t, nil
}

// addWaits adds the times in which no goroutine of the Setup ran, and none was in a system call.
func (t *timeline) addWaits() {
	var waits []span
	busy := time.Duration(0)
	for _, s := range t.spans {
		if s.lane == gcLane {
			continue
		}
		if s.begin > busy {
			waits = append(waits, span{waitLane, "", busy, s.begin})
		}
		busy = max(busy, s.end)
	}
	t.spans = append(t.spans, waits...)
	slices.SortFunc(t.spans, func(a, b span) int { return int(a.begin - b.begin) })
}

// allLanes returns the names of the lanes, from the top of the picture.
func allLanes() []string {
	names := []string{goLane}
	for _, l := range callLanes {
		names = append(names, l.name)
	}
	return append(names, waitLane, gcLane)
}

// measureTimelines traces Setups of each binding. Of the one with the median time it prints where the time goes, and draws it
// into the file picture; empty: no picture.
func measureTimelines(ctx context.Context, w io.Writer, rounds int, picture string) error {
	if rounds < 1 {
		return fmt.Errorf("%d rounds, want 1 or more", rounds)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go is missing, which reads a trace")
	}
	dir, remove, err := newStateDir()
	if err != nil {
		return err
	}
	defer remove()
	fmt.Fprintf(w, "Where the time of Setup goes, by traces of the Go runtime. Linux %s, %d CPUs, %s; in ms, the Setup with\nthe median time of %d. Calls of several threads overlap, and so does garbage collection.\n\n",
		release(), runtime.NumCPU(), runtime.Version(), rounds)
	var drawn []drawing
	for _, binding := range bindings {
		b, err := newBench(ctx, w, dir, nil, binding)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		lines, plain, err := b.traceRounds(ctx, rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		slices.SortFunc(lines, func(a, b *timeline) int { return int(a.total - b.total) })
		middle := lines[(len(lines)-1)/2]
		fmt.Fprintf(w, "%s: Setup %.2f, without a trace %.2f\n", binding.Kind(), ms(middle.total), ms(median(plain)))
		for _, lane := range allLanes() {
			sum, n := middle.sum(lane)
			line := fmt.Sprintf("  %-24s %6.2f  %3.0f %%", lane, ms(sum), 100*float64(sum)/float64(middle.total))
			if slices.ContainsFunc(callLanes, func(l traceLane) bool { return l.name == lane }) {
				line += fmt.Sprintf("  %4d calls", n)
			}
			fmt.Fprintln(w, line)
		}
		fmt.Fprintln(w)
		drawn = append(drawn, drawing{binding.Kind(), middle})
	}
	if picture == "" {
		return nil
	}
	return os.WriteFile(picture, drawTimelines(drawn), 0o644)
}

// traceRounds traces Setups, each in turn with one that is not traced. It returns the time lines, and the times of the others.
func (b *bench) traceRounds(ctx context.Context, rounds int) (lines []*timeline, plain []time.Duration, err error) {
	path := filepath.Join(b.dir, "trace")
	untouched := func(context.Context, *pod) error { return nil }
	ways := []way{
		{name: "traced", run: func(ctx context.Context, p *pod) (time.Duration, error) {
			err := traceSetup(ctx, path, func() error { return setup(ctx, b.config(p)) })
			if err != nil {
				return 0, err
			}
			t, err := readTrace(ctx, path)
			if err != nil {
				return 0, err
			}
			lines = append(lines, t)
			return t.total, nil
		}},
		b.goWay("Setup", setup),
	}
	samples, err := b.compare(ctx, rounds, 1, untouched, ways)
	if err != nil {
		return nil, nil, err
	}
	return lines[len(lines)-rounds:], samples.times[1], nil // the first ones were to warm up
}
