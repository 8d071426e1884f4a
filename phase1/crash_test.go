package phase1_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// crash is how much of the harness runs: all of it ("make crash"), or a part that changes nothing in
// the kinds of what is covered, which is smaller still for an emulated machine.
var crash = flag.String("crash", "some", "crash harness: few, some or all of its points")

// errnos are what the system calls fail with.
var errnos = []unix.Errno{
	unix.ENOMEM, unix.EPERM, unix.EBUSY, unix.EEXIST, unix.EINVAL, unix.ENODEV, unix.EIO, unix.ENOSPC, unix.EINTR, unix.ENOBUFS,
}

// traced are the system calls by which anything is changed, and those by which the kernel is asked.
var traced = []string{
	"openat", "mkdirat", "fchmod", "fchmodat", "fchown", "fchownat", "renameat", "renameat2", "fsync", "write", "unlinkat", "flock",
	"sendto", "sendmsg", "ioctl", "recvfrom", "recvmsg",
}

// point is a system call of a run.
type point struct {
	call string
	n    int    // which one of its kind on its thread: so strace counts
	what string // the call, what it is about, and which one of these it is: the same in every run
	// mutates says that the call changes something: the others read.
	mutates bool
}

// harm is what strace does at a point.
type harm struct {
	point
	errno unix.Errno // 0: kill -9
}

func (h harm) String() string {
	if h.errno == 0 {
		return "kill at " + h.what
	}
	return unix.ErrnoName(h.errno) + " at " + h.what
}

func (h harm) inject() string {
	if h.errno == 0 {
		return fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", h.call, h.n)
	}
	return fmt.Sprintf("inject=%s:error=%s:when=%d", h.call, unix.ErrnoName(h.errno), h.n)
}

// injections are strace's flags. It keeps one injection a system call: two of a kind have to be the
// same error, and are a range that has only its ends.
func injections(harms []harm) []string {
	if len(harms) == 2 && harms[0].call == harms[1].call {
		first, last := harms[0], harms[1]
		return []string{"-e", fmt.Sprintf("%s..%d+%d", first.inject(), last.n, last.n-first.n)}
	}
	var flags []string
	for _, h := range harms {
		flags = append(flags, "-e", h.inject())
	}
	return flags
}

// attempt is a call of the agent that meets harm.
type attempt struct {
	verb  string // of the agent, or "force": teardown -force
	harms []harm
}

// trial is what is done to a namespace as it was found.
type trial struct {
	wired    bool // Setup has been called before
	attempts []attempt
	again    bool // Setup comes before Teardown
}

func (c trial) String() string {
	var words []string
	for _, a := range c.attempts {
		words = append(words, fmt.Sprintf("%s with %v", a.verb, a.harms))
	}
	if c.again {
		words = append(words, "setup")
	}
	return strings.Join(append(words, "teardown"), ", then ")
}

// result is what became of an attempt.
type result struct {
	points   []point
	injected int // index of the point behind the first error that was injected
	hits     []string
	errnos   []string // of the hits that were errors
	stray    bool     // an error met another call of the same kind, one that is none of the program's work
	killed   bool
	err      error
}

var (
	traceLine = regexp.MustCompile(`^(\d+) +([a-z0-9]+)\((.*)`)
	resumed   = regexp.MustCompile(`^(\d+) +<\.\.\. ([a-z0-9]+) resumed>`)
	injected  = regexp.MustCompile(` = -1 (E[A-Z]+) .*\(INJECTED\)`)
	about     = regexp.MustCompile(`TUN[A-Z]+|nlmsg_type=\w+|"[^"{]*"|<[^>]*>`)
	varies    = regexp.MustCompile(`[0-9a-f]{8}-\d+-\d+|"\d+"|/node/\d+|state-[0-9a-f]{16}|socket:\[\d+\]|guestwire-test-\d+|/proc/\d+|pid=\d+`)
)

// mutates says whether a call changes anything, as strace prints it.
func mutates(call, args string) bool {
	switch call {
	case "openat":
		return strings.Contains(args, "O_WRONLY") || strings.Contains(args, "O_RDWR") || strings.Contains(args, "O_CREAT")
	case "sendto", "sendmsg": // a dump only reads
		return !strings.Contains(args, "NLM_F_REQUEST|0x300") && !strings.Contains(args, "NLM_F_DUMP")
	case "ioctl":
		return strings.Contains(args, "TUNSET")
	case "recvfrom", "recvmsg":
		return false
	}
	return true
}

// parse reads strace's output.
func parse(trace string, harms []harm) result {
	var r result
	counts, seen := map[string]int{}, map[string]int{}
	last := map[string]string{} // the call that a thread is in
	again := map[string]bool{}  // threads whose call the kernel begins anew: a lock of its own was taken
	for line := range strings.Lines(trace) {
		errno := injected.FindStringSubmatch(line)
		thread, _, _ := strings.Cut(line, " ")
		restarted := again[thread]
		again[thread] = strings.Contains(line, "= ? ERESTART")
		if m := resumed.FindStringSubmatch(line); m != nil {
			if what := last[thread]; errno != nil && what != "" {
				r.hit(what, errno)
			} else if errno != nil {
				r.stray = true
			}
			continue
		}
		m := traceLine.FindStringSubmatch(line)
		if m == nil {
			r.killed = r.killed || strings.Contains(line, "killed by SIGKILL")
			continue
		}
		call, args := m[2], m[3]
		counts[thread+call]++
		ofProgram := call != "ioctl" && call != "write" || strings.Contains(args, "TUNSET") || strings.Contains(args, "</")
		if !ofProgram || strings.Contains(args, specName) || strings.Contains(args, quietName) { // a terminal's, a pipe's, the runtime's, the trial's own
			last[thread] = ""
			r.stray = r.stray || errno != nil
			continue
		}
		if restarted && last[thread] != "" {
			if errno != nil {
				r.hit(last[thread], errno)
			}
			continue
		}
		what := call + " " + varies.ReplaceAllString(strings.Join(about.FindAllString(args[:min(len(args), 160)], 2), " "), "*")
		seen[what]++
		what = fmt.Sprintf("%s #%d", what, seen[what])
		last[thread] = what
		p := point{call, counts[thread+call], what, mutates(call, args)}
		r.points = append(r.points, p)
		killer := slices.ContainsFunc(harms, func(h harm) bool { return h.errno == 0 && h.call == p.call && h.n == p.n })
		if errno != nil {
			r.hit(what, errno)
		} else if killer {
			r.hits = append(r.hits, what)
		}
	}
	return r
}

// hit notes that a call was made to fail.
func (r *result) hit(what string, errno []string) {
	r.hits = append(r.hits, what)
	r.errnos = append(r.errnos, errno[1])
	if len(r.hits) == 1 {
		r.injected = len(r.points)
	}
}

// bed is a namespace in which trials are made, one after the other.
type bed struct {
	*testing.T
	agent         string
	n             nstest.Network
	c             phase1.Config
	before, wired string
	were          map[string]string // sysctls
	row           *row
	// forced is how the namespace looks after an undisturbed forced Teardown.
	forced string
	// gone are the agent's flags that select what Forget removes; files are of a namespace that is gone.
	gone  []string
	files map[string]string
	// more are further flags of a verb.
	more map[string][]string
	// judgeTrial is outcome, or that of another kind of trial.
	judgeTrial func(trial) (met bool, err error)
}

func newBed(t *testing.T, agent string, binding infra.Binding, r *row) *bed {
	b := &bed{T: t, agent: agent, row: r}
	b.judgeTrial = b.outcome
	b.lay(binding)
	return b
}

// lay makes the namespace, and learns how it looks before and after an undisturbed Setup.
func (b *bed) lay(binding infra.Binding) {
	b.Helper()
	b.n = nstest.NewNetwork(b.T)
	b.n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
	b.n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
	b.n.State = filepath.Join(b.n.State, "vm") // Setup makes it
	b.c = config(b.n, binding)
	b.c.Dir = filepath.Join(nstest.Dir(b.T), "node") // and this one
	b.c.DNS = nil                                    // as the agent's flags say
	settled(b.T, b.n)
	b.before, b.were = b.dump(), sysctls(b.n)
	setup(b.T, b.c)
	settled(b.T, b.n)
	b.wired = b.dump()
	if err := errors.Join(phase1.Teardown(b.Context(), b.c), b.isFound(), os.Remove(b.n.State)); err != nil {
		b.Fatal(err)
	}
}

// run calls the agent under strace.
func (b *bed) run(a attempt) result {
	b.Helper()
	log := filepath.Join(b.TempDir(), "strace")
	args := append([]string{"-f", "-y", "-s", "80", "-o", log, "-e", "trace=" + strings.Join(traced, ",")}, injections(a.harms)...)
	args = append(args, b.agent)
	of := []string{"-dir", b.c.Dir, "-netns", b.n.Pod.Path(), "-nic", b.c.NIC, "-state", b.n.State}
	switch a.verb {
	case "setup":
		args = append(append(args, "setup", "-config", b.spec(), "-binding", b.c.Binding.Kind(), "-uid", fmt.Sprint(b.c.Owner.UID), "-gid", fmt.Sprint(b.c.Owner.GID)), of...)
	case "force":
		args = append(append(args, "teardown", "-force"), of...)
	case "forget":
		args = append(append(args, "forget", "-dir", b.c.Dir), b.gone...)
	default:
		args = append(append(args, a.verb), of...)
	}
	out, err := exec.Command("strace", append(args, b.more[a.verb]...)...).CombinedOutput()
	trace, readErr := os.ReadFile(log)
	if readErr != nil {
		b.Fatalf("%v\n%s", readErr, out)
	}
	r := parse(string(trace), a.harms)
	if err != nil {
		r.err = fmt.Errorf("%w: %s", err, out)
	}
	return r
}

const (
	specName  = "spec.json"
	quietName = "quiet.json" // of moveTrials
)

// spec is the path of the Spec in JSON, with the binding alone.
func (b *bed) spec() string {
	b.Helper()
	text, err := json.Marshal(infra.Spec{Binding: b.c.Binding})
	path := filepath.Join(b.TempDir(), specName)
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		b.Fatal(err)
	}
	return path
}

// looks waits for the namespace to be as in a dump taken before.
func (b *bed) looks(want string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := difference(want, b.dump())
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// dump leaves out what the kernel makes up for our links: the MACs of taps, and the multicast routes,
// which come late, with a carrier. A repair makes one table of nftables after another, so they are sorted.
func (b *bed) dump() string {
	dump := equalsSorted(ofLinks.ReplaceAllString(b.n.Pod.Dump(), "$1"))
	tables := ofTables.FindAllString(dump, -1)
	slices.Sort(tables)
	return ofTables.ReplaceAllStringFunc(dump, func(string) string {
		next := tables[0]
		tables = tables[1:]
		return next
	})
}

var ofTables = regexp.MustCompile(`(?m)^table \w+ guestwire-\S+ \{\n(?:\s.*\n|\n)*\}\n`)

var ofLinks = regexp.MustCompile(`(eth0-(?:tap|dhcp): [^\n]*\n *link/ether) [0-9a-f:]{17}|multicast ff00::/8 dev eth0-[^\n]*\n`)

// nothingLeft says whether the state directory is empty, or was never made, and the node's directory has no more than
// the locks of killed calls, which Forget removes.
func (b *bed) nothingLeft() error {
	left, err := os.ReadDir(b.n.State)
	if len(left) > 0 {
		return fmt.Errorf("the state directory has %v", left)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for range 2 {
		left, err = os.ReadDir(b.c.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range left {
			if !aLock.MatchString(e.Name()) || !e.Type().IsRegular() {
				return fmt.Errorf("the journal directory has %v", left)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if err := phase1.Forget(b.Context(), phase1.Gone{Dir: b.c.Dir}); err != nil {
			return err
		}
	}
	return fmt.Errorf("Forget leaves the locks %v", left)
}

var aLock = regexp.MustCompile(`^(\d+|state-[0-9a-f]{16})$`)

// removeState lets Setup make both directories; a state directory in which something lies stays.
func (b *bed) removeState() {
	b.Helper()
	if err := os.Remove(b.n.State); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		b.Fatal(err)
	}
	if err := os.Remove(b.c.Dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		b.Fatal(err)
	}
}

// isFound says whether the namespace is as it was found, and the directory without a trace.
func (b *bed) isFound() error { return errors.Join(b.looks(b.before), b.nothingLeft()) }

// isWired says whether all is as after an undisturbed Setup.
func (b *bed) isWired() error {
	return errors.Join(b.looks(b.wired), phase1.Check(b.Context(), b.c))
}

// tries is how often "make crash" makes a trial until its harm meets the calls that it is meant for:
// strace counts calls by thread, and which thread makes a call is chance.
const tries = 5

// try makes a trial, counts what came of it, and leaves the namespace as it was found.
func (b *bed) try(c trial) {
	b.Helper()
	for i := 1; ; i++ {
		met, err := b.judgeTrial(c)
		b.row.runs++
		if err != nil {
			b.fail(c, err)
			return
		}
		b.row.restored++
		if met {
			return
		}
		if *crash != "all" || i == tries {
			b.row.missed++
			return
		}
	}
}

func (b *bed) fail(c trial, err error) {
	b.Helper()
	b.Errorf("%v: %v", c, err)
	b.row.exceptions = append(b.row.exceptions, c.String())
	if b.files != nil {
		b.leaveAgain()
		return
	}
	if err := phase1.Teardown(b.Context(), b.c); err != nil || b.isFound() != nil {
		b.lay(b.c.Binding)
	}
}

// outcome says whether all harm met the calls that it was meant for.
func (b *bed) outcome(c trial) (met bool, err error) {
	b.removeState()
	if c.wired {
		if _, err := phase1.Setup(b.Context(), b.c); err != nil {
			return false, fmt.Errorf("setup before: %w", err)
		}
	}
	met = true
	for i, a := range c.attempts {
		r := b.run(a)
		met = b.meets(a, r) && met
		if err := b.judge(a, r, i == 0 && !c.wired); err != nil {
			return false, err
		}
	}
	if c.again {
		b.row.again++
		if _, err := phase1.Setup(b.Context(), b.c); err != nil {
			return false, fmt.Errorf("setup again: %w", err)
		}
		if err := b.isWired(); err != nil {
			return false, fmt.Errorf("after setup again: %w", err)
		}
		b.row.converged++
	}
	if err := phase1.Teardown(b.Context(), b.c); err != nil {
		return false, fmt.Errorf("teardown afterwards: %w", err)
	}
	if err := b.isFound(); err != nil {
		return false, fmt.Errorf("after teardown: %w", err)
	}
	return met, nil
}

// judge looks at what an attempt left. After a kill anything may be there, and after the failure of
// what took up an earlier Setup.
func (b *bed) judge(a attempt, r result, first bool) error {
	switch {
	case r.killed:
		b.row.killed++
		return nil
	case len(r.hits) == 0 && r.err != nil && !r.stray:
		return fmt.Errorf("%s without harm: %w", a.verb, r.err)
	case len(r.hits) == 0:
		return nil
	case r.err == nil && a.verb == "setup":
		b.row.noEffect++
		return wrap("setup says it succeeded", b.isWired())
	case r.err == nil && a.verb == "force":
		b.row.noEffect++
		return wrap("forced teardown says it succeeded", b.isForced())
	case r.err == nil && a.verb == "forget":
		b.row.noEffect++
		return wrap(fmt.Sprintf("forget, hit at %q, says it succeeded", r.hits), b.isForgotten(true))
	case r.err == nil:
		b.row.noEffect++
		return wrap("teardown says it succeeded", b.isFound())
	}
	b.row.failed++
	if r.stray {
		return nil
	}
	if strings.HasPrefix(r.hits[0], "mkdirat") && r.errnos[0] == "EEXIST" { // which says that all is well
		return b.isFound()
	}
	if a.verb == "forget" && strings.Contains(r.err.Error(), "by its inode number") {
		return nil // another test's namespace has the number, and could not be opened
	}
	if err := says(r.err, r.errnos[0]); err != nil {
		return err
	}
	if a.verb != "setup" || !first {
		return nil
	}
	found := b.isFound
	if len(r.hits) > 1 { // the undo was hit, and the error says what is left: the way back, or a file
		switch text := r.err.Error(); {
		case strings.Contains(text, "give the namespace back: "):
			return says(r.err, r.errnos[len(r.errnos)-1])
		case strings.Contains(text, "removeat "):
			found = func() error { return b.looks(b.before) }
		}
	}
	b.row.toUndo++
	if err := found(); err != nil {
		return fmt.Errorf("not undone: %w\nafter the error: %w", err, r.err)
	}
	b.row.undone++
	return nil
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// operations are what an error names.
var operations = regexp.MustCompile(`lock|state directory|journal|record|step \d+ of \d+|read the namespace's \w+|ask for|give the namespace back|netlink|/proc/sys/|namespace`)

// says is nil if the error names an operation and the reason. Setup takes EPERM of the question whether a sysctl can be written
// for a no, and its error names the sysctl.
func says(err error, errno string) error {
	if errno == "EPERM" && strings.Contains(err.Error(), "sysctls that cannot be written here") {
		return nil
	}
	if !operations.MatchString(err.Error()) {
		return fmt.Errorf("the error names no operation: %w", err)
	}
	for _, e := range errnos {
		if unix.ErrnoName(e) == errno && !strings.Contains(err.Error(), e.Error()) {
			return fmt.Errorf("the error does not say %q: %w", e.Error(), err)
		}
	}
	return nil
}

// row is what came of the trials of a kind.
type row struct {
	name             string
	hits             map[string]bool // the calls at which harm was done
	runs, restored   int
	killed           int
	failed, noEffect int // by an error: Setup or Teardown failed, or went on and did all
	toUndo, undone   int
	again, converged int
	missed           int // the harm never met the calls that it was meant for
	exceptions       []string
}

const tableHead = `| harm to | calls | kills | errors | went on | undone | Setup again | Teardown | missed |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
`

func (r *row) String() string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d of %d | %d of %d | %d of %d | %d |\n",
		r.name, len(r.hits), r.killed, r.failed, r.noEffect, r.undone, r.toUndo, r.converged, r.again, r.restored, r.runs, r.missed)
}

// part picks n trials of all, evenly, or all of them.
func (b *bed) part(all []trial, n int) []trial {
	if *crash == "all" || len(all) <= n {
		return all
	}
	var some []trial
	for i := range n {
		some = append(some, all[(2*i+1)*len(all)/(2*n)])
	}
	return some
}

// stride is the distance of the calls that a part of the trials is made of; where the harm misses its
// call, the next one takes its place.
func (b *bed) stride(n int) int {
	switch {
	case *crash == "all":
		return 1
	case *crash == "few":
		return 2 * n
	}
	return n
}

// tryAll makes the trials.
func (b *bed) tryAll(trials []trial, n int) {
	if *crash == "few" {
		n = (n + 3) / 4
	}
	chosen := b.part(trials, n)
	if len(chosen) == 0 {
		b.Fatal("no trials")
	}
	b.Logf("%d of %d trials", len(chosen), len(trials))
	for _, c := range chosen {
		b.try(c)
		if len(b.row.exceptions) > 20 {
			b.Fatal("too many exceptions")
		}
	}
}

// points are the calls of an attempt that ends well, or those after its harm. Nil: that met another
// call.
func (b *bed) points(wired bool, a attempt) []point {
	b.Helper()
	b.removeState()
	if wired {
		setup(b.T, b.c)
	}
	r := b.run(a)
	if len(a.harms) == 0 && r.err != nil {
		b.Fatal(r.err)
	}
	if err := errors.Join(phase1.Teardown(b.Context(), b.c), b.isFound()); err != nil {
		b.Errorf("%s with %v, then teardown: %v", a.verb, a.harms, err)
		b.lay(b.c.Binding)
	}
	if len(a.harms) > 0 && (len(r.hits) == 0 || r.hits[0] != a.harms[0].what) {
		return nil
	}
	return r.points[r.injected:]
}

// once are the trials of one harm: a kill and every error at each call that changes anything, and
// an error at each of the others.
func once(verb string, wired bool, points []point) (kills, failures []trial) {
	reads := 0
	for _, p := range points {
		if !p.mutates {
			reads++
			if reads > 40 || p.call == "recvfrom" && reads%4 > 0 { // they are all alike
				continue
			}
			failures = append(failures, trial{wired, []attempt{{verb, []harm{{p, errnos[reads%len(errnos)]}}}}, reads%2 == 0})
			continue
		}
		for _, again := range []bool{true, false} {
			kills = append(kills, trial{wired, []attempt{{verb, []harm{{point: p}}}}, again})
		}
		for i, errno := range errnos {
			failures = append(failures, trial{wired, []attempt{{verb, []harm{{p, errno}}}}, i%2 == 0})
		}
	}
	return kills, failures
}

// phases are the kinds of trials.
var phases = []struct {
	name string
	make func(b *bed)
}{
	{"Setup", func(b *bed) {
		b.onceTrials("setup", false, 4, 4)
	}},
	{"Teardown", func(b *bed) {
		b.onceTrials("teardown", true, 3, 3)
	}},
	{"undo", undoTrials},
	{"two crashes", doubleTrials},
	{"forced Teardown", forcedTrials},
	{"Setup on standby", func(b *bed) { moveTrials(b, "setup") }},
	{"Deactivate", func(b *bed) { moveTrials(b, "deactivate") }},
	{"Activate", func(b *bed) { moveTrials(b, "activate") }},
}

func (b *bed) onceTrials(verb string, wired bool, someKills, someFailures int) {
	b.harmAll(verb, wired, b.points(wired, attempt{verb: verb}), someKills, someFailures)
}

// harmAll does harm at each of the calls, or at a part of them.
func (b *bed) harmAll(verb string, wired bool, points []point, someKills, someFailures int) {
	kills, failures := once(verb, wired, points)
	b.tryAll(kills, someKills)
	b.tryAll(failures, someFailures)
	for _, p := range points {
		// How often Forget opens a file depends on the machine's processes.
		if *crash == "all" && p.mutates && !b.row.hits[verb+" "+p.what] && !(verb == "forget" && p.call == "openat") {
			b.Errorf("no harm met %s", p.what)
		}
	}
}

// undoTrials fail Setup where something has been done already, and do harm to the undo as well.
func undoTrials(b *bed) {
	points := b.points(false, attempt{verb: "setup"})
	var trials []trial
	begun, reads, next := false, 0, 0
	for i, p := range points {
		begun = begun || p.call == "renameat" // the journal is there
		if !begun || !p.mutates && p.call != "recvfrom" {
			continue
		}
		if !p.mutates { // they are all alike
			if reads++; reads%4 > 0 || reads > 40 {
				continue
			}
		}
		if i < next {
			continue
		}
		first := harm{p, unix.ENOMEM}
		for j, q := range b.points(false, attempt{"setup", []harm{first}}) {
			if !q.mutates || q.call == first.call && q.n <= p.n { // on another thread
				continue
			}
			second := harm{point: q}
			if q.call == first.call {
				second.errno = first.errno
			} else if (i+j)%2 > 0 {
				second.errno = errnos[(i+j)/2%len(errnos)]
			}
			trials = append(trials, trial{false, []attempt{{"setup", []harm{first, second}}}, (i+j)%4 < 2})
			next = i + b.stride(15)
		}
	}
	b.tryAll(trials, 4)
}

// doubleTrials kill Setup, and then the next Setup, or Teardown.
func doubleTrials(b *bed) {
	var trials []trial
	next := 0
	for i, p := range b.points(false, attempt{verb: "setup"}) {
		if !p.mutates || i < next {
			continue
		}
		first := attempt{"setup", []harm{{point: p}}}
		for _, verb := range []string{"setup", "teardown"} {
			b.run(first)
			for j, q := range b.points(false, attempt{verb: verb}) {
				if !q.mutates || (i+j)%3 > 0 {
					continue
				}
				trials = append(trials, trial{false, []attempt{first, {verb, []harm{{point: q}}}}, (i+j)%2 == 0})
				next = i + b.stride(21)
			}
		}
	}
	b.tryAll(trials, 3)
}

// damageJournal writes a journal that cannot be used, beside a wiring.
func (b *bed) damageJournal() {
	b.Helper()
	path := filepath.Join(b.c.Dir, namespaceName(b.T, b.n), b.c.NIC+".journal")
	if _, err := os.Stat(path); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		b.Fatal(err)
	}
}

// layAgain adds what a forced Teardown does not know.
func (b *bed) layAgain() error {
	for name, value := range sysctls(b.n) {
		if were := b.were[name]; value != were {
			setSysctl(b.n, name, were)
		}
	}
	if b.c.Binding != (infra.Bridge{}) {
		return b.isFound()
	}
	b.n.Pod.IP("route add default via 10.244.1.1")
	b.n.Pod.IP("route add default via fd00:244:1::1")
	b.n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
	b.n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
	return b.isFound()
}

// isForced says whether all is as after an undisturbed forced Teardown.
func (b *bed) isForced() error { return errors.Join(b.looks(b.forced), b.nothingLeft()) }

// forcedTrials take down a wiring whose journal is damaged.
func forcedTrials(b *bed) {
	setup(b.T, b.c)
	b.damageJournal()
	r := b.run(attempt{verb: "force"})
	if r.err != nil {
		b.Fatal(r.err)
	}
	b.forced = b.n.Pod.Settled()
	b.forced = b.dump()
	if err := errors.Join(b.nothingLeft(), b.layAgain()); err != nil {
		b.Fatal(err)
	}
	b.judgeTrial = b.forcedOutcome
	b.removeState()
	setup(b.T, b.c)
	b.damageJournal()
	r = b.run(attempt{verb: "force"})
	if err := errors.Join(r.err, b.isForced(), b.layAgain()); err != nil {
		b.Fatal(err)
	}
	b.harmAll("force", true, r.points, 4, 4)
}

// forcedOutcome harms a forced Teardown. Setup does nothing before it is finished, by Teardown or by force.
func (b *bed) forcedOutcome(c trial) (met bool, err error) {
	b.removeState()
	if _, err := phase1.Setup(b.Context(), b.c); err != nil {
		return false, fmt.Errorf("setup before: %w", err)
	}
	b.damageJournal()
	r := b.run(c.attempts[0])
	met = b.meets(c.attempts[0], r)
	if err := b.judge(c.attempts[0], r, false); err != nil {
		return false, err
	}
	if left, _ := filepath.Glob(filepath.Join(b.c.Dir, "*", "*.journal")); c.again && len(left) > 0 {
		b.row.again++
		before := b.n.Pod.Dump()
		if _, err := phase1.Setup(b.Context(), b.c); err == nil || !regexp.MustCompile("damaged|interrupted").MatchString(err.Error()) {
			return false, fmt.Errorf("setup before the end says %v", err)
		}
		if err := difference(before, b.n.Pod.Dump()); err != nil {
			return false, fmt.Errorf("setup before the end: %w", err)
		}
		b.row.converged++
	}
	err = phase1.Teardown(b.Context(), b.c)
	if !c.again || err != nil && strings.Contains(err.Error(), "Teardown by force") {
		_, err = phase1.ForceTeardown(b.Context(), b.c)
		if errors.Is(err, phase1.ErrNotWired) { // all was done
			err = nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("afterwards: %w", err)
	}
	if err := b.isForced(); err != nil {
		return false, fmt.Errorf("afterwards: %w", err)
	}
	return met, b.layAgain()
}

// meets notes which calls were harmed, and says whether all harm met the calls that it was meant for.
func (b *bed) meets(a attempt, r result) bool {
	met := true
	for _, hit := range r.hits {
		b.row.hits[a.verb+" "+hit] = true
	}
	for _, h := range a.harms {
		met = met && slices.Contains(r.hits, h.what)
	}
	return met
}

// newGoneBed has what is left of a namespace that is gone, beside another wiring.
func newGoneBed(t *testing.T, agent string, r *row, byName bool) *bed {
	b := &bed{T: t, agent: agent, row: r}
	b.judgeTrial = b.goneOutcome
	old := nstest.NewNetwork(t)
	b.n = nstest.NewNetwork(t) // lives
	b.c = config(b.n, infra.Redirect{})
	b.c.Dir = filepath.Join(nstest.Dir(t), "node")
	c := config(old, infra.Bridge{})
	c.Dir = b.c.Dir
	setup(t, c)
	name := namespaceName(t, old)
	b.gone = []string{"-state", old.State, "-nic", "eth0"}
	if byName {
		b.gone = []string{"-namespace", name}
	}
	old.Pod.End()
	b.files = map[string]string{
		filepath.Join(b.c.Dir, "4026531999"):                               "",
		filepath.Join(b.c.Dir, "state-0011223344556677"):                   "",
		filepath.Join(b.c.Dir, "00000000-4026531999-5", ".eth0.journal.7"): "",
	}
	for _, path := range []string{filepath.Join(b.c.Dir, name, "eth0.journal"), filepath.Join(old.State, "eth0.json")} {
		text := readFile(t, path)
		b.files[path] = string(text)
	}
	setup(t, b.c)
	b.before = b.living()
	return b
}

// living are the files of the wiring whose namespace lives.
func (b *bed) living() string {
	b.Helper()
	_, text := journalIn(b.T, b.c.Dir, b.n)
	record, err := os.ReadFile(filepath.Join(b.n.State, "eth0.json"))
	if err != nil {
		b.Fatal(err)
	}
	return text + string(record)
}

// leaveAgain puts the files of the namespace that is gone where they were.
func (b *bed) leaveAgain() {
	b.Helper()
	for path, text := range b.files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			b.Fatal(err)
		}
	}
}

// isForgotten says whether none of the files is left, but locks if they may be, and the living namespace has all of
// its own.
func (b *bed) isForgotten(locks bool) error {
	if b.living() != b.before {
		return errors.New("journal or record of the living namespace have changed")
	}
	for path := range b.files {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) && !(locks && aLock.MatchString(filepath.Base(path))) {
			return fmt.Errorf("%s is left (%v)", path, err)
		}
	}
	left, err := os.ReadDir(b.c.Dir)
	if err == nil && len(left) != 1 && !locks {
		err = fmt.Errorf("the journal directory has %v", left)
	}
	return err
}

func (b *bed) goneOutcome(c trial) (met bool, err error) {
	b.leaveAgain()
	r := b.run(c.attempts[0])
	met = b.meets(c.attempts[0], r)
	if b.living() != b.before {
		return false, errors.New("journal or record of the living namespace have changed")
	}
	if err := b.judge(c.attempts[0], r, false); err != nil {
		return false, err
	}
	if err := phase1.Forget(b.Context(), phase1.Gone{Dir: b.c.Dir}); err != nil {
		return false, fmt.Errorf("afterwards: %w", err)
	}
	return met, b.isForgotten(false)
}

func (b *bed) forgetTrials() {
	b.leaveAgain()
	r := b.run(attempt{verb: "forget"})
	if err := errors.Join(r.err, b.isForgotten(false)); err != nil {
		b.Fatal(err)
	}
	b.harmAll("forget", false, r.points, 4, 4)
	if err := phase1.Check(b.Context(), b.c); err != nil {
		b.Error(err)
	}
}

// TestCrash kills Setup, Teardown, forced Teardown and Forget, and fails them, at their system calls, without any
// help of theirs: strace does it. Whatever was done, the next call ends as if nothing had happened.
func TestCrash(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "strace")
	nstest.NeedTaps(t)
	agent := nstest.Program(t, "examples/agent")
	var table []*row
	t.Run("at", func(t *testing.T) { // and all of them end before the count
		for i, binding := range bindings {
			for j, phase := range phases {
				name := phase.name + ", " + binding.Kind()
				routed := binding.Kind() == "routed"
				if routed && slices.Contains([]string{"Setup on standby", "Deactivate", "Activate"}, phase.name) {
					continue // its guest cannot move
				}
				few := i == j%(len(bindings)-1) // each kind with one binding, and two with routed, the last one
				if routed {
					few = phase.name == "Setup" || phase.name == "Teardown"
				}
				if *crash == "few" && !few {
					continue
				}
				r := &row{name: name, hits: map[string]bool{}}
				table = append(table, r)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if name == "Setup, bridge" || name == "undo, masquerade" {
						nstest.KernelDecides(t, "a way back over a dummy, and over the forwarding of the namespace")
					}
					phase.make(newBed(t, agent, binding, r))
				})
			}
		}
		for _, phase := range phases {
			name := phase.name + ", redirect with a MAC"
			if !slices.Contains([]string{"Setup", "Teardown", "forced Teardown"}, phase.name) || *crash == "few" && phase.name != "Teardown" {
				continue
			}
			r := &row{name: name, hits: map[string]bool{}}
			table = append(table, r)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				phase.make(newBed(t, agent, infra.Redirect{MAC: movedMAC}, r))
			})
		}
		for _, by := range []string{"namespace", "State"} {
			r := &row{name: "Forget by " + by, hits: map[string]bool{}}
			table = append(table, r)
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				newGoneBed(t, agent, r, by == "namespace").forgetTrials()
			})
		}
	})
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(kernel.Release[:]), "-")
	text := fmt.Sprintf("### Linux %s\n\n", release) + tableHead
	exceptions, killed, failed := "", 0, 0
	for _, r := range table {
		text += r.String()
		killed, failed = killed+r.killed, failed+r.failed
		for _, e := range r.exceptions {
			exceptions += "\n- exception: " + e
		}
	}
	if killed == 0 || failed == 0 {
		t.Errorf("%d kills and %d errors: strace did no harm", killed, failed)
	}
	document(text + exceptions + "\n")
}

// document prints what "make crash" puts into docs/reliability.md.
func document(text string) {
	for line := range strings.Lines(text) {
		fmt.Print("doc: " + line)
	}
}
