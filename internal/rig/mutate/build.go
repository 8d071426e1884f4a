package main

import (
	"bytes"
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
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const module = "github.com/guestwire/guestwire"

// goPackage is what the go command says of a package.
type goPackage struct {
	ImportPath string
	Dir        string
	Export     string // the file with the types
	GoFiles    []string
}

func list(args ...string) ([]goPackage, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Export,GoFiles"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// mutants is a package with a switch for each of its mutations.
type mutants struct {
	mutations []mutation
	unbuilt   int    // mutations that the compiler refuses
	overlay   string // the file that go build -overlay takes
}

// mutate writes the package's mutated files below dir.
func mutate(pkg, dir string) (mutants, error) {
	packages, err := list("-export", "-deps", module+"/"+pkg)
	if err != nil {
		return mutants{}, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	p := packages[len(packages)-1]
	fset := token.NewFileSet()
	sources := map[string][]byte{}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		if sources[path], err = os.ReadFile(path); err != nil {
			return mutants{}, err
		}
		f, err := parser.ParseFile(fset, path, sources[path], parser.SkipObjectResolution)
		if err != nil {
			return mutants{}, err
		}
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	checked, err := conf.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return mutants{}, err
	}

	// What the compiler refuses is left out, until it refuses nothing.
	refused := map[string]bool{}
	for {
		m := mutator{fset: fset, info: info, pkg: checked, imports: module + "/internal/rig/mutate/mutant", refused: refused, sources: sources}
		replace := map[string]string{}
		for _, f := range files {
			path := fset.Position(f.Pos()).Filename
			replace[path] = filepath.Join(dir, filepath.Base(path))
			if err := os.WriteFile(replace[path], m.mutate(f), 0o644); err != nil {
				return mutants{}, err
			}
		}
		overlay := filepath.Join(dir, "overlay.json")
		text, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return mutants{}, err
		}
		if err := os.WriteFile(overlay, text, 0o644); err != nil {
			return mutants{}, err
		}
		out, err := exec.Command("nice", "-n", "15", "go", "build", "-gcflags=-e", "-overlay="+overlay, module+"/"+pkg).CombinedOutput()
		if err == nil {
			return mutants{m.mutations, m.unbuilt, overlay}, nil
		}
		before := len(refused)
		for _, line := range refusal.FindAllStringSubmatch(string(out), -1) {
			refused[line[1]] = true
		}
		if len(refused) == before {
			return mutants{}, fmt.Errorf("go build: %w: %s", err, out)
		}
	}
}

// refusal is a message of the compiler.
var refusal = regexp.MustCompile(`(?m)([^/\s]+\.go:\d+):\d+: `)

// binary builds the tests of a package against the mutated one.
func (m mutants) binary(pkg, dir string) (path string, err error) {
	path = filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
	out, err := exec.Command("nice", "-n", "15", "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+m.overlay, "-o", path, module+"/"+pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go test -c %s: %w: %s", pkg, err, out)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s has no tests", pkg)
	}
	return path, nil
}
