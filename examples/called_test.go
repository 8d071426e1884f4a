package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestCalled: a program that was called by the name of a package uses such names in its texts, and no others.
func TestCalled(t *testing.T) {
	dir := t.TempDir()
	// Of the list of verbs each line has to name the program so, also that of a verb which is new.
	others := regexp.MustCompile(`(?m)^  (agent|launcher|exporter) |(^|[\s("])(agent|launcher|exporter)(\s(setup|plan|check|status|list|exec|teardown|forget|xml|serve|qemu|help|wires|describes|-[a-z])|:)`)
	for folder, name := range map[string]string{"agent": "guestwire-agent", "launcher": "guestwire-launcher", "exporter": "guestwire-exporter"} {
		path := filepath.Join(dir, name)
		if err := os.Symlink(nstest.Program(t, "examples/"+folder), path); err != nil {
			t.Fatal(err)
		}
		texts := ""
		for _, line := range []string{"help", "help setup", "help exec", "help teardown", "help qemu", "man", "version", "-nic eth0", "status", "teardown", "exec -uid qemu -- true", "xml -state /no-such", "config -state /no-such"} {
			out, _ := run(t, path, strings.Fields(line)...)
			texts += out
		}
		if found := others.FindString(texts); found != "" || !strings.Contains(texts, name+" version\n") && strings.Count(texts, name) < 5 {
			t.Errorf("%s: %q in\n%s", name, found, texts)
		}
		if out, _ := run(t, path, "completion", "bash"); !strings.Contains(out, "-F __start_"+name+" "+name) {
			t.Errorf("the completion of %s is for another name", name)
		}
	}
}

// TestCalledReports: what doctor, plan and status print names the programs so, too.
func TestCalledReports(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t)
	nstest.NeedTaps(t)
	n, path := nstest.NewNetwork(t), filepath.Join(t.TempDir(), "guestwire-agent")
	if err := os.Symlink(nstest.Program(t, "examples/agent"), path); err != nil {
		t.Fatal(err)
	}
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", nstest.Dir(t) + "/journals"}
	setup := append([]string{"setup", "-binding", "bridge", "-uid", "0", "-state", n.State}, nic...)
	for _, step := range []struct {
		args []string
		want string
	}{
		{append([]string{"plan", "-binding", "bridge", "-uid", "0"}, nic...), "# guestwire-agent plan -full prints the rules"},
		{append([]string{"doctor"}, nic...), "(guestwire-agent doctor -uid UID)"},
		{setup, ""},
		{append([]string{"status"}, nic...), "(guestwire-launcher serve)"},
	} {
		if out, _ := run(t, path, step.args...); !strings.Contains(out, step.want) {
			t.Errorf("%q: no %q in\n%s", step.args, step.want, out)
		}
	}
}
