package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFor: list, teardown and forget of the agent select by -for, and setup and teardown for another one are refused.
func TestFor(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	dir := filepath.Join(nstest.Dir(t), "dir")
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	call := func(code int, want string, args ...string) {
		t.Helper()
		out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), append(args, "-dir", dir)...)
		if status != code || !strings.Contains(out, want) {
			t.Errorf("%q: status %d, %s; want %d, %q", args, status, out, code, want)
		}
	}
	setup := append([]string{"setup", "-binding", "redirect", "-uid", "0", "-state", n.State}, nic...)
	call(0, "", append(setup, "-for", "c1")...)
	call(1, `wired for another one: for "c1", and this call is for "c2"`, append(setup, "-for", "c2")...)
	call(1, `wired for another one: for "c1", and this call is for ""`, setup...)
	call(0, "eth0", "list", "-for", "c1")
	call(0, `[]`, "list", "-for", "c2", "-json")
	call(0, "c1", append([]string{"status"}, nic...)...)
	call(1, "wired for another one", append([]string{"teardown", "-for", "c2"}, nic...)...)
	call(0, "-state "+n.State+" for c2: nothing is taken down", "teardown", "-for", "c2", "-nic", "eth0", "-state", n.State)
	call(1, "is not gone", "forget", "-for", "c1")
	for _, of := range [][]string{setup, append([]string{"teardown"}, nic...), {"forget"}, {"list"}} { // of an empty variable
		call(2, "-for is empty", append(of, "-for", "")...)
	}
	call(0, "nothing is left to forget", "forget", "-for", "c2")
	call(0, "", "teardown", "-for", "c1", "-nic", "eth0", "-state", n.State)
	config := filepath.Join(t.TempDir(), "config.json")
	for _, text := range []string{`{}`, `{"for": "c1"}`} { // the flag takes precedence
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		call(0, "", append(setup, "-config", config, "-for", "c3")...)
		call(0, "eth0", "list", "-for", "c3")
		call(0, "", append([]string{"teardown"}, nic...)...)
	}
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
	call(2, "run wires the NIC for itself", append([]string{"run", "-config", config, "-binding", "redirect", "-uid", "107"}, append(nic, "--", "true")...)...)
}
