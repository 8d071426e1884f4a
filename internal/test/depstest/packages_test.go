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

// TestPackages: the tables of packages have the first sentence of each package's comment. Those of
// reference/packages.md are for importers, and those of contributing/developing.md, up to a colon, for who changes the
// tree.
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
	tables := map[string]string{}
	for _, folder := range slices.Sorted(maps.Keys(said)) {
		table, name := tableOf(folder)
		if table == "" {
			continue
		}
		if said[folder] == "" {
			t.Errorf("package %s has no comment", folder)
		}
		if tables[table] == "" {
			tables[table] = "| package | what it is |\n| --- | --- |\n"
		}
		tables[table] += fmt.Sprintf("| %s | %s |\n", name, shortened(said[folder], table == "public"))
	}
	golden.Parts(t, docs+"reference/packages.md", "internal/test/depstest", map[string]string{"public": tables["public"]})
	delete(tables, "public")
	delete(tables, "tests") // "go list" prints these: a reader of developing.md has the tree
	golden.Parts(t, docs+"contributing/developing.md", "internal/test/depstest", tables)
}

// tableOf returns the table of a package, and its name there. The table tests is of no page. Examples are programs: docs/reference/commands.md.
func tableOf(folder string) (table, name string) {
	rig, isRig := strings.CutPrefix(folder, "internal/rig/")
	internal, isInternal := strings.CutPrefix(folder, "internal/")
	switch {
	case strings.HasPrefix(folder, "examples/"), isRig && strings.Contains(rig, "/"), folder == ".", folder == "examples":
		return "", ""
	case isRig, strings.HasPrefix(folder, "internal/test/"):
		return "tests", folder
	case isInternal:
		return "internal", "`" + internal + "`"
	case strings.Contains(folder, "internal"):
		return "internal", "`" + folder + "`"
	}
	return "public", "[" + folder + "](../../" + folder + ")"
}

var (
	subject   = regexp.MustCompile(`^(?:(?:Package|Command) \w+|[A-Z]\w+):? (?:is |has )?`)
	goDocLink = regexp.MustCompile(`\[(\w+)\]`)
)

// shortened returns a sentence without its subject, and without what comes after a colon unless it is wanted whole.
func shortened(sentence string, whole bool) string {
	sentence = goDocLink.ReplaceAllString(subject.ReplaceAllString(sentence, ""), "$1")
	if !whole {
		sentence, _, _ = strings.Cut(sentence, ": ")
	}
	return strings.TrimSuffix(sentence, ".")
}
