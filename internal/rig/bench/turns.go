package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// scope is what a measurement has started, which ends with it.
type scope struct {
	ctx  context.Context
	ends []func() error
}

// inScope calls a measurement, and then the ends in the opposite order.
func inScope(ctx context.Context, measure func(*scope) error) error {
	s := &scope{ctx: ctx}
	err := measure(s)
	for _, end := range slices.Backward(s.ends) {
		err = errors.Join(err, end())
	}
	return err
}

func (s *scope) atEnd(end func() error) { s.ends = append(s.ends, end) }

// inTurns gives each way a turn in each round, so that a drift of the machine affects all alike. The order is random:
// what ran before a way can cost it 1 or 2 %.
func (s *scope) inTurns(rounds, ways int, turn func(round, way int) error) error {
	for round := range rounds {
		for _, way := range rand.Perm(ways) {
			if s.ctx.Err() != nil {
				return context.Cause(s.ctx)
			}
			if err := turn(round, way); err != nil {
				return err
			}
		}
	}
	return nil
}

// cost is what a call took: the time, and that of all CPUs.
type cost struct{ wall, cpu time.Duration }

// timed measures a call of this process. Its CPU time includes garbage collection, and programs that have ended.
func timed(call func() error) (cost, error) {
	begin, before := time.Now(), cpuTime()
	err := call()
	return cost{time.Since(begin), cpuTime() - before}, err
}

func cpuTime() time.Duration {
	var own unix.Timespec
	var children unix.Rusage
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &own); err != nil {
		panic(err) // every Linux has this clock
	}
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &children); err != nil {
		panic(err)
	}
	return time.Duration(own.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

// row is one quantity of the compared ways, with a value for each round.
type row struct {
	name   string
	values [][]float64 // by way; empty: the way has no such quantity
}

func newRow(name string, ways int) row { return row{name, make([][]float64, ways)} }

func (r row) add(way int, value float64) { r.values[way] = append(r.values[way], value) }

// printTable prints each way's median and, for all ways but the first, the first one's ratio to it: the median of the
// rounds' ratios. After ± stands half of the distance between the quartiles: half of all rounds are about that near.
func printTable(w io.Writer, title string, ways []string, rows []row) {
	line := fmt.Sprintf("%-43s", title)
	for i, name := range ways {
		line += fmt.Sprintf(" %9s", name)
		if i > 0 {
			line += fmt.Sprintf(" %-12s", " ratio")
		}
	}
	fmt.Fprintln(w, "\n"+strings.TrimRight(line, " "))
	for _, r := range rows {
		line := fmt.Sprintf("  %-41s", r.name)
		for i, values := range r.values {
			line += fmt.Sprintf(" %9s", number(values))
			if i > 0 {
				line += fmt.Sprintf(" %-12s", ratio(r.values[0], values))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// number is the median, with the digits that count.
func number(values []float64) string {
	m := quantile(values, 2)
	switch {
	case len(values) == 0:
		return "-"
	case m >= 100 || m == 0:
		return fmt.Sprintf("%.0f", m)
	case m >= 10:
		return fmt.Sprintf("%.1f", m)
	}
	return fmt.Sprintf("%.3f", m)
}

func ratio(a, b []float64) string {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	return fmt.Sprintf("%6.2f ±%.2f", quantile(ratios, 2), (quantile(ratios, 3)-quantile(ratios, 1))/2)
}

// quantile is the value at a number of quarters of the sorted values, between two of them in proportion.
func quantile(values []float64, quarters int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	place := (len(sorted) - 1) * quarters
	low, high := sorted[place/4], sorted[min(place/4+1, len(sorted)-1)]
	return low + (high-low)*float64(place%4)/4
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
