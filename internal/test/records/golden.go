package records

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// Cases make records, and the options beside them, of Bridge and of the zero value, by their names.
type Cases[Options any] map[string]func(*cache.Record, *Options)

// Of returns the record and the options of a case.
func (c Cases[Options]) Of(name string) (r *cache.Record, o Options) {
	r = Bridge()
	c[name](r, &o)
	return r, o
}

// Golden compares what describe makes of each case with its file in testdata, which has the ending. Describe must not
// change the record.
func Golden[Options any](t *testing.T, ending string, cases Cases[Options], describe func(t *testing.T, r *cache.Record, o Options) string) {
	var files []string
	for name := range cases {
		files = append(files, name+ending)
		t.Run(name, func(t *testing.T) {
			r, o := cases.Of(name)
			before := *r
			text := describe(t, r, o)
			if !reflect.DeepEqual(*r, before) {
				t.Errorf("the record was %+v and is %+v", before, *r)
			}
			golden.Compare(t, name+ending, text)
		})
	}
	golden.Only(t, ending, files...)
}

// JSON returns v as JSON.
func JSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Property is one of an object's schema: string, boolean, integer or object.
type Property struct {
	Kind     string
	Required bool
	Min, Max int64 // of an integer; both 0: not limited
}

// Schema checks that each property of the objects is one of the schema, of its type and within its limits, that the
// required ones are there, and that the chosen ones, and no others, are in one of the objects.
func Schema(t *testing.T, schema map[string]Property, chosen []string, objects map[string]any) {
	t.Helper()
	seen := map[string]bool{}
	for name, v := range objects {
		var object map[string]any
		decoder := json.NewDecoder(bytes.NewReader([]byte(JSON(t, v))))
		decoder.UseNumber()
		if err := decoder.Decode(&object); err != nil {
			t.Fatal(err)
		}
		for key, value := range object {
			seen[key] = true
			kind, number := "object", int64(0)
			switch v := value.(type) {
			case string:
				kind = "string"
			case bool:
				kind = "boolean"
			case json.Number:
				var err error
				kind = "integer"
				if number, err = v.Int64(); err != nil {
					kind = "number"
				}
			}
			want := schema[key]
			if kind != want.Kind || value == "" || want.Max > 0 && (number < want.Min || number > want.Max) {
				t.Errorf("%s: %s is %v (%s), want %+v", name, key, value, kind, want)
			}
		}
		for key, p := range schema {
			if _, ok := object[key]; p.Required && !ok {
				t.Errorf("%s: %s is missing", name, key)
			}
		}
	}
	if have := slices.Sorted(maps.Keys(seen)); !slices.Equal(have, slices.Sorted(slices.Values(chosen))) {
		t.Errorf("the package sets %q, want %q", have, chosen)
	}
}
