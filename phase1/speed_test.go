package phase1_test

import (
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// BenchmarkSetup measures a first Setup. The Teardown between is not counted.
func BenchmarkSetup(b *testing.B) {
	ofBindings(b, func(b *testing.B, c phase1.Config) {
		for b.Loop() {
			if _, err := phase1.Setup(b.Context(), c); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := phase1.Teardown(b.Context(), c); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	ofBindings(b, func(b *testing.B, c phase1.Config) {
		if _, err := phase1.Setup(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		defer phase1.Teardown(b.Context(), c)
		for b.Loop() {
			if err := phase1.Check(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// ofBindings calls f for the bindings in a namespace of its own.
func ofBindings(b *testing.B, f func(*testing.B, phase1.Config)) {
	nstest.Need(b)
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
		b.Run(string(binding.Kind()), func(b *testing.B) {
			b.ReportAllocs()
			f(b, config(nstest.NewNetwork(b), binding))
		})
	}
}
