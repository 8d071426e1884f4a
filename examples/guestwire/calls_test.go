package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/examples/guestwire/calls"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// counted is how many calls of an operation were counted with a code.
func (n *node) counted(operation string, code uint) (count uint64) {
	n.Helper()
	table, err := calls.Read(n.dir)
	if err != nil {
		n.Fatal(err)
	}
	latency := table[slices.Index(calls.Operations[:], operation)][slices.Index(calls.Codes[:], code)]
	for _, calls := range latency.Buckets {
		count += calls
	}
	if (count > 0) != (latency.Nanoseconds > 0) {
		n.Errorf("%d calls took %d ns", count, latency.Nanoseconds)
	}
	return count
}

// wantCounted fails the test unless so many calls of an operation were counted with a code.
func (n *node) wantCounted(operation string, code uint, want uint64) {
	n.Helper()
	if count := n.counted(operation, code); count != want {
		n.Errorf("%d calls of %s with the code %d are counted, want %d\n%s", count, operation, code, want, n.said())
	}
}

// TestCallsKilled: an ADD that is killed while it counts loses nothing but itself.
func TestCallsKilled(t *testing.T) {
	t.Parallel()
	b := newCrashBed(t, "redirect")
	b.run("ADD", nil)
	b.run("ADD", nil) // makes fewer calls
	kills := 0
	for _, c := range b.calls() {
		if !strings.Contains(c.text, "cni-calls") {
			continue
		}
		before := b.counted("ADD", 0)
		killed := b.run("ADD", &c) // unless the calls were on other threads
		b.well("ADD")
		if after := b.counted("ADD", 0); after != before+2 && !(killed && after == before+1) {
			t.Errorf("killed (%v) at %s: %d ADDs are counted after %d", killed, c.text, after, before)
		}
		if killed {
			kills++
		}
	}
	if kills == 0 {
		t.Error("strace killed nothing")
	}
	b.wantCounted("ADD", 100, 0)
	b.well("DEL")
	b.isFound("ADDs that were killed")
	b.wantCounted("DEL", 0, 1)
}

// TestCallsDamaged: an ADD succeeds whatever lies in the place of the file. What is no such file is replaced, and the
// exporter prints what can be printed.
func TestCallsDamaged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, list, rt := wiredPod(n, "u1", "redirect")
	file := filepath.Join(n.dir, "cni-calls")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	exporter := nstest.Program(t, "examples/guestwire-exporter")
	printed := func() string { return nstest.Run(t, exporter, "-dir", n.dir) }
	const sample = `guestwire_cni_call_seconds_count{code="0",operation="ADD"} `
	if text := printed(); !strings.Contains(text, sample+"1\n") || !strings.Contains(text, `guestwire_cni_call_seconds_bucket{code="0",operation="ADD",le="+Inf"} 1`) {
		t.Errorf("the exporter prints\n%s", text)
	}
	for name, text := range map[string][]byte{
		"torn":  whole[:100],
		"empty": nil,
		"long":  append(bytes.Clone(whole), 0),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if text := printed(); strings.Contains(text, "guestwire_cni_call_seconds") || !strings.Contains(text, "guestwire_wired_nics 1\n") {
			t.Errorf("%s: the exporter prints\n%s", name, text)
		}
		s.add2(list, rt)
		if n.wantCounted("ADD", 0, 1); n.said() != "" {
			t.Errorf("%s: guestwire said something", name)
		}
	}
	if err := os.Truncate(file, 1<<40); err != nil { // without that many blocks
		t.Fatal(err)
	}
	s.add2(list, rt)
	n.wantCounted("ADD", 0, 1)
	if err := os.WriteFile(file, bytes.Repeat([]byte{0xff}, len(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := printed(); !strings.Contains(text, sample) {
		t.Errorf("any numbers: the exporter prints\n%s", text)
	}
	s.add2(list, rt)
	if said := n.said(); said != "" {
		t.Errorf("guestwire said %s", said)
	}

	// A directory cannot be replaced.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	s.add2(list, rt)
	if said := n.said(); strings.Count(said, "guestwire: this ADD is not counted: ") != 1 {
		t.Errorf("guestwire said %q", said)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.del(list, rt)
	n.clean()
}
