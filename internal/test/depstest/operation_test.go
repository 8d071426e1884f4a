package depstest

import (
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOperationsAreKnown: compare, which says in words what an operation repairs, and kernel, which carries it out,
// have a case for each operation. Their default cases only keep an unknown one from being lost.
func TestOperationsAreKnown(t *testing.T) {
	operations := implementations(t, "/internal/netstate", "Op")
	for _, pkg := range []string{"internal/compare", "internal/kernel"} {
		paths, err := filepath.Glob("../../../" + pkg + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		cases := ""
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(path, "_test.go") {
				cases += strings.Join(caseOf.FindAllString(string(text), -1), "")
			}
		}
		for _, name := range operations {
			after := pkg == "internal/compare" && name == "ConnectionsDel" // it comes after the operations of a comparison
			if !after && !regexp.MustCompile(`netstate\.`+name+`\b`).MatchString(cases) {
				t.Errorf("%s has no case for netstate.%s", pkg, name)
			}
		}
	}
}

var caseOf = regexp.MustCompile(`case (netstate\.\w+[,\s]*)+:`)

// implementations are the types of a package that implement an interface of the package.
func implementations(t *testing.T, pkg, name string) []string {
	t.Helper()
	scope := typesOf(t, pkg)[0].Scope()
	of := scope.Lookup(name).Type().Underlying().(*types.Interface)
	var found []string
	for _, other := range scope.Names() {
		o, ok := scope.Lookup(other).(*types.TypeName)
		if ok && o.Exported() && !types.IsInterface(o.Type()) && types.Implements(o.Type(), of) {
			found = append(found, other)
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %s", pkg, name)
	}
	return found
}

// typesOf returns packages of the module as the compiler knows them.
func typesOf(t *testing.T, pkgs ...string) []*types.Package {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, pkg := range pkgs {
		args = append(args, module+pkg)
	}
	out, err := goCommand(t, args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	var packages []*types.Package
	for _, pkg := range pkgs {
		p, err := imports.Import(module + pkg)
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	return packages
}
