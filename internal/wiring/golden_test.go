package wiring_test

import (
	"slices"
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
