package depstest

import (
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docs = "../../../docs/"

// entrances are the pages on which a reader begins. There the first use of a word that others need an explanation for
// links to it, or comes after a link to the glossary.
var entrances = []string{docs + "tutorials/*.md", "../../../README.md"}

// TestGlossary: the glossary has a sentence for each term, the other documents use the term, and the first pages that a
// reader sees lead to it.
func TestGlossary(t *testing.T) {
	const glossary = docs + "reference/glossary.md"
	texts := documents(t)
	_, list, _ := strings.Cut(texts[glossary], "\n## ")
	terms := strings.Split(list, "\n## ")
	if len(terms) != 25 {
		t.Errorf("%d terms, want 25", len(terms))
	}
	var others strings.Builder
	for path, text := range texts {
		if path != glossary {
			others.WriteString(text)
		}
	}
	for _, entry := range terms {
		term, sentence, _ := strings.Cut(entry, "\n\n")
		if sentence = strings.TrimSpace(sentence); !strings.HasSuffix(sentence, ".") || strings.Contains(sentence, ". ") || strings.Contains(sentence, "\n") {
			t.Errorf("%s: want one sentence in one line: %q", term, sentence)
		}
		if !regexp.MustCompile(`\b` + term + `s?\b`).MatchString(others.String()) {
			t.Errorf("no other document has the word %q", term)
		}
	}
	code := regexp.MustCompile("(?ms)^```.*?^```$|^    .*?$|^#.*?$|`[^`\n]*`") // and headings
	for _, pattern := range entrances {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text := code.ReplaceAllString(texts[path], "")
			for _, term := range []string{"State", "standby", "CHECK", "NRI", "pod"} {
				first := regexp.MustCompile(`\b` + term + `s?\b`).FindStringIndex(text)
				if first == nil {
					continue
				}
				paragraph := text[:first[1]]
				if end := strings.Index(text[first[1]:], "\n\n"); end >= 0 {
					paragraph = text[:first[1]+end]
				}
				if !strings.Contains(paragraph, "glossary.md") {
					t.Errorf("%s uses %q, and no link to reference/glossary.md comes before", path, term)
				}
			}
		}
	}
}

// TestBindingPages: each binding has a page with the same headings in the same order, and no other page is among them.
// Its picture is there, and the page from which a reader chooses leads to it.
func TestBindingPages(t *testing.T) {
	texts := documents(t)
	choose := texts[docs+"how-to/choose-a-binding.md"]
	code, err := os.ReadFile("../../../cache/binding.go")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"How it is wired", "Addresses and IPv6", "What it cannot do", "What is lost", "Networks", "Options", "Moving", "By hand"}
	kinds := regexp.MustCompile(`Binding\w+ +Kind = "(\w+)"`).FindAllStringSubmatch(string(code), -1)
	if pages, err := filepath.Glob(docs + "bindings/*.md"); err != nil || len(kinds) == 0 || len(pages) != len(kinds) {
		t.Errorf("%d bindings, and the pages %q: %v", len(kinds), pages, err)
	}
	for _, kind := range kinds {
		page := texts[docs+"bindings/"+kind[1]+".md"]
		var headings []string
		for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(page, -1) {
			headings = append(headings, m[1])
		}
		if !slices.Equal(headings, want) {
			t.Errorf("%s.md has the headings\n%q, want\n%q", kind[1], headings, want)
		}
		if !strings.Contains(page, "](../pictures/binding-"+kind[1]+".svg)") || !strings.Contains(choose, "](../bindings/"+kind[1]+".md)") {
			t.Errorf("%s.md has no picture, or choose-a-binding.md no link to it", kind[1])
		}
	}
}

// TestReferenceCalls: the page about the packages has each function of phase1, its launch and phase2, and each method
// of their main types.
func TestReferenceCalls(t *testing.T) {
	page := documents(t)[docs+"reference/packages.md"]
	for pkg, main := range map[string]string{"/phase1": "NIC", "/phase1/launch": "", "/phase2": "VM"} {
		scope := typesOf(t, pkg)[0].Scope()
		var calls []string
		for _, name := range scope.Names() {
			if f, ok := scope.Lookup(name).(*types.Func); ok && f.Exported() {
				calls = append(calls, name)
			}
		}
		methods := &types.MethodSet{}
		if main != "" {
			methods = types.NewMethodSet(types.NewPointer(scope.Lookup(main).Type()))
		}
		for i := range methods.Len() {
			if f := methods.At(i).Obj(); f.Exported() {
				calls = append(calls, main+"."+f.Name())
			}
		}
		_, section, _ := strings.Cut(page, "## Calls of "+strings.TrimPrefix(pkg, "/")+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		var have []string
		for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section, -1) {
			for _, call := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				have = append(have, call[1])
			}
		}
		slices.Sort(calls)
		slices.Sort(have)
		if len(calls) == 0 || !slices.Equal(calls, have) {
			t.Errorf("%s has the calls\n%q, the page\n%q", pkg, calls, have)
		}
	}
}
