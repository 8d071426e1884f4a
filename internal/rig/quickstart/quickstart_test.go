package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// tapCommand is of each plan.
const tapCommand = "ip tuntap add eth0-tap"

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
	cmd := exec.Command("unshare", "-m", "sh", "-c", fresh, nstest.Program(t, "internal/rig/quickstart"), nstest.Program(t, "examples/guestwire-agent"))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "the pod is what it was before") != 4 || !strings.Contains(string(out), "Everything held") {
		t.Errorf("%v:\n%s", err, out)
	}
	demo, _, _ := strings.Cut(string(out), "Everything held")
	for line := range strings.Lines(demo) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 || strings.ContainsAny(line, "\t\x1b") {
			t.Errorf("%d columns, want at most 80, no tab and no colour:\n%q", n, line)
		}
	}
	if strings.Contains(demo, tapCommand) || strings.Count(demo, "\n") > 220 {
		t.Errorf("%d lines, want at most 220, and no plan:\n%s", strings.Count(demo, "\n"), demo)
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

// TestTerminal: a terminal gets colours, and who asks for them the plans.
func TestTerminal(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	cmd := exec.Command("script", "--quiet", "--return", "--command", "env -u GUESTWIRE_SANDBOX -u NO_COLOR TERM=xterm "+nstest.Program(t, "internal/rig/quickstart")+" -v", "/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), tapCommand) != 4 || strings.Count(string(out), "\x1b[32m✓\x1b[0m Setup") != 4 {
		t.Errorf("%v, want four plans, and a green tick before each Setup:\n%s", err, out)
	}
}

// TestColours: no colour for who wants none, and none in a file.
func TestColours(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		file          *os.File
		noColour, dev string
		want          bool
	}{
		{terminal, "", "xterm", true},
		{terminal, "1", "xterm", false},
		{terminal, "", "dumb", false},
		{file, "", "xterm", false},
	} {
		t.Setenv("NO_COLOR", c.noColour)
		t.Setenv("TERM", c.dev)
		if newStory(c.file, false).colour != c.want {
			t.Errorf("%s, NO_COLOR=%s TERM=%s: want %v", c.file.Name(), c.noColour, c.dev, c.want)
		}
	}
}

// TestFold: a line that goes on stands below its last column.
func TestFold(t *testing.T) {
	for line, want := range map[string]string{
		"eth0@if2  UP   10.244.1.7/24 fd00::7/64":   "eth0@if2  UP   10.244.1.7/24\n               fd00::7/64",
		"    default via fe80::1 dev eth0 metric 1": "    default via fe80::1 dev\n      eth0 metric 1",
		"a word-that-is-longer-than-the-others":     "a\n  word-that-is-longer-than-the-others",
		"short":                                     "short",
		"":                                          "",
	} {
		if got := strings.Join(fold(line, 30), "\n"); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", line, got, want)
		}
	}
}
