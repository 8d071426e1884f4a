// Package golden compares texts with the files of testdata ([Compare]), and with parts of documents ([Parts]). With the
// flag -update, these are written instead. [Variant] shows a text by its differences to another one.
package golden

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files of testdata, or the parts of documents, anew")

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

// Parts wants the document to have the texts of the parts, by their names. The package's test writes them by -update:
//
//	<!-- NAME: go test ./PACKAGE -update -->
//	...
//	<!-- end -->
func Parts(t testing.TB, path, pkg string, parts map[string]string) {
	t.Helper()
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(have)
	for name, text := range parts {
		begin, end := "<!-- "+name+": go test ./"+pkg+" -update -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s has no place for %s", path, name)
		}
		want = before + begin + text + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(have) {
		t.Errorf("%s differs (go test ./%s -update writes it anew):\n%s", path, pkg, Diff(string(have), want))
	}
}

// Documents are the texts of the repository, whose root is named, by their paths.
func Documents(t testing.TB, root string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := Walk(root, func(path string) error {
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	if err != nil || len(texts) == 0 {
		t.Fatal(len(texts), err)
	}
	return texts
}

// Walk calls visit with the path of each file of the repository, whose root is named. It leaves out other projects:
// node_modules, and the modules of a module cache below the root, whose directories have an @ in their names.
func Walk(root string, visit func(path string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || strings.Contains(d.Name(), "@")):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		return visit(path)
	})
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
