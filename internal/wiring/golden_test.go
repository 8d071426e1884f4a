package wiring_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
)

var update = flag.Bool("update", false, "write the golden plans anew")

// TestGolden compares with testdata what a plan prints, its record, and the way back from the wired
// namespace.
func TestGolden(t *testing.T) {
	wanted := []string{}
	for _, c := range slices.Concat(cases, directCases) {
		path := filepath.Join("testdata", c.name+".txt")
		wanted = append(wanted, path)
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			record, err := cache.Encode(plan.Record)
			if err != nil {
				t.Fatal(err)
			}
			undo := mustUndo(t, plan, wire(t, plan, c.found))
			have := plan.String() + "\n" + string(record) + "\n" + netstate.Text(undo)
			if *update {
				if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if have != string(want) {
				t.Errorf("%s differs (go test -update writes it anew):\n%s", path, diff(string(want), have))
			}
		})
	}
	there, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if !slices.Contains(wanted, path) {
			t.Errorf("%s is no case's", path)
		}
	}
}

// diff shows the lines that only one of the texts has.
func diff(want, have string) string {
	var b strings.Builder
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	for _, line := range w {
		if !slices.Contains(h, line) {
			b.WriteString("- " + line + "\n")
		}
	}
	for _, line := range h {
		if !slices.Contains(w, line) {
			b.WriteString("+ " + line + "\n")
		}
	}
	if b.Len() == 0 {
		return "the same lines in another order:\n" + have
	}
	return b.String()
}
