package leak

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// longest is how long a test may wait at one place, in nanoseconds. Nearly all waits that have a limit of their own
// have three minutes or less.
var longest atomic.Int64

func init() {
	limit := 10 * time.Minute              // a build of a test, on a busy machine
	if os.Getenv("GUESTWIRE_CARD") != "" { // the machine is emulated (nstest.Emulated)
		limit *= 3
	}
	longest.Store(int64(limit))
}

// Allow lets the tests of this process wait longer at one place. Call it beside a wait whose own limit is d.
func Allow(d time.Duration) {
	d += time.Minute // the wait's own error comes first
	for {
		old := longest.Load()
		if int64(d) <= old || longest.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// watch ends the process if a test waits at one place for longer than Allow says: for a channel, a WaitGroup, a
// process, a file. It panics as the alarm of "go test -timeout" does, and names the place. The alarm is for the whole
// package, and comes late.
func watch(every time.Duration) {
	for range time.Tick(every) {
		runtime.GC() // notes since when a goroutine waits
		limit := time.Duration(longest.Load())
		for _, stack := range stacks() {
			if what := hangs(stack, limit); what != "" {
				debug.SetTraceback("all")
				panic("test " + what)
			}
		}
	}
}

// head is the first line of a goroutine's stack, such as "goroutine 7 [chan receive, 5 minutes]:".
var head = regexp.MustCompile(`^goroutine \d+ .*\[([^],]*)(?:, (\d+) minutes)?.*\]:\n`)

// hangs says where the test whose stack it is has waited for the limit or longer; empty: nowhere, or the goroutine runs
// no test.
func hangs(stack string, limit time.Duration) string {
	m := head.FindStringSubmatch(stack)
	if m == nil || m[1] == "running" || m[1] == "runnable" || !strings.Contains(stack, "\ntesting.tRunner(") {
		return ""
	}
	minutes, _ := strconv.Atoi(m[2]) // none: less than one
	if time.Duration(minutes)*time.Minute < limit {
		return ""
	}
	frames := strings.Split(stack, "\n")[1:] // a function, and its place in the next line
	of := 0
	for i := 0; i+1 < len(frames); i += 2 {
		if turn.MatchString(frames[i]) {
			return ""
		}
		if !ofLibrary(frames[i]) || strings.HasPrefix(frames[i], "testing.(*common).Cleanup") {
			of = i
			break
		}
	}
	place, _, _ := strings.Cut(strings.TrimSpace(frames[of+1]), " +0x")
	return fmt.Sprintf("waits for %d minutes at one place (%s): %s at %s", minutes, m[1], frames[of], place)
}

// turn is where a test waits for its subtests, or for its turn.
var turn = regexp.MustCompile(`^testing\.(\(\*T\)\.|\(\*testState\)\.|tRunner\.func)`)

// ofLibrary reports whether a function is one of Go's own library: its first directory has no dot.
func ofLibrary(function string) bool {
	first, _, found := strings.Cut(function, "/")
	return !found || !strings.Contains(first, ".")
}
