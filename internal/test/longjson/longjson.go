// Package longjson makes documents of JSON with a value or a name that is far too long, for tests of what reads them.
package longjson

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
)

// MostError is how long the text of an error may be, whatever the input is.
const MostError = 4 << 10

// Documents returns the document with a long text and a long number in the place of each of its values, and with a long
// name in each of its objects. The key says which.
func Documents(t testing.TB, document []byte, octets int) iter.Seq2[string, []byte] {
	t.Helper()
	long, digits := strings.Repeat("a", octets), json.Number(strings.Repeat("7", octets))
	var whole any
	if err := json.Unmarshal(document, &whole); err != nil {
		t.Fatal(err)
	}
	return func(yield func(string, []byte) bool) {
		more := true
		give := func(path string) {
			text, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			more = more && yield(path, text)
		}
		var walk func(path string, value any, set func(any))
		walk = func(path string, value any, set func(any)) {
			if !more {
				return
			}
			for kind, other := range map[string]any{"text": long, "number": digits} {
				set(other)
				give(fmt.Sprintf("%s: a long %s", path, kind))
			}
			set(value)
			switch value := value.(type) {
			case map[string]any:
				for _, name := range slices.Sorted(maps.Keys(value)) {
					walk(path+"."+name, value[name], func(v any) { value[name] = v })
				}
				value[long] = true
				give(path + ": a long name")
				delete(value, long)
			case []any:
				for i, v := range value {
					walk(fmt.Sprintf("%s[%d]", path, i), v, func(v any) { value[i] = v })
				}
			}
		}
		walk("", whole, func(v any) { whole = v })
	}
}
