package depstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPublicTypes: what a public package exports names no type of an internal package, which an importer
// could not write.
func TestPublicTypes(t *testing.T) {
	for _, pkg := range []string{"phase1", "phase2", "infra", "dhcp", "cache", "domain"} {
		files, err := filepath.Glob("../../../" + pkg + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("package %s: %d files, %v", pkg, len(files), err)
		}
		fset := token.NewFileSet()
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range internalTypes(file) {
				t.Errorf("%v: an exported declaration names a type of an internal package", fset.Position(at))
			}
		}
	}
}

// internalTypes are the places where an exported declaration of the file names a type of an internal package.
func internalTypes(file *ast.File) []token.Pos {
	internal := map[string]bool{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err == nil && strings.Contains(path, "/internal/") {
			internal[filepath.Base(path)] = true
		}
	}
	var found []token.Pos
	look := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && internal[x.Name] {
					found = append(found, sel.Pos())
				}
			}
			return true
		})
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				look(d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						look(exportedPart(s.Type))
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						look(s.Type)
					}
				}
			}
		}
	}
	return found
}

// exportedPart is a type without the unexported fields of a struct.
func exportedPart(t ast.Expr) ast.Expr {
	s, ok := t.(*ast.StructType)
	if !ok {
		return t
	}
	part := &ast.StructType{Fields: &ast.FieldList{}}
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 || f.Names[0].IsExported() {
			part.Fields.List = append(part.Fields.List, f)
		}
	}
	return part
}

// TestInternalTypes: the search finds what it is for.
func TestInternalTypes(t *testing.T) {
	const text = `package p
import "example.com/internal/x"
type hidden struct { A x.T }
type Shown struct { A x.T; b x.T }
func F(x.T) {}
func f(x.T) {}
func (Shown) M() x.T { return x.T{} }
var V x.T`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := internalTypes(file); len(found) != 4 {
		t.Errorf("%d places, want the field A, F, M and V", len(found))
	}
}
