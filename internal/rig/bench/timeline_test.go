package main

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestParseTrace: each moment between the marks is in a lane, and other goroutines count for nothing.
func TestParseTrace(t *testing.T) {
	const text = `M=1 P=0 G=9 StateTransition Time=900 GoID=9 Running->Syscall Reason=""
TransitionStack=
	os.Open @ 0x1
		/usr/local/go/src/os/file.go:1

M=1 P=0 G=1 Log Time=1000 Task=0 Category="guestwire-bench" Message="begin"
M=1 P=0 G=1 StateTransition Time=1100 GoID=1 Running->Waiting Reason="chan receive"
M=1 P=0 G=2 StateTransition Time=1150 GoID=2 Runnable->Running Reason=""
M=1 P=0 G=2 StateTransition Time=1200 GoID=2 Running->Syscall Reason=""
TransitionStack=
	github.com/guestwire/guestwire/internal/kernel.(*socket).dump @ 0x1
		/src/socket.go:1
	github.com/guestwire/guestwire/internal/kernel.(*Namespace).Snapshot @ 0x1
		/src/namespace.go:1

M=2 P=1 G=7 StateTransition Time=1250 GoID=7 Runnable->Running Reason=""
M=2 P=1 G=7 RangeBegin Time=1260 Name="GC concurrent mark phase" Scope=Goroutine(7)
M=1 P=0 G=2 StateTransition Time=1500 GoID=2 Syscall->Running Reason=""
M=2 P=1 G=7 RangeEnd Time=1560 Name="GC concurrent mark phase" Scope=Goroutine(7) Attributes=[]
M=1 P=0 G=2 StateTransition Time=1600 GoID=2 Running->NotExist Reason=""
M=1 P=0 G=1 StateTransition Time=1700 GoID=1 Runnable->Running Reason=""
M=1 P=0 G=1 Log Time=2000 Task=0 Category="guestwire-bench" Message="end"
`
	got, err := parseTrace(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got.total != 1000 {
		t.Errorf("a Setup of %d ns, want 1000", got.total)
	}
	for lane, want := range map[string]time.Duration{goLane: 100 + 50 + 100 + 300, "rtnetlink": 300, waitLane: 50 + 100, gcLane: 300, "taps": 0, "files, locks, threads": 0} {
		if sum, _ := got.sum(lane); sum != want {
			t.Errorf("%s: %d ns, want %d, of %+v", lane, sum, want, got.spans)
		}
	}
	if p := got.phases(); len(p) != 1 || p[0].phase != "look" || p[0].begin != 200 || p[0].end != 500 {
		t.Errorf("phases %+v", p)
	}
	if _, err := parseTrace(strings.NewReader(strings.Replace(text, `"end"`, `"other"`, 1))); err == nil {
		t.Error("a trace without an end: no error")
	}
}

// TestTimeline: the functions that the lanes and phases name are those through which Setup calls the kernel.
func TestTimeline(t *testing.T) {
	nstest.Need(t, "go", "ip", "nsenter", "nft")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	removeWorld(t)
	dir, remove, err := newStateDir()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	path := filepath.Join(dir, "trace")
	var wired []*pod
	t.Cleanup(func() {
		if err := closePods(wired); err != nil {
			t.Error(err)
		}
	})
	var benches []*bench
	for _, binding := range bindings { // all of them first, as each waits for its pod to end
		b, err := newBench(t.Context(), t.Output(), dir, nil, binding)
		if err != nil {
			t.Fatal(err)
		}
		benches = append(benches, b)
	}
	for _, b := range benches {
		p, err := newPod(t.Context(), b.dir)
		if err != nil {
			t.Fatal(err)
		}
		wired = append(wired, p)
		if err := p.waitSettled(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := traceSetup(t.Context(), path, func() error { return setup(t.Context(), b.config(p)) }); err != nil {
			t.Fatal(err)
		}
		line, err := readTrace(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range callLanes {
			if _, n := line.sum(l.name); n == 0 {
				t.Errorf("%s: no call in the lane %s", b.binding.Kind(), l.name)
			}
		}
		found := map[string]bool{}
		for _, s := range line.spans {
			found[s.phase] = true
		}
		for _, p := range phases {
			if !found[p.name] {
				t.Errorf("%s: no call in the phase %s", b.binding.Kind(), p.name)
			}
		}
	}
}

// TestDrawing: a picture is XML, has a panel for each time line, and a text for each lane.
func TestDrawing(t *testing.T) {
	line := &timeline{total: 4 * time.Millisecond, spans: []span{
		{goLane, "", 0, time.Millisecond}, {"rtnetlink", "look", time.Millisecond, 2 * time.Millisecond},
	}}
	picture := drawTimelines([]drawing{{"bridge", line}, {"routed", line}})
	decoder := xml.NewDecoder(strings.NewReader(string(picture)))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range append(allLanes(), "bridge: 4.00 ms", "routed: 4.00 ms", "look") {
		if !strings.Contains(string(picture), ">"+want+"</text>") {
			t.Errorf("no text %q in\n%s", want, picture)
		}
	}
}
