package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// target is the ratio of two ways, which are given by their indices.
type target struct {
	name         string
	a, b         int
	limit        float64 // 0: the ratio is told, and no goal
	atLeastLimit bool
}

// report prints the times of all ways, their ratios to the way base, which the headline calls by its name, and the targets. If the CPU
// times of both ways of a target are known, it prints their ratio too, with its quartiles.
//
// A ratio is the median of the rounds' ratios, as both ways of a round run within milliseconds of each other.
func report(out io.Writer, ways []way, m measured, base int, baseName string, targets []target) {
	samples := m.times
	fmt.Fprintf(out, "  %-42s %8s %8s %8s   %s\n", "", "median", "least", "most", "to the "+baseName)
	for i, w := range ways {
		fmt.Fprintf(out, "  %-42s %8.3f %8.3f %8.3f   %.2f (of medians %.2f)\n", w.name,
			ms(median(samples[i])), ms(slices.Min(samples[i])), ms(slices.Max(samples[i])),
			pairs(samples[i], samples[base]), ms(median(samples[i]))/ms(median(samples[base])))
	}
	for _, t := range targets {
		ratio := pairs(samples[t.a], samples[t.b])
		line := fmt.Sprintf("  %-42s %8.2f", t.name, ratio)
		if t.limit > 0 {
			line += "   " + verdict("%.2f", ratio, t.limit, t.atLeastLimit)
		}
		fmt.Fprintln(out, line)
		if len(m.used[t.a]) > 0 && len(m.used[t.b]) > 0 {
			used := spreadOf(ratios(milliseconds(m.used[t.a]), milliseconds(m.used[t.b])))
			fmt.Fprintf(out, "  %-42s %8.2f   (%.2f to %.2f): %.3f and %.3f\n", t.name+", CPU time", used.mid, used.low, used.high,
				ms(median(m.used[t.a])), ms(median(m.used[t.b])))
		}
	}
	fmt.Fprintln(out)
}

func milliseconds(times []time.Duration) []float64 {
	var list []float64
	for _, t := range times {
		list = append(list, ms(t))
	}
	return list
}

// verdict returns a text with the limit, and whether the value meets it.
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

// row is one quantity of both servers, with a value for each round.
type row struct {
	name   string
	format string
	values [2][]float64

	ratioAtMost, ratioAtLeast float64  // limits of the first server's ratio to the second; 0: no limit
	atMost                    *float64 // limit of the first server's value; nil: no limit
}

// reportRows prints each row's median and the median of the rounds' ratios.
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

// ratio returns the median of the rounds' ratios; false if there are none.
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

// median returns the median, of an even number the mean of the two in the middle.
func median[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func pairs(a, b []time.Duration) float64 {
	var ratios []float64
	for i := range a {
		ratios = append(ratios, float64(a[i])/float64(b[i]))
	}
	return median(ratios)
}
