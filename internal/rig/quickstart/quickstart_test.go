package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestQuickstart: the demonstration succeeds on a machine on which guestwire never ran, and after it the agent wires a
// NIC there and gives it back.
func TestQuickstart(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	const fresh = `set -e; umount /etc/resolv.conf; mount -t tmpfs none /run; env -u GUESTWIRE_SANDBOX "$0"
mkdir /run/guestwire; ip netns add pod; ip -n pod link add eth0 type veth peer name peer0; ip -n pod link set eth0 up
nic="-netns /run/netns/pod -nic eth0"
"$1" setup $nic -uid 0 -binding bridge -state /run/guestwire/vm1
"$1" check $nic
"$1" list
"$1" teardown $nic
"$1" list
ip netns del pod
stat -c 'lock: %a %U' /run/guestwire.lock`
	cmd := exec.Command("unshare", "-m", "sh", "-c", fresh, nstest.Program(t, "internal/rig/quickstart"), nstest.Program(t, "examples/agent"))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "that is what it was before") != 4 || !strings.Contains(string(out), "Everything held") {
		t.Errorf("%v:\n%s", err, out)
	}
	if !strings.HasSuffix(string(out), "lock: 700 root\n") || strings.Count(string(out), "/run/netns/pod  bridge") != 1 {
		t.Errorf("want one list with the NIC, and a directory that is root's:\n%s", out)
	}
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(readme), "\n    $ make demo\n")
	numbers := regexp.MustCompile(`[0-9]+`)
	rest := numbers.ReplaceAllString(string(out), "0")
	compared := 0
	for line := range strings.Lines(shown) {
		line, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		if !ok {
			break
		}
		if line == "..." {
			continue
		}
		compared++
		if _, rest, ok = strings.Cut(rest, "\n"+numbers.ReplaceAllString(line, "0")+"\n"); !ok {
			t.Errorf("the README shows what is not printed: %s", line)
		}
		rest = "\n" + rest
	}
	if compared < 10 {
		t.Errorf("the README shows %d lines", compared)
	}
}
