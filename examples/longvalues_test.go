package examples_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/longjson"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLongFlags: each flag of each program, and each program's command or operand, with a value that is far too long
// has a short error of one line, and nothing is changed. The flags are those of the helps.
func TestLongFlags(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	wired := n.Pod.Settled()
	dir := nstest.Dir(t)
	long := strings.Repeat("a", 120<<10) // the kernel takes 128 KiB (MAX_ARG_STRLEN)
	// What a call needs so that the long value is what is wrong. A flag that is not among them is left out.
	right := map[string]string{
		"netns": n.Pod.Path(), "nic": "eth0", "binding": "redirect", "uid": "107", "addresses": "192.0.2.7", "ports": "80", "life": "5m",
		"cni-bin": dir, "cni-conf": dir, "list-to": dir, "dir": filepath.Join(dir, "lock"), "from": dir, "nri": filepath.Join(dir, "nri"), "state": n.State,
	}
	tried := 0
	try := func(program string, args ...string) {
		tried++
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		said := strings.TrimSuffix(string(out), "\n")
		if err == nil || ctx.Err() != nil || len(said) > longjson.MostError || strings.Contains(said, "\n") {
			shown := strings.ReplaceAll(strings.Join(args, " "), long, "LONG")
			t.Errorf("%s %s: %v, %d octets: %.300s", filepath.Base(program), shown, err, len(out), out)
		}
	}
	flags := func(text string) (names []string) {
		for _, m := range regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return names
	}
	for _, name := range withVerbs {
		program := nstest.Program(t, "examples/"+name)
		try(program, long)
		try(program, "help", long)
		try(program, "completion", long)
		verbs := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+)  +[a-z]`).FindAllStringSubmatch(help(t, "examples/"+name, "-help"), -1) {
			if verb := m[1]; !slices.Contains([]string{"completion", "man", "version", "help"}, verb) {
				verbs[verb] = help(t, "examples/"+name, "help", verb)
			}
		}
		if name == "guestwire-exporter" {
			verbs[""] = help(t, "examples/"+name, "-help")
		}
		for verb, text := range verbs {
			begin, end := strings.Fields(verb), []string(nil)
			if strings.Contains(text, " -- ") {
				end = []string{"--", "true"}
			}
			names := flags(text)
			for _, flag := range names {
				call := slices.Concat(begin, []string{"-" + flag + "=" + long})
				for _, other := range names {
					if value := right[other]; value != "" && other != flag && (other != "state" || !slices.Contains([]string{"status", "drops", "flows"}, verb)) && (other != "from" || name == "guestwire-node") {
						call = append(call, "-"+other+"="+value)
					}
				}
				try(program, slices.Concat(call, end)...)
			}
			try(program, slices.Concat(begin, []string{"-" + long + "=x"}, end)...)
			if verb == "exec" {
				try(program, "exec", "-uid=107", "--", "/"+long)
			} else {
				try(program, slices.Concat(begin, []string{long}, end)...)
			}
		}
	}
	if tried < 100 {
		t.Errorf("%d calls: does the test see the flags?", tried)
	}
	if err := nstest.Difference(wired, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
}
