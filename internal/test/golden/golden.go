// Package golden compares texts with the files of testdata. With the flag -update, the files are written instead.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files of testdata anew")

// Compare wants the file of testdata to have the text.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew):\n%s", path, Diff(string(want), got))
	}
}

// Only wants testdata to have the named files with that ending, such as ".txt", and no others.
func Only(t testing.TB, ending string, names ...string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*" + ending)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !slices.Contains(names, filepath.Base(file)) {
			t.Errorf("%s belongs to no case", file)
		}
	}
}

// Diff shows the lines that only one of the texts has.
func Diff(want, have string) string {
	var b strings.Builder
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	for _, line := range w {
		if !slices.Contains(h, line) {
			b.WriteString("- " + line + "\n")
		}
	}
	for _, line := range h {
		if !slices.Contains(w, line) {
			b.WriteString("+ " + line + "\n")
		}
	}
	if b.Len() == 0 {
		return "the same lines in another order:\n" + have
	}
	return b.String()
}
