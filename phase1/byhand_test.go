package phase1_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestByHand runs the commands of docs/how-to/rescue-by-hand.md that take a NIC down without guestwire.
func TestByHand(t *testing.T) {
	nstest.KernelDecides(t, "the commands of docs/how-to/rescue-by-hand.md have to fit a dummy")
	t.Parallel()
	text := readFile(t, "../docs/how-to/rescue-by-hand.md")
	var blocks []string
	inBlock := false
	for line := range strings.Lines(string(text)) {
		command, is := strings.CutPrefix(line, "    ")
		if is && !inBlock {
			blocks = append(blocks, "set -eu\n")
		}
		if inBlock = is; is {
			blocks[len(blocks)-1] += command
		}
	}
	if len(blocks) != len(bindings) {
		t.Fatalf("the page has %d blocks of commands, want %d", len(blocks), len(bindings))
	}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		setup(t, config(n, b))
		journal(t, n)
		block := blocks[0]
		blocks = blocks[1:]
		script := strings.NewReplacer("-n pod ", "-n "+n.Pod.Name+" ", "exec pod ", "exec "+n.Pod.Name+" ", "/run/netns/pod", n.Pod.Path(), "/run/guestwire/vm1", n.State).Replace(block)
		if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, script)
		}
		asFound(t, n, before)
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		for _, left := range ofNode(t, n) {
			if strings.HasSuffix(left, ".journal") {
				t.Errorf("%s is left", left)
			}
		}
		setup(t, config(n, b))
		teardown(t, n, config(n, b), before)
	})
}
