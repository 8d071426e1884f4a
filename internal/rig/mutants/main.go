// Mutants asks which tests would notice a fault. It makes small faults in the product's code, mutants, and runs the
// tests that reach them, one mutant at a time. A mutant is killed if a test fails; a test that no mutant needs is one
// to look at.
//
// All mutants are in one build. Each stands in its file beside the code that it replaces:
//
//	if mutant.On(7) != (err != nil) {
//
// and mutant.On reports whether GUESTWIRE_MUTANT is 7. So go test -overlay compiles each test program once, and no file
// of the tree changes. The kinds:
//
//	negated   the condition of an if
//	emptied   a return gives the zero values, and does not compute the others
//	swapped   two statements in a row that add to a list, call, or return an error
//	off       an integer constant is one more; < becomes <=, and > becomes >=
//
// A first run without a mutant notes which test reaches which one, and how long it takes. A test that fails in it does
// not take part. Then each mutant gets its runs: one for each file of its package's tests, to know what a file kills
// alone, and then phase1's and the lab's tests until one fails. A run that hangs has killed.
//
// The seed decides which mutants there are, for the same code. Results are appended to a file, so that a second call
// goes on where the first ended.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// places are the packages that get mutants, each with its share, and the tests that are its own.
var places = []place{
	{dir: "internal/compare", share: 10, own: []string{"internal/wiring"}},
	{dir: "internal/undo", share: 10, own: []string{"internal/wiring"}},
	{dir: "internal/wiring", share: 10, own: []string{"internal/wiring"}},
	{dir: "internal/lease", share: 7, own: []string{"internal/wiring"}},
	{dir: "internal/fib", share: 7, own: []string{"internal/fib", "internal/wiring"}},
	{dir: "internal/router", share: 7, own: []string{"internal/router", "internal/wiring"}},
	{dir: "internal/guestfilter", share: 7, own: []string{"internal/guestfilter", "internal/wiring"}},
	{dir: "internal/nft", share: 7, own: []string{"internal/nft", "internal/wiring"}},
	{dir: "internal/kernel", share: 7, own: []string{"internal/kernel"}},
	{dir: "dhcp", share: 7, own: []string{"dhcp"}},
	{dir: "internal/served", share: 7, own: []string{"dhcp", "internal/wiring"}},
	{dir: "cache", share: 7, own: []string{"cache"}},
	{dir: "phase1", share: 7, own: []string{"phase1"}},
	{dir: "examples/guestwire/podsandbox", share: 7, own: []string{"examples/guestwire/podsandbox"}},
}

// later are the tests that the survivors of their own get, in this order.
var later = []string{"phase1", "internal/rig/podnet"}

func main() {
	seed := flag.Uint64("seed", 1, "which mutants")
	work := flag.String("work", "bin/mutants", "directory for what is built and found")
	until := flag.Duration("for", 0, "start no run after this time; the next call goes on")
	only := flag.String("only", "", "only mutants whose FILE:LINE this regular expression matches")
	each := flag.String("each", `^internal/wiring/[^bm]|^internal/[^rw]|^internal/router|^dhcp|^cache|^examples`, "files of tests that a mutant meets though another has killed it: regular expression for PACKAGE/FILE")
	skip := flag.String("skip", "^internal/wiring/bounds", "files of tests that do not take part: regular expression for PACKAGE/FILE")
	long := flag.String("long", "^phase1/(crash|repair|generated)_", "files of tests that run without -short: regular expression for PACKAGE/FILE")
	report := flag.Bool("report", false, "print what is found so far, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *until > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *until)
		defer cancel()
	}
	err := run(ctx, *seed, *work, *only, *each, *skip, *long, *report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seed uint64, work, only, each, skip, long string, reportOnly bool) error {
	mutants, err := seedMutants(places, seed)
	if err != nil {
		return err
	}
	r, err := newRunner(work, mutants)
	if err != nil {
		return err
	}
	defer r.results.Close()
	for _, p := range []struct {
		into **regexp.Regexp
		text string
	}{{&r.only, only}, {&r.each, each}, {&r.skip, skip}, {&r.long, long}} {
		if p.text != "" {
			if *p.into, err = regexp.Compile(p.text); err != nil {
				return err
			}
		}
	}
	if !reportOnly {
		start := time.Now()
		if err := r.all(ctx); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d mutants, %.0f seconds\n", len(mutants), time.Since(start).Seconds())
	}
	r.report(os.Stdout)
	return nil
}
