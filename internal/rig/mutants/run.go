package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// test is one of a package, with what it reached.
type test struct {
	Package, File, Name string
	Seconds             float64
	Passed              bool
	Reached             []int
}

// result is of one run: the tests of a file that reach a mutant.
type result struct {
	Mutant        int
	Package, File string
	Killed        bool
	Test          string // the first one that failed
	Seconds       float64
}

type runner struct {
	work                   string
	mutants                []mutant
	tests                  []test
	done                   []result
	results                *os.File
	only, each, skip, long *regexp.Regexp
}

func newRunner(work string, mutants []mutant) (*runner, error) {
	work, err := filepath.Abs(work)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	r := &runner{work: work, mutants: mutants}
	if err := readLines(r.path("tests.json"), &r.tests); err != nil {
		return nil, err
	}
	if err := readLines(r.path("results.json"), &r.done); err != nil {
		return nil, err
	}
	r.results, err = os.OpenFile(r.path("results.json"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return r, err
}

func (r *runner) path(name string) string { return filepath.Join(r.work, name) }

func readLines[T any](name string, into *[]T) error {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	for lines := json.NewDecoder(bufio.NewReader(f)); lines.More(); {
		var v T
		if err := lines.Decode(&v); err != nil {
			return err
		}
		*into = append(*into, v)
	}
	return nil
}

func appendLine(name string, v any) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(v)
}

// all ends without an error when ctx does.
func (r *runner) all(ctx context.Context) error {
	overlay, err := writeOverlay(r.work, r.mutants)
	if err != nil {
		return err
	}
	built := map[string]bool{}
	meet := func(pkg string) error {
		if built[pkg] || ctx.Err() != nil {
			return nil
		}
		built[pkg] = true
		if slices.Contains(later, pkg) && !built["programs"] {
			built["programs"] = true
			if err := r.programs(overlay); err != nil {
				return err
			}
		}
		build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", r.program(pkg), "./"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", build, err, out)
		}
		return r.note(ctx, pkg)
	}
	for _, stage := range [][]string{nil, later} {
		for _, m := range r.mutants {
			packages := stage
			if stage == nil {
				packages = m.place.own
			}
			if r.only != nil && !r.only.MatchString(fmt.Sprintf("%s:%d", m.File, m.Line)) {
				continue
			}
			for _, pkg := range packages {
				if err := meet(pkg); err != nil {
					return err
				}
				if err := r.try(ctx, m, pkg); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// programs builds those that tests start, with the mutants as well. The tests find them by GUESTWIRE_BIN.
func (r *runner) programs(overlay string) error {
	build := exec.Command("go", "build", "-C", "examples", "-overlay", overlay, "-o", r.path("programs")+"/", "./...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return os.Setenv("GUESTWIRE_BIN", r.path("programs"))
}

func (r *runner) program(pkg string) string {
	return r.path(strings.ReplaceAll(pkg, "/", "-") + ".test")
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Example)`)

// note runs each test of a package alone, without a mutant. What was noted by a former call stays.
func (r *runner) note(ctx context.Context, pkg string) error {
	known := map[string]bool{}
	for _, t := range r.tests {
		if t.Package == pkg {
			known[t.Name] = true
		}
	}
	names, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		return err
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !testName.MatchString(fn.Name.Name) || fn.Name.Name == "TestMain" || known[fn.Name.Name] || ctx.Err() != nil ||
				r.skip != nil && r.skip.MatchString(name) {
				continue
			}
			shared := r.path("reached")
			if err := os.WriteFile(shared, make([]byte, 4096), 0o666); err != nil {
				return err
			}
			run := r.run(ctx, pkg, filepath.Base(name), []string{fn.Name.Name}, 10*time.Minute, "GUESTWIRE_MUTANTS_REACHED="+shared)
			if ctx.Err() != nil {
				return nil
			}
			t := test{Package: pkg, File: filepath.Base(name), Name: fn.Name.Name, Seconds: run.Seconds, Passed: !run.Killed}
			data, err := os.ReadFile(shared)
			if err != nil {
				return err
			}
			for n, b := range data {
				if b != 0 {
					t.Reached = append(t.Reached, n)
				}
			}
			r.tests = append(r.tests, t)
			if err := appendLine(r.path("tests.json"), t); err != nil {
				return err
			}
		}
	}
	return nil
}

// try runs a package's tests of a mutant, file by file, the fast ones first.
func (r *runner) try(ctx context.Context, m mutant, pkg string) error {
	names, seconds := map[string][]string{}, map[string]float64{}
	for _, t := range r.tests {
		if t.Package == pkg && t.Passed && slices.Contains(t.Reached, m.Number) {
			names[t.File] = append(names[t.File], t.Name)
			seconds[t.File] += t.Seconds
		}
	}
	var files []string
	for file := range names {
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b string) int {
		if seconds[a] < seconds[b] {
			return -1
		}
		return 1
	})
	for _, file := range files {
		name := pkg + "/" + file
		if ctx.Err() != nil || r.skip != nil && r.skip.MatchString(name) ||
			slices.ContainsFunc(r.done, func(d result) bool { return d.Mutant == m.Number && d.Package == pkg && d.File == file }) {
			continue
		}
		killed := slices.ContainsFunc(r.done, func(d result) bool { return d.Mutant == m.Number && d.Killed })
		if killed && (r.each == nil || !r.each.MatchString(name)) {
			continue
		}
		limit := 30*time.Second + time.Duration(5*seconds[file])*time.Second
		run := r.run(ctx, pkg, file, names[file], limit, "GUESTWIRE_MUTANT="+strconv.Itoa(m.Number))
		if ctx.Err() != nil {
			return nil
		}
		run.Mutant, run.Package, run.File = m.Number, pkg, file
		r.done = append(r.done, run)
		if err := json.NewEncoder(r.results).Encode(run); err != nil {
			return err
		}
	}
	return nil
}

var failed = regexp.MustCompile(`--- FAIL: ([^ ]*)`)

// run says that a run has killed also if it hangs, or fails after its tests.
func (r *runner) run(ctx context.Context, pkg, file string, names []string, limit time.Duration, env string) result {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.program(pkg), "-test.short="+strconv.FormatBool(r.long == nil || !r.long.MatchString(pkg+"/"+file)), "-test.failfast", "-test.timeout", limit.String(), "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), env)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	found := result{Killed: err != nil, Seconds: float64(time.Since(start).Milliseconds()) / 1000}
	if err != nil {
		found.Test = "at the end"
		if m := failed.FindSubmatch(out); m != nil {
			found.Test = string(m[1])
		} else if time.Since(start) >= limit {
			found.Test = "hangs"
		}
		_ = os.WriteFile(r.path("last-failure.txt"), out, 0o644)
	}
	return found
}
