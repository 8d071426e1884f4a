// Package golden compares texts with the files of testdata. With the flag -update, the files are written instead.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
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
		t.Errorf("%s, which go test -update writes:\n%s\ngot:\n%s", path, want, got)
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
