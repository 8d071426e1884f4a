package examples_test

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/nstest"
	"github.com/guestwire/guestwire/internal/tap"
)

// TestTeardownInUse: agent teardown exits with 7 as long as a VMM has the guest's tap open; -cut-off deletes the tap.
func TestTeardownInUse(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	agent := nstest.Program(t, "examples/agent")
	named := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	nstest.Run(t, agent, append([]string{"setup", "-binding", "redirect", "-state", n.State}, named...)...)
	var vmm []*os.File
	err := netns.Do(n.Pod.File, func() (err error) {
		vmm, err = tap.OpenQueues("eth0-tap", 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer vmm[0].Close()
	for _, flags := range [][]string{nil, {"-force"}} {
		out, status := run(t, agent, append(append([]string{"teardown"}, named...), flags...)...)
		if status != 7 || !strings.Contains(out, "a process has tap eth0-tap open") || !strings.Contains(out, "-cut-off") {
			t.Errorf("teardown %v: status %d, %s; want 7 and the way out", flags, status, out)
		}
	}
	nstest.Run(t, agent, append([]string{"teardown", "-cut-off"}, named...)...)
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
}
