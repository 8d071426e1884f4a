package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/golden"
)

const (
	dir   = "../../../docs/pictures"
	plans = "../../wiring/testdata"
	most  = 40 << 10 // octets of a picture
)

// TestDrawn: each picture was drawn from the source beside it with plain colours, and none is without one. If d2 is in
// GUESTWIRE_BIN, what it draws now is what is there.
func TestDrawn(t *testing.T) {
	sources, err := list(dir)
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	pictures, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil || len(pictures) != len(sources) {
		t.Errorf("%d pictures of %d sources: %v: run make pictures", len(pictures), len(sources), err)
	}
	tools, _ := filepath.Glob(filepath.Join(os.Getenv("GUESTWIRE_BIN"), "d2-v*"))
	for _, source := range sources {
		svg, err := os.ReadFile(target(source))
		if err != nil {
			t.Error(err)
			continue
		}
		comment, err := sum(source)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(svg, []byte(comment+"\n")) {
			t.Errorf("%s is older than %s, %s or style.css: run make pictures", target(source), source, classes)
		}
		if bytes.Contains(svg, []byte("var(")) {
			t.Errorf("%s has variables, which not each program that shows it knows", target(source))
		}
		if len(svg) > most {
			t.Errorf("%s has %d octets, more than %d", target(source), len(svg), most)
		}
		for _, d2 := range tools {
			if now, err := draw(d2, source); err != nil || !bytes.Equal(now, svg) {
				t.Errorf("%s draws another %s: %v", d2, target(source), err)
			}
		}
	}
}

// TestLinkNames: the picture of a binding has the links of the plan that is called as the binding, and no others. Each
// binding has a picture.
func TestLinkNames(t *testing.T) {
	_, err := infra.NewBinding("")
	for _, m := range regexp.MustCompile(`"([a-z]+)"`).FindAllStringSubmatch(err.Error(), -1) {
		kind := m[1]
		if kind == "auto" {
			continue
		}
		source, plan := filepath.Join(dir, "binding-"+kind+".d2"), filepath.Join(plans, kind+".txt")
		if drawn, planned := names(t, source, link), names(t, plan, link); !slices.Equal(drawn, planned) {
			t.Errorf("%s has %v, and %s has %v", source, drawn, plan, planned)
		}
		planned := names(t, plan, address)
		for _, a := range names(t, source, address) {
			if !slices.Contains(planned, a) {
				t.Errorf("%s names %s, which %s has not", source, a, plan)
			}
		}
	}
	all := names(t, filepath.Join(plans, "bridge.txt"), link)
	sources, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		for _, name := range names(t, source, link) {
			if !slices.Contains(all, name) {
				t.Errorf("%s names %s, which no plan has", source, name)
			}
		}
	}
}

// TestCosts: costs.d2 has two bars for each row of the table at the head of docs/results/performance.md, as long as its
// numbers.
func TestCosts(t *testing.T) {
	page, err := os.ReadFile("../../../docs/results/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	const whole = 300 // the longer bar of a row
	var source strings.Builder
	source.WriteString("# go test ./internal/test/pictures -update writes this of docs/results/performance.md.\n...@classes\ngrid-columns: 1\nvertical-gap: 4\n")
	rows := regexp.MustCompile("(?m)^\\| `.*?` \\| (.*), beside (.*) \\| ([0-9.]+) \\| ([0-9.]+) \\| [0-9.]+ \\|$").FindAllStringSubmatch(string(page), -1)
	if len(rows) == 0 {
		t.Error("the page has no row that compares two numbers")
	}
	bar := func(name, what, label, who, number, class string, share float64) {
		long := max(4, int(whole*share))
		fmt.Fprintf(&source, `%s: {
  class: row
  horizontal-gap: 12
  what: %q { class: %s; width: 240; height: 22 }
  who: %q { class: note; width: 150; height: 22 }
  number: %q { class: note; width: 56; height: 22 }
  bar: "" { class: %s; width: %d; height: 22 }
  rest: "" { class: blank; width: %d; height: 22 }
}
`, name, what, label, who, number, class, long, 1+whole-long)
	}
	for i, m := range rows {
		ours, err := strconv.ParseFloat(m[3], 64)
		other, err2 := strconv.ParseFloat(m[4], 64)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(m[0], err)
		}
		longer := max(ours, other)
		bar(fmt.Sprintf("a%d", i), m[1], "note", "guestwire", m[3], "made", ours/longer)
		bar(fmt.Sprintf("b%d", i), "", "blank", m[2], m[4], "found", other/longer)
	}
	golden.Compare(t, "../"+dir+"/costs.d2", source.String()) // from testdata
}

// In D2's texts, names can follow a backslash and an n.
var (
	link      = regexp.MustCompile(`(?:\\n|\b)(eth[0-9]+(?:-[a-z]+)?)\b`)
	everyName = regexp.MustCompile(`(?m)^\t.*\{eth0 eth0-nic .*`) // of a binding's links and of the other bindings'
	address   = regexp.MustCompile(`(?:\\n|\b)([0-9]+(?:\.[0-9]+){3})\b`)
)

// names returns what the expression finds in a file, in order, each once.
func names(t *testing.T, path string, what *regexp.Regexp) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = everyName.ReplaceAll(text, nil)
	var found []string
	for _, m := range what.FindAllSubmatch(text, -1) {
		found = append(found, string(m[1]))
	}
	slices.Sort(found)
	return slices.Compact(found)
}
