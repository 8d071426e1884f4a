package phase1

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
)

// TestJournals: this program reads the journals of its version, as they are in testdata for good, makes the same record
// of each, and writes the same bytes. Of a journal of another version it says so first, whatever else it does not know
// there.
func TestJournals(t *testing.T) {
	const dir = "testdata/journals"
	for _, binding := range []cache.Kind{cache.BindingBridge, cache.BindingRedirect, cache.BindingMasquerade, cache.BindingRouted, cache.BindingMacvtap, cache.BindingSRIOV, cache.BindingPasst, cache.BindingSlirp} {
		path := fmt.Sprintf("%s/v%d/%s%s", dir, journalVersion, binding, journalSuffix)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v: see %s/README.md", err, dir)
			continue
		}
		j, err := readText(t, string(text))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if again, err := json.Marshal(j); err != nil || string(again) != string(text) {
			t.Errorf("%s is written otherwise: %v\n%s\n%s", path, err, again, text)
		}
		plan, err := (&session{identity: j.Namespace}).replan(j)
		if err != nil || plan.Binding().Kind() != binding {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if made := plan.Made(); !reflect.DeepEqual(made, j.Made) {
			t.Errorf("%s: Teardown undoes %+v, want %+v", path, j.Made, made)
		}
		recordPath := fmt.Sprintf("../cache/testdata/records/v%d/%s.json", cache.Version, binding)
		text, err = os.ReadFile(recordPath)
		if err != nil {
			t.Fatal(err)
		}
		record, err := cache.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		record.Warnings, plan.Record.Warnings = nil, nil // their words may change
		record.Losses, plan.Record.Losses = nil, nil     // each version judges anew what the guest does not get
		if !reflect.DeepEqual(plan.Record, record) {
			have, _ := json.Marshal(plan.Record)
			want, _ := json.Marshal(record)
			t.Errorf("%s makes another record than %s:\n%s\n%s", path, recordPath, have, want)
		}
	}
	text, err := os.ReadFile("../docs/how-to/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	if says := fmt.Sprintf("A journal has the version %d, and a record the version %d.", journalVersion, cache.Version); !strings.Contains(string(text), says) {
		t.Errorf("the page about upgrades does not say %q", says)
	}
	text, err = os.ReadFile(dir + "/future/hold" + journalSuffix)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"999", "1"} {
		want := fmt.Sprintf(": version %s, and this program reads %d: use the version of guestwire that wrote it, or Teardown by force, which does without it (guestwire-agent teardown -force)", version, journalVersion)
		if _, err := readText(t, strings.Replace(string(text), "999", version, 1)); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("version %s: %v, want %s", version, err, want)
		}
	}
}

// TestUnknownField: a journal of this version with a field, or a binding, that is unknown here is refused: what it says
// would be lost.
func TestUnknownField(t *testing.T) {
	text, err := os.ReadFile(fmt.Sprintf("testdata/journals/v%d/%s%s", journalVersion, cache.BindingRedirect, journalSuffix))
	if err != nil {
		t.Fatal(err)
	}
	const unknown = `"colour":"blue",`
	for from, to := range map[string]string{
		`{"version":`:   `{` + unknown + `"version":`,
		`"namespace":{`: `"namespace":{` + unknown,
		`"found":{`:     `"found":{` + unknown,
		`"links":[{`:    `"links":[{` + unknown,
		`"spec":{`:      `"spec":{` + unknown,
		`"options":{`:   `"options":{` + unknown,
		`"redirect":`:   `"hold":`,
	} {
		other := strings.Replace(string(text), from, to, 1)
		if other == string(text) {
			t.Fatalf("the journal has no %s", from)
		}
		if _, err := readText(t, other); err == nil || !strings.HasSuffix(err.Error(), ": use the version of guestwire that wrote it, or Teardown by force, which does without it (guestwire-agent teardown -force)") || strings.Contains(err.Error(), "remove") {
			t.Errorf("%s: %v, want an error that names the version that wrote it", to, err)
		}
	}
}

// readText is readJournal of a journal with this text.
func readText(t *testing.T, text string) (*journal, error) {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const namespace, nic = "1f3a9c02-4026532281-17", "eth0"
	if err := root.Mkdir(namespace, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := root.WriteFile(filepath.Join(namespace, nic+journalSuffix), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return node{root, root.Name()}.readJournal(namespace, nic)
}
