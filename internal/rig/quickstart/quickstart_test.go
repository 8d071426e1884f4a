package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestQuickstart: the demonstration succeeds on a machine on which guestwire never ran, and the directory for locks
// that it leaves there is one that Setup takes.
func TestQuickstart(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	const fresh = `umount /etc/resolv.conf; mount -t tmpfs none /run && env -u GUESTWIRE_SANDBOX "$0" && stat -c 'lock: %a %U' /run/guestwire.lock`
	out, err := exec.Command("unshare", "-m", "sh", "-c", fresh, nstest.Program(t, "internal/rig/quickstart")).CombinedOutput()
	if err != nil || strings.Count(string(out), "that is what it was before") != 3 || !strings.Contains(string(out), "Everything held") {
		t.Errorf("%v:\n%s", err, out)
	}
	if !strings.HasSuffix(string(out), "lock: 700 root\n") {
		t.Errorf("the directory for locks: %s", out[max(0, len(out)-40):])
	}
}
