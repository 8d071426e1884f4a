package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// forTests are what the product's tests stand on.
var forTests = []string{"guestwiretest", "internal/test/guest", "internal/test/lab", "internal/test/sandbox", "internal/test/sctp"}

// TestEachPackageHasARecipe: make mutate leaves no package of the product out.
func TestEachPackageHasARecipe(t *testing.T) {
	const module = "github.com/guestwire/guestwire/"
	out, err := exec.Command("go", "list", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	product := 0
	for line := range strings.Lines(string(out)) {
		pkg := strings.TrimPrefix(strings.TrimSpace(line), module)
		if strings.HasPrefix(pkg, "internal/rig/") || strings.HasPrefix(pkg, "examples") || slices.Contains(forTests, pkg) {
			continue
		}
		product++
		if !slices.ContainsFunc(recipes, func(r recipe) bool { return r.pkg == pkg }) {
			t.Errorf("package %s has no recipe", pkg)
		}
	}
	if product == 0 {
		t.Error("go list has seen no package")
	}
}
