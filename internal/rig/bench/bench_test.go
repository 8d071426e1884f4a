package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestParts: each part runs, and fails if the ways differ in what they leave, a frame is lost, or a guest gets no
// lease.
func TestParts(t *testing.T) {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "launchers and passt have a user of their own")
	exchanges, networks, boundedObjects, streamWarm, streamCounted = 20, 100, 20, 100*time.Millisecond, 150*time.Millisecond
	runs := map[string]int{"memory": 2, "namespaces": 10}
	needs := map[string][]string{"setup": {"gcc", "nft"}, "claim": {"nft"}, "bounds": {"nft"}, "egress": {"sysctl"}, "streams": {"passt"}, "machine": {"gcc"}, "responder": {"dnsmasq"}}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			nstest.Need(t, append(needs[p.name], "ip", "nsenter", "setpriv")...)
			if _, err := os.Stat(unpacked.Path("containerd")); err != nil && p.name == "plugin" {
				nstest.Skip(t, "no "+unpacked.Path("containerd")+": make install")
			}
			if err := vm.Missing(); err != nil && p.name == "machine" {
				nstest.Skip(t, err.Error())
			}
			var out bytes.Buffer
			err := runParts(t.Context(), &out, parts, p.name, max(1, runs[p.name]), "")
			if err != nil || !strings.Contains(out.String(), "±") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// TestTable: a ratio is the median of the rounds' ratios, and a way without a quantity has none.
func TestTable(t *testing.T) {
	r := newRow("a", 3)
	for round, a := range []float64{20, 400, 90} {
		r.add(0, a)
		r.add(1, []float64{10, 100, 30}[round])
	}
	var out strings.Builder
	printTable(&out, "t", []string{"x", "y", "z"}, []row{r})
	if got := strings.Fields(strings.Split(out.String(), "\n")[2]); fmt.Sprint(got) != "[a 90.0 30.0 3.00 ±0.50 -]" {
		t.Errorf("%q", got)
	}
}

// TestDocument: a part that ran replaces the rows that the document has of it, and nothing else. A failed one leaves
// the document as it is.
func TestDocument(t *testing.T) {
	const before = "# P\n\n<!-- bench a -->\n```\nold\n\n  a, ms  1\n```\nText.\n<!-- bench b -->\n```\nold b\n```\n"
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	prints := func(text string, err error) func(*scope, io.Writer, int) error {
		return func(_ *scope, w io.Writer, _ int) error { fmt.Fprintln(w, text); return err }
	}
	list := []part{{"a", "A", 3, prints("new\n\n  a, ms  2\n  b, ms  3", nil)}, {"b", "B", 3, prints("new b", failed)}}
	err := runParts(context.Background(), io.Discard, list, "", 0, path)
	got, _ := os.ReadFile(path)
	head, rest, _ := strings.Cut(string(got), "A. Linux ")
	_, tail, _ := strings.Cut(rest, "; -runs 3.\n")
	if want := strings.Replace(before, "old\n\n  a, ms  1", "new\n\n  a, ms  2", 1); !errors.Is(err, failed) || head+tail != want {
		t.Errorf("%v\n%s\nwant\n%s", err, head+tail, want)
	}
	for name, document := range map[string]string{"c": path, "a": path + ".none"} {
		if err := replaceTable(document, name, "new"); err == nil {
			t.Errorf("part %s into %s: no error", name, document)
		}
	}
}
