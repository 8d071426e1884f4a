package podnet

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSummary: the short table of docs/reference/networks.md is that of docs/results/networks.md, with a row for all
// networks that have the same cells. -update writes it.
func TestSummary(t *testing.T) {
	documented := document(t)
	heading := "| networks | made by |"
	for _, b := range bindings {
		heading += fmt.Sprintf(" %s |", b.Kind())
	}
	var order []string
	names := map[string][]string{} // by the rest of the row
	for _, n := range Networks {
		cells := strings.Split(strings.Trim(documented[n.Name], "| "), " | ")[2:]
		row := string(n.Origin)
		for i := range bindings {
			row += " | " + summary(t, n.Name, cells[i])
		}
		if !slices.Contains(order, row) {
			order = append(order, row)
		}
		names[row] = append(names[row], n.Name)
	}
	rows := heading + "\n" + strings.Repeat("| --- ", strings.Count(heading, "|")-1) + "|\n"
	for _, row := range order {
		rows += fmt.Sprintf("| %s | %s |\n", families(names[row]), row)
	}
	rows = "\n" + rows + "\n"
	const begin, end = "<!-- go test ./internal/rig/podnet -run TestSummary -update -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(overview)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	have, after, ok := strings.Cut(rest, end)
	switch {
	case !ok:
		t.Errorf("%s lacks %q or %q", overview, begin, end)
	case *update && !nstest.Emulated:
		if err := os.WriteFile(overview, []byte(before+begin+rows+end+after), 0o644); err != nil {
			t.Error(err)
		}
	case have != rows:
		t.Errorf("%s has the table\n%s\nand %s gives (-update writes it)\n%s", overview, have, table, rows)
	}
}

// families returns the names in one text. Several of one family, whose names begin alike up to a comma, are counted.
func families(names []string) string {
	var order []string
	of := map[string][]string{}
	for _, name := range names {
		family, _, _ := strings.Cut(name, ",")
		if of[family] == nil {
			order = append(order, family)
		}
		of[family] = append(of[family], name)
	}
	for i, family := range order {
		if n := len(of[family]); n > 1 {
			order[i] = fmt.Sprintf("%s (%d kinds)", family, n)
		} else {
			order[i] = of[family][0]
		}
	}
	return strings.Join(order, "; ")
}

// summary is the word of a binding's cell. Which protocols the binding loses is in the long table.
func summary(t *testing.T, network, cell string) string {
	for _, word := range []string{"works", "refused"} {
		if strings.HasPrefix(cell, word) {
			return word
		}
	}
	t.Errorf("%s: the cell %q", network, cell)
	return ""
}
