// Package statements counts how often a program executes each of its statements, by coverage counters. So a test can
// bound work by its operations: two runs count the same, whatever the machine does meanwhile. [Bound] is such a test.
package statements

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Counts are the executions of a program's blocks of statements, by their places.
type Counts map[string]int

// Read returns the counts of a profile, as go test -covermode=count -coverprofile and go tool covdata textfmt write it.
func Read(t testing.TB, profile string) Counts {
	t.Helper()
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	counts := Counts{}
	lines := bufio.NewScanner(f)
	if lines.Scan(); lines.Text() != "mode: count" && lines.Text() != "mode: atomic" {
		t.Fatalf("%s begins with %q, and counts nothing", profile, lines.Text())
	}
	for lines.Scan() {
		// example.com/module/file.go:46.51,57.16 9 1: from line 46 to 57, 9 statements, executed once
		field := strings.Fields(lines.Text())
		if len(field) != 3 {
			t.Fatalf("%s: %q", profile, lines.Text())
		}
		number, err := strconv.Atoi(field[2])
		if err != nil {
			t.Fatal(err)
		}
		counts[field[0]] += number
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// Sum is the number of all executions.
func (c Counts) Sum() (sum int) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// Calls returns how often the function of the file was called. The file has its path in the repository, whose root is
// named.
func (c Counts) Calls(t testing.TB, root, file, function string) (calls int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	before, _, has := strings.Cut(string(text), "\nfunc "+function+"(")
	begins := fmt.Sprintf("/%s:%d.", file, 2+strings.Count(before, "\n"))
	for at, n := range c {
		if has && strings.Contains(at, begins) {
			return n
		}
	}
	t.Fatalf("%s has no counted function %s", file, function)
	return 0
}

// Squares returns the blocks whose executions grow with the square of the number of objects, or faster: the most
// executed first. The three counts are of runs with no, n and 2n objects.
//
// From n to 2n objects what is linear doubles, and what is quadratic has four times the executions. A stable sort,
// n (log n)², has 2.6 times those of 200. The limit is three.
// A block that one pair in 32 executes is not looked at, and neither are those of package slices' sorts.
func Squares(none, n, twice Counts, objects int) (list []string) {
	const limit, few = 3, 24
	type block struct {
		at          string
		once, twice int
	}
	var found []block
	for at := range twice {
		b := block{at, n[at] - none[at], twice[at] - none[at]}
		if !strings.HasPrefix(at, "slices/zsort") && b.twice > limit*max(b.once, objects*objects/few) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b block) int { return cmp.Or(b.twice-a.twice, cmp.Compare(a.at, b.at)) })
	for _, b := range found {
		place, _, _ := strings.Cut(b.at, ".go:")
		line, _, _ := strings.Cut(b.at[len(place)+4:], ".")
		list = append(list, fmt.Sprintf("%s.go:%s: %d executions for %d objects, %d for %d", filepath.Join(filepath.Base(filepath.Dir(place)), filepath.Base(place)), line, b.once, objects, b.twice, 2*objects))
	}
	return list
}
