package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// target is a ratio of two ways, by their indices, and what it shall be.
type target struct {
	name         string
	a, b         int
	limit        float64
	atLeastLimit bool
}

// report prints the ways, with their ratios to one of them, and the targets.
//
// A ratio is the median of the rounds' ratios: both ways of a round ran within milliseconds of each
// other.
func report(out io.Writer, ways []way, samples [][]time.Duration, base int, targets []target) {
	fmt.Fprintf(out, "  %-42s %8s %8s %8s   %s\n", "", "median", "least", "most", "to the floor")
	for i, w := range ways {
		fmt.Fprintf(out, "  %-42s %8.3f %8.3f %8.3f   %.2f (of medians %.2f)\n", w.name,
			ms(median(samples[i])), ms(slices.Min(samples[i])), ms(slices.Max(samples[i])),
			pairs(samples[i], samples[base]), ms(median(samples[i]))/ms(median(samples[base])))
	}
	for _, t := range targets {
		ratio := pairs(samples[t.a], samples[t.b])
		sign, met := "<=", ratio <= t.limit
		if t.atLeastLimit {
			sign, met = ">=", ratio >= t.limit
		}
		verdict := "met"
		if !met {
			verdict = "NOT met"
		}
		fmt.Fprintf(out, "  %-42s %8.2f   target %s %.2f: %s\n", t.name, ratio, sign, t.limit, verdict)
	}
	fmt.Fprintln(out)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median of an odd number or of the lower half's end.
func median[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

func pairs(a, b []time.Duration) float64 {
	var ratios []float64
	for i := range a {
		ratios = append(ratios, float64(a[i])/float64(b[i]))
	}
	return median(ratios)
}
