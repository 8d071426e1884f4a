package nstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
)

// Hostile is a value that a shell would take apart, expand and execute where it is not quoted.
const Hostile = "a b$(touch ran)`touch ran`;touch ran #'\"\\"

// Shells returns what programs of a script get: a line for each word of their commands, and what they read. The
// programs are functions of the script, so nothing changes; those whose names are no function's in sh are files of
// another directory. Each shell has to get the same, and execute nothing else.
func Shells(t testing.TB, script string, programs ...string) string {
	t.Helper()
	const body = `printf '%s\n' "$@"; [ -t 0 ] || cat`
	functions, bin := "", t.TempDir()
	for _, p := range programs {
		if !strings.Contains(p, "-") {
			functions += p + "() { " + body + "; }\n"
		} else if err := os.WriteFile(filepath.Join(bin, p), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	seen := ""
	for _, shell := range []string{"sh", "bash"} {
		cmd := exec.Command(shell, "-c", functions+script)
		cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + bin + ":/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", shell, err, out, script)
		}
		if files, err := os.ReadDir(cmd.Dir); err != nil || len(files) > 0 {
			t.Errorf("%s has executed a part of a value: %v %v\n%s", shell, files, err, script)
		}
		if seen != "" && seen != string(out) {
			t.Errorf("sh has %q, %s has %q:\n%s", seen, shell, out, script)
		}
		seen = string(out)
	}
	return seen
}

// Offers fails unless the text offers a command that begins so, and in which a shell sees the value as a word.
func Offers(t testing.TB, text, begins, value string) {
	t.Helper()
	_, rest, _ := strings.Cut(text, begins+" ")
	before, _, found := strings.Cut(rest, infra.ShellWord(value))
	if !found {
		t.Errorf("no command %q with %q in: %s", begins, value, text)
		return
	}
	program, _, _ := strings.Cut(begins, " ")
	words := strings.Split(strings.TrimSuffix(Shells(t, begins+" "+before+infra.ShellWord(value), program), "\n"), "\n")
	if last := words[len(words)-1]; last != value {
		t.Errorf("a shell sees %q in the place of %q: %s", last, value, text)
	}
}
