package phase1_test

import (
	"runtime"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestAllocations guards what Setup, Check and Teardown allocate, in octets. The bounds are twice what a call takes at
// most, as the race detector keeps some buffers from being used again. The least of three calls counts, as other
// goroutines allocate beside them.
func TestAllocations(t *testing.T) {
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		least := map[string]uint64{}
		measure := func(what string, f func() error) {
			t.Helper()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := f()
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			octets := after.TotalAlloc - before.TotalAlloc
			if least[what] == 0 || octets < least[what] {
				least[what] = octets
			}
			t.Logf("%s: %d octets in %d objects", what, octets, after.Mallocs-before.Mallocs)
		}
		for range 3 {
			measure("Setup", func() error { return setupAlone(t.Context(), c) })
			measure("Check", func() error { return c.Check(t.Context()) })
			measure("Teardown", func() error { return c.Teardown(t.Context()) })
		}
		for what, most := range map[string]uint64{"Setup": 1_100_000, "Check": 800_000, "Teardown": 800_000} {
			if least[what] > most {
				t.Errorf("%s allocates %d octets, want %d at most", what, least[what], most)
			}
		}
	})
}
