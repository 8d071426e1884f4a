// Package examples_test runs the programs as their users do.
package examples_test

import (
	"bufio"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// run returns what a program printed, and its exit status.
func run(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestAgent goes through the verbs, with a configuration from a file over which flags win.
func TestAgent(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	file := filepath.Join(t.TempDir(), "vm1.json")
	config := `{"binding": {"masquerade": {"ipv4": "10.99.0.0/24"}}, "owner": {"uid": 64055}, "queues": 2,
		"options": {"hostname": "vm1"}, "device": {"bootOrder": 1}}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(verb string, more ...string) []string {
		args := []string{verb, "-netns", n.Pod.Path(), "-nic", "eth0"}
		if verb == "plan" || verb == "setup" || verb == "teardown" {
			args = append(args, "-state", n.State)
		}
		return append(args, more...)
	}

	for _, step := range []struct {
		args   []string
		status int
		text   string
	}{
		{with("check"), 3, "not wired"},
		{with("status"), 3, "not wired"},
		{with("plan", "-config", file), 0, "ip addr add 10.99.0.1/24 dev eth0-tap"},
		{with("plan", "-config", file), 0, "\nnft -f -    # table netdev guestwire-eth0, "},
		{with("plan", "-config", file), 0, "\n# guestwire-agent plan -full prints the rules\n"},
		{with("plan", "-config", file), 0, "\n# a shell in this namespace: nsenter --net=" + n.Pod.Path() + "\n"},
		{with("plan", "-config", file, "-full"), 0, "\nnft -f - <<'EOF'\ntable netdev guestwire-eth0 {"},
		{with("check"), 3, "not wired"},
		{with("setup", "-config", file), 0, ""},
		{with("setup", "-config", file), 0, ""},
		{with("plan", "-config", file), 0, ""},
		{with("check"), 0, ""},
		{with("check", "-nic", "eth1"), 3, "check eth1: not wired in this namespace (wired here: eth0)"},
		{with("teardown", "-nic", "eth1"), 0, "NIC eth1 is not wired in this namespace: nothing is taken down (wired here: eth0)"},
		{with("teardown"), 0, ""},
		{with("teardown"), 0, "nothing is taken down"},
		{with("teardown", "-force"), 3, "not wired"},
		{[]string{"setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-config", file}, 0, "guestwire-agent: no record is written, as there is no -state: "},
		{with("setup", "-config", file), 2, "call Teardown first"},
		{[]string{"teardown", "-netns", n.Pod.Path(), "-nic", "eth0"}, 0, ""},
		{with("plan", "-uid", "0", "-binding", "bridge", "-config", file), 0, "ip link set eth0 name eth0-nic"},
		{with("plan", "-uid", "0", "-binding", "router"), 2, `"router", want "bridge", "redirect", "masquerade", "routed", "macvtap", "sriov", "passt", "slirp" or "auto"`},
		{with("plan", "-uid", "0", "-binding", "slirp"), 0, `sysctl -w net/ipv4/ping_group_range="0 2147483647"`},
		{with("plan", "-uid", "0", "-binding", "passt"), 0, `sysctl -w net/ipv4/ping_group_range="0 2147483647"`},
		{with("plan", "-uid", "0", "-binding", "macvtap"), 5, "redirect would work"},
		{with("plan", "-uid", "0", "-binding", "sriov"), 5, "binding.sriov.pci can name one"},
		{with("plan"), 2, "binding: missing"},
		{with("plan", "-binding", "bridge"), 2, "owner: missing"},
		{with("start"), 2, "none of setup, plan, config, deactivate, activate, check, repair, status, doctor, list, drops, flows, pin, names, run, hook, exec, teardown, forget, completion, man, version, help"},
		{[]string{"setup"}, 2, "-netns is missing"},
		{[]string{"setup", "-colour"}, 2, "guestwire-agent help setup"},
		{[]string{"setup", "eth0"}, 2, "no flag"},
		{[]string{"setup", "-netns", n.Pod.Path(), "-nic", "-binding", "bridge"}, 2, "-nic: its value is missing before -binding"},
		{[]string{"exec", "-netns", "-uid", "107", "--", "true"}, 2, "-netns: its value is missing before -uid"},
		{[]string{"teardown", "-netns", n.Pod.Path() + "-typo", "-nic", "eth0"}, 2, "guestwire-agent forget"},
		{with("setup", "-uid", "0", "-binding", "bridge", "-dir", "journals"), 2, "dir: "},
		{[]string{"setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "bridge", "-state", "vm1"}, 2, "absolute path"},
		{[]string{"status", "-nic", "eth0"}, 2, "-netns is missing"},
		{[]string{"check", "-netns", n.Pod.Path()}, 2, "-nic is missing"},
		{[]string{"-nic", "eth0", "status"}, 2, "the verb comes first"},
		{[]string{"setup", "-netns", "/dev/null", "-nic", "eth0", "-uid", "0", "-binding", "bridge", "-state", n.State}, 2, "not a network namespace"},
		{nil, 2, "a verb is missing"},
		{[]string{"-help"}, 0, "guestwire-agent teardown"},
		{[]string{"--help"}, 0, "guestwire-agent teardown"},
		{[]string{"-h"}, 0, "guestwire-agent teardown"},
		{[]string{"help"}, 0, "The exit code is 0"},
		{[]string{"help", "teardown"}, 0, "-force"},
		{[]string{"teardown", "-h"}, 0, "-force"},
		{[]string{"exec", "-netns", n.Pod.Path(), "-uid", "107", "--", "sh", "-c", "ip -br link; id -u; exit 42"}, 42, "eth0@"},
		{[]string{"exec", "-netns", n.Pod.Path(), "-uid", "107", "sh", "-c", "id -u"}, 0, "107\n"},
		{[]string{"exec", "-uid", "root", "-groups", "daemon,107", "id", "-G"}, 0, "0 1 107\n"},
		{[]string{"exec", "-uid", "0", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"exec", "-uid", "0", "no-such"}, 1, "guestwire-agent: start no-such as user 0: "},
		{[]string{"exec", "-uid", "107"}, 2, "the command is missing"},
		{[]string{"exec", "true"}, 2, "owner: missing: name the command's user (Owner.UID, or Owner.Root; guestwire-agent -uid, where 0 is root)"},
		{[]string{"exec", "-uid", "0", "-gid", "root", "--", "true"}, 2, `"root" is the group 0, which cannot be named`},
		{[]string{"exec", "-uid", "", "--", "true"}, 2, `OWNER= in /etc/guestwire/NAME.env`},
		{[]string{"exec", "-uid", "no-one", "--", "true"}, 2, `"no-one" is no user of this machine: want a name, or a number less than 4294967295`},
		{[]string{"plan", "-netns", "/proc/self/ns/net", "-nic", "lo", "-inside", "-uid", "nobody"}, 2, `"nobody" is a name of this machine: want the number inside of the user namespace`},
		{[]string{"exec", "-groups", "5,no-group", "--", "id"}, 2, `"no-group" is no group of this machine`},
		{[]string{"exec", "-gid", "no-group", "--", "true"}, 2, `"no-group" is no group of this machine`},
		{[]string{"exec", "-netns", n.Pod.Path() + "-typo", "--", "true"}, 2, "no such file or directory (ip netns list shows"},
		{[]string{"help", "start"}, 2, "none of setup"},
	} {
		out, status := run(t, agent, step.args...)
		if status != step.status || !strings.Contains(out, step.text) {
			t.Errorf("agent %s: status %d, want %d and %q:\n%s", strings.Join(step.args, " "), status, step.status, step.text, out)
		}
		if len(step.args) > 0 && step.args[0] == "check" && status == 0 {
			out, status := run(t, launcher, "xml", "-state", n.State)
			var element struct {
				Target struct {
					Dev string `xml:"dev,attr"`
				} `xml:"target"`
				Driver struct {
					Queues int `xml:"queues,attr"`
				} `xml:"driver"`
			}
			if err := xml.Unmarshal([]byte(out), &element); err != nil || status != 0 || element.Target.Dev != "eth0-tap" || element.Driver.Queues != 2 {
				t.Errorf("guestwire-launcher xml: status %d, %v:\n%s", status, err, out)
			}
			// The directory of the first setup stays.
			if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-config", file); status != 0 || strings.Contains(out, "no record") {
				t.Errorf("setup again without -state: status %d:\n%s", status, out)
			}
		}
	}
	if out, status := run(t, launcher, "xml", "-state", n.State); status == 0 || !strings.Contains(out, "Setup") {
		t.Errorf("guestwire-launcher xml after teardown: status %d:\n%s", status, out)
	}
}

// TestExecSignals: the agent passes SIGTERM and SIGINT on, and the command that ends by itself then ends the agent.
func TestExecSignals(t *testing.T) {
	nstest.Need(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	for s, name := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT"} {
		cmd := exec.Command(agent, "exec", "-uid", "0", "--", "sh", "-c", "trap 'echo bye; exit 7' "+name+"; echo ready; while sleep 0.1; do :; done") // a signal just before read(2) would wait for input
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}                                                                                           // no terminal signals the command
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		ready, err := lines.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Error(err)
		}
		in.Close()
		if cmd.Wait(); ready != "ready\n" || string(rest) != "bye\n" || cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("%s: %q, %q, %v", name, ready, rest, cmd.ProcessState)
		}
	}
}

// TestExecFileLimit: the command gets no file that the caller left open, and Launch says which one it cannot close.
func TestExecFileLimit(t *testing.T) {
	nstest.Need(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for open, status := range map[int]int{150: 0, 999: 1} {
		cmd := exec.Command("prlimit", "--nofile=1000", nstest.Program(t, "examples/guestwire-agent"), "exec", "-uid", "0", "--", "sh", "-c", fmt.Sprintf("[ ! -e /proc/self/fd/%d ]", open))
		cmd.ExtraFiles = append(make([]*os.File, open-3), null)
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || status == 1 && !strings.Contains(string(out), "file 999 is open without close-on-exec, at the limit of open files") {
			t.Errorf("file %d: %v, want status %d:\n%s", open, err, status, out)
		}
	}
}

// TestExecTerminal: at a terminal, the agent passes on what the terminal sends to its processes, to all of the
// command's. Ctrl-Z does not stop the agent, so that the shell and the command do not read the terminal at the same
// time.
func TestExecTerminal(t *testing.T) {
	nstest.Need(t)
	const command = `trap 'echo first: INT' INT
sh -c 'trap "echo second: WINCH" WINCH; trap "echo second: INT; exit" INT; echo ready; while :; do sleep 0.05; done'
exit 7`
	master, terminal := nstest.Terminal(t)
	shell := exec.Command("sh", "-c", `set -m; "$@"; echo status $?`, "sh", nstest.Program(t, "examples/guestwire-agent"), "exec", "-uid", "0", "--", "sh", "-c", command)
	shell.Stdin, shell.Stdout, shell.Stderr = terminal, terminal, terminal
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	defer time.AfterFunc(3*time.Minute, func() { shell.Process.Kill() }).Stop() // then the terminal is at its end
	screen := bufio.NewReader(master)
	await := func(want string) {
		t.Helper()
		for {
			line, err := screen.ReadString('\n')
			if strings.HasSuffix(line, want+"\r\n") { // ^C is echoed before it
				return
			}
			if err != nil || strings.Contains(line, "status") {
				t.Fatalf("the terminal shows %q, %v; want %q", line, err, want)
			}
		}
	}
	await("ready")
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 100}); err != nil {
		t.Fatal(err)
	}
	await("second: WINCH")
	fmt.Fprint(master, "\x1a") // Ctrl-Z
	fmt.Fprint(master, "\x03") // Ctrl-C
	await("second: INT")
	await("first: INT")
	await("status 7")
	if err := shell.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLauncherUsage: a mistake in the command line ends the launcher with 2, another error with 1, and each is one
// line.
func TestLauncherUsage(t *testing.T) {
	launcher, dir := nstest.Program(t, "examples/guestwire-launcher"), t.TempDir()
	for _, step := range []struct {
		args   string
		status int
		text   string
	}{
		{"", 2, "a verb is missing"},
		{"server -state " + dir, 2, "none of xml, serve, qemu, names, config, completion, man, version, help"},
		{"-state " + dir + " xml", 2, "the verb comes first"},
		{"xml", 2, "-state is missing"},
		{"xml -stat " + dir, 2, "not defined"},
		{"xml eth0 -state " + dir, 2, "no flag"},
		{"xml -state " + dir, 1, "run Phase1's Setup"},
		{"serve -state " + dir + "/none", 1, "run Phase1's Setup"},
		{"config -format yaml -state " + dir, 2, "none of cloud-init, networkd, kernel"},
		{"config -state " + dir, 1, "run Phase1's Setup"},
	} {
		out, status := run(t, launcher, strings.Fields(step.args)...)
		if status != step.status || !strings.Contains(out, step.text) || strings.Count(out, "\n") != 1 {
			t.Errorf("launcher %s: status %d, want %d and %q in one line:\n%s", step.args, status, step.status, step.text, out)
		}
	}
	for _, help := range []string{"help", "-help", "-h", "serve -help"} {
		if out, status := stdout(t, launcher, strings.Fields(help)...); status != 0 || !strings.Contains(out, "guestwire-launcher serve") {
			t.Errorf("launcher %s: status %d:\n%s", help, status, out)
		}
	}
}

// TestLauncherInPod: in a Kubernetes pod, the launcher's errors say what the pod's author can do.
func TestLauncherInPod(t *testing.T) {
	nstest.Need(t)
	n, launcher, agent := nstest.NewNetwork(t), nstest.Program(t, "examples/guestwire-launcher"), nstest.Program(t, "examples/guestwire-agent")
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", "107"); status != 0 {
		t.Fatalf("setup: %s", out)
	}
	serve := func(uid, state string) string {
		t.Helper()
		out, status := run(t, agent, "exec", "-netns", n.Pod.Path(), "-uid", uid, "--", "timeout", "60", launcher, "serve", "-state", state)
		if status != 1 || strings.Count(out, "\n") != 1 {
			t.Errorf("user %s, %s: status %d:\n%s", uid, state, status, out)
		}
		return out
	}
	none := nstest.Dir(t)
	for _, service := range []string{"", "10.96.0.1"} {
		t.Setenv("KUBERNETES_SERVICE_HOST", service)
		for _, c := range []struct{ uid, state, says, hint string }{
			{"107", none, "run Phase1's Setup", "guestwire/container names this container"},
			{"107", none + "/vm1", "run Phase1's Setup", "-state is /run/guestwire"},
			{"1000", n.State, "user 1000 of group 1000 is not its owner, user 107: operation", "runAsUser and runAsGroup are the owner's"},
		} {
			out := serve(c.uid, c.state)
			if !strings.Contains(out, c.says) || strings.Contains(out, c.hint) != (service != "") {
				t.Errorf("KUBERNETES_SERVICE_HOST=%s: want %q, and in a pod %q:\n%s", service, c.says, c.hint, out)
			}
		}
	}
	first := exec.Command(agent, "exec", "-netns", n.Pod.Path(), "-uid", "107", "--", launcher, "serve", "-events", "-state", n.State)
	events, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		first.Process.Signal(os.Interrupt)
		first.Wait()
	})
	if _, err := bufio.NewReader(events).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if out := serve("107", n.State); !strings.Contains(out, "another process is attached") || !strings.Contains(out, "guestwire/container names the one") {
		t.Error(out)
	}
}

// TestConfig: the launcher prints what a guest without DHCP needs, or writes the files, and reports what is left out.
func TestConfig(t *testing.T) {
	nstest.Need(t)
	n, launcher := nstest.NewNetwork(t), nstest.Program(t, "examples/guestwire-launcher")
	n.Pod.IP("neigh add 10.244.1.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent")
	if out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State); status != 0 {
		t.Fatalf("setup: %s", out)
	}
	out := filepath.Join(t.TempDir(), "seed")
	for _, c := range []struct{ args, printed, reported string }{
		{"", "version: 2\nethernets:\n", "neighbour"},
		{"-format networkd", "[Neighbor]\nAddress=10.244.1.99\n", ""},
		{"-format kernel", "ip=10.244.1.7::10.244.1.1:255.255.255.0", "is left out"},
		{"-format kernel -device ens3", "ip=10.244.1.7::10.244.1.1:255.255.255.0::ens3:off", "is left out"},
		{"-out " + out, "", "neighbour"},
	} {
		cmd := exec.Command(launcher, append([]string{"config", "-state", "."}, strings.Fields(c.args)...)...)
		cmd.Dir = n.State
		var reported strings.Builder
		cmd.Stderr = &reported
		printed, err := cmd.Output()
		if err != nil || !strings.Contains(string(printed), c.printed) || c.printed == "" && len(printed) > 0 ||
			!strings.Contains(reported.String(), c.reported) || c.reported == "" && strings.Contains(reported.String(), "neighbour") {
			t.Errorf("config %s: %v, printed\n%s\nreported\n%s", c.args, err, printed, &reported)
		}
	}
	meta, err := os.ReadFile(filepath.Join(out, "meta-data"))
	if want := fmt.Sprintf("instance-id: %q\n", filepath.Base(n.State)); err != nil || string(meta) != want {
		t.Errorf("meta-data: %q, %v, want %q", meta, err, want)
	}
	for _, name := range []string{"user-data", "network-config"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 10.96.0.10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, status := run(t, launcher, "config", "-state", n.State, "-resolv-conf", resolv, "-format", "networkd"); status != 0 || !strings.Contains(out, "DNS=10.96.0.10\n") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if out, status := run(t, launcher, "config", "-state", n.State, "-device", "ens3"); status != 2 || !strings.Contains(out, "-format kernel alone") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if out, status := run(t, launcher, "config", "-state", n.State, "-resolv-conf", resolv+"-not"); status != 1 || !strings.Contains(out, "no such file") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// TestEvents reads what the launcher prints: an event a line, and at the end what it did.
func TestEvents(t *testing.T) {
	n := nstest.NewNetwork(t)
	setup := []string{"setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "bridge", "-state", n.State, "-uid", strconv.Itoa(nstest.LauncherUID)}
	if out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), setup...); status != 0 {
		t.Fatal(out)
	}
	// The log is left out, as the two cannot be distinguished in the output.
	command := fmt.Sprintf("exec %s serve -events -state %s 2>/dev/null", nstest.Program(t, "examples/guestwire-launcher"), n.State)
	events := filepath.Join(n.State, "events")
	if err := os.WriteFile(events, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(events, nstest.LauncherUID, 0); err != nil {
		t.Fatal(err)
	}
	launcher := n.Pod.Start(nstest.LauncherUID, "sh", "-c", command+" >"+events)
	read := func() (names []string) {
		text, err := os.ReadFile(events)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var e struct {
				Time  time.Time
				NIC   string
				Event string
				Text  string
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || (e.NIC == "eth0") == (e.Event == "ready") || e.Time.IsZero() || e.Text == "" {
				t.Fatalf("the line %q: %v", line, err)
			}
			names = append(names, e.Event)
		}
		return names
	}
	nstest.Eventually(t, func() error {
		if !slices.Contains(read(), "ready") {
			return errors.New("not ready")
		}
		return nil
	})
	launcher.Stop(t)
	if got := read(); got[0] != "attached" || !slices.Contains(got, "router-advertised") || got[len(got)-1] != "router-withdrawn" {
		t.Errorf("events %q", got)
	}
}
