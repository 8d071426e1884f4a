package depstest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNamed: the tests that the documents name exist.
func TestNamed(t *testing.T) {
	tests := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for path, text := range documents(t) {
		for _, name := range regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(text, -1) {
			named++
			if !tests[name] {
				t.Errorf("%s names %s, and there is no such test", path, name)
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test: is this the place where they are?")
	}
}

// TestDocumentLinks: what the documents link to is there, headings included.
func TestDocumentLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	anchor := func(heading string) string {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading), "")
		return "#" + strings.ReplaceAll(kept, " ", "-")
	}
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			linked, err := os.ReadFile(target)
			if err != nil && !errors.Is(err, unix.EISDIR) {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			headings := regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(linked), -1)
			if m[2] != "" && !slices.ContainsFunc(headings, func(h []string) bool { return anchor(h[1]) == m[2] }) {
				t.Errorf("%s links to %s%s, and there is no such heading", path, m[1], m[2])
			}
		}
	}
}

// documents are the texts of the repository, by their paths from here.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "node_modules" {
			return fs.SkipDir // of other projects
		}
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
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
