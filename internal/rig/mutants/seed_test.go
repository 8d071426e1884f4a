package main

import (
	"go/format"
	"os"
	"reflect"
	"testing"
)

// TestSeed: the seed decides which mutants there are, none touches another's code, and the changed files are Go.
func TestSeed(t *testing.T) {
	t.Chdir("../../..")
	there := []place{{dir: "internal/fib", share: 12}}
	first, err := seedMutants(there, 1)
	if err != nil || len(first) != 12 {
		t.Fatal(len(first), err)
	}
	if again, err := seedMutants(there, 1); err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("%v, then %v: %v", first, again, err)
	}
	if other, err := seedMutants(there, 2); err != nil || reflect.DeepEqual(other, first) {
		t.Errorf("seed 2 gives %v, as 1: %v", other, err)
	}
	for i, m := range first {
		for _, o := range first[:i] {
			if m.overlaps(o) {
				t.Errorf("%v and %v", m, o)
			}
		}
	}
	dir := t.TempDir()
	if _, err := writeOverlay(dir, first); err != nil {
		t.Fatal(err)
	}
	for _, m := range first {
		text, err := os.ReadFile(dir + "/overlay/" + m.File)
		if _, wrong := format.Source(text); err != nil || wrong != nil {
			t.Errorf("%s: %v, %v", m.File, err, wrong)
		}
	}
}
