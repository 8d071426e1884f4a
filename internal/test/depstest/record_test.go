package depstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unreadByPhase2 are the fields of the record that others need, and who.
var unreadByPhase2 = func() map[string]string {
	const (
		moves = "Setup in the next namespace of the guest: it stays as it was unless the Spec there wants another"
		order = "Activate: which record of the guest is the latest"
	)
	return map[string]string{
		"Version":                "Read of package cache: a record of another format is an error",
		"Firewall":               "a forced Teardown without a journal: whose rules it has to read",
		"Options.NoResponder":    moves,
		"Options.NoDefaultRoute": moves,
		"Losses.Grave":           "Setup: a binding is refused for such a loss",
		"Losses.Link":            "Check, in its differences: a loss has none",
		"Source":                 "Activate: the guest can go back there, and comes from nowhere else",
		"Turn":                   order,
	}
}()

// TestRecordIsRead: the unprivileged side reads each field of the record, or the table says who does. The checks of
// package cache do not count.
func TestRecordIsRead(t *testing.T) {
	out, err := goCommand(t, "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", "./phase2/...", "./domain/...", "./dhcp", "./guestconfig", "./examples/guestwire-launcher").Output()
	if err != nil {
		t.Fatal(err)
	}
	type source struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	exported := map[string]string{}
	var sources []source
	reader, writer := io.Pipe()
	go func() { _, err := writer.Write(out); writer.CloseWithError(errors.Join(err, io.EOF)) }()
	for dec := json.NewDecoder(reader); ; {
		var s source
		if dec.Decode(&s) != nil {
			break
		}
		exported[s.ImportPath] = s.Export
		if within(s.ImportPath, module) {
			sources = append(sources, s)
		}
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
	read := map[string]bool{}
	place := func(o types.Object) string { // cache has objects of its own while it is checked
		at := files.Position(o.Pos())
		return fmt.Sprint(o.Pkg(), filepath.Base(at.Filename), at.Line)
	}
	for _, s := range sources {
		var parsed []*ast.File
		for _, name := range s.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(s.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		info := types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
		if _, err := (&types.Config{Importer: imports}).Check(s.ImportPath, files, parsed, &info); err != nil {
			t.Fatal(err)
		}
		for _, f := range parsed {
			if strings.HasSuffix(files.Position(f.Pos()).Filename, "/cache/validate.go") || strings.HasSuffix(files.Position(f.Pos()).Filename, "/cache/checkbinding.go") {
				continue
			}
			written := map[ast.Expr]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, to := range n.Lhs {
						written[to] = true
					}
				case *ast.SelectorExpr:
					if s := info.Selections[n]; s != nil && !written[n] {
						read[place(s.Obj())] = true
					}
				}
				return true
			})
		}
	}
	cache, err := imports.Import(module + "/cache")
	if err != nil {
		t.Fatal(err)
	}
	found, seen := map[string]bool{}, map[types.Type]bool{}
	var look func(in string, u types.Type)
	look = func(in string, u types.Type) {
		switch u := u.(type) {
		case *types.Named:
			s, is := u.Underlying().(*types.Struct)
			if !is || u.Obj().Pkg() != cache || seen[u] {
				return
			}
			seen[u] = true
			for f := range s.Fields() {
				if !f.Exported() {
					continue
				}
				path := in + f.Name()
				found[path] = true
				_, is := unreadByPhase2[path]
				if phase2 := read[place(f)]; is == phase2 {
					t.Errorf("%s: read by Phase2: %v, and in the table: %v", path, phase2, is)
				}
				if is {
					continue
				}
				look(in+f.Name()+".", f.Type())
			}
		case *types.Map:
			look(in, u.Key())
			look(in, u.Elem())
		case interface{ Elem() types.Type }:
			look(in, u.Elem())
		}
	}
	look("", cache.Scope().Lookup("Record").Type())
	for path := range unreadByPhase2 {
		if !found[path] {
			t.Errorf("%s: the record has no such field", path)
		}
	}
	if len(found) < 100 {
		t.Errorf("%d fields: has it seen the record?", len(found))
	}
}
