package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMove moves a guest from one pod to another by the agent's verbs, with the record in a file and by a pipe.
func TestMove(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	source, target := nstest.NewNetwork(t), nstest.NewNetwork(t)
	call := func(n nstest.Network, want int, text string, args ...string) string {
		t.Helper()
		line := append([]string{args[0], "-netns", n.Pod.Path(), "-nic", "eth0"}, args[1:]...)
		out, status := run(t, agent, line...)
		if status != want || !strings.Contains(out, text) {
			t.Errorf("agent %s: status %d, want %d and %q:\n%s", strings.Join(line, " "), status, want, text, out)
		}
		return out
	}
	const guest = `{"binding": {"masquerade": {"mac": "02:00:00:00:00:07"}}}`
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("config.json", guest)
	active := write("active.json", call(source, 0, `"mac": "02:00:00:00:00:07"`, "setup", "-uid", "0", "-config", config, "-state", source.State, "-json"))
	call(target, 0, "# standby: ", "plan", "-uid", "0", "-config", config, "-state", target.State, "-standby")
	call(target, 0, `"role": "standby"`, "setup", "-uid", "0", "-config", config, "-state", target.State, "-standby", "-json")
	call(target, 0, "standby", "status")
	if out, status := run(t, agent, "list"); status != 0 || !strings.Contains(out, "masquerade (standby)") {
		t.Errorf("guestwire-agent list: status %d, want masquerade (standby):\n%s", status, out)
	}

	call(target, 2, "other: missing", "activate")
	call(target, 2, "name one of them", "activate", "-gone", "-inactive", active)
	call(target, 2, "no-such", "activate", "-inactive", filepath.Join(dir, "no-such"))
	call(target, 2, "not a whole JSON object", "activate", "-inactive", write("empty.json", ""))
	report := write("report.json", call(source, 0, "", "status", "-json"))
	call(target, 2, "want a record, as setup,", "activate", "-inactive", report)
	call(target, 2, "want a record, as setup,", "setup", "-uid", "0", "-from", report, "-state", target.State)
	call(target, 6, "call Deactivate there", "activate", "-inactive", active)
	inactive := write("inactive.json", call(source, 0, `"turn": 1`, "deactivate", "-json"))
	call(target, 0, "", "activate", "-inactive", inactive)
	call(target, 0, "as recorded", "status")
	call(source, 6, "active", "activate", "-inactive", filepath.Join(target.State, "eth0.json"))

	out, status := run(t, "sh", "-ec", `"$1" deactivate -netns "$2" -nic eth0 -json | "$1" activate -netns "$3" -nic eth0 -inactive -`,
		"sh", agent, target.Pod.Path(), source.Pod.Path())
	if status != 0 {
		t.Errorf("deactivate | activate: status %d:\n%s", status, out)
	}
	call(source, 0, "as recorded", "status")
	call(target, 0, "until guestwire-agent activate", "status")
	call(target, 0, `"turn": 2`, "activate", "-gone", "-json")
	call(target, 0, "", "teardown")

	// The target is made of the source's record alone.
	on := filepath.Join(source.State, "eth0.json")
	call(target, 6, "(guestwire-agent setup -standby)", "setup", "-uid", "0", "-from", on, "-state", target.State)
	call(target, 2, "-from", "setup", "-uid", "0", "-from", filepath.Join(dir, "no-such"), "-state", target.State)
	call(target, 0, "# standby: ", "plan", "-uid", "0", "-from", on, "-standby", "-state", target.State)
	call(target, 0, `"mac": "02:00:00:00:00:07"`, "setup", "-uid", "0", "-from", on, "-standby", "-state", target.State, "-json")
	call(target, 0, "", "setup", "-uid", "0", "-from", on, "-standby", "-state", target.State)
	call(target, 0, "", "teardown")
	call(source, 0, "", "teardown")
}
