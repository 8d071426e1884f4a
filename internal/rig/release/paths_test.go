package release_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNamedPaths: a page or an example that a text of an installed program names is in the package.
func TestNamedPaths(t *testing.T) {
	root := nstest.Root(t)
	packaged, err := os.ReadFile(filepath.Join(root, "internal/rig/release/nfpm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var trees []string
	for _, found := range regexp.MustCompile(`(?m)^  - {src: (\S+), dst: /usr/share/doc/guestwire/(\S+), type: tree`).FindAllStringSubmatch(string(packaged), -1) {
		if strings.TrimSuffix(found[1], "/") != found[2] {
			t.Errorf("%s is in the package as %s: a text names the former", found[1], found[2])
		}
		trees = append(trees, found[1])
	}
	list := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{{$.Dir}}{{range $.GoFiles}} {{.}}{{end}}{{end}}`, "./guestwire-agent", "./guestwire-launcher", "./guestwire-exporter", "./guestwire-node", "./guestwire")
	list.Dir = filepath.Join(root, "examples")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	path, named := regexp.MustCompile(`(?m)(?:^|[\s("`+"`"+`])((?:docs|examples)/[\w./-]*\w)`), 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) == 0 || !strings.HasPrefix(words[0], root) {
			continue // not of this repository
		}
		for _, file := range words[1:] {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(words[0], file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				literal, is := n.(*ast.BasicLit)
				if !is || literal.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, found := range path.FindAllStringSubmatch(text, -1) {
					named++
					_, err := os.Stat(filepath.Join(root, found[1]))
					if in := slices.ContainsFunc(trees, func(tree string) bool { return strings.HasPrefix(found[1]+"/", tree) }); err != nil || !in {
						t.Errorf("%s names %s: in the package %v, in the repository %v", file, found[1], in, err)
					}
				}
				return true
			})
		}
	}
	if named < 5 {
		t.Errorf("%d paths are named: has the test seen the help?", named)
	}
}
