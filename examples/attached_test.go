package examples_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// TestAttached: list, status -all and the exporter report who serves the guests of the node, until the process is
// killed. The exit code of status -all is that of the first NIC that has another than 0.
func TestAttached(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t)
	nstest.NeedTaps(t)
	agent, exporter, dir := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter"), nstest.Dir(t)+"/journals"
	first, gone := nstest.NewNetwork(t), nstest.NewNetwork(t)
	for _, n := range []nstest.Network{first, gone} {
		nstest.Run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", strconv.Itoa(nstest.LauncherUID), "-binding", "redirect", "-state", n.State, "-dir", dir)
	}
	want := func(when string, code int, list, metric string, says ...string) {
		t.Helper()
		out, status := run(t, agent, "status", "-all", "-dir", dir)
		for _, text := range says {
			if !matches(text, out) {
				t.Errorf("%s: status -all lacks %q:\n%s", when, text, out)
			}
		}
		if status != code {
			t.Errorf("%s: status -all ends with %d, want %d:\n%s", when, status, code, out)
		}
		var reports []struct {
			NIC, Error string
			Attached   []struct{ Side, State string }
		}
		out, _ = stdout(t, agent, "status", "-all", "-json", "-dir", dir)
		decode(t, out, &reports)
		if len(reports) != 2 || reports[0].NIC != "eth0" {
			t.Errorf("%s: status -all -json: %s", when, out)
		}
		if out, _ := stdout(t, agent, "list", "-dir", dir); !matches(first.Pod.Path()+" redirect "+list+" "+strconv.Itoa(nstest.LauncherUID)+", any group", out) {
			t.Errorf("%s: list lacks %q:\n%s", when, list, out)
		}
		if out, _ := stdout(t, exporter, "-dir", dir); !strings.Contains(out, `side="responder",state="`+first.State+`"} `+metric) ||
			!strings.Contains(out, `side="vmm",state="`+first.State+`"} 0`) {
			t.Errorf("%s: the exporter lacks a responder that is %s:\n%s", when, metric, out)
		}
	}
	want("no process", 0, "none", "0", "VMM none, eth0-tap is not open: start the VM", "responder none, eth0-dhcp is not open")
	launcher := first.Serve(t, nstest.LauncherUID)
	want("a responder", 8, "responder", "1", "VMM none", "responder process ... (guestwire-launcher) has eth0-dhcp open, started 20")
	if !sandbox.OneUser() { // who may not mount another /proc
		out, status := run(t, "unshare", "--pid", "--fork", "--mount-proc", agent, "status", "-netns", first.Pod.Path(), "-nic", "eth0", "-dir", dir)
		if status != 8 || !matches("responder attached, eth0-dhcp is open in a process that is not visible here", out) {
			t.Errorf("in a PID namespace of its own, status ends with %d:\n%s", status, out)
		}
	}
	launcher.Kill(t)
	want("a responder that was killed", 0, "none", "0", "VMM none", "responder none")
	gone.Pod.End()
	want("a namespace that is gone", 1, "none", "0", "which is gone: file does not exist: guestwire-agent forget -namespace")
	nstest.Run(t, agent, "forget", "-dir", dir)
	for _, verb := range []string{"status", "repair"} {
		for _, flags := range []string{"-own", "-nic eth0", "-netns " + first.Pod.Path()} {
			if out, status := run(t, agent, append(strings.Fields(verb+" -all "+flags), "-dir", dir)...); status != 2 || !strings.Contains(out, "leave -netns, -own and -nic out") {
				t.Errorf("%s -all %s: %d, %s", verb, flags, status, out)
			}
		}
	}
	nstest.Run(t, agent, "teardown", "-netns", first.Pod.Path(), "-nic", "eth0", "-dir", dir)
}

// TestRepairAll: repair -all prints what it has repaired, and goes on after a NIC that it cannot repair.
func TestRepairAll(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t)
	nstest.NeedTaps(t)
	agent, dir := nstest.Program(t, "examples/guestwire-agent"), nstest.Dir(t)+"/journals"
	gone, damaged, whole := nstest.NewNetwork(t), nstest.NewNetwork(t), nstest.NewNetwork(t)
	for _, n := range []nstest.Network{gone, damaged, whole} {
		nstest.Run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", strconv.Itoa(nstest.LauncherUID), "-binding", "redirect", "-state", n.State, "-dir", dir)
	}
	gone.Pod.End()
	damaged.Pod.IP("link del eth0-tap")
	out, status := run(t, agent, "repair", "-all", "-dir", dir)
	if repaired := "eth0 of " + damaged.Pod.Path() + ": repaired: tap eth0-tap is gone"; status != 1 || !strings.Contains(out, repaired) ||
		!matches("eth0 of ... (gone): network namespace ..., which is gone: file does not exist: guestwire-agent forget -namespace ... -nic eth0 -dir ... removes what is left of it", out) || strings.Contains(out, whole.Pod.Path()) {
		t.Errorf("repair -all ends with %d:\n%s\nwant %s", status, out, repaired)
	}
	damaged.Pod.IP("link show eth0-tap")
	nstest.Run(t, agent, "forget", "-dir", dir)
	if out, status := run(t, agent, "repair", "-all", "-dir", dir); status != 0 || out != "" {
		t.Errorf("repair -all of what is whole ends with %d:\n%s", status, out)
	}
	if out, status := run(t, agent, "repair", "-netns", whole.Pod.Path(), "-nic", "eth0", "-dir", dir); status != 0 || out != "eth0: as recorded\n" {
		t.Errorf("repair of what is whole ends with %d:\n%s", status, out)
	}
	for _, n := range []nstest.Network{damaged, whole} {
		nstest.Run(t, agent, "teardown", "-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir)
	}
}

// TestDoctorChangesNothing: doctor leaves namespace, journals and links as they are, and prints JSON.
func TestDoctorChangesNothing(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t)
	nstest.NeedTaps(t)
	n, agent, dir := nstest.NewNetwork(t), nstest.Program(t, "examples/guestwire-agent"), nstest.Dir(t)
	before := n.Pod.Settled()
	out, status := stdout(t, agent, "doctor", "-uid", "0", "-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir+"/journals", "-json")
	var found []cache.Finding
	decode(t, out, &found)
	if status != 0 || !slices.ContainsFunc(found, func(f cache.Finding) bool {
		return f.Kind == "ok" && f.What == "bridge" && f.Why != ""
	}) {
		t.Errorf("status %d: %s", status, out)
	}
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("doctor leaves %v, %v", left, err)
	}
	if out, status := run(t, agent, "doctor", "-nic", "eth0"); status != 2 || !strings.Contains(out, "-netns is missing") {
		t.Errorf("doctor -nic alone: %d, %s", status, out)
	}
}

// TestOfferedNamespaces: the commands that the agent offers have a namespace's path as one word, whatever the path is.
func TestOfferedNamespaces(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t)
	nstest.NeedTaps(t)
	agent, dir := nstest.Program(t, "examples/guestwire-agent"), nstest.Dir(t)+"/journals"
	path := "/run/netns/" + nstest.Hostile
	nstest.Run(t, "ip", "netns", "add", nstest.Hostile)
	t.Cleanup(func() { nstest.Run(t, "ip", "netns", "del", nstest.Hostile) })
	for _, line := range []string{"link add eth1 type veth peer name peer1", "link set peer1 up", "link set eth1 up", "address add 10.0.0.2/24 dev eth1"} {
		nstest.Run(t, "ip", append([]string{"-n", nstest.Hostile}, strings.Fields(line)...)...)
	}
	nstest.Run(t, agent, "setup", "-netns", path, "-nic", "eth1", "-uid", "0", "-binding", "routed", "-dir", dir)
	nstest.Run(t, "ip", "-n", nstest.Hostile, "link", "set", "eth1-tap", "down")
	out, _ := run(t, agent, "doctor", "-uid", "0", "-binding", "macvtap", "-dir", dir)
	nstest.Offers(t, out, "guestwire-agent doctor -netns", path)
	out, _ = run(t, agent, "check", "-netns", nstest.Hostile, "-nic", "eth1", "-dir", dir)
	nstest.Offers(t, strings.Replace(out, "want the path", "guestwire-agent -netns", 1), "guestwire-agent -netns", path)
	nstest.Run(t, agent, "teardown", "-netns", path, "-nic", "eth1", "-dir", dir)
}

// TestColours: on a terminal doctor's and status' first words have colours, unless NO_COLOR is set.
func TestColours(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Need(t, "script")
	n, agent, dir := nstest.NewNetwork(t), nstest.Program(t, "examples/guestwire-agent"), nstest.Dir(t)+"/journals"
	nstest.Run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-uid", "0", "-dir", dir)
	defer nstest.Run(t, agent, "teardown", "-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir)
	n.Pod.IP("link set eth0-tap mtu 1400")
	for _, verb := range []struct{ line, word, colour string }{
		{"doctor -uid 0 -dir " + dir, "ok", "32"},
		{"status -netns " + n.Pod.Path() + " -nic eth0 -dir " + dir, "differs", "31"},
	} {
		for _, c := range []struct {
			env    string
			colour bool
		}{{"-u NO_COLOR TERM=xterm", true}, {"NO_COLOR=1 TERM=xterm", false}, {"-u NO_COLOR TERM=dumb", false}} {
			out, _ := run(t, "script", "--quiet", "--return", "--command", "env "+c.env+" "+agent+" "+verb.line, "/dev/null")
			painted := "\x1b[" + verb.colour + "m" + verb.word + "\x1b[0m  "
			if strings.Contains(out, painted) != c.colour || strings.Contains(out, "\x1b") != c.colour || !strings.Contains(out, verb.word) {
				t.Errorf("%s of %s: %q, want colours %t", c.env, verb.line, out, c.colour)
			}
		}
		if out, _ := run(t, agent, strings.Fields(verb.line)...); strings.Contains(out, "\x1b") || !strings.Contains(out, verb.word) {
			t.Errorf("%s without a terminal: %q", verb.line, out)
		}
	}
}
