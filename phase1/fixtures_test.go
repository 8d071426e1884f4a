package phase1

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
)

// TestJournals: this program reads the journals of its version and of earlier ones as they are in testdata for good, makes
// the same record of each, and writes the same bytes. Of a journal of another version it says so first, whatever else it
// does not know there.
func TestJournals(t *testing.T) {
	const dir, records = "testdata/journals", "../cache/testdata/records"
	versions, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{}
	for _, entry := range versions {
		version := entry.Name()
		files, err := filepath.Glob(filepath.Join(dir, version, "*"+journalSuffix))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			binding := strings.TrimSuffix(filepath.Base(path), journalSuffix)
			seen[version] = append(seen[version], binding)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			j, err := readText(t, string(text))
			if version == "future" || version < fmt.Sprintf("v%d", oldestJournalVersion) {
				number := strings.TrimPrefix(strings.Replace(version, "future", "999", 1), "v")
				want := fmt.Sprintf("version %s, and this program reads %d to %d: use the version of guestwire that wrote it", number, oldestJournalVersion, journalVersion)
				if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
					t.Errorf("%s: %v, want %s", path, err, want)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			made := j.Found.NICMACs
			if wanted := j.Version < 5 && binding == cache.BindingMasquerade; made != wanted {
				t.Errorf("%s: MACs are computed from the NIC's: %v, want %v", path, made, wanted)
			}
			j.Found.NICMACs = false // what reading adds
			again, err := json.Marshal(j)
			j.Found.NICMACs = made
			if err != nil || string(again) != string(text) {
				t.Errorf("%s is written otherwise: %v\n%s\n%s", path, err, again, text)
			}
			plan, err := (&session{identity: j.Namespace}).replan(j)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if plan.Binding().Kind() != binding {
				t.Errorf("%s is of %s", path, plan.Binding().Kind())
			}
			recordVersion := cache.Version
			if j.Version < 5 {
				recordVersion = 4 // with the MACs of that time
			}
			recordPath := filepath.Join(records, fmt.Sprintf("v%d", recordVersion), binding+".json")
			text, err = os.ReadFile(recordPath)
			if err != nil {
				t.Fatal(err)
			}
			record, err := cache.Decode(text)
			if err != nil {
				t.Fatal(err)
			}
			record.Warnings, plan.Record.Warnings = nil, nil // their words may change
			plan.Record = asVersion(plan.Record, recordVersion)
			if !reflect.DeepEqual(plan.Record, record) {
				t.Errorf("%s makes another record than %s:\n%+v\n%+v", path, recordPath, plan.Record, record)
			}
		}
	}
	for _, binding := range []string{cache.BindingBridge, cache.BindingRedirect, cache.BindingMasquerade, cache.BindingRouted, cache.BindingMacvtap, cache.BindingSRIOV, cache.BindingPasst} {
		oldest := oldestJournalVersion
		if binding == cache.BindingRouted {
			oldest = 5 // the binding is younger
		}
		for version := oldest; version <= journalVersion; version++ {
			if name := fmt.Sprintf("v%d", version); !slices.Contains(seen[name], binding) {
				t.Errorf("%s/%s has no journal of %s: see the README there", dir, name, binding)
			}
		}
	}
	if len(seen["v2"]) == 0 || len(seen["future"]) == 0 {
		t.Errorf("journals of other versions: %v, want v2 and future", seen)
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
		if _, err := readText(t, other); err == nil || !strings.HasSuffix(err.Error(), ": use the version of guestwire that wrote it") || strings.Contains(err.Error(), "remove") {
			t.Errorf("%s: %v, want an error that tells to use the version that wrote it", to, err)
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
	return node{root}.readJournal(namespace, nic)
}
