package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestHookNames: guestwire-agent names -all answers the names of a container that a hook wires, and poststop ends the
// proxy. While nobody answers, doctor says so, of the node's NICs and of the named one.
func TestHookNames(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "dig")
	c, before := newHooked(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	nstest.Program(t, "examples/guestwire-launcher") // which is beside it
	file := filepath.Join(t.TempDir(), "config.json")
	text := fmt.Sprintf(`{"binding": {"masquerade": {}}, "owner": {"uid": %d}, "egress": ["refuse all"], "names": ["host.internal = 192.0.2.1"]}`, nstest.LauncherUID)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	hooks := func(status string, pid int) {
		t.Helper()
		cmd := c.hook(t, "c1", status, pid)
		at := slices.Index(cmd.Args, "-binding")
		cmd.Args = slices.Replace(cmd.Args, at, at+4, "-config", file) // and -uid
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("hook, %s: %v, %s", status, err, out)
		}
	}
	doctor := func() string {
		out, _ := run(t, agent, "doctor", "-uid", strconv.Itoa(nstest.LauncherUID), "-netns", c.Pod.Path(), "-nic", "eth0", "-dir", c.dir)
		return strings.Join(strings.Fields(out), " ")
	}
	unanswered := func(out, subject string) bool {
		return strings.Contains(out, "warning "+subject+" nobody listens at 10.0.2.1:15353/udp, where the DNS proxy of names does: what the guest asks is refused until it has started")
	}
	pid, end := c.process(t)
	hooks("created", pid)
	if out := doctor(); !unanswered(out, "eth0") {
		t.Errorf("without a proxy, doctor says\n%s", out)
	}
	if out, _ := run(t, agent, "doctor", "-uid", "0", "-dir", c.dir); !unanswered(strings.Join(strings.Fields(out), " "), "eth0 in "+c.Pod.Path()) {
		t.Errorf("without a proxy, doctor says of the node\n%s", out)
	}
	names := c.Pod.StartCommand(exec.Command(agent, "names", "-all", "-dir", c.dir))
	nstest.Eventually(t, func() error {
		if text := c.Pod.Exec("sh", "-c", "dig +short +tries=1 +timeout=10 @10.0.2.1 -p 15353 host.internal || true"); text != "192.0.2.1\n" {
			return fmt.Errorf("the answer is %q\n%s", text, names.Output.String())
		}
		return nil
	})
	if out := doctor(); strings.Contains(out, "nobody listens") {
		t.Errorf("with a proxy, doctor says\n%s", out)
	}
	end()
	hooks("stopped", 0)
	nstest.Eventually(t, func() error {
		if left := nstest.Run(t, "ip", "netns", "pids", c.Pod.Name); left != "" {
			return fmt.Errorf("processes after poststop: %s", left)
		}
		return nil
	})
	names.Stop(t) // which holds a lock until it has ended its part
	c.asFound(t, before)
}
