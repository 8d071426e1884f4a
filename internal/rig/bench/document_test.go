package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestDocument: each part that ran is replaced, and nothing else; a part that failed leaves the document as it is.
func TestDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	before := "# P\n\n<!-- bench a -->\n```\nold a\n```\nText.\n<!-- bench b -->\n```\nold b\n```\n<!-- bench c -->\n```\nold c\n```\n"
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	prints := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error { fmt.Fprintln(w, text); return err }
	}
	failed := errors.New("failed")
	parts := []part{{"a", prints("new a\n", nil)}, {"b", prints("new b", failed)}, {"d", prints("no place", nil)}}
	var out bytes.Buffer
	if err := runParts(&out, parts, "", path); !errors.Is(err, failed) {
		t.Errorf("%v, want the error of part b", err)
	}
	got, err := os.ReadFile(path)
	want := "# P\n\n<!-- bench a -->\n```\nnew a\n```\nText.\n<!-- bench b -->\n```\nold b\n```\n<!-- bench c -->\n```\nold c\n```\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	for only, document := range map[string]string{"d": path, "a": path + ".none"} {
		out.Reset()
		if err := runParts(&out, parts, only, document); err == nil || out.Len() > 0 {
			t.Errorf("part %s into %s: %v, after %q", only, document, err, out.String())
		}
	}
}
