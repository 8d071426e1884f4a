package depstest

import (
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestPackages: each package has a comment, whose first sentence is in the table of reference/packages.md if importers
// see the package. Examples are programs: docs/reference/commands.md.
func TestPackages(t *testing.T) {
	const top = "../../../"
	said := map[string]string{} // by folder
	err := golden.Walk(top, func(path string) error {
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), top)
		if text := new(doc.Package).Synopsis(file.Doc.Text()); text != "" {
			said[folder] = text
		} else if _, known := said[folder]; !known {
			said[folder] = ""
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	table := "| package | what it is |\n| --- | --- |\n"
	for _, folder := range slices.Sorted(maps.Keys(said)) {
		switch {
		case folder == "." || folder == "examples" || strings.HasPrefix(folder, "examples/"), strings.Count(folder, "/") > 2 && strings.HasPrefix(folder, "internal/rig/"):
		case said[folder] == "":
			t.Errorf("package %s has no comment", folder)
		case !slices.Contains(strings.Split(folder, "/"), "internal"):
			table += fmt.Sprintf("| [%s](../../%[1]s) | %s |\n", folder, shortened(said[folder]))
		}
	}
	golden.Parts(t, docs+"reference/packages.md", "internal/test/depstest", map[string]string{"public": table})
}

var (
	subject   = regexp.MustCompile(`^(?:(?:Package|Command) \w+|[A-Z]\w+):? (?:is |has )?`)
	goDocLink = regexp.MustCompile(`\[(\w+)\]`)
)

// shortened returns a sentence without its subject.
func shortened(sentence string) string {
	return strings.TrimSuffix(goDocLink.ReplaceAllString(subject.ReplaceAllString(sentence, ""), "$1"), ".")
}
