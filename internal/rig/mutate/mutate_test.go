package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestSample: what a test does not look at survives, and nothing else does.
func TestSample(t *testing.T) {
	const sample = "internal/rig/mutate/testdata/sample"
	t.Chdir("../../..")
	var out strings.Builder
	c, err := recipe{pkg: sample, stages: []stage{{pkg: sample}}}.run(options{every: 1, jobs: 2, stages: 9, match: regexp.MustCompile("")}, &out)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`survived: 9: entry dropped: "two": 2`,
		`survived: 9: one more: 2`,
		`not reached: 25: case dropped: oblong`,
		`not reached: 28: one more: -1`,
		`not reached: 32: boundary moved: age >= 18`,
		`survived: 32: one more: 18`,
		`not reached: 41: condition taken as false: port < 0 || port > 65535`,
		`not reached: 41: || term dropped: port < 0`,
		`not reached: 41: || term dropped: port > 65535`,
		`not reached: 41: boundary moved: port < 0`,
		`not reached: 41: boundary moved: port > 65535`,
		`survived: 41: one more: 0`,
		`survived: 41: one more: 65535`,
		`not reached: 42: nil returned instead of the error: errors.New("no such port")`,
		`survived: 49: element dropped: "a"`,
		`survived: 49: element dropped: "list"`,
		`survived: 50: argument dropped: "of"`,
		`survived: 50: argument dropped: "words"`,
		`survived: 50: statement dropped: list = append(list, "of", "words")`,
	}
	have := strings.ReplaceAll(out.String(), sample+"/sample.go:", "")
	for _, w := range want {
		if !strings.Contains(have, w+"\n") {
			t.Errorf("missing: %s", w)
		}
		have = strings.Replace(have, w+"\n", "", 1)
	}
	if have != "" {
		t.Errorf("besides:\n%s", have)
	}
	if c.survived != len(want) || c.killed != c.run-c.survived || c.killed == 0 || c.unbuilt != 0 {
		t.Errorf("%+v", c)
	}
}
