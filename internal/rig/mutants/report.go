package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// report prints the mutants, then the counts by package and by file of tests.
func (r *runner) report(w io.Writer) {
	type count struct{ reached, killed, alone int }
	files := map[string]*count{}
	seconds := map[string]float64{}
	packages := map[string]map[string]int{}
	var dirs []string
	fmt.Fprintln(w, "| mutant | place | kind | code | killed by |\n| --- | --- | --- | --- | --- |")
	for _, m := range r.mutants {
		var killers []result
		for _, d := range r.done {
			if d.Mutant != m.Number {
				continue
			}
			name := d.Package + "/" + d.File
			if files[name] == nil {
				files[name] = &count{}
			}
			files[name].reached++
			if d.Killed {
				killers = append(killers, d)
				files[name].killed++
			}
		}
		if len(killers) == 1 {
			files[killers[0].Package+"/"+killers[0].File].alone++
		}
		slices.SortStableFunc(killers, func(a, b result) int { return cmp.Compare(a.Seconds, b.Seconds) })
		if packages[m.place.dir] == nil {
			packages[m.place.dir] = map[string]int{}
			dirs = append(dirs, m.place.dir)
		}
		by := "survives"
		if !slices.ContainsFunc(r.tests, func(t test) bool { return slices.Contains(t.Reached, m.Number) }) {
			by = "not reached"
		}
		first := by
		if len(killers) > 0 {
			first = "phase1"
			for _, k := range killers {
				if k.Package == "internal/rig/podnet" && len(killers) == 1 {
					first = "lab"
				}
				if slices.Contains(m.place.own, k.Package) {
					first = "own"
				}
			}
			by = ""
			for i, k := range killers {
				if i < 3 {
					by += fmt.Sprintf("%s/%s %s %.1f s; ", k.Package, k.File, k.Test, k.Seconds)
				}
			}
			by += fmt.Sprintf("%d files", len(killers))
		}
		packages[m.place.dir][first]++
		fmt.Fprintf(w, "| %d | %s:%d | %s | `%.70s` | %s |\n", m.Number, m.File, m.Line, m.Kind, m.Was, by)
	}
	fmt.Fprintln(w, "\n| package | mutants | own tests | phase1 | lab | survive | not reached |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, dir := range dirs {
		p := packages[dir]
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %d |\n", dir, p["own"]+p["phase1"]+p["lab"]+p["survives"]+p["not reached"], p["own"], p["phase1"], p["lab"], p["survives"], p["not reached"])
	}
	for _, t := range r.tests {
		seconds[t.Package+"/"+t.File] += t.Seconds
		if !t.Passed {
			fmt.Fprintf(w, "\n%s %s fails without a mutant, and did not take part.\n", t.Package, t.Name)
		}
	}
	fmt.Fprintln(w, "\n| file of tests | seconds | mutants met | killed | killed alone |\n| --- | --- | --- | --- | --- |")
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := files[name]
		fmt.Fprintf(w, "| %s | %.1f | %d | %d | %d |\n", name, seconds[name], c.reached, c.killed, c.alone)
	}
}
