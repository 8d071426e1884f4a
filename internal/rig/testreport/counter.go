package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// event is a line of "go test -json".
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

// counter takes the lines in.
type counter struct {
	w    io.Writer
	runs []*run
}

type run struct {
	name      string
	open      map[string]*pkg
	passed    int
	failures  []failure
	again     string    // the command that repeats a test; empty: none
	repeated  []failure // which passed when they were repeated
	explained int       // that many failures were there at the last "# broken"
	skipped   int
	skips     map[string][]string // the reason, and who gave it
}

type failure struct {
	text          string
	pkg, topLevel string // of a test that can be repeated
}

type pkg struct {
	tests                   map[string]*test
	output                  strings.Builder
	passed, failed, skipped int
}

type test struct {
	output            strings.Builder
	hasChild          bool
	childFailed, done bool
}

// line takes one, with its newline.
func (c *counter) line(line string) {
	text := strings.TrimSpace(line)
	if name, ok := strings.CutPrefix(text, "# run: "); ok {
		c.endRun()
		fmt.Fprintf(c.w, "%s:\n", name)
		c.runs = append(c.runs, &run{name: name, open: map[string]*pkg{}, skips: map[string][]string{}})
		return
	}
	if len(c.runs) == 0 {
		c.line("# run: tests")
	}
	r := c.runs[len(c.runs)-1]
	if command, ok := strings.CutPrefix(text, "# again: "); ok {
		r.again = command
		return
	}
	if what, ok := strings.CutPrefix(text, "# broken: "); ok {
		c.endPackages(r)
		if len(r.failures) == r.explained {
			r.failures = append(r.failures, failure{text: what})
		}
		r.explained = len(r.failures)
		fmt.Fprintf(c.w, "  broken: %s\n", what)
		return
	}
	var e event
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &e) != nil {
		fmt.Fprint(c.w, line)
		return
	}
	if e.Action == "build-output" {
		fmt.Fprint(c.w, e.Output)
		return
	}
	if e.Package == "" {
		return // the end of a build, which its package tells again
	}
	p := r.open[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		r.open[e.Package] = p
	}
	if e.Test == "" {
		c.packageEvent(r, p, e)
	} else {
		c.testEvent(r, p, e)
	}
}

func (c *counter) testEvent(r *run, p *pkg, e event) {
	t := p.test(e.Test)
	switch e.Action {
	case "run":
		if parent := p.parent(e.Test); parent != nil {
			parent.hasChild = true
		}
	case "output":
		t.output.WriteString(e.Output)
	case "pass":
		t.done = true
		if !t.hasChild {
			p.passed++
			r.passed++
		}
	case "skip":
		t.done = true
		p.skipped++
		r.skipped++
		why := reason(t.output.String())
		r.skips[why] = append(r.skips[why], e.Package+"."+e.Test)
	case "fail":
		t.done = true
		if parent := p.parent(e.Test); parent != nil {
			parent.childFailed = true
		}
		fmt.Fprint(c.w, t.output.String())
		if !t.childFailed {
			p.failed++
			topLevel, _, _ := strings.Cut(e.Test, "/")
			r.failures = append(r.failures, failure{text: e.Package + "." + e.Test, pkg: e.Package, topLevel: topLevel})
		}
	}
}

func (c *counter) packageEvent(r *run, p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output.WriteString(e.Output)
	case "pass":
		fmt.Fprintf(c.w, "  ok    %s  %.1f s: %d passed, %d skipped\n", e.Package, e.Elapsed, p.passed, p.skipped)
		delete(r.open, e.Package)
	case "skip":
		fmt.Fprintf(c.w, "  --    %s  no tests\n", e.Package)
		delete(r.open, e.Package)
	case "fail":
		c.packageFailed(r, p, e.Package, "")
	}
}

// packageFailed names the tests that have not ended, which is where a crash was, and the package
// itself if no test of it is to blame.
func (c *counter) packageFailed(r *run, p *pkg, name, why string) {
	for _, t := range slices.Sorted(maps.Keys(p.tests)) {
		if !p.tests[t].done {
			p.failed++
			r.failures = append(r.failures, failure{text: name + "." + t + " (did not end)"})
			fmt.Fprint(c.w, p.tests[t].output.String())
		}
	}
	if p.failed == 0 {
		p.failed++
		r.failures = append(r.failures, failure{text: name + why})
	}
	fmt.Fprint(c.w, p.output.String())
	fmt.Fprintf(c.w, "  FAIL  %s%s: %d passed, %d failed, %d skipped\n", name, why, p.passed, p.failed, p.skipped)
	delete(r.open, name)
}

// endRun ends the current run, if there is one.
func (c *counter) endRun() {
	if len(c.runs) == 0 {
		return
	}
	r := c.runs[len(c.runs)-1]
	c.endPackages(r)
	if r.passed+r.skipped+len(r.failures) == 0 {
		r.failures = append(r.failures, failure{text: "no test ran"})
	}
}

// endPackages ends those whose result has not come and will not.
func (c *counter) endPackages(r *run) {
	for _, name := range slices.Sorted(maps.Keys(r.open)) {
		c.packageFailed(r, r.open[name], name, " (ended without a result)")
	}
}

// summary prints the table, the reasons and the counts.
func (c *counter) summary() (ok bool) {
	var passed, failed, skipped int
	table := tabwriter.NewWriter(c.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\nrun\tpassed\tfailed\tskipped\t\n")
	for _, r := range c.runs {
		passed += r.passed
		failed += len(r.failures)
		skipped += r.skipped
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", r.name, r.passed, len(r.failures), r.skipped)
	}
	table.Flush()
	for _, r := range c.runs {
		if len(r.failures) > 0 {
			fmt.Fprintf(c.w, "\nfailed, %s:\n", r.name)
			for _, f := range r.failures {
				fmt.Fprintf(c.w, "  %s\n", f.text)
			}
		}
		if len(r.repeated) > 0 {
			fmt.Fprintf(c.w, "\nfailed beside others and passed alone, %s:\n", r.name)
			for _, f := range r.repeated {
				fmt.Fprintf(c.w, "  %s\n", f.text)
			}
		}
		if len(r.skips) > 0 {
			fmt.Fprintf(c.w, "\nskipped, %s:\n", r.name)
			for _, why := range slices.Sorted(maps.Keys(r.skips)) {
				fmt.Fprintf(c.w, "  %s\n", why)
				for _, name := range r.skips[why] {
					fmt.Fprintf(c.w, "    %s\n", name)
				}
			}
		}
	}
	fmt.Fprintf(c.w, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed == 0 && passed > 0
}

func (p *pkg) test(name string) *test {
	t := p.tests[name]
	if t == nil {
		t = &test{}
		p.tests[name] = t
	}
	return t
}

// parent returns the test that has the named one as a subtest, or nil. A subtest's own name can
// have slashes.
func (p *pkg) parent(name string) *test {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '/' && p.tests[name[:i]] != nil {
			return p.tests[name[:i]]
		}
	}
	return nil
}

var (
	frameLine = regexp.MustCompile(`^\s*(=== |--- )`)
	position  = regexp.MustCompile(`^\s*\S+\.go:\d+: `)
)

// reason is what a skipped test said, without the lines around it and the place in the source.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if text := strings.TrimSpace(position.ReplaceAllString(line, "")); text != "" && !frameLine.MatchString(line) {
			said = append(said, text)
		}
	}
	if len(said) == 0 {
		return "(no reason given)"
	}
	return strings.Join(said, " ")
}
