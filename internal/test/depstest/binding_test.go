package depstest

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// TestBindingsAreListed: each kind of binding is in infra's list, without which it has no name in JSON, and has
// golden plans, whose records show that package cache knows the kind. The compiler asks for the rest.
func TestBindingsAreListed(t *testing.T) {
	types, listed := map[string]bool{}, map[string]bool{}
	for _, file := range parseFiles(t, "../../../infra") {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "visit" {
				types[f.Recv.List[0].Type.(*ast.Ident).Name] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name != "bindings" {
				return true
			}
			for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
				listed[e.(*ast.CompositeLit).Type.(*ast.Ident).Name] = true
			}
			return false
		})
	}
	if len(types) == 0 {
		t.Fatal("infra has no binding: is the method visit called otherwise now?")
	}
	for name := range types {
		if !listed[name] {
			t.Errorf("infra.bindings lacks %s", name)
		}
		golden, err := filepath.Glob("../../wiring/testdata/" + strings.ToLower(name) + "*.txt")
		if err != nil || len(golden) == 0 {
			t.Errorf("internal/wiring/testdata has no golden plan of %s: %v", name, err)
		}
	}
}
