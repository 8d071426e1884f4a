package depstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPublicTypes: what a public package exports names no type of an internal package, which an importer
// could not write.
func TestPublicTypes(t *testing.T) {
	for _, pkg := range []string{"phase1", "phase2", "infra", "dhcp", "cache", "guestconfig", "domain", "domain/qemu", "domain/cloudhypervisor", "domain/firecracker", "domain/passt", "guestwiretest"} {
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

// internalTypes are the places where an exported declaration of the file names a type of an internal package,
// itself or by an unexported type of the file.
func internalTypes(file *ast.File) []token.Pos {
	internal := map[string]bool{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.Contains(path, "/internal/") {
			continue
		}
		if spec.Name != nil {
			internal[spec.Name.Name] = true
		} else {
			internal[filepath.Base(path)] = true
		}
	}
	unexported := map[string]ast.Expr{}
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok {
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok && !s.Name.IsExported() {
					unexported[s.Name.Name] = s.Type
				}
			}
		}
	}
	var found []token.Pos
	var look func(n ast.Node)
	look = func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch e := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := e.X.(*ast.Ident); ok && internal[x.Name] {
					found = append(found, e.Pos())
				}
			case *ast.Ident:
				if t, ok := unexported[e.Name]; ok {
					delete(unexported, e.Name) // once, also if the type names itself
					look(exportedPart(t))
				}
			}
			return true
		})
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) {
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
					if !slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						continue
					}
					if s.Type != nil {
						look(s.Type)
					}
					for _, v := range s.Values {
						if lit, ok := v.(*ast.CompositeLit); ok && s.Type == nil {
							look(lit.Type)
						}
					}
				}
			}
		}
	}
	return found
}

func exportedReceiver(recv *ast.FieldList) bool {
	t := recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	name, ok := t.(*ast.Ident)
	return ok && name.IsExported()
}

// exportedPart is a type without the unexported fields of a struct. An embedded type counts, as its fields do.
func exportedPart(t ast.Expr) ast.Expr {
	s, ok := t.(*ast.StructType)
	if !ok {
		return t
	}
	part := &ast.StructType{Fields: &ast.FieldList{}}
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
			part.Fields.List = append(part.Fields.List, f)
		}
	}
	return part
}

// TestInternalTypes: the search finds what it is for.
func TestInternalTypes(t *testing.T) {
	for text, want := range map[string]int{
		"type hidden struct{ A x.T }":                             0,
		"type Shown struct{ A x.T; b x.T }":                       1,
		"type Shown struct{ b, C x.T }":                           1,
		"func F(x.T) {}":                                          1,
		"func f(x.T) {}":                                          0,
		"type Shown int; func (Shown) M() x.T { return x.T{} }":   1,
		"type hidden int; func (hidden) M() x.T { return x.T{} }": 0,
		"var V x.T":                            1,
		"var V = x.T{}":                        1,
		"var a, V x.T":                         1,
		"var a x.T":                            0,
		"func F(ns.T) {}":                      1,
		"type hidden = x.T; func F(hidden) {}": 1,
		"type hidden struct{ A x.T }; type Shown struct{ hidden }":  1,
		"type hidden struct{ a x.T; B *hidden }; func F(hidden) {}": 0,
	} {
		source := "package p; import (\"example.com/internal/x\"; ns \"example.com/internal/y\"); " + text
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if found := internalTypes(file); len(found) != want {
			t.Errorf("%s: %d places, want %d", text, len(found), want)
		}
	}
}
