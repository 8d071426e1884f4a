package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRecords: this program reads the records of its version and of earlier ones as they are in testdata for good, and
// writes the same bytes. Of a version that it does not read it says so first, whatever else it does not know there.
func TestRecords(t *testing.T) {
	const dir = "testdata/records"
	var read []string
	for v := OldestVersion; v <= Version; v++ {
		read = append(read, fmt.Sprintf("v%d", v))
	}
	versions, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{}
	for _, version := range versions {
		files, err := filepath.Glob(filepath.Join(dir, version.Name(), "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			binding := strings.TrimSuffix(filepath.Base(path), ".json")
			seen[version.Name()] = append(seen[version.Name()], binding)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Decode(text)
			if !slices.Contains(read, version.Name()) {
				number := strings.TrimPrefix(strings.Replace(version.Name(), "future", "999", 1), "v")
				want := fmt.Sprintf("version: %s, and this program reads %d to %d: use the version of guestwire that wrote it", number, OldestVersion, Version)
				var bad *FieldError
				if !errors.As(err, &bad) || err.Error() != want {
					t.Errorf("%s: %v, want %s", path, err, want)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if again, err := Encode(r); err != nil || string(again) != string(text) {
				t.Errorf("%s is written otherwise: %v\n%s", path, err, again)
			}
			if r.Binding != binding {
				t.Errorf("%s is of %s", path, r.Binding)
			}
		}
	}
	for _, version := range read {
		for _, binding := range bindings {
			if binding == BindingRouted && version < "v5" {
				continue // the binding is younger
			}
			if !slices.Contains(seen[version], binding) {
				t.Errorf("%s/%s has no record of %s: see the README there", dir, version, binding)
			}
		}
	}
	if len(seen["v2"]) == 0 || len(seen["future"]) == 0 {
		t.Errorf("records of other versions: %v, want v2 and future", seen)
	}
}
