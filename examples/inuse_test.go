package examples_test

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestTeardownInUse: guestwire-agent teardown exits with 7 as long as a VMM has the guest's tap open; -cut-off deletes
// the tap.
func TestTeardownInUse(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	agent := nstest.Program(t, "examples/guestwire-agent")
	named := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	nstest.Run(t, agent, append([]string{"setup", "-uid", "0", "-binding", "redirect", "-state", n.State}, named...)...)
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
		if status != 7 || !strings.Contains(out, "(examples.test) has tap eth0-tap open") || !strings.Contains(out, "-cut-off") {
			t.Errorf("teardown %v: status %d, %s; want 7 and the way out", flags, status, out)
		}
	}
	if out, status := run(t, agent, append([]string{"teardown", "-discard", "-force"}, named...)...); status != 2 || !strings.Contains(out, "exclude each other") {
		t.Errorf("teardown -discard -force: status %d, %s; want 2", status, out)
	}
	if out, status := run(t, agent, append([]string{"teardown", "-discard"}, named...)...); status != 7 {
		t.Errorf("teardown -discard: status %d, %s; want 7", status, out)
	}
	nstest.Run(t, agent, append([]string{"teardown", "-discard", "-cut-off"}, named...)...)
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Errorf("teardown -discard -cut-off of a tap in use: %v", err)
	}
	nstest.Run(t, agent, append([]string{"setup", "-uid", "0", "-binding", "redirect", "-state", n.State}, named...)...)
	wired := n.Pod.Settled()
	nstest.Run(t, agent, append([]string{"teardown", "-discard", "-cut-off"}, named...)...)
	if err := nstest.Difference(wired, n.Pod.Settled()); err != nil {
		t.Errorf("teardown -discard has changed the namespace: %v", err)
	}
	if left, err := os.ReadDir(n.State); err != nil || len(left) > 0 {
		t.Errorf("the state directory has %v, %v; want nothing", left, err)
	}
	nstest.Run(t, agent, append([]string{"teardown", "-force"}, named...)...)
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
}
