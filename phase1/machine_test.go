package phase1_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestMachinesNamespace: a program with PIDs and a network of its own, as in a container, does not see the machine's process 1,
// and refuses the machine's namespace.
func TestMachinesNamespace(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "unshare")
	if _, err := os.Stat("/proc/sys/net/core/dev_weight"); err != nil {
		nstest.LeaveOut(t, "the tests' own namespace is not the machine's")
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	plan := func(wrapper ...string) string {
		t.Helper()
		line := append(wrapper, nstest.Program(t, "examples/agent"), "plan", "-netns", "/proc/self/fd/3", "-nic", "no-such-link", "-binding", "bridge", "-state", "/run/no-such")
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		cmd.ExtraFiles = []*os.File{own}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("%v succeeds", line)
		}
		return string(out)
	}
	for name, wrapper := range map[string][]string{
		"as it is":          nil,
		"PIDs of its own":   {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"},
		"a network as well": {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--net"},
	} {
		if out := plan(wrapper...); !strings.Contains(out, "the caller's own network namespace") {
			t.Errorf("%s: the agent says %q", name, out)
		}
	}
}
