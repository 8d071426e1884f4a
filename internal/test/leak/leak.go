// Package leak finds what tests leave behind in their process: goroutines, open files, child
// processes, and threads in another network namespace. It ends a test that hangs.
package leak

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Main is a TestMain: the run fails if the tests leave something behind.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs the tests and returns the status for os.Exit. What the tests leave behind is printed, and
// makes the run fail. More checks say what is left too, a line each. A test that waits at one place for longer than
// Allow says ends the process.
func Run(m *testing.M, more ...func() []string) int {
	go watch(time.Minute / 2)
	before, err := Take()
	if err != nil {
		fmt.Fprintln(os.Stderr, "leak:", err)
		return 1
	}
	status := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" { // fuzzing has processes of its own
		return status
	}
	left, err := before.Left(patience)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leak:", err)
		return 1
	}
	for _, check := range more {
		left = append(left, check()...)
	}
	// A test that failed may well have left something.
	if len(left) > 0 && status == 0 {
		status = 1
		fmt.Printf("FAIL: the tests left behind:\n%s\n", strings.Join(left, "\n"))
	}
	return status
}

// patience is for what ends by itself: the other end of a connection, a process that was killed.
const patience = 10 * time.Second

// State is what a process holds.
type State struct {
	goroutines map[string]bool // their numbers
	files      map[string]int  // what is open, and how often
	children   map[string]bool // pid and name
	namespaces map[string]bool // of the threads
}

// Take looks at this process.
func Take() (State, error) {
	s := State{map[string]bool{}, map[string]int{}, map[string]bool{}, map[string]bool{}}
	for number := range goroutines() {
		s.goroutines[number] = true
	}
	var err error
	if s.files, err = files(); err != nil {
		return s, err
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return s, err
	}
	for _, thread := range threads {
		namespace, err := os.Readlink(thread + "/ns/net")
		if err == nil {
			s.namespaces[namespace] = true
		}
		children, childrenErr := os.ReadFile(thread + "/children")
		for _, pid := range strings.Fields(string(children)) {
			name, err := os.ReadFile("/proc/" + pid + "/comm")
			if err == nil {
				s.children[pid+" "+strings.TrimSpace(string(name))] = true
			}
		}
		// A thread may have ended.
		if err := errors.Join(err, childrenErr); err != nil && !gone(err) {
			return s, err
		}
	}
	return s, nil
}

// Left says what there is now and was not before, a line each. Left looks again until nothing is
// left or the time is over.
func (before State) Left(patience time.Duration) ([]string, error) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		now, err := Take()
		if err != nil {
			return nil, err
		}
		if left := before.difference(now); len(left) == 0 || time.Now().After(end) {
			return left, nil
		}
	}
}

func (before State) difference(now State) []string {
	var left []string
	for number, stack := range goroutines() {
		if !before.goroutines[number] {
			left = append(left, "goroutine: "+strings.ReplaceAll(stack, "\n", "\n    "))
		}
	}
	for file, count := range now.files {
		if more := count - before.files[file]; more > 0 {
			left = append(left, fmt.Sprintf("open file: %s (%d)", file, more))
		}
	}
	for child := range now.children {
		if !before.children[child] {
			left = append(left, "process: "+child)
		}
	}
	for namespace := range now.namespaces {
		if !before.namespaces[namespace] {
			left = append(left, "thread in another network namespace: "+namespace)
		}
	}
	slices.Sort(left)
	return left
}

// goroutines are the stacks of all but this one and those of the runtime and the testing package, by number.
func goroutines() map[string]string {
	all := map[string]string{}
	for i, stack := range stacks() {
		head, _, _ := strings.Cut(stack, " [")
		if i == 0 || ofOthers.MatchString(stack) { // the first one asks
			continue
		}
		all[strings.TrimPrefix(head, "goroutine ")] = stack
	}
	return all
}

// stacks are those of all goroutines, that of the caller first.
func stacks() []string {
	text := make([]byte, 1<<16)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			return strings.Split(strings.TrimSpace(string(text[:n])), "\n\n")
		}
		text = make([]byte, 2*len(text))
	}
}

// ofOthers are goroutines that stay once they have been needed: the one that waits for signals, and the
// alarm of "go test -timeout".
var ofOthers = regexp.MustCompile(`os/signal\.(signal_recv|loop)|created by os/signal\.|created by testing\.\(\*M\)\.(startAlarm|before)`)

// files are the open ones. The runtime's own stay open once they have been needed.
func files() (map[string]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	open := map[string]int{}
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		if gone(err) { // the directory itself
			continue
		}
		if err != nil {
			return nil, err
		}
		if !ofRuntime.MatchString(name) && !(strings.HasPrefix(name, "pipe:") && isSplice(e.Name())) {
			open[name]++
		}
	}
	return open, nil
}

var ofRuntime = regexp.MustCompile(`^anon_inode:\[(eventpoll|eventfd)\]$|^/dev/urandom$|^/sys/fs/cgroup/`)

// isSplice reports whether the file is a pipe through which package net splices connections. It keeps such pipes until
// the garbage collector has run twice, and makes them larger than others: maxSpliceSize of internal/poll,
// splice_linux.go.
func isSplice(fd string) bool {
	number, err := strconv.Atoi(fd)
	if err != nil {
		return false
	}
	size, err := unix.FcntlInt(uintptr(number), unix.F_GETPIPE_SZ, 0)
	return err == nil && size == 1<<20
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || err != nil && strings.Contains(err.Error(), "no such process")
}
