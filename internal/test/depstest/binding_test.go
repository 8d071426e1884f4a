package depstest

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestBindingsAreListed: each kind of binding is in infra's list, without which it has no name in JSON, and has a
// golden plan of its name, whose record shows that package cache knows the kind. It has answers in wiring; Auto has
// those of others, and their plans.
func TestBindingsAreListed(t *testing.T) {
	for _, name := range implementations(t, "/infra", "Binding") {
		kind := strings.ToLower(name)
		b, err := infra.NewBinding(cache.Kind(kind))
		if err != nil || b.Kind() != cache.Kind(kind) {
			t.Errorf("infra.bindings lacks %s: %v", name, err)
			continue
		}
		spec := infra.Spec{Binding: b}
		if _, err := wiring.SameGuest("eth0", spec, spec); kind != "auto" && err != nil {
			t.Errorf("internal/wiring's answersOf lacks %s", name)
		}
		if _, err := os.Stat("../../wiring/testdata/" + kind + ".txt"); kind != "auto" && err != nil {
			t.Errorf("internal/wiring/testdata has no golden plan of %s: %v", name, err)
		}
	}
}
