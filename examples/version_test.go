package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestVersion copies each program into a repository of its own, as a reader would, and wants the program to
// report from which sources it was built.
func TestVersion(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		nstest.Skip(t, "no git on this machine")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, program := range []string{"guestwire-agent", "guestwire-launcher"} {
		t.Run(program, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			call := func(name string, args ...string) string {
				cmd := exec.Command(name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
					"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
				}
				return strings.TrimSpace(string(out))
			}
			files, err := filepath.Glob(filepath.Join(program, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			copied := func(path string) string {
				return strings.ReplaceAll(read(path), "github.com/guestwire/guestwire/examples/", "example.com/"+program+"/")
			}
			for _, path := range files {
				write(filepath.Base(path), copied(path))
			}
			for _, shared := range []string{"schema", "commandline", "directory", "logqueue", "nameproxy", "guestwire/podsandbox"} {
				if err := os.CopyFS(filepath.Join(dir, shared), os.DirFS(shared)); err != nil {
					t.Fatal(err)
				}
				files, err := filepath.Glob(filepath.Join(shared, "*.go"))
				if err != nil {
					t.Fatal(err)
				}
				for _, path := range files {
					write(path, copied(path))
				}
			}
			mod := strings.Replace(read("go.mod"), "module github.com/guestwire/guestwire/examples", "module example.com/"+program, 1)
			write("go.mod", strings.Replace(mod, "=> ..", "=> "+root, 1))
			write("go.sum", read("go.sum"))
			write(".gitignore", "/"+program+"\n")
			call("git", "init", "-q")
			call("git", "add", ".")
			call("git", "commit", "-q", "-m", "a copy")
			call("git", "tag", "v0.1.0")
			revision := call("git", "rev-parse", "HEAD")

			check := func(want string, flags ...string) {
				t.Helper()
				call("go", append([]string{"build"}, flags...)...)
				out, status := run(t, filepath.Join(dir, program), "version")
				if status != 0 || !regexp.MustCompile("^"+program+" "+want+`, go1\.\S+`+"\n$").MatchString(out) {
					t.Errorf("%s version: status %d, %q, want %s", program, status, out, want)
				}
			}
			check(`v0\.1\.0, revision `+revision, "-buildvcs=true")
			write("main.go", copied(filepath.Join(program, "main.go"))+"// changed\n")
			check(`v0\.1\.0\+dirty, revision `+revision+", modified", "-buildvcs=true")
			check(`\(devel\)`, "-buildvcs=false")
		})
	}
}
