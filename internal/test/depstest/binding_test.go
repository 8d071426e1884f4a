package depstest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
)

// TestBindingsAreListed: each kind of binding is in infra's list, without which it has no name in JSON, and has
// golden plans, whose records show that package cache knows the kind. The compiler asks for the rest.
func TestBindingsAreListed(t *testing.T) {
	for _, name := range implementations(t, "/infra", "Binding") {
		kind := strings.ToLower(name)
		if b, err := infra.NewBinding(kind); err != nil || b.Kind() != kind {
			t.Errorf("infra.bindings lacks %s: %v", name, err)
		}
		golden, err := filepath.Glob("../../wiring/testdata/" + kind + "*.txt")
		if err != nil || len(golden) == 0 {
			t.Errorf("internal/wiring/testdata has no golden plan of %s: %v", name, err)
		}
	}
}
