package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

type place struct {
	dir   string
	share int
	own   []string
}

type mutant struct {
	Number int
	Kind   string
	File   string // from the repository's root
	Line   int
	Was    string // the code that it replaces, in one line
	place  place
	edits  []edit
	from   int // the code that no other mutant may touch
	to     int
}

// edit replaces the bytes from..to of the file. %d is the mutant's number.
type edit struct {
	from, to int
	text     string
}

// seedMutants chooses of each place as many mutants as its share, the kinds in turn.
func seedMutants(places []place, seed uint64) ([]mutant, error) {
	var chosen []mutant
	for i, p := range places {
		found, err := candidates(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.dir, err)
		}
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		random.Shuffle(len(found), func(a, b int) { found[a], found[b] = found[b], found[a] })
		kinds := []string{"negated", "emptied", "swapped", "off"}
		var here []mutant
		for turn, without := 0, 0; len(here) < p.share && without < len(kinds); turn++ {
			without++
			for j, m := range found {
				if m.Kind == kinds[turn%len(kinds)] && !slices.ContainsFunc(here, m.overlaps) {
					here, found, without = append(here, m), slices.Delete(found, j, j+1), 0
					break
				}
			}
		}
		for _, m := range here {
			m.Number = len(chosen) + 1
			chosen = append(chosen, m)
		}
	}
	return chosen, nil
}

func (m mutant) overlaps(o mutant) bool { return m.File == o.File && m.from < o.to && o.from < m.to }

// candidates are all mutants of a package.
func candidates(p place) ([]mutant, error) {
	fset := token.NewFileSet()
	list := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Export,GoFiles,Dir", "./"+p.dir)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	type listed struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	var last listed // the package itself
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		last = listed{}
		if err := dec.Decode(&last); err != nil {
			return nil, err
		}
		exports[last.ImportPath] = last.Export
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	var files []*ast.File
	var texts [][]byte
	for _, name := range last.GoFiles {
		text, err := os.ReadFile(filepath.Join(last.Dir, name))
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(fset, filepath.Join(p.dir, name), text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files, texts = append(files, file), append(texts, text)
	}
	if _, err := conf.Check(last.ImportPath, fset, files, info); err != nil {
		return nil, err
	}
	var found []mutant
	for i, file := range files {
		s := &scan{fset: fset, info: info, text: texts[i], place: p}
		s.file(file)
		found = append(found, s.found...)
	}
	return found, nil
}

// scan collects the mutants of a file.
type scan struct {
	fset  *token.FileSet
	info  *types.Info
	text  []byte
	place place
	found []mutant
}

func (s *scan) at(pos token.Pos) int { return s.fset.Position(pos).Offset }

func (s *scan) of(from, to ast.Node) string { return string(s.text[s.at(from.Pos()):s.at(to.End())]) }

func (s *scan) add(kind string, from, to ast.Node, edits ...edit) {
	s.found = append(s.found, mutant{
		Kind: kind, File: s.fset.Position(from.Pos()).Filename, Line: s.fset.Position(from.Pos()).Line, place: s.place,
		Was: strings.Join(strings.Fields(s.of(from, to)), " "), edits: edits, from: s.at(from.Pos()), to: s.at(to.End()),
	})
}

func (s *scan) replace(n ast.Node, text string) edit {
	return edit{s.at(n.Pos()), s.at(n.End()), text}
}

func (s *scan) file(file *ast.File) {
	for _, decl := range file.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil && fn.Name.Name != "String" {
			s.function(fn.Type, fn.Body)
		}
	}
}

func (s *scan) function(of *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			s.function(n.Type, n.Body)
			return false
		case *ast.IfStmt:
			if basic, ok := s.info.Types[n.Cond].Type.(*types.Basic); ok && basic.Info()&types.IsBoolean != 0 {
				s.add("negated", n.Cond, n.Cond, s.replace(n.Cond, "mutant.On(%d) != ("+s.of(n.Cond, n.Cond)+")"))
			}
		case *ast.ReturnStmt:
			s.emptied(of, n)
		case *ast.BlockStmt:
			s.swapped(n.List)
		case *ast.CaseClause:
			s.swapped(n.Body)
		case *ast.GenDecl, *ast.CallExpr:
			if call, ok := n.(*ast.CallExpr); ok {
				if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "make" && name.Name != "panic" {
					return true
				}
			}
			return false // a constant's type, a capacity, what no caller may reach
		case *ast.BinaryExpr:
			s.bound(n)
		case *ast.BasicLit:
			s.off(n)
		case *ast.KeyValueExpr, *ast.ArrayType:
			if kv, ok := n.(*ast.KeyValueExpr); ok {
				if lit, ok := kv.Key.(*ast.BasicLit); ok && lit.Kind == token.INT {
					return false
				}
				return true
			}
			return false
		}
		return true
	})
}

// emptied leaves a return alone that is empty already.
func (s *scan) emptied(of *ast.FuncType, n *ast.ReturnStmt) {
	empty := true
	for _, result := range n.Results {
		text := s.of(result, result)
		empty = empty && (slices.Contains([]string{"nil", "false", "0", `""`}, text) || strings.HasSuffix(text, "{}"))
	}
	if empty || of.Results == nil {
		return
	}
	var zeros []string
	for _, field := range of.Results.List {
		for range max(1, len(field.Names)) {
			zeros = append(zeros, "*new("+s.of(field.Type, field.Type)+")")
		}
	}
	s.add("emptied", n, n, s.replace(n, "if mutant.On(%d) { return "+strings.Join(zeros, ", ")+" }; "+s.of(n, n)))
}

// swapped takes statements that have an effect and declare nothing.
func (s *scan) swapped(list []ast.Stmt) {
	for i := range len(list) - 1 {
		a, b := list[i], list[i+1]
		if !acts(a) || !acts(b) {
			continue
		}
		first, second := s.of(a, a), s.of(b, b)
		s.add("swapped", a, b, edit{s.at(a.Pos()), s.at(b.End()), "if mutant.On(%d) { " + second + "\n" + first + " } else { " + first + "\n" + second + " }"})
	}
}

func acts(n ast.Stmt) bool {
	switch n := n.(type) {
	case *ast.ExprStmt:
		return true
	case *ast.AssignStmt:
		call, ok := n.Rhs[0].(*ast.CallExpr)
		return ok && n.Tok == token.ASSIGN && len(call.Args) > 0
	case *ast.IfStmt: // if err := do(); err != nil
		assign, ok := n.Init.(*ast.AssignStmt)
		return ok && assign.Tok == token.DEFINE && len(assign.Lhs) == 1
	}
	return false
}

// bound evaluates both sides again, so that it takes no calls.
func (s *scan) bound(n *ast.BinaryExpr) {
	if n.Op != token.LSS && n.Op != token.GTR || s.info.Types[n].Value != nil {
		return
	}
	calls := false
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			name, ok := call.Fun.(*ast.Ident)
			calls = calls || !ok || name.Name != "len"
		}
		return true
	})
	if !calls {
		x, y := s.of(n.X, n.X), s.of(n.Y, n.Y)
		s.add("off", n, n, s.replace(n, "("+s.of(n, n)+" || mutant.On(%d) && "+x+" == "+y+")"))
	}
}

// off needs the type that the constant gets.
func (s *scan) off(n *ast.BasicLit) {
	tv, ok := s.info.Types[n]
	if n.Kind != token.INT || !ok {
		return
	}
	basic, ok := tv.Type.(*types.Basic)
	if ok && basic.Info()&types.IsInteger != 0 && basic.Info()&types.IsUntyped == 0 {
		s.add("off", n, n, s.replace(n, "mutant.More["+basic.Name()+"](%d, "+n.Value+")"))
	}
}
