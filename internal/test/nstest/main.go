package nstest

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// Main is a TestMain. The tests run in a sandbox if there can be one. The run fails if they leave
// something behind: see package leak; and namespaces, or links of guestwire in the process's own.
//
// Main prints one line if tests were left out, with their count and the reasons.
func Main(m *testing.M) {
	if os.Getenv(report) == "" {
		openReport()
	}
	unable = sandbox.Enter()
	if unable != nil && !errors.Is(unable, os.ErrPermission) {
		fmt.Fprintln(os.Stderr, unable)
		os.Exit(1)
	}
	// Tests on namespaces wait more than they work.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, 2*runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flag.Parse()
	w := os.Stdout // which go test shows with -v
	if fd, err := strconv.Atoi(os.Getenv(report)); err == nil && !testing.Verbose() {
		unix.CloseOnExec(fd)
		w = os.NewFile(uintptr(fd), "go test")
	}
	os.Unsetenv(report)
	if kind := os.Getenv("GUESTWIRE_SELECT"); kind != "" && !Kernels {
		fmt.Fprintf(os.Stderr, "GUESTWIRE_SELECT=%s: kernels is what there is\n", kind)
		os.Exit(1)
	}
	before := forwarding()
	status := leak.Run(m, namespacesLeft, func() []string { return linksLeft("/sys/class/net") }, func() []string {
		if now := forwarding(); now != before {
			return []string{fmt.Sprintf("ip_forward of the namespace in which the tests were started is %s, and was %s: new namespaces inherit it", now, before)}
		}
		return nil
	})
	if err := os.RemoveAll(programs.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	reportLeftOut(w)
	os.Exit(status)
}

// forwarding is what a CNI plugin switches on in the namespace in which it is called.
func forwarding() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	return strings.TrimSpace(string(text)) + strings.TrimPrefix(fmt.Sprint(err), "<nil>")
}

// Kernels is set where only tests run that have called KernelDecides.
var Kernels = os.Getenv("GUESTWIRE_SELECT") == "kernels"

// decided are the names of tests that have called KernelDecides.
var decided sync.Map

// KernelDecides notes why a test has to run under each kernel. Where GUESTWIRE_SELECT is kernels, only such tests run,
// and their subtests: "make lab" does so under Debian's kernels. All others are skipped where they make their first
// namespace, so a test calls KernelDecides before that.
func KernelDecides(t testing.TB, why string) {
	t.Helper()
	t.Log("the kernel decides: " + why)
	decided.Store(t.Name(), nil)
}

// SkipUndecided skips the test if only those in which the kernel decides run, and this is none of them. New and Adopt
// call it; a test that makes namespaces by itself calls it first.
func SkipUndecided(t testing.TB) {
	t.Helper()
	if !Kernels {
		return
	}
	for name := t.Name(); name != ""; name = name[:max(0, strings.LastIndexByte(name, '/'))] {
		if _, ok := decided.Load(name); ok {
			return
		}
	}
	t.Skip("no kernel decides it")
}

// Emulated is set under the stock kernel, which is some ten times slower than this machine.
var Emulated = os.Getenv("GUESTWIRE_CARD") != ""

// unable is why there is no sandbox; nil inside one.
var unable error

// leftOut counts tests by the reason why they were skipped.
var leftOut struct {
	sync.Mutex
	reasons map[string]int
}

// required is set where nothing may be skipped for want of a namespace or a program.
var required = os.Getenv("GUESTWIRE_REQUIRE") != ""

// Skip skips the test, or fails it where nothing may be skipped.
func Skip(t testing.TB, why string) {
	t.Helper()
	if required {
		t.Fatal(why)
	}
	LeaveOut(t, why)
}

// LeaveOut skips the test where nothing is wrong with that.
func LeaveOut(t testing.TB, why string) {
	t.Helper()
	leftOut.Lock()
	if leftOut.reasons == nil {
		leftOut.reasons = map[string]int{}
	}
	leftOut.reasons[why]++
	leftOut.Unlock()
	t.Skip(why)
}

// report is the variable with the number of a descriptor: the standard error of the go command, which
// started this process. "go test ./..." shows what a package's tests print only if they fail.
const report = "GUESTWIRE_TEST_REPORT"

// openReport sets the variable for the process in the sandbox, which could not look at the go command.
func openReport() {
	parent := fmt.Sprintf("/proc/%d/", os.Getppid())
	if exe, err := os.Readlink(parent + "exe"); err != nil || filepath.Base(exe) != "go" {
		return
	}
	pidfd, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, 2, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // it is inherited
	} else if info, statErr := os.Stat(parent + "fd/2"); statErr == nil && !info.Mode().IsRegular() {
		// Where that is forbidden (ptrace_scope). A file opened anew would be written over by the go command.
		fd, err = unix.Open(parent+"fd/2", unix.O_WRONLY, 0)
	}
	if err == nil {
		os.Setenv(report, strconv.Itoa(fd))
	}
}

// reportLeftOut prints the line about tests that were left out.
func reportLeftOut(w *os.File) {
	if len(leftOut.reasons) == 0 {
		return
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = os.Args[0]
	}
	count := 0
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(leftOut.reasons)) {
		count += leftOut.reasons[why]
		reasons = append(reasons, fmt.Sprintf("%d: %s", leftOut.reasons[why], why))
	}
	line := fmt.Sprintf("%s: tests left out: %d (%s)\n", filepath.Base(dir), count, strings.Join(reasons, "; "))
	if _, err := w.WriteString(line); err != nil {
		fmt.Print(line)
	}
}

// namespacesLeft are those that New made and no test has taken away. A sandbox has none of others.
func namespacesLeft() []string {
	var left []string
	if unable == nil {
		names, err := os.ReadDir("/run/netns")
		if err != nil {
			return []string{err.Error()}
		}
		for _, name := range names {
			left = append(left, "network namespace: "+name.Name())
		}
	}
	return left
}

// linksLeft are guestwire's links among those of a directory of sysfs: in the process's own namespace there
// are none unless Setup worked in the wrong one.
func linksLeft(dir string) []string {
	var left []string
	aliases, err := filepath.Glob(dir + "/*/ifalias")
	if err != nil {
		return []string{err.Error()}
	}
	for _, path := range aliases {
		if alias, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(alias), "guestwire") {
			left = append(left, "link: "+filepath.Base(filepath.Dir(path)))
		}
	}
	return left
}
