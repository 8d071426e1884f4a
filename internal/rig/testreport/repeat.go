package main

import (
	"fmt"
	"os"
	"os/exec"
)

// few failures may be chance, as where a busy machine gave a test no CPU for too long.
const few = 3

// repeat repeats each test that failed, if they are few and their run says how. A test that passes counts as passed.
func (c *counter) repeat(flush func() error) error {
	failed := 0
	for _, r := range c.runs {
		failed += len(r.failures)
	}
	if failed > few {
		return nil
	}
	for _, r := range c.runs {
		var left []failure
		outcome := map[failure]bool{} // of top-level tests
		for _, f := range r.failures {
			if r.again == "" || f.topLevel == "" {
				left = append(left, f)
				continue
			}
			test := failure{pkg: f.pkg, topLevel: f.topLevel}
			passed, known := outcome[test]
			if !known {
				var err error
				if passed, err = c.passes(r, test, flush); err != nil {
					return err
				}
				outcome[test] = passed
			}
			if passed {
				r.repeated = append(r.repeated, f)
				r.passed++
			} else {
				left = append(left, f)
			}
		}
		r.failures = left
	}
	return nil
}

// passes runs a top-level test of the run again, and says whether it passes with all its subtests.
func (c *counter) passes(r *run, test failure, flush func() error) (bool, error) {
	cmd := exec.Command("bash", "-o", "pipefail", "-c", r.again)
	cmd.Env = append(os.Environ(), "PACKAGE="+test.pkg, "TEST=^"+test.topLevel+"$")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("repeat %s: %w", test.topLevel, err)
	}
	repeated := counter{w: c.w}
	repeated.line("# run: " + test.topLevel + " alone, " + r.name)
	failed := repeated.read(out, flush)
	ended := cmd.Wait()
	if failed != nil {
		return false, failed
	}
	only := repeated.runs[0]
	return ended == nil && len(only.failures) == 0 && only.passed > 0, nil
}
