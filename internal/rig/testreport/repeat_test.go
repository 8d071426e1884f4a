package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestRepeat: a failed test is repeated by the command of its run, alone and once, and counts as passed only if all of it passes
// then. It is named in any case.
func TestRepeat(t *testing.T) {
	const (
		passes = `for end in run pass; do echo "{\"Action\":\"$end\",\"Package\":\"$PACKAGE\",\"Test\":\"TestA\"}"; done; `
		ends   = `echo "{\"Action\":\"pass\",\"Package\":\"$PACKAGE\"}"; `
		named  = "failed beside others and passed alone, here:"
	)
	failed := func(tests ...string) string {
		var b strings.Builder
		for _, test := range tests {
			for _, action := range []string{"run", "fail"} {
				fmt.Fprintf(&b, `{"Action":%q,"Package":"m/a","Test":%q}`+"\n", action, test)
			}
		}
		return b.String() + `{"Action":"fail","Package":"m/a"}` + "\n# broken: go test\n"
	}
	for name, test := range map[string]struct {
		again, in string
		last      string
		named     bool
	}{
		"passes alone":             {passes + ends, failed("TestA"), "1 passed, 0 failed, 0 skipped", true},
		"two subtests":             {passes + ends, failed("TestA/x", "TestA/y"), "2 passed, 0 failed, 0 skipped", true},
		"as a regular expression":  {`[ "$TEST" = '^TestA$' ] && ` + passes + ends, failed("TestA"), "1 passed, 0 failed, 0 skipped", true},
		"fails again":              {strings.ReplaceAll(passes, "pass", "fail") + ends, failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"the command fails":        {passes + ends + "exit 1", failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"a part of a pipe fails":   {"{ " + passes + ends + "exit 1; } | cat", failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"is skipped":               {strings.ReplaceAll(passes, "pass", "skip") + ends, failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"no result of the package": {passes, failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"no test ran":              {"true", failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"more than a few":          {passes + ends, failed("TestA", "TestB", "TestC", "TestD"), "0 passed, 4 failed, 0 skipped", false},
		"no command":               {"", failed("TestA"), "0 passed, 1 failed, 0 skipped", false},
		"did not end": {passes + ends, `{"Action":"run","Package":"m/a","Test":"TestA"}` + "\n" + `{"Action":"fail","Package":"m/a"}` + "\n",
			"0 passed, 1 failed, 0 skipped", false},
		"the package fails by itself": {passes + ends, `{"Action":"fail","Package":"m/a"}` + "\n", "0 passed, 1 failed, 0 skipped", false},
	} {
		t.Run(name, func(t *testing.T) {
			in := "# run: here\n"
			if test.again != "" {
				in += "# again: " + test.again + "\n"
			}
			var out strings.Builder
			ok, err := report(strings.NewReader(in+test.in), &out)
			if err != nil {
				t.Fatal(err)
			}
			if last := out.String()[strings.LastIndex(strings.TrimSpace(out.String()), "\n")+1:]; strings.TrimSpace(last) != test.last {
				t.Errorf("%q, want %q", last, test.last)
			}
			if ok != test.named || strings.Contains(out.String(), named) != test.named {
				t.Errorf("ok is %v, want %v, and with it the name:\n%s", ok, test.named, out.String())
			}
		})
	}
}
