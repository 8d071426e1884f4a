package phase1_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestForgetInOtherPIDNamespace: Forget sees no process of the node there, so it removes nothing, and Setup does not take
// another namespace's record.
func TestForgetInOtherPIDNamespace(t *testing.T) {
	nstest.NeedRoot(t, "the test makes a PID namespace")
	nstest.Need(t, "unshare")
	n, next := nstest.NewNetwork(t), nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/agent")
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	// Without its mount, the namespace is found by processes and open files alone.
	container := func(args ...string) (string, error) {
		line := append([]string{"--pid", "--fork", "--mount", "sh", "-c", `mount -t proc proc /proc; umount ` + n.Pod.Path() + `; exec "$@"`, "sh", agent}, args...)
		out, err := exec.Command("unshare", line...).CombinedOutput()
		return string(out), err
	}
	for _, selection := range [][]string{nil, {"-namespace", namespaceName(t, n)}, {"-state", n.State, "-nic", "eth0"}} {
		if out, err := container(append([]string{"forget"}, selection...)...); err == nil || !strings.Contains(out, "PID namespace") {
			t.Errorf("forget %v: %v, %s", selection, err, out)
		}
		untouched(t, c, path, text)
	}
	out, err := container("setup", "-netns", next.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", "107")
	if err == nil || !strings.Contains(out, "PID namespace") {
		t.Errorf("setup of another namespace with the same State: %v, %s", err, out)
	}
	untouched(t, c, path, text)
}
