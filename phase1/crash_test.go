package phase1_test

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// crash is how much of the harness runs: all of it ("make crash"), or a part that changes nothing in
// the kinds of what is covered, which is smaller still for an emulated machine.
var crash = flag.String("crash", "some", "crash harness: few, some or all of its points")

// row is what came of the trials of a kind. Each trial is judged, and a fault ends the kind.
type row struct {
	name             string
	hits             map[string]bool // the calls at which harm was done
	trials, killed   int
	failed, noEffect int // by an error: the call failed, or went on and did all
	missed           int // the harm never met the calls that it was meant for
}

const tableHead = `| harm to | calls | trials | kills | errors | went on | missed |
| --- | --- | --- | --- | --- | --- | --- |
`

func (r *row) String() string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d |\n", r.name, len(r.hits), r.trials, r.killed, r.failed, r.noEffect, r.missed)
}

// trials makes those of a row.
type trials struct {
	*testing.T
	agent string
	row   *row
}

// run calls the agent under strace.
func (b *trials) run(a attempt) result {
	b.Helper()
	log := filepath.Join(b.TempDir(), "strace")
	args := append([]string{"-f", "-y", "-s", "80", "-o", log, "-e", "trace=" + strings.Join(traced, ",")}, injections(a.harms)...)
	out, err := exec.Command("strace", append(append(args, b.agent), a.args...)...).CombinedOutput()
	r := parse(readFile(b.T, log), a.harms)
	if err != nil {
		r.err = fmt.Errorf("%w: %s", err, out)
	}
	return r
}

// points are the calls of the last attempt, which ends well, or those after its harm. Nil: that met another call.
func (b *trials) points(attempts ...attempt) []point {
	b.Helper()
	first, last := attempts[0], attempts[len(attempts)-1]
	if err := first.prepare(); err != nil {
		b.Fatal(err)
	}
	var r result
	for _, a := range attempts {
		r = b.run(a)
	}
	err := first.finish(false)
	if len(last.harms) == 0 {
		err = errors.Join(r.err, err)
	}
	if err != nil {
		b.Fatalf("%v: %v", trial{attempts, false}, err)
	}
	if len(last.harms) > 0 && (len(r.hits) == 0 || r.hits[0] != last.harms[0].what) {
		return nil
	}
	return r.points[r.injected:]
}

// tries is how often "make crash" makes a trial until its harm meets the calls that it is meant for:
// strace counts calls by thread, and which thread makes a call is chance. Forget stays on no thread, so it is tried
// twice.
const tries = 5

// try makes a trial, and counts what came of it.
func (b *trials) try(c trial) {
	b.Helper()
	for i := 1; ; i++ {
		met, err := b.outcome(c)
		b.row.trials++
		if err != nil {
			b.Fatalf("%v: %v", c, err)
		}
		if met {
			return
		}
		if *crash != "all" || i == tries || i == 2 && c.attempts[0].args[0] == "forget" {
			b.row.missed++
			return
		}
	}
}

// outcome reports whether all harm met the calls that it was meant for.
func (b *trials) outcome(c trial) (met bool, err error) {
	if err := c.attempts[0].prepare(); err != nil {
		return false, fmt.Errorf("before: %w", err)
	}
	met = true
	for i, a := range c.attempts {
		r := b.run(a)
		for _, hit := range r.hits {
			b.row.hits[a.args[0]+" "+hit] = true
		}
		for _, h := range a.harms {
			met = met && slices.Contains(r.hits, h.what)
		}
		if a.always != nil {
			if err := a.always(); err != nil {
				return false, err
			}
		}
		if err := b.judge(a, r, i == 0); err != nil {
			return false, fmt.Errorf("%s: %w", a.args[0], err)
		}
	}
	if err := c.attempts[0].finish(c.again); err != nil {
		return false, fmt.Errorf("afterwards: %w", err)
	}
	return met, nil
}

// judge looks at what an attempt left. After a kill anything may be there, and after the failure of what took up an
// earlier attempt.
func (b *trials) judge(a attempt, r result, first bool) error {
	switch {
	case r.killed:
		b.row.killed++
		return nil
	case r.err == nil:
		b.row.noEffect += min(len(r.hits), 1)
		if err := a.done(); err != nil {
			return fmt.Errorf("hit at %q, it says it succeeded: %w", r.hits, err)
		}
		return nil
	case len(r.hits) == 0 && !r.stray:
		return fmt.Errorf("without harm: %w", r.err)
	}
	b.row.failed++
	if r.stray {
		return nil
	}
	// EEXIST of a directory says that all is well.
	if !strings.HasPrefix(r.hits[0], "mkdirat") || r.errnos[0] != "EEXIST" {
		// Strace counts calls by thread, so either of two errors may come first, and the program may have gone on after
		// that one.
		if err := says(r.err, r.errnos[0]); err != nil && (len(r.errnos) == 1 || says(r.err, r.errnos[1]) != nil) {
			return err
		}
	}
	if a.found == nil || !first {
		return nil
	}
	file := false
	if len(r.hits) > 1 { // the undo was hit, and the error says what is left: the way back, or a file
		if text := r.err.Error(); strings.Contains(text, "give the namespace back: ") {
			return says(r.err, r.errnos[len(r.errnos)-1])
		} else if strings.Contains(text, "removeat ") {
			file = true
		}
	}
	if err := a.found(file); err != nil {
		return fmt.Errorf("not undone: %w\nafter the error: %w", err, r.err)
	}
	return nil
}

// named is what an error names.
var named = regexp.MustCompile(`lock|state directory|journal|record|step \d+ of \d+|read the namespace's \w+|ask for|give the namespace back|netlink|/proc/sys/|namespace`)

// says is nil if the error names an operation and the reason. Setup takes EPERM of the question whether a sysctl can be
// written for a no, and its error names the sysctl. Forget cannot open another test's namespace that has the number.
func says(err error, errno string) error {
	if errno == "EPERM" && strings.Contains(err.Error(), "sysctls that cannot be written here") || strings.Contains(err.Error(), "by its inode number") {
		return nil
	}
	if !named.MatchString(err.Error()) {
		return fmt.Errorf("the error names no operation: %w", err)
	}
	for _, e := range errnos {
		if unix.ErrnoName(e) == errno && !strings.Contains(err.Error(), e.Error()) {
			return fmt.Errorf("the error does not say %q: %w", e.Error(), err)
		}
	}
	return nil
}

// part picks n trials of all, evenly, or all of them.
func part(all []trial, n int) []trial {
	if *crash == "few" {
		n = (n + 3) / 4
	}
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
func stride(n int) int {
	return map[string]int{"all": 1, "some": n, "few": 2 * n}[*crash]
}

// tryAll makes the trials, or n of them.
func (b *trials) tryAll(all []trial, n int) {
	chosen := part(all, n)
	if len(chosen) == 0 {
		b.Fatal("no trials")
	}
	b.Logf("%d of %d trials", len(chosen), len(all))
	for _, c := range chosen {
		b.try(c)
	}
}

// once are the trials of one harm: kills and half of the errors at each call that changes anything, the other half at
// the next one, and an error at each of the others.
func once(op *operation, points []point) (kills, failures []trial) {
	reads, calls := 0, 0
	for _, p := range points {
		if !p.mutates {
			reads++
			if reads > 40 || p.call == "recvfrom" && reads%4 > 0 { // they are all alike
				continue
			}
			failures = append(failures, trial{[]attempt{{op, []harm{{p, errnos[reads%len(errnos)]}}}}, reads%2 == 0})
			continue
		}
		for _, again := range []bool{true, false} {
			kills = append(kills, trial{[]attempt{{op, []harm{{point: p}}}}, again})
		}
		for i, errno := range errnos {
			if (i+calls)%2 == 0 {
				failures = append(failures, trial{[]attempt{{op, []harm{{p, errno}}}}, i/2%2 == 0})
			}
		}
		calls++
	}
	return kills, failures
}

// harm does harm at each call of the operation, or at n of them by a kill, and at n by an error.
func (b *trials) harm(op *operation, n int) {
	points := b.points(attempt{op, nil})
	kills, failures := once(op, points)
	b.tryAll(kills, n)
	b.tryAll(failures, n)
	if *crash != "all" {
		return
	}
	met := func(p point) bool {
		return b.row.hits[op.args[0]+" "+p.what] || !p.mutates ||
			// How often Forget opens a file depends on the machine's processes.
			op.args[0] == "forget" && p.call == "openat" ||
			// How often a Teardown asks for a link depends on when the kernel has removed it.
			op.args[0] == "teardown" && strings.Contains(p.what, " nlmsg_type=0x12 ") ||
			// A thread of its own deletes the links: this is its first message, and strace meets another thread's first
			// one. TestGroupDeletion lets it fail, and the questions that wait for it are killed.
			strings.HasPrefix(p.what, "sendto <*> nlmsg_type=0x11 ") && p.n == 1
	}
	// In the run that was counted a thread may have made a call that it seldom makes: count again.
	for range 5 {
		if points = slices.DeleteFunc(points, met); len(points) == 0 {
			return
		}
		kills, _ := once(op, slices.DeleteFunc(b.points(attempt{op, nil}), met))
		for _, c := range kills {
			b.try(c)
		}
	}
	for _, p := range slices.DeleteFunc(points, met) {
		b.Errorf("no harm met %s", p.what)
	}
}

// harmUndo fails Setup where something has been done already, and does harm to the undo as well.
func (b *trials) harmUndo(setup *operation) {
	var list []trial
	begun, reads, next := false, 0, 0
	for i, p := range b.points(attempt{setup, nil}) {
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
		for j, q := range b.points(attempt{setup, []harm{first}}) {
			if !q.mutates || q.call == first.call && q.n <= p.n { // on another thread
				continue
			}
			second := harm{point: q}
			if q.call == first.call {
				second.errno = first.errno
			} else if (i+j)%2 > 0 {
				second.errno = errnos[(i+j)/2%len(errnos)]
			}
			list = append(list, trial{[]attempt{{setup, []harm{first, second}}}, (i+j)%4 < 2})
			next = i + stride(15)
		}
	}
	b.tryAll(list, 4)
}

// harmTwice kills Setup at each call, and then the next Setup, or Teardown, at each ninth one. Which ones differs from
// call to call, so that each is met.
func (b *trials) harmTwice(setup, teardown *operation) {
	var list []trial
	next := 0
	for i, p := range b.points(attempt{setup, nil}) {
		if !p.mutates || i < next {
			continue
		}
		first := attempt{setup, []harm{{point: p}}}
		for _, op := range []*operation{setup, teardown} {
			for j, q := range b.points(first, attempt{op, nil}) {
				if !q.mutates || (i+j)%9 > 0 {
					continue
				}
				list = append(list, trial{[]attempt{first, {op, []harm{{point: q}}}}, (i+j)%2 == 0})
				next = i + stride(21)
			}
		}
	}
	b.tryAll(list, 3)
}

// phases are the kinds of trials. The guest of a routed binding cannot move.
var phases = []struct {
	name  string
	moves bool
	make  func(b *trials, bed *bed)
}{
	{"Setup", false, func(b *trials, bed *bed) { b.harm(bed.setup(), 4) }},
	{"Teardown", false, func(b *trials, bed *bed) { b.harm(bed.teardown(), 3) }},
	{"undo", false, func(b *trials, bed *bed) { b.harmUndo(bed.setup()) }},
	{"two crashes", false, func(b *trials, bed *bed) { b.harmTwice(bed.setup(), bed.teardown()) }},
	{"forced Teardown", false, func(b *trials, bed *bed) { b.harm(bed.force(), 4) }},
	{"Setup with changes", false, func(b *trials, bed *bed) { b.harm(bed.change(), 4) }},
	{"Setup on standby", true, func(b *trials, bed *bed) { b.harm(newMove(bed, "setup").operation(), 2) }},
	{"Deactivate", true, func(b *trials, bed *bed) { b.harm(newMove(bed, "deactivate").operation(), 2) }},
	{"Activate", true, func(b *trials, bed *bed) { b.harm(newMove(bed, "activate").operation(), 2) }},
}

// TestCrash kills Setup, Teardown, forced Teardown, Pin and Forget, and fails them, at their system calls, without any
// help of theirs: strace does it. Whatever was done, the next call ends as if nothing had happened.
func TestCrash(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "strace")
	nstest.NeedTaps(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(kernel.Release[:]), "-")
	document(fmt.Sprintf("### Linux %s\n\n", release) + tableHead)
	var table []*row
	t.Run("at", func(t *testing.T) { // and all of them end before the count
		add := func(name string, make func(b *trials)) {
			r := &row{name: name, hits: map[string]bool{}}
			table = append(table, r)
			t.Run(name, func(t *testing.T) {
				if name == "Setup, bridge" || name == "undo, masquerade" {
					nstest.KernelDecides(t, "a way back over a dummy, and over the forwarding of the namespace")
				}
				t.Parallel()
				make(&trials{t, agent, r})
				document(r.String()) // so that a run that is ended has the rows until then
			})
		}
		for i, binding := range bindings {
			for j, phase := range phases {
				once := phase.name == "Setup" || phase.name == "Teardown"
				few := i == j%(len(bindings)-1) // each kind with one binding, and two with routed, the last one
				if binding.Kind() == "routed" {
					few = once
				}
				if !(phase.moves && binding.Kind() == "routed") && (*crash != "few" || few) {
					add(phase.name+", "+string(binding.Kind()), func(b *trials) { phase.make(b, newBed(b.T, binding)) })
				}
				if binding.Kind() == "masquerade" && (once || phase.name == "forced Teardown") && *crash != "few" {
					add(phase.name+", masquerade within", func(b *trials) { phase.make(b, newBed(b.T, withinPod)) })
				}
				if binding.Kind() == "redirect" && (once || phase.name == "forced Teardown") && (*crash != "few" || phase.name == "Teardown") {
					add(phase.name+", redirect with a MAC", func(b *trials) { phase.make(b, newBed(b.T, infra.Redirect{MAC: movedMAC})) })
				}
			}
		}
		add("pin, masquerade", func(b *trials) { b.harm(newBed(b.T, infra.Masquerade{}).pin(), 2) })
		add("Forget by namespace", func(b *trials) { b.harm(forget(b.T, true), 4) })
		add("Forget by State", func(b *trials) { b.harm(forget(b.T, false), 4) })
	})
	killed, failed, noEffect := 0, 0, 0
	for _, r := range table {
		killed, failed, noEffect = killed+r.killed, failed+r.failed, noEffect+r.noEffect
	}
	// Few trials may have no error after which a call fails.
	if killed+failed+noEffect == 0 || *crash != "few" && (killed == 0 || failed == 0) {
		t.Errorf("%d kills and %d errors, %d without effect: strace did no harm", killed, failed, noEffect)
	}
	document("\n")
}

// document prints what "make crash" puts into docs/proofs/crash.md.
func document(text string) {
	for line := range strings.Lines(text) {
		fmt.Print("doc: " + line)
	}
}
