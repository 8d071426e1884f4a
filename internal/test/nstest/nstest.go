// Package nstest creates network namespaces for tests, and looks at them as an administrator would:
// with ip(8), bridge(8), tc(8), nft(8), sysctl(8), and by traffic.
package nstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase2/vmm"
)

// Run runs a program and returns its standard output. A failure ends the test, and says all that the program printed.
func Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	return run(t, func(f func() error) error { return f() }, program, args...)
}

// run is Run by a thread on which do calls a function.
func run(t testing.TB, do func(func() error) error, program string, args ...string) string {
	t.Helper()
	var out, complaints bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := do(cmd.Run); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, &out, &complaints)
	}
	return out.String()
}

// Dir is a directory that everybody can enter; t.TempDir makes one for root alone.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guestwire-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Namespace is one that lasts as long as the test.
type Namespace struct {
	lab.Namespace
	Name string
	t    testing.TB
	gone bool
}

// count gives each name a number of its own.
var count atomic.Int64

// New makes an empty namespace with its loopback up, and without delays by duplicate address
// detection.
func New(t testing.TB, name string) *Namespace {
	t.Helper()
	SkipUndecided(t)
	made, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	return mount(t, name, made)
}

// Adopt returns a network namespace that exists already, such as /proc/self/ns/net, for as long as the test.
func Adopt(t testing.TB, name, path string) *Namespace {
	t.Helper()
	SkipUndecided(t)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return mount(t, name, lab.Namespace{File: file})
}

// mount gives a namespace a name, as ip-netns(8) does.
func mount(t testing.TB, name string, made lab.Namespace) *Namespace {
	t.Helper()
	n := &Namespace{Namespace: made, Name: fmt.Sprintf("%s%d", name, count.Add(1)), t: t}
	t.Cleanup(n.End)
	err := os.WriteFile(n.Path(), nil, 0o444)
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.File.Fd()), n.Path(), "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// End ends the namespace before the test does.
func (n *Namespace) End() {
	if n.gone {
		return
	}
	n.gone = true
	n.File.Close()
	if err := errors.Join(unix.Unmount(n.Path(), unix.MNT_DETACH), os.Remove(n.Path())); err != nil {
		n.t.Error(err)
	}
}

// Gone ends the namespace, and waits until the kernel has freed it. A child of another test has a copy of its file
// between fork and exec, and a busy kernel frees namespaces late.
func (n *Namespace) Gone() {
	n.t.Helper()
	id, err := netns.Identify(n.File)
	if err == nil {
		err = n.Do(id.AddCookie)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.End()
	Eventually(n.t, func() error {
		found, _, err := netns.Find(n.t.Context(), []netns.Identity{id})
		if f := found[id]; f != nil {
			return fmt.Errorf("%s is at %q", n.Name, f.Places())
		}
		return err
	})
}

// Path is where the namespace is mounted.
func (n *Namespace) Path() string { return filepath.Join("/run/netns", n.Name) }

// Exec runs a program in the namespace and returns what it printed. A failure ends the test.
//
// ip-netns(8) mounts a /sys of the namespace for the program, which takes five times as long as most programs run.
// Programs that ask the kernel by netlink or read /proc/sys do without.
func (n *Namespace) Exec(args ...string) string {
	n.t.Helper()
	switch args[0] {
	case "ip", "bridge", "tc", "nft", "sysctl":
		return run(n.t, n.Do, args[0], args[1:]...)
	}
	return n.ExecWithSys(args...)
}

// LoadRules carries out commands of nft(8), a line each, in transactions that fit the socket of an ordinary user.
func (n *Namespace) LoadRules(commands string) {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "ruleset")
	for part := range slices.Chunk(slices.Collect(strings.Lines(commands)), 500) {
		if err := os.WriteFile(file, []byte(strings.Join(part, "")), 0o600); err != nil {
			n.t.Fatal(err)
		}
		n.Exec("nft", "-f", file)
	}
}

// ExecWithSys is Exec for a program of that list that reads /sys after all, such as "ip tuntap list".
func (n *Namespace) ExecWithSys(args ...string) string {
	n.t.Helper()
	return Run(n.t, "ip", append([]string{"netns", "exec", n.Name}, args...)...)
}

// IP runs ip(8) in the namespace, with a line of words.
func (n *Namespace) IP(line string) string {
	n.t.Helper()
	return n.Exec(append([]string{"ip"}, strings.Fields(line)...)...)
}

// Settle waits until the kernel has taken notice that the link has a carrier, has given it its
// link-local address, and uses all of its addresses.
func (n *Namespace) Settle(link string) {
	n.t.Helper()
	if err := n.Namespace.Settle(link); err != nil {
		n.t.Fatal(err)
	}
}

// Dump is what an administrator sees of the namespace: everything that a wiring could change.
func (n *Namespace) Dump() string {
	n.t.Helper()
	return n.text(n.Namespace.Dump())
}

// Settled is the dump once it does not change by itself any more.
func (n *Namespace) Settled() string {
	n.t.Helper()
	return n.text(n.Namespace.Settled())
}

func (n *Namespace) text(text string, err error) string {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
	return text
}

// Stable takes out of a dump what time changes: the seconds that are left of a lifetime.
var Stable = lab.Stable

// Difference says where two dumps differ, or nothing. Of many lines it says the first ones: what was said before them
// would be cut off where a log shows its end alone.
func Difference(want, got string) error {
	const most = 40
	diff := lab.Diff(want, got)
	if diff == "" {
		return nil
	}
	lines := strings.SplitAfter(diff, "\n")
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d lines more", len(lines)-most))
	}
	return errors.New(strings.Join(lines, ""))
}

// Listen serves TCP in the namespace until the test ends: each connection gets a line, who serves it
// and who calls, and then its own bytes back.
func (n *Namespace) Listen(name, address string) {
	n.t.Helper()
	var answers *lab.Answers
	Eventually(n.t, func() (err error) { // an IPv6 address takes a moment, even without detection of duplicates
		answers, err = n.Answer(name, address)
		return err
	})
	n.t.Cleanup(answers.Close)
}

// Ask connects from the namespace and returns the line of the station that answers.
func (n *Namespace) Ask(address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return n.Namespace.Ask(ctx, address)
}

// Answer reads the line of the station at the other end.
func Answer(c net.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return lab.ReadAnswer(ctx, c)
}

// answerTime is how long a question waits for its answer.
const answerTime = 3 * time.Second

// Output is what a process has printed so far.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Process is a program that runs until the test ends, or the tests' process.
type Process struct {
	*exec.Cmd
	Output Output

	ended chan struct{}
	err   error // once it has ended

	stopped bool
}

// Start runs a program in the namespace as a user without capabilities until the test ends.
func (n *Namespace) Start(uid int, args ...string) *Process {
	n.t.Helper()
	groups := "--clear-groups"
	if sandbox.OneUser() { // who has no groups to give up either
		groups = "--keep-groups"
	}
	return n.StartCommand(exec.Command("nsenter", append([]string{
		"--net=" + n.Path(), "setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(uid), groups,
		"--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--pdeathsig", "KILL", "--",
	}, args...)...))
}

// StartCommand runs a command until the test ends, or the tests' process.
func (n *Namespace) StartCommand(cmd *exec.Cmd) *Process {
	n.t.Helper()
	p := &Process{Cmd: cmd}
	p.Stdout, p.Stderr = &p.Output, &p.Output
	p.ended = make(chan struct{})
	if err := vmm.Start(cmd); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.Wait()
	}()
	n.t.Cleanup(func() { p.Stop(n.t) })
	return p
}

// Stop ends the process by SIGTERM; it has to succeed. Called again it does nothing.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	p.end(t, "did not end by SIGTERM")
}

// Kill ends the process by SIGKILL, as a crash does.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.stopped = true
	if err := p.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-p.ended
}

// Await waits until the process has ended by itself; it has to succeed.
func (p *Process) Await(t testing.TB) {
	t.Helper()
	p.stopped = true
	p.end(t, "did not end by itself")
}

// end waits until the process has ended, or kills it after a minute. It has to succeed.
func (p *Process) end(t testing.TB, late string) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.Process.Kill()
		<-p.ended
		t.Errorf("%s: %s", strings.Join(p.Args, " "), late)
	}
	if p.err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), p.err, p.Output.String())
	}
}

// Eventually calls f until it returns nil, for a minute: a busy machine is slow.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// SetTypes returns nft's list with the types of sets. For a set that nft(8) itself has made, the list says from
// what part of a packet the type comes, which is in a comment of nft's own.
func SetTypes(list string) string {
	return typeOf.ReplaceAllStringFunc(list, func(line string) string {
		if strings.HasPrefix(line, "typeof ip ") || strings.HasPrefix(line, "typeof rt ip ") || line == "typeof @nh,112,32" {
			return "type ipv4_addr"
		}
		return "type ipv6_addr"
	})
}

var typeOf = regexp.MustCompile(`typeof .*`)
