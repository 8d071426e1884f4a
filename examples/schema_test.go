package examples_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSchema: the programs' schemas accept each configuration that the repository's tests and documents have, and
// refuse what has a field that a Spec does not have.
func TestSchema(t *testing.T) {
	schemaOf := func(folder string, args ...string) *jsonschema.Resolved {
		t.Helper()
		out, status := run(t, nstest.Program(t, folder), args...)
		var s jsonschema.Schema
		if err := json.Unmarshal([]byte(out), &s); err != nil || status != 0 {
			t.Fatalf("%s: status %d, %v:\n%s", folder, status, err, out)
		}
		resolved, err := s.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		return resolved
	}
	spec, entry := schemaOf("examples/guestwire-agent", "config", "-schema"), schemaOf("examples/guestwire", "-schema")
	valid := func(s *jsonschema.Resolved, text json.RawMessage) error {
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		return s.Validate(value)
	}
	accepted, refused, entries := 0, 0, 0
	for path, text := range objects(t) {
		for _, object := range text {
			var pluginType struct {
				Type string `json:"type"`
			}
			isEntry := json.Unmarshal(object, &pluginType) == nil && pluginType.Type == "guestwire"
			if isEntry {
				entries++
				if err := valid(entry, object); err != nil {
					t.Errorf("%s: an entry of a CNI list: %v:\n%s", path, err, object)
				}
			}
			err := json.Unmarshal(object, new(infra.Spec))
			switch {
			case err == nil:
				accepted++
				if err := valid(spec, object); err != nil {
					t.Errorf("%s: the schema refuses what a Spec accepts: %v:\n%s", path, err, object)
				}
			case strings.Contains(err.Error(), "no such field"):
				refused++
				if valid(spec, object) == nil {
					t.Errorf("%s: the schema accepts, and a Spec says %v:\n%s", path, err, object)
				}
			}
		}
	}
	if accepted < 50 || refused < 50 || entries < 3 {
		t.Errorf("found %d configurations, %d with other fields, %d entries of CNI lists", accepted, refused, entries)
	}
	for text, want := range map[string]bool{
		`{"type": "guestwire", "spec": {"queues": 2, "binding": {"routed": {"excluded": ["15008"]}}}}`: true,
		`{"type": "guestwire", "spec": {"nic": "eth0"}}`:                                               false,
		`{"type": "guestwire", "everyNic": true}`:                                                      false,
		`{"type": "guestwire", "trustPods": "yes"}`:                                                    false,
	} {
		if have := valid(entry, json.RawMessage(text)) == nil; have != want {
			t.Errorf("%s is accepted: %v, want %v", text, have, want)
		}
	}
	for entry, want := range map[string]bool{
		"allow all": true, " refuse  192.0.2.0/24 443/tcp": true, "divert all :15443": true, "divert gateway 53/udp [fd00::1]:53": true,
		"divert 192.0.2.7 80 127.0.0.1:8080": true, "divert all": false, "divert all 443": false, "divert all 80 443 :1": false,
		"divert all :https": false, "allow all 443 :15443": false, "redirect all :1": false, "allow": false,
	} {
		text, err := json.Marshal(map[string]any{"egress": []string{entry}})
		if err != nil {
			t.Fatal(err)
		}
		if have, read := valid(spec, text) == nil, json.Unmarshal(text, new(infra.Spec)) == nil; have != want || read != want {
			t.Errorf("%q is accepted by the schema: %v, by a Spec: %v, want %v", entry, have, read, want)
		}
	}
	_, err := infra.NewBinding("")
	kinds := regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(err.Error(), -1) // want "bridge", "redirect", ...
	for _, kind := range kinds {
		if err := valid(spec, json.RawMessage(`{"binding": {"`+kind[1]+`": {}}}`)); err != nil {
			t.Errorf("the binding %s: %v", kind[1], err)
		}
	}
	if len(kinds) < 8 {
		t.Errorf("bindings %q", kinds)
	}
}

// objects returns the JSON objects in the repository's files, also those inside of another one, by the files' paths.
func objects(t *testing.T) map[string][]json.RawMessage {
	t.Helper()
	all := map[string][]json.RawMessage{}
	err := golden.Walk(nstest.Root(t), func(path string) error {
		if strings.HasPrefix(path, filepath.Join(nstest.Root(t), "bin")+"/") {
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".json", ".yaml"}, filepath.Ext(path)) || filepath.Base(path) == "schema_test.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for at := range len(text) {
			var object json.RawMessage
			if text[at] == '{' && json.NewDecoder(bytes.NewReader(text[at:])).Decode(&object) == nil {
				all[path] = append(all[path], object)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
