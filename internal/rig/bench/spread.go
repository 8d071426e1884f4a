package main

import (
	"fmt"
	"io"
	"slices"
)

// spread is a quantity's median and quartiles over the rounds.
type spread struct{ low, mid, high float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(quarter int) float64 { // between two values in proportion
		place := (len(sorted) - 1) * quarter
		low, high := sorted[place/4], sorted[min(place/4+1, len(sorted)-1)]
		return low + (high-low)*float64(place%4)/4
	}
	return spread{at(1), at(2), at(3)}
}

// ratios returns the ratios of a to b in each round.
func ratios(a, b []float64) []float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return list
}

// comparison is one quantity of several ways, with a value for each round, and the limit of a ratio.
type comparison struct {
	name   string
	format string
	values [][]float64 // by way

	atMost, atLeast float64 // limits of the first way's ratio to the second; 0: no limit
}

// printComparisons prints the medians of all ways, and of the first one's ratio to the second the median over the rounds,
// and its quartiles.
func printComparisons(out io.Writer, title string, names []string, list []comparison) {
	fmt.Fprintf(out, "%-46s", title)
	for _, name := range names {
		fmt.Fprintf(out, " %9s", name)
	}
	fmt.Fprintf(out, " %6s %13s\n", "ratio", "quartiles")
	for _, c := range list {
		fmt.Fprintf(out, "  %-44s", c.name)
		for _, values := range c.values {
			fmt.Fprintf(out, " %9s", fmt.Sprintf(c.format, spreadOf(values).mid))
		}
		ratio := spreadOf(ratios(c.values[0], c.values[1]))
		fmt.Fprintf(out, " %6.3f %6.3f-%6.3f", ratio.mid, ratio.low, ratio.high)
		switch {
		case c.atMost > 0:
			fmt.Fprint(out, "   "+verdict("%.2f", ratio.mid, c.atMost, false))
		case c.atLeast > 0:
			fmt.Fprint(out, "   "+verdict("%.2f", ratio.mid, c.atLeast, true))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
}

// printWays prints a quantity of several ways in a row each, and the ratio of the first way to each.
func printWays(out io.Writer, title, format string, names []string, values [][]float64) {
	fmt.Fprintf(out, "%-40s %9s %19s %9s %13s\n", title, "median", "quartiles", names[0]+"/", "quartiles")
	for i, name := range names {
		s, ratio := spreadOf(values[i]), spreadOf(ratios(values[0], values[i]))
		fmt.Fprintf(out, "  %-38s %9s %9s-%9s %9.2f %6.2f-%6.2f\n", name,
			fmt.Sprintf(format, s.mid), fmt.Sprintf(format, s.low), fmt.Sprintf(format, s.high), ratio.mid, ratio.low, ratio.high)
	}
	fmt.Fprintln(out)
}
