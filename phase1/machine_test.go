package phase1_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMachinesNamespace: a program in a PID namespace does not see the machine's process 1. It refuses the machine's
// namespace nevertheless, with Own as well: a container can have the network of the host.
func TestMachinesNamespace(t *testing.T) {
	nstest.KernelDecides(t, "the first namespace has no inode number of its own before Linux 6.18")
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
	plan := func(wrapper []string, namespace ...string) string {
		t.Helper()
		line := append(slices.Clone(wrapper), nstest.Program(t, "examples/guestwire-agent"), "plan", "-uid", "0", "-nic", "no-such-link", "-binding", "bridge", "-state", "/run/no-such")
		line = append(line, namespace...)
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		cmd.ExtraFiles = []*os.File{own}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("%v succeeds", line)
		}
		return string(out)
	}
	pids := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	masked := append(slices.Clone(pids), "sh", "-ec", maskedSysctls+`; exec "$@"`, "sh")
	for name, wrapper := range map[string][]string{
		"as it is":           nil,
		"PIDs of its own":    pids,
		"sysctls masked":     masked,
		"a network as well":  append(slices.Clone(pids), "--net"),
		"NET_ADMIN alone":    append(slices.Clone(pids), "setpriv", "--bounding-set", "-all,+net_admin"),
		"masked, and a user": append([]string{"unshare", "--user", "--map-root-user"}, masked[1:]...),
	} {
		if out := plan(wrapper, "-netns", "/proc/self/fd/3"); !strings.Contains(out, "the caller's own network namespace") || strings.Contains(out, "-own") {
			t.Errorf("%s: the agent says %q", name, out)
		}
		if slices.Contains(wrapper, "--net") {
			continue
		}
		if out := plan(wrapper, "-own"); !strings.Contains(out, "the caller's own network namespace (the machine's own)") {
			t.Errorf("%s, -own: the agent says %q", name, out)
		}
	}
	for _, binding := range []string{"passt", "slirp"} { // they would change two sysctls alone
		if out := plan(nil, "-own", "-binding", binding); !strings.Contains(out, "the caller's own network namespace (the machine's own)") {
			t.Errorf("%s: the agent says %q", binding, out)
		}
	}
}
