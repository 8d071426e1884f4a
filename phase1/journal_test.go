package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// recordVersion is the version in a record's file.
var recordVersion = fmt.Sprintf(`"version": %d`, cache.Version)

// journal is the path and the text of the only journal of the namespace.
func journal(t *testing.T, n nstest.Network) (path, text string) {
	t.Helper()
	return journalIn(t, phase1.DefaultDir, n)
}

// journalIn is journal for another directory of the node.
func journalIn(t *testing.T, dir string, n nstest.Network) (path, text string) {
	t.Helper()
	var paths []string
	var err error
	for _, path := range journalsIn(t, dir, n) {
		if strings.HasSuffix(path, ".journal") {
			paths = append(paths, path)
		}
	}
	if err != nil || len(paths) != 1 {
		t.Fatalf("journals: %v, %v", paths, err)
	}
	b := readFile(t, paths[0])
	return paths[0], string(b)
}

// TestJournalOfAnotherVersion: a journal that this program cannot read is not called damaged, and no call changes
// anything: the program that wrote it can still give the namespace back.
func TestJournalOfAnotherVersion(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	wired := n.Pod.Settled()
	recordPath := filepath.Join(n.State, "eth0.json")
	written := readFile(t, recordPath)
	verbs := map[string]func() error{
		"Setup":      func() error { return setupAlone(t.Context(), c) },
		"Plan":       func() error { _, err := c.Plan(t.Context()); return err },
		"Check":      func() error { return c.Check(t.Context()) },
		"Status":     func() error { _, err := c.Status(t.Context()); return err },
		"Deactivate": func() error { _, err := c.Deactivate(t.Context()); return err },
		"Activate":   func() error { _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); return err },
		"Teardown":   func() error { return c.Teardown(t.Context()) },
	}
	for name, c2 := range map[string]struct{ from, to, says string }{
		"another version": {`"version":2`, `"version":3`, "version 3, and this program reads 2: use the version of guestwire that wrote it"},
		"unknown field":   {`"spec":{`, `"spec":{"colour":"blue",`, "use the version of guestwire that wrote it"},
	} {
		other := strings.Replace(text, c2.from, c2.to, 1)
		if other == text {
			t.Fatalf("%s: the journal has no %s", name, c2.from)
		}
		writeFile(t, path, other)
		for verb, call := range verbs {
			if err := call(); err == nil || !strings.Contains(err.Error(), c2.says) || strings.Contains(err.Error(), "remove") {
				t.Errorf("%s, %s: %v, want %q", name, verb, err, c2.says)
			}
		}
		sameFile(t, path, other)
		sameFile(t, recordPath, written)
	}
	if err := difference(wired, n.Pod.Settled()); err != nil {
		t.Errorf("the namespace has changed: %v", err)
	}
	writeFile(t, path, text)
	unwire(t, c)
}

// TestJournalDamaged: a file that no version wrote is called damaged, and the error has the way out.
func TestJournalDamaged(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	for _, other := range []string{"", "{}", "null", "[]", `{"version":"3"}`, text[:len(text)/2]} {
		writeFile(t, path, other)
		if err := c.Teardown(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "force") {
			t.Errorf("%q: %v, want that the file is damaged, and Teardown by force", other, err)
		}
	}
	writeFile(t, path, text)
	unwire(t, c)
}

// TestJournalOfState: the journal names the state directory by its real path, so a Setup that has nothing to do
// writes nothing, however the caller writes the path.
func TestJournalOfState(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, before := journal(t, n)
	if !strings.Contains(before, `"`+n.State+`"`) {
		t.Errorf("the journal does not name the state directory %s: %s", n.State, before)
	}
	link := filepath.Join(nstest.Dir(t), "link")
	if err := os.Symlink(n.State, link); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{filepath.Dir(n.State) + "/./" + filepath.Base(n.State), link} {
		c.State = state
		setup(t, c)
		sameFile(t, path, before)
		check(t, c)
	}
}

// TestRecordOfAnotherVersion: a record is made from the journal, so one of another version does not stop Teardown.
// Setup leaves it alone, as a launcher of that version may be reading it.
func TestRecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	before := settled(t, n)
	setup(t, c)
	path := filepath.Join(n.State, "eth0.json")
	text := readFile(t, path)
	other := strings.Replace(text, recordVersion, `"version": 999`, 1)
	writeFile(t, path, other)
	const says = "use the version of guestwire that wrote it"
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "record" || !strings.Contains(err.Error(), says) || len(drift.Repair) > 0 {
		t.Errorf("Check: %v, want drift of the record, %q, and no repair, as Setup refuses", err, says)
	}
	if err := setupAlone(t.Context(), c); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), says) {
		t.Errorf("Setup: %v, want ErrWired, and %q", err, says)
	}
	if _, err := c.Deactivate(t.Context()); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "Setup or Deactivate writes it as soon as it can") || !strings.Contains(err.Error(), says) {
		t.Errorf("Deactivate: %v, want ErrWired, what writes the record then, and %q", err, says)
	}
	sameFile(t, path, other)
	writeFile(t, path, text)
	setup(t, c)
	if r := record(t, n); r.Role != cache.RoleInactive {
		t.Errorf("Setup after Deactivate wrote %+v, want an inactive record", r)
	}
	teardown(t, n, c, before)
}
