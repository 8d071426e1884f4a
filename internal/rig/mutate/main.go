// Command mutate breaks the product one line at a time and says which breaks pass all tests.
//
//	go run ./internal/rig/mutate -every 5 infra internal/wiring
//
// A mutation takes a condition as true or as false, drops a term, a case, a statement, an element, a field or an
// argument, moves the boundary of a comparison, adds one to a number, or returns nil instead of an error. All
// mutations of a package are compiled at once (go test -overlay), each behind a switch, and the test binary
// runs once for each. A mutation survives without a run if the tests never get to a value that it changes. No
// file of the tree is touched.
//
// The output has a line for each survivor and a table at the end. A survivor is a missing test, dead code, or an
// equivalent mutation, which changes nothing that a caller can see: a reader has to tell.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

type options struct {
	every, first, jobs int
	stages             int
	match              *regexp.Regexp
	list, verbose      bool
}

func run() error {
	var o options
	var match string
	flag.IntVar(&o.every, "every", 1, "take each `n`th mutation")
	flag.IntVar(&o.first, "first", 0, "begin with mutation `n` of 0 to every-1, for another sample")
	flag.IntVar(&o.jobs, "jobs", 2, "`number` of test binaries at a time")
	flag.IntVar(&o.stages, "stages", 9, "only the first `n` stages of a recipe, which are the quick ones")
	flag.StringVar(&match, "match", "", "only mutations whose line (file:line: what) matches the `regexp`")
	flag.BoolVar(&o.list, "list", false, "show the mutations, run nothing")
	flag.BoolVar(&o.verbose, "v", false, "show the killed mutations, too")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mutate [flags] [package...]\n\nPackages, with recipes for their tests:")
		for _, r := range recipes {
			fmt.Fprintln(flag.CommandLine.Output(), "  "+r.pkg)
		}
		fmt.Fprintln(flag.CommandLine.Output(), "\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	if min(o.every, o.jobs, o.stages) < 1 {
		return errors.New("-every, -jobs and -stages: want 1 or more")
	}
	var err error
	if o.match, err = regexp.Compile(match); err != nil {
		return err
	}
	wanted := recipes
	if flag.NArg() > 0 {
		wanted = nil
		for _, pkg := range flag.Args() {
			i := slices.IndexFunc(recipes, func(r recipe) bool { return r.pkg == filepath.Clean(pkg) })
			if i < 0 {
				return fmt.Errorf("%s: no recipe for its tests: go run ./internal/rig/mutate -help lists the packages", pkg)
			}
			wanted = append(wanted, recipes[i])
		}
	}
	var counts []count
	for _, r := range wanted {
		c, err := r.run(o, os.Stdout)
		if err != nil {
			return fmt.Errorf("%s: %w", r.pkg, err)
		}
		counts = append(counts, c)
	}
	if !o.list {
		return table(counts)
	}
	return nil
}

// count is a line of the table.
type count struct {
	pkg                                      string
	all, run, killed, late, missed, survived int
	unbuilt                                  int
	time                                     time.Duration
}

func table(counts []count) error {
	w := tabwriter.NewWriter(os.Stdout, 2, 1, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "package\tmutations\ttaken\tkilled\tof these by time\tsurvived\tof these not reached\tnot built\tmin\t")
	for _, c := range counts {
		percent := 0.0
		if c.run > 0 {
			percent = 100 * float64(c.survived) / float64(c.run)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d (%.1f%%)\t%d\t%d\t%.1f\t\n",
			c.pkg, c.all, c.run, c.killed, c.late, c.survived, percent, c.missed, c.unbuilt, c.time.Minutes())
	}
	return w.Flush()
}

// run tries a package's mutations and writes a line for each that is worth it.
func (r recipe) run(o options, w io.Writer) (count, error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return count{}, err
	}
	defer os.RemoveAll(dir)
	m, err := mutate(r.pkg, dir)
	if err != nil {
		return count{}, err
	}
	c := count{pkg: r.pkg, all: len(m.mutations), unbuilt: m.unbuilt}
	cwd, err := os.Getwd()
	if err != nil {
		return count{}, err
	}
	var taken []mutation
	for i := range m.mutations {
		one := m.mutations[i]
		if one.pos.Filename, err = filepath.Rel(cwd, one.pos.Filename); err != nil {
			return count{}, err
		}
		if i%o.every == o.first%o.every && o.match.MatchString(one.String()) {
			taken = append(taken, one)
		}
	}
	slices.SortStableFunc(taken, func(a, b mutation) int {
		return cmp.Or(cmp.Compare(a.pos.Filename, b.pos.Filename), a.pos.Line-b.pos.Line)
	})
	c.run = len(taken)
	if o.list {
		for _, one := range taken {
			fmt.Fprintln(w, one)
		}
		return c, nil
	}
	var programs []*program
	for _, s := range r.stages[:min(o.stages, len(r.stages))] {
		p, err := newProgram(m, s, r.root, dir)
		if err != nil {
			return count{}, err
		}
		programs = append(programs, p)
	}
	results := make([]result, len(taken))
	next := make(chan int)
	var workers sync.WaitGroup
	for range o.jobs {
		workers.Go(func() {
			for i := range next {
				results[i] = try(programs, taken[i].id)
			}
		})
	}
	for i := range taken {
		next <- i
	}
	close(next)
	workers.Wait()
	for i, one := range taken {
		switch results[i] {
		case killed:
			c.killed++
		case late:
			c.killed++
			c.late++
		case missed:
			c.missed++
			c.survived++
		case survived:
			c.survived++
		}
		if o.verbose || results[i] == missed || results[i] == survived {
			fmt.Fprintf(w, "%s: %s\n", results[i], one)
		}
	}
	c.time = time.Since(began)
	return c, nil
}

type result string

const (
	killed   result = "killed"
	late     result = "killed by time"
	survived result = "survived"
	missed   result = "not reached"
)

// try gives a mutation to the programs, one after the other.
func try(programs []*program, id int) result {
	r := missed
	for _, p := range programs {
		if !p.reached[id] {
			continue
		}
		switch ok, inTime := p.passes(id); {
		case !inTime:
			return late
		case !ok:
			return killed
		}
		r = survived
	}
	return r
}
