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
	for _, path := range ofNodeIn(t, dir, n) {
		if strings.HasSuffix(path, ".journal") {
			paths = append(paths, path)
		}
	}
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
		"newer":         {`"version":5`, `"version":6`, "version 6, and this program reads 3 to 5: use the version of guestwire that wrote it"},
		"older":         {`"version":5`, `"version":2`, "version 2, and this program reads 3 to 5: use the version of guestwire that wrote it"},
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
			"Setup": setupAlone(t.Context(), c), "Check": phase1.Check(t.Context(), c), "Teardown": phase1.Teardown(t.Context(), c),
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

// TestJournalDamaged: a file that no version wrote is called damaged, and the error has the way out.
func TestJournalDamaged(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	for _, other := range []string{"", "{}", "null", "[]", `{"version":"3"}`, text[:len(text)/2]} {
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := phase1.Teardown(t.Context(), c); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "force") {
			t.Errorf("%q: %v, want that the file is damaged, and Teardown by force", other, err)
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := phase1.Teardown(t.Context(), c); err != nil {
		t.Error(err)
	}
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
		if after, err := os.ReadFile(path); err != nil || string(after) != before {
			t.Errorf("%s, another path to the same directory, changes the journal: %v\n%s\n%s", state, err, before, after)
		}
		if err := phase1.Check(t.Context(), c); err != nil {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// TestRecordOfAnotherVersion: a record is made from the journal, so one of another version does not stop Teardown. Setup
// leaves it alone, as a launcher of that version may be reading it. A record of an earlier version that this program reads
// is no drift, and Setup writes it anew.
func TestRecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	before := settled(t, n)
	setup(t, c)
	path := filepath.Join(n.State, "eth0.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := cache.Decode(text)
	if err != nil || earlier.Static == nil {
		t.Fatalf("%+v, %v, want a record with Static", earlier, err)
	}
	for _, version := range []string{"2", "999"} {
		other := strings.Replace(string(text), recordVersion, `"version": `+version, 1)
		if err := os.WriteFile(path, []byte(other), 0o644); err != nil || other == string(text) {
			t.Fatal(err)
		}
		const says = "use the version of guestwire that wrote it"
		var drift *phase1.DriftError
		if err := phase1.Check(t.Context(), c); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "record" || !strings.Contains(err.Error(), says) {
			t.Errorf("version %s: Check: %v, want drift of the record, and %q", version, err, says)
		}
		if err := setupAlone(t.Context(), c); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), says) {
			t.Errorf("version %s: Setup: %v, want ErrWired, and %q", version, err, says)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != other {
			t.Errorf("version %s: the record became %s, %v", version, now, err)
		}
	}
	for _, damage := range []string{"", "another MTU"} {
		earlier.Version, earlier.Static = 3, nil
		if damage != "" {
			earlier.MTU++
		}
		old, err := cache.Encode(earlier)
		if err == nil {
			err = os.WriteFile(path, old, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		var drift *phase1.DriftError
		if err := phase1.Check(t.Context(), c); errors.As(err, &drift) != (damage != "") || err != nil && damage == "" {
			t.Errorf("version 3, damage %q: Check: %v", damage, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(old) {
			t.Errorf("version 3, damage %q: after Check the record is %s, %v", damage, now, err)
		}
		setup(t, c)
		if now, err := os.ReadFile(path); err != nil || string(now) != string(text) {
			t.Errorf("version 3, damage %q: after Setup the record is %s, %v", damage, now, err)
		}
		check(t, c)
	}
	teardown(t, n, c, before)
}
