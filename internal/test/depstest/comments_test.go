package depstest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	lastColumn = 100 // of a comment beside a field, as go doc prints it in a terminal
	tabWidth   = 8
	mostWords  = 30 // of a sentence
)

// TestPublicComments: a reader of go doc gets a comment beside a field without a line that a terminal of 100 columns
// wraps, and no sentence of more than 30 words. It looks at what public packages export.
func TestPublicComments(t *testing.T) {
	for _, pkg := range public {
		paths, err := filepath.Glob("../../.." + pkg + "/*.go")
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s has no files: %v", pkg, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range commentFaults(fset, file) {
				t.Error(strings.TrimPrefix(text, "../../../"))
			}
		}
	}
}

// TestCommentFaults: what TestPublicComments finds, and where.
func TestCommentFaults(t *testing.T) {
	words := func(n int) string { return strings.TrimSpace(strings.Repeat("word ", n)) }
	const header = "// Package p has a comment.\npackage p\n\n"
	for _, c := range []struct{ name, source, want string }{
		{"thirty words", "// F returns " + words(28) + ".\nfunc F() {}", ""},
		{"thirty-one words", "// F returns " + words(29) + ".\nfunc F() {}", "p.go:4: a sentence of 31 words"},
		{"two sentences", "// F " + words(28) + ". And " + words(28) + ".\nfunc F() {}", ""},
		{"an unexported function", "// f " + words(40) + ".\nfunc f() {}", ""},
		{"a method of an unexported type", "type t int\n\n// F " + words(40) + ".\nfunc (*t) F() {}", ""},
		{"the second line", "// F returns.\n// It " + words(40) + ".\nfunc F() {}", "p.go:5: a sentence of 41 words"},
		{"a version", "// F needs Linux 6.4, " + words(26) + ".\nfunc F() {}", ""},
		{"paragraphs", "// F " + words(20) + ":\n//\n// F " + words(20) + ".\nfunc F() {}", ""},
		{"a table of two rows", "// F returns:\n//\n//\tErrA  " + words(28) + "\n//\tErrB  " + words(28) + "\nfunc F() {}", ""},
		{"a row of two lines", "// F returns:\n//\n//\tErrA  " + words(20) + "\n//\t      " + words(20) + "\nfunc F() {}", "p.go:6: a sentence of 41 words"},
		{"an item of two lines", "// F returns:\n//\n//   - " + words(20) + "\n//     " + words(20) + "\nfunc F() {}", "p.go:6: a sentence of 40 words"},
		{"a field's comment above", "type T struct {\n\t// A " + words(31) + ".\n\tA int\n}", "p.go:5: a sentence of 32 words"},
		{"a field's comment at its side", "type T struct {\n\tA int // " + words(31) + "\n}", "p.go:5: a sentence of 31 words\np.go:5: the comment beside A ends in column 171"},
		{"column 100", "type T struct {\n\tA int // " + strings.Repeat("x", 83) + "\n}", ""},
		{"column 101", "type T struct {\n\tA int // " + strings.Repeat("x", 84) + "\n}", "p.go:5: the comment beside A ends in column 101"},
		{"an unexported field", "type T struct {\n\ta int // " + strings.Repeat("x", 99) + "\n}", ""},
		{"constants", "const (\n\tA = 1 // " + strings.Repeat("x", 84) + "\n)", "p.go:5: the comment beside A ends in column 101"},
		{"an interface", "type I interface {\n\t// F " + words(40) + ".\n\tF()\n}", "p.go:5: a sentence of 41 words"},
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "p.go", header+c.source+"\n", parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, text := range commentFaults(fset, file) {
			have = append(have, strings.SplitN(text, ", want", 2)[0])
		}
		slices.Sort(have)
		if have := strings.Join(have, "\n"); have != c.want {
			t.Errorf("%s: have\n%s\nwant\n%s", c.name, have, c.want)
		}
	}
}

// commentFaults are those of a file's exported comments, each with its file and line.
func commentFaults(fset *token.FileSet, file *ast.File) (faults []string) {
	doc := func(comment *ast.CommentGroup) {
		for _, s := range sentences(fset, comment) {
			if s.words > mostWords {
				faults = append(faults, fmt.Sprintf("%s:%d: a sentence of %d words, want at most %d: %s ...", s.at.Filename, s.at.Line, s.words, mostWords, s.begin))
			}
		}
	}
	beside := func(name string, comment *ast.CommentGroup) {
		doc(comment)
		if comment == nil {
			return
		}
		end := fset.Position(comment.End())
		if column := end.Column - 1 + tabWidth - 1; column > lastColumn { // the line begins with one tab
			faults = append(faults, fmt.Sprintf("%s:%d: the comment beside %s ends in column %d, want at most %d: put it above", end.Filename, end.Line, name, column, lastColumn))
		}
	}
	fields := func(list *ast.FieldList) {
		for _, f := range list.List {
			i := slices.IndexFunc(f.Names, func(n *ast.Ident) bool { return n.IsExported() })
			if i >= 0 {
				doc(f.Doc)
				beside(f.Names[i].Name, f.Comment)
			}
		}
	}
	doc(file.Doc)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
				doc(d.Doc)
			}
		case *ast.GenDecl:
			exported := false
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if !s.Name.IsExported() {
						continue
					}
					exported = true
					doc(s.Doc)
					switch of := s.Type.(type) {
					case *ast.StructType:
						fields(of.Fields)
					case *ast.InterfaceType:
						fields(of.Methods)
					}
				case *ast.ValueSpec:
					if !s.Names[0].IsExported() {
						continue
					}
					exported = true
					doc(s.Doc)
					beside(s.Names[0].Name, s.Comment)
				}
			}
			if exported {
				doc(d.Doc)
			}
		}
	}
	return faults
}

// receiver is the name of a method's type.
func receiver(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

type sentence struct {
	at    token.Position // of its first word
	begin string         // its first words
	words int
}

// sentences are those of a comment. A row of a table (an indented line) and an item of a list are one each, with the
// lines that continue them.
func sentences(fset *token.FileSet, comment *ast.CommentGroup) (found []sentence) {
	if comment == nil {
		return nil
	}
	open := false
	for _, c := range comment.List {
		text := strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), " ")
		if strings.TrimSpace(text) == "" || row.MatchString(text) {
			open = false
		}
		for _, word := range strings.Fields(text) {
			if !letter.MatchString(word) {
				continue
			}
			if !open {
				found = append(found, sentence{at: fset.Position(c.Pos())})
			}
			last := &found[len(found)-1]
			if last.words++; last.words <= 5 {
				last.begin = strings.TrimSpace(last.begin + " " + word)
			}
			open = !ends.MatchString(word)
		}
	}
	return found
}

var (
	row    = regexp.MustCompile(`^(\t\S| +- )`)
	letter = regexp.MustCompile(`[A-Za-z0-9]`)
	ends   = regexp.MustCompile(`[.?!][)"']*$`)
)
