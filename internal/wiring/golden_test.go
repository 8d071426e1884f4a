package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestGolden compares with testdata what a plan prints, its record, and the way back from the wired
// namespace.
func TestGolden(t *testing.T) {
	var files []string
	for _, c := range slices.Concat(cases, directCases) {
		files = append(files, c.name+".txt")
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			record, err := cache.Encode(plan.Record)
			if err != nil {
				t.Fatal(err)
			}
			undo := mustUndo(t, plan, wire(t, plan, c.found))
			golden.Compare(t, c.name+".txt", plan.String()+"\n"+string(record)+"\n"+netstate.Text(undo))
		})
	}
	golden.Only(t, ".txt", files...)
}

// TestGoldenSummaries: what a plan says of its tables, each line once, under the first case that has it.
func TestGoldenSummaries(t *testing.T) {
	var text strings.Builder
	seen := map[string]bool{}
	for _, c := range slices.Concat(cases, directCases) {
		steps, err := newPlan(t, c.found, c.spec).Steps(c.found)
		if err != nil {
			t.Fatal(err)
		}
		named := false
		for _, step := range netstate.Steps(steps) {
			if step.Summary == "" || seen[step.Summary] {
				continue
			}
			if !named {
				text.WriteString(c.name + "\n")
			}
			named, seen[step.Summary] = true, true
			text.WriteString("\t" + step.Summary + "\n")
		}
	}
	golden.Compare(t, "summaries", text.String())
}
