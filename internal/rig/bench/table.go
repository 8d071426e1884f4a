package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
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
		fmt.Fprintf(out, "  %-42s %8.2f   %s\n", t.name, ratio, verdict("%.2f", ratio, t.limit, t.atLeastLimit))
	}
	fmt.Fprintln(out)
}

// verdict says what a value shall be, and whether it is.
func verdict(format string, value, limit float64, atLeastLimit bool) string {
	sign, met := "<=", value <= limit
	if atLeastLimit {
		sign, met = ">=", value >= limit
	}
	text := fmt.Sprintf("target %s "+format+": ", sign, limit)
	if !met {
		return text + "NOT met"
	}
	return text + "met"
}

// row is one quantity of two servers, a value for each round.
type row struct {
	name   string
	format string
	values [2][]float64

	ratioAtMost, ratioAtLeast float64  // of the first server to the second one; 0: no target
	atMost                    *float64 // of the first server
}

// reportRows prints the median of the rounds of each row, and the median of the rounds' ratios.
func reportRows(out io.Writer, title string, names [2]string, rows []row) {
	fmt.Fprintf(out, "%-50s %10s %10s %8s\n", title, names[0], names[1], "ratio")
	for _, r := range rows {
		line := fmt.Sprintf("  %-48s", r.name)
		for _, values := range r.values {
			text := "-"
			if len(values) > 0 {
				text = fmt.Sprintf(r.format, median(values))
			}
			line += fmt.Sprintf(" %10s", text)
		}
		ratio, ok := r.ratio()
		text := ""
		if ok {
			text = fmt.Sprintf("%.2f", ratio)
		}
		line += fmt.Sprintf(" %8s", text)
		switch {
		case ok && r.ratioAtMost > 0:
			line += "   " + verdict("%.2f", ratio, r.ratioAtMost, false)
		case ok && r.ratioAtLeast > 0:
			line += "   " + verdict("%.2f", ratio, r.ratioAtLeast, true)
		case r.atMost != nil && len(r.values[0]) > 0:
			line += "   " + verdict(r.format, median(r.values[0]), *r.atMost, false)
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	fmt.Fprintln(out)
}

// ratio is the median of the rounds' ratios, if there are any.
func (r *row) ratio() (float64, bool) {
	var ratios []float64
	for i := range min(len(r.values[0]), len(r.values[1])) {
		if r.values[1][i] > 0 {
			ratios = append(ratios, r.values[0][i]/r.values[1][i])
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
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
