package depstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestOperationsAreKnown: compare, which says in words what an operation mends, and kernel, which carries it out,
// have a case for each operation. Their default cases only keep an unknown one from being lost.
func TestOperationsAreKnown(t *testing.T) {
	var operations []string
	for _, file := range parseFiles(t, "../../../internal/netstate") {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "kind" {
				operations = append(operations, f.Recv.List[0].Type.(*ast.Ident).Name)
			}
		}
	}
	if len(operations) == 0 {
		t.Fatal("netstate has no operations: is the method kind called otherwise now?")
	}
	for _, pkg := range []string{"internal/compare", "internal/kernel"} {
		cases := map[string]bool{}
		for _, file := range parseFiles(t, "../../../"+pkg) {
			ast.Inspect(file, func(n ast.Node) bool {
				clause, ok := n.(*ast.CaseClause)
				if !ok {
					return true
				}
				for _, e := range clause.List {
					if sel, ok := e.(*ast.SelectorExpr); ok {
						cases[sel.Sel.Name] = true
					}
				}
				return true
			})
		}
		for _, name := range operations {
			behind := pkg == "internal/compare" && name == "ConnectionsDel" // it comes behind the operations of a comparison
			if !cases[name] && !behind {
				t.Errorf("%s has no case for netstate.%s", pkg, name)
			}
		}
	}
}

// parseFiles parses the files of a package, without its tests.
func parseFiles(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(paths), err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
