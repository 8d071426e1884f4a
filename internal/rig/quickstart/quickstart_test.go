package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestQuickstart: the demonstration succeeds.
func TestQuickstart(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	out, err := exec.Command(nstest.Program(t, "internal/rig/quickstart")).CombinedOutput()
	if err != nil || strings.Count(string(out), "that is what it was before") != 3 || !strings.Contains(string(out), "Everything held") {
		t.Errorf("%v:\n%s", err, out)
	}
}
