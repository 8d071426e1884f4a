package depstest

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNamed: the tests that the documents name exist.
func TestNamed(t *testing.T) {
	tests := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := golden.Walk("../../..", func(path string) error {
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for path, text := range documents(t) {
		for _, name := range regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w+`).FindAllString(text, -1) {
			named++
			if !tests[name] {
				t.Errorf("%s names %s, and there is no such test", path, name)
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test: is this the place where they are?")
	}
}

// TestNamedCode: the files and the names of Go that the documents for contributors, those of explanation and those of
// proofs have in `quotes` exist, so the step lists and walks there are those of the code.
func TestNamedCode(t *testing.T) {
	var code strings.Builder
	files := map[string]bool{"hold.go": true} // the example of a new binding
	err := golden.Walk("../../..", func(path string) error {
		name := filepath.Base(path)
		files[name], files[strings.TrimPrefix(filepath.ToSlash(path), "../../../")] = true, true
		if strings.HasSuffix(name, ".go") || name == "Makefile" {
			text, err := os.ReadFile(path)
			code.Write(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{"BindingHold": true}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(code.String(), -1) {
		words[word] = true
	}
	quoted := regexp.MustCompile("`([^`\n]+)`")
	file := regexp.MustCompile(`^[\w./-]+\.(go|sh)$`)
	name := regexp.MustCompile(`^(?:[a-z]\w*\.)?(\w*[A-Z]\w*)(?:\.(\w+))?$`)
	of := regexp.MustCompile(`/docs/(contributing|explanation|proofs)/`)
	for path, text := range documents(t) {
		if !of.MatchString(path) {
			continue
		}
		for _, q := range quoted.FindAllStringSubmatch(text, -1) {
			if file.MatchString(q[1]) && !files[q[1]] && !files[filepath.Base(q[1])] {
				t.Errorf("%s names %s, and there is no such file", path, q[1])
			}
			if m := name.FindStringSubmatch(q[1]); m != nil && (!words[m[1]] || m[2] != "" && !words[m[2]]) {
				t.Errorf("%s names %s, which the code does not have", path, q[1])
			}
		}
	}
}

// TestDocumentLinks: what the documents link to is there, headings included.
func TestDocumentLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	anchor := func(heading string) string {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading), "")
		return "#" + strings.ReplaceAll(kept, " ", "-")
	}
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			linked, err := os.ReadFile(target)
			if err != nil && !errors.Is(err, unix.EISDIR) {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			headings := regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(linked), -1)
			if m[2] != "" && !slices.ContainsFunc(headings, func(h []string) bool { return anchor(h[1]) == m[2] }) {
				t.Errorf("%s links to %s%s, and there is no such heading", path, m[1], m[2])
			}
		}
	}
}

// TestMeasured: a row of the table at the head of docs/results/performance.md has the numbers of the measured row whose
// name is in its first cell: the first column, the last one before the last ratio, and that ratio.
func TestMeasured(t *testing.T) {
	const path = "../../../docs/results/performance.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^  (\S.*?) {2,}(\S.*)$`).FindAllStringSubmatch(string(page), -1) {
		measured[m[1]] = strings.Fields(regexp.MustCompile(`±\S+`).ReplaceAllString(m[2], ""))
	}
	compared, row := 0, regexp.MustCompile("(?m)^(\\| `(.*?)` \\| [^|]* )\\|.*$")
	want := row.ReplaceAllStringFunc(string(page), func(line string) string {
		m := row.FindStringSubmatch(line)
		n := measured[m[2]]
		if len(n) < 3 {
			t.Errorf("%s names %q, which it does not compare: %q", path, m[2], n)
			return line
		}
		compared++
		return fmt.Sprintf("%s| %s | %s | %s |", m[1], n[0], n[len(n)-2], n[len(n)-1])
	})
	if compared == 0 {
		t.Errorf("%s has no row of what it compares", path)
	}
	golden.Compare(t, "../"+path, want) // from testdata
}

var logs = flag.String("logs", "", "files of test events, with spaces between: TestClaims wants the tests of the claims to have run there")

// TestClaims: each row of docs/proofs/claims.md names a test of a package, after a slash with what the package's files
// have in quotes. A row that is not whole says what is missing. With -logs, each test has passed in one of the logs,
// and one of podnet had a guest there: the networks of others can be tested without one. What "make test-all" alone
// runs has an asterisk, and is asked of its log alone.
func TestClaims(t *testing.T) {
	packages := map[string]string{} // the Go files of all folders of a name
	err := golden.Walk("../../..", func(path string) error {
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		packages[filepath.Base(filepath.Dir(path))] += string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const path = "../../../docs/proofs/claims.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("^\\| [^|]+ \\|(?: (?:partly|not): [^|]+ \\|)? `([\\w-]+)\\.(Test\\w+)(?:/([^`]+))?`(\\\\\\*)? \\|$")
	ran, guest := logged(t)
	rows := 0
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| --- ") || strings.HasPrefix(line, "| feature | ") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s has the row %q; want | feature | test |, or | feature | partly: or not: what is missing | test |", path, line)
			continue
		}
		rows++
		if code := packages[m[1]]; !strings.Contains(code, "\nfunc "+m[2]+"(") || m[3] != "" && !strings.Contains(code, strconv.Quote(m[3])) {
			t.Errorf("%s: %q names a test that package %s does not have", path, line, m[1])
		}
		name := strings.TrimSuffix(m[1]+"."+m[2]+"/"+strings.ReplaceAll(m[3], " ", "_"), "/")
		if *logs == "" || (m[4] != "") != strings.Contains(*logs, "test-all") {
			continue
		}
		if !ran[name] {
			t.Errorf("%s: %q names a test that has not passed in %s", path, line, *logs)
		} else if m[1] == "podnet" && !guest[name] {
			t.Errorf("%s: %q names a test without a guest", path, line)
		}
	}
	if rows == 0 {
		t.Errorf("%s has no rows", path)
	}
}

// logged returns the tests that have passed in the logs, and those that had a guest, as package.Test/subtest. What a
// subtest had, its parents had.
func logged(t *testing.T) (ran, guest map[string]bool) {
	t.Helper()
	ran, guest = map[string]bool{}, map[string]bool{}
	for _, file := range strings.Fields(*logs) {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is no %s, the log of make %s: run that first", file, strings.TrimSuffix(filepath.Base(file), ".json"))
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := json.NewDecoder(f); ; {
			var event struct{ Action, Package, Test, Key string }
			if err := lines.Decode(&event); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			name := path.Base(event.Package) + "." + event.Test
			switch {
			case event.Action == "pass":
				ran[name] = true
			case event.Action == "attr" && event.Key == "guest":
				for name != "" {
					guest[name] = true
					name = name[:max(0, strings.LastIndexByte(name, '/'))]
				}
			}
		}
	}
	return ran, guest
}

// TestTargets: "make help" lists the targets whose time docs/contributing/targets.md has. What CI runs has a time.
func TestTargets(t *testing.T) {
	help, err := exec.Command("make", "-s", "-C", "../../..", "help").CombinedOutput()
	if err != nil {
		t.Fatalf("make help: %v: %s", err, help)
	}
	const path = "../../../docs/contributing/targets.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	timed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `make ([a-z-]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		timed[m[1]] = true
		if !regexp.MustCompile(`(?m)^` + m[1] + `\s+\S`).Match(help) {
			t.Errorf("%s has make %s, and make help does not list it", path, m[1])
		}
	}
	for _, name := range []string{"lint", "test", "test-user", "lab"} {
		if !timed[name] {
			t.Errorf("%s has no time of make %s", path, name)
		}
	}
}

// TestFirstChange: with the first patch of docs/contributing/first-change.md the test fails as the page says, with all
// of them it passes.
func TestFirstChange(t *testing.T) {
	page, err := os.ReadFile("../../../docs/contributing/first-change.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile("(?s)```text\n(.*?)```").FindStringSubmatch(string(page))
	patches := regexp.MustCompile("(?s)```diff\n--- a/(\\S+)\n.*?```").FindAllStringSubmatch(string(page), -1)
	if said == nil || len(patches) < 2 {
		t.Fatalf("%d patches, output %q", len(patches), said)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, replaced := t.TempDir(), map[string]string{}
	for i, p := range patches {
		file := filepath.Join(dir, p[1])
		text, err := os.ReadFile(filepath.Join(root, p[1]))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644)); err != nil {
			t.Fatal(err)
		}
		apply := exec.Command("git", "apply", "-")
		apply.Dir, apply.Stdin = dir, strings.NewReader(strings.Trim(strings.TrimPrefix(p[0], "```diff\n"), "`"))
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("git apply of the patch to %s: %v: %s", p[1], err, out)
		}
		replaced[filepath.Join(root, p[1])] = file
		overlay, err := json.Marshal(map[string]any{"Replace": replaced})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
			t.Fatal(err)
		}
		test := exec.Command("go", "test", "-overlay", filepath.Join(dir, "overlay.json"), "./internal/frametext")
		test.Dir = root
		out, err := test.CombinedOutput()
		if i == 0 && (err == nil || !strings.Contains(string(out), said[1])) {
			t.Errorf("after the first patch: %v\n%s\nand the page says\n%s", err, out, said[1])
		}
		if i > 0 && err != nil {
			t.Errorf("after the patch to %s: %v\n%s", p[1], err, out)
		}
	}
}

// documents are the texts of the repository, by their paths from here.
func documents(t *testing.T) map[string]string {
	t.Helper()
	return golden.Documents(t, "../../..")
}

// TestOldGo: make says which Go it needs, where an older one would say of go.mod that its version has another format.
func TestOldGo(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		nstest.Skip(t, "no make on this machine")
	}
	for version, old := range map[string]bool{
		"go1.9": true, "go1.19.8": true, "go1.20": true, "go1.21.0": false, "go1.25.1": false, "go1.26-devel_1f3a": false, "devel go1.30-1f3a": false, "": true,
	} {
		dir := t.TempDir()
		script := "#!/bin/sh\necho go version " + version + " linux/amd64\n"
		if version == "" {
			script = "#!/bin/sh\necho go: not found\nexit 127\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("make", "-C", "../../..", "go-version")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if (err != nil) != old || old && !strings.Contains(string(out), "guestwire needs Go 1.25 (https://go.dev/doc/install") {
			t.Errorf("%q: %v, %s", version, err, out)
		}
	}
}
