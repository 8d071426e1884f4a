package phase1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// journal is the path and the text of the only journal in the state directory.
func journal(t *testing.T, n nstest.Network) (path, text string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(n.State, "*.journal"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("journals: %v, %v", paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	return paths[0], string(b)
}

// TestJournalOfAnotherVersion: a journal that this program cannot read is not called damaged, and no call touches
// it: the program that wrote it can still give the namespace back.
func TestJournalOfAnotherVersion(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	for name, c2 := range map[string]struct{ from, to, says string }{
		"newer":         {`"version":2`, `"version":3`, "version 3, and this program reads 2: use the version of guestwire that wrote it"},
		"older":         {`"version":2`, `"version":1`, "version 1, and this program reads 2: use the version of guestwire that wrote it"},
		"unknown field": {`"spec":{`, `"spec":{"colour":"blue",`, "use the version of guestwire that wrote it"},
	} {
		other := strings.Replace(text, c2.from, c2.to, 1)
		if other == text {
			t.Fatalf("%s: the journal has no %s", name, c2.from)
		}
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		for verb, err := range map[string]error{
			"Setup": phase1.Setup(t.Context(), c), "Check": phase1.Check(t.Context(), c), "Teardown": phase1.Teardown(t.Context(), c),
		} {
			if err == nil || !strings.Contains(err.Error(), c2.says) || strings.Contains(err.Error(), "remove") {
				t.Errorf("%s, %s: %v, want %q", name, verb, err, c2.says)
			}
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != other {
			t.Errorf("%s: the journal has changed: %v", name, err)
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := phase1.Teardown(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestJournalWithoutState: the journal does not depend on how the caller writes the path of State, so a Setup that has
// nothing to do writes nothing.
func TestJournalWithoutState(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, before := journal(t, n)
	if strings.Contains(before, n.State) {
		t.Errorf("the journal names the state directory: %s", before)
	}
	c.State = filepath.Dir(n.State) + "/./" + filepath.Base(n.State)
	setup(t, c)
	if after, err := os.ReadFile(path); err != nil || string(after) != before {
		t.Errorf("another path to the same directory changes the journal: %v\n%s\n%s", err, before, after)
	}
}
