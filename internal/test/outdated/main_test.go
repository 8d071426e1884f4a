package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// proxy serves modules in their versions, with the Go of goOf, else 1.21. It calls hang where it gives no answer.
func proxy(t *testing.T, versions map[string][]string, goOf map[string]string, hang func()) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, file, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/@v/")
		known, ok := versions[path]
		switch {
		case strings.Contains(r.URL.Path, "hangs"):
			hang()
			<-r.Context().Done()
		case strings.Contains(r.URL.Path, "refused"):
			http.Error(w, "not available", http.StatusForbidden)
		case !ok:
			http.NotFound(w, r)
		case file == "list":
			fmt.Fprintln(w, strings.Join(known, "\n"))
		case strings.HasSuffix(file, ".info"):
			fmt.Fprintf(w, `{"Version": %q, "Time": "2026-01-02T03:04:05Z"}`, strings.TrimSuffix(file, ".info"))
		default:
			fmt.Fprintf(w, "module %s\n\ngo %s\n", path, cmp.Or(goOf[path+"@"+strings.TrimSuffix(file, ".mod")], "1.21"))
		}
	}))
	t.Cleanup(s.Close)
	t.Setenv("GOPROXY", s.URL)
	t.Setenv("GONOSUMDB", "*")
	t.Setenv("GOPRIVATE", "")
	t.Setenv("GONOPROXY", "none")
	t.Setenv("GOMODCACHE", t.TempDir())
}

// module writes a go.mod, and returns its directory.
func module(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestList(t *testing.T) {
	proxy(t, map[string][]string{
		"example.org/current":   {"v1.0.0", "v1.1.0"},
		"example.org/behind":    {"v1.0.0", "v1.2.0", "v1.3.0-rc.1"},
		"example.org/newgo":     {"v0.1.0", "v0.2.0"},
		"example.org/aftertag":  {"v0.1.0"},
		"example.org/inherited": {"v1.0.0", "v1.0.1"},
		"example.org/tool":      {"v1.0.0", "v1.0.1"},
	}, map[string]string{
		"example.org/newgo@v0.2.0": "1.26.3", "example.org/behind@v1.2.0": "1.25.0",
	}, nil)
	first := module(t, `module example.org/first

go 1.25.0

require (
	example.org/behind v1.0.0
	example.org/current v1.1.0
	example.org/aftertag v0.1.1-0.20260101000000-0123456789ab
	example.org/inherited v1.0.0 // indirect
)
`)
	second := module(t, `module example.org/second

go 1.25.0

require (
	example.org/behind v1.2.0
	example.org/first v0.0.0
	example.org/inherited v1.0.1 // indirect
	example.org/gone v1.0.0
	example.org/newgo v0.1.0
	example.org/refused v1.0.0
	example.org/tool v1.0.0 // indirect
)

tool example.org/tool/cmd/it

replace example.org/first => ../first
`)
	var out strings.Builder
	if err := list(t.Context(), &out, []string{first, second}); err != nil {
		t.Fatal(err)
	}
	const reason = `go: module [^\n]* reading [^\n]*/@v/list: (403 Forbidden|404 Not Found)[^\n]*`
	got := regexp.MustCompile(reason).ReplaceAllString(out.String(), "$1")
	if got = regexp.MustCompile(` +`).ReplaceAllString(got, " "); got != `example.org/behind v1.0.0 v1.2.0
example.org/gone v1.0.0 cannot be asked for: 404 Not Found
example.org/inherited v1.0.0 v1.0.1
example.org/newgo v0.1.0 v0.2.0 needs Go 1.26.3
example.org/refused v1.0.0 cannot be asked for: 403 Forbidden
example.org/tool v1.0.0 v1.0.1
4 of 9 requirements have a newer version, 2 cannot be asked for
` {
		t.Errorf("got\n%s", got)
	}
}

// TestLimit: a proxy without an answer.
func TestLimit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	proxy(t, nil, nil, cancel)
	var out strings.Builder
	err := list(ctx, &out, []string{module(t, "module example.org/m\n\ngo 1.25.0\n\nrequire example.org/hangs v1.0.0\n")})
	if !errors.Is(err, errNoAnswer) {
		t.Errorf("error %v, want that none has answered", err)
	}
	if want := "0 of 1 requirements have a newer version, 1 have not answered in time\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// TestNoAnswer: nothing is known if no module has answered, and nothing is asked of a module that requires none.
func TestNoAnswer(t *testing.T) {
	proxy(t, nil, nil, nil)
	for requires, want := range map[string]error{"": nil, "require example.org/refused v1.0.0\n": errNoAnswer} {
		var out strings.Builder
		if err := list(t.Context(), &out, []string{module(t, "module example.org/m\n\ngo 1.25.0\n\n"+requires)}); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v\n%s", requires, err, want, &out)
		}
	}
}

// TestNoModule: a directory without go.mod is an error that names it.
func TestNoModule(t *testing.T) {
	dir := t.TempDir()
	if err := list(t.Context(), &strings.Builder{}, []string{dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
}

// TestVulncheck: the output and the exit code of vulncheck.sh. The program in govulncheck's place ends with the code
// that the module's file has.
func TestVulncheck(t *testing.T) {
	stub := filepath.Join(t.TempDir(), "govulncheck")
	text := "#!/bin/sh\nread code words <code\necho \"$1 $2 $3: $words\"\nexit $code\n"
	if err := os.WriteFile(stub, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VULNDB", "file:///db")
	parent := t.TempDir()
	for name, code := range map[string]string{"good": "0", "bad": "3 GO-2026-0001", "broken": "1 syntax", "offline": "1 fetching vulnerabilities: no host", "scheme": "1 unsupported scheme"} {
		if err := os.Mkdir(filepath.Join(parent, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(parent, name, "code"), []byte(code+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		modules string
		code    int
		want    string
	}{
		{"good", 0, "no calls of functions that are known to be vulnerable in good\n"},
		{"good bad", 3, "bad:\n-db file:///db ./...: GO-2026-0001\ncalls of vulnerable functions are in bad\n"},
		{"broken bad", 1, "broken: -db file:///db ./...: syntax\nbad:\n-db file:///db ./...: GO-2026-0001\n" +
			"govulncheck has failed in broken, and calls of vulnerable functions are in bad\n"},
		{"offline good", 1, "offline: -db file:///db ./...: fetching vulnerabilities: no host\n" +
			"govulncheck has looked for nothing: its database is not reachable; VULNDB=file:///DIRECTORY names a copy of it\n"},
		{"scheme good", 1, "scheme: -db file:///db ./...: unsupported scheme\n" +
			"govulncheck has looked for nothing: VULNDB=file:///db is no URL of a database; write VULNDB=file:///DIRECTORY\n"},
	} {
		args := []string{stub}
		for name := range strings.FieldsSeq(c.modules) {
			args = append(args, filepath.Join(parent, name))
		}
		cmd := exec.Command("../vulncheck.sh", args...)
		out, err := cmd.CombinedOutput()
		if got := strings.ReplaceAll(string(out), parent+"/", ""); got != c.want || cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%s: %v\n%s", c.modules, err, got)
		}
	}
}
