package cache

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRecords: this program reads the records of its version, as they are in testdata for good, and writes the same
// bytes. Of a record of another version it says so first, whatever else it does not know there.
func TestRecords(t *testing.T) {
	const dir = "testdata/records"
	for _, binding := range bindings {
		path := fmt.Sprintf("%s/v%d/%s.json", dir, Version, binding)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v: see %s/README.md", err, dir)
			continue
		}
		r, err := Decode(text)
		if err != nil || r.Binding != binding {
			t.Errorf("%s is of %q: %v", path, r.Binding, err)
			continue
		}
		if again, err := Encode(r); err != nil || string(again) != string(text) {
			t.Errorf("%s is written otherwise: %v\n%s", path, err, again)
		}
	}
	text, err := os.ReadFile(dir + "/future/hold.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"999", "2"} {
		want := fmt.Sprintf("version: %s, and this program reads %d: use the version of guestwire that wrote it", version, Version)
		var bad *FieldError
		_, err := Decode([]byte(strings.Replace(string(text), "999", version, 1)))
		if !errors.As(err, &bad) || err.Error() != want {
			t.Errorf("version %s: %v, want %s", version, err, want)
		}
	}
}
