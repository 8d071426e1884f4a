package examples_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNames: plan and status print the names, run and names answer the guest as another user, and both end their
// proxies. Of calls that cannot work, each says what to do, and that works.
func TestNames(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "dig")
	nstest.NeedRoot(t, "the proxy is another user")
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	file := filepath.Join(t.TempDir(), "config.json")
	write := func(names ...string) {
		text, err := json.Marshal(map[string]any{"binding": map[string]any{"masquerade": map[string]any{}}, "owner": map[string]any{"uid": nstest.LauncherUID},
			"egress": []string{"refuse all"}, "names": names})
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// ask waits for an answer to the pod's own question, which comes from the gateway's address.
	ask := func(name, want string) {
		t.Helper()
		nstest.Eventually(t, func() error {
			text := p.n.Pod.Exec("sh", "-c", "dig +tries=1 +timeout=10 @10.0.2.1 -p 15353 "+name+" || true")
			if !strings.Contains(text, want) {
				return fmt.Errorf("%s: %s, want %s", name, text, want)
			}
			return nil
		})
	}
	processes := func() string { return strings.TrimSpace(nstest.Run(t, "ip", "netns", "pids", p.n.Pod.Name)) }

	write("host.internal = 192.0.2.1", "*.github.com 443")
	const listed = "the guest's questions to port 53 go to 10.0.2.1:15353 and [fd10:0:2::1]:15353"
	if out := p.agent(0, "plan", "-config", file); !strings.Contains(out, "# names: "+listed+"\n# names: host.internal = 192.0.2.1\n# names: *.github.com 443/tcp\n# egress: refuse all\n") {
		t.Errorf("plan says\n%s", out)
	}
	if out := p.agent(3, "names"); !strings.Contains(out, "not wired in this namespace: call guestwire-agent setup first, or guestwire-agent names -all") {
		t.Errorf("names of a NIC that is not wired: %s", out)
	}
	if out := p.command(2, agent, "run", "-netns", p.n.Pod.Path(), "-nic", "eth0", "-config", file, "--", "true"); !strings.Contains(out, "-state is missing: the DNS proxy of names reads the record there") {
		t.Errorf("run without -state: %s", out)
	}
	if out := p.agent(2, "names", "-launcher", p.n.State+"/none"); !strings.Contains(out, "guestwire-agent: -launcher: ") {
		t.Errorf("names with a launcher that is not there: %s", out)
	}
	if out := p.command(1, launcher, "names", "-state", p.n.State); !strings.Contains(out, "names is started by guestwire-agent names or guestwire-agent run") {
		t.Errorf("launcher names alone: %s", out)
	}

	// run has a proxy as long as the command lives.
	cmd := exec.Command(agent, p.withDefaults([]string{"run", "-config", file, "--", "sh", "-c", "read line"})...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out nstest.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ask("host.internal", "\t192.0.2.1\n")
	ask("other.example", "status: REFUSED")
	proxy := nstest.Run(t, "pgrep", "-f", "guestwire-launcher names -state "+p.n.State)
	pid, err := strconv.Atoi(strings.TrimSpace(proxy))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Uid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("the proxy's status lacks %q:\n%s", line, status)
		}
	}
	// One that is taken over gets nothing of root's, and nothing of the other guests' proxies, which have its user.
	process := fmt.Sprintf("/proc/%d/", pid)
	if !regexp.MustCompile(`(?m)^NSpid:\t\d+\t1$`).Match(status) {
		t.Errorf("the proxy has no PID namespace of its own:\n%s", status)
	}
	if text, err := os.ReadFile(process + "environ"); err != nil || len(text) > 0 {
		t.Errorf("the proxy's environment: %q, %v", text, err)
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", cmd.Process.Pid))
	if to, err2 := os.Readlink(process + "fd/2"); err != nil || err2 != nil || to == own {
		t.Errorf("the proxy's standard error is %s, and run's own %s: %v, %v", to, own, err2, err)
	}
	if out, err := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", process+"fd").CombinedOutput(); err == nil {
		t.Errorf("another process of the user can trace the proxy: %s", out)
	}
	// One that is killed is started again. A setup with another list beside run is followed.
	if err := exec.Command("kill", "-KILL", strconv.Itoa(pid)).Run(); err != nil {
		t.Error(err)
	}
	ask("host.internal", "\t192.0.2.1\n")
	write("host.internal = 192.0.2.2")
	const unanswered = "the guest's questions are refused until guestwire-agent names answers them"
	if out := p.agent(0, "setup", "-config", file); strings.Contains(out, unanswered) {
		t.Errorf("setup beside run says %s", out)
	}
	ask("host.internal", "\t192.0.2.2\n")
	if out := p.agent(0, "status"); !matches("names the guest's questions to port 53 go to 10.0.2.1:15353 and [fd10:0:2::1]:15353 names host.internal = 192.0.2.2 egress refuse all", out) {
		t.Errorf("status says\n%s", out)
	}
	io.WriteString(in, "\n")
	if err := cmd.Wait(); err != nil {
		t.Errorf("run: %v\n%s", err, out.String())
	}
	if left := processes(); left != "" {
		t.Errorf("processes after run: %s", left)
	}

	// names follows setup and teardown, for a NIC and for all. What run wires it leaves to run, which waits for nobody.
	dir := filepath.Join(nstest.Dir(t), "node")
	all := exec.Command(agent, "names", "-all", "-dir", dir)
	all.Stderr = &out
	if err := all.Start(); err != nil {
		t.Fatal(err)
	}
	beside := p.command(0, agent, p.withDefaults([]string{"run", "-config", file, "-dir", dir, "--", "sh", "-c", "sleep 3"})...)
	if strings.Contains(beside, "does not answer yet") {
		t.Errorf("run beside names -all: %s", beside)
	}
	p.agent(0, "setup", "-config", file, "-dir", dir)
	ask("host.internal", "\t192.0.2.2\n")
	p.agent(0, "teardown", "-dir", dir)
	all.Process.Signal(os.Interrupt)
	if err := all.Wait(); err != nil {
		t.Errorf("names -all: %v\n%s", err, out.String())
	}
	if out := p.agent(0, "setup", "-config", file); !strings.Contains(out, unanswered) {
		t.Errorf("setup alone says %s", out)
	}
	var refused nstest.Output
	users := exec.Command(agent, "names", "-state", p.n.State, "-names-uid", strconv.Itoa(nstest.LauncherUID))
	users.Stderr = &refused
	if err := users.Start(); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		if text := refused.String(); !strings.Contains(text, "cannot be the DNS proxy's, as it is root's or the launcher's") {
			return fmt.Errorf("the launcher's user as the proxy's: %s", text)
		}
		return nil
	})
	users.Process.Signal(os.Interrupt)
	if err := users.Wait(); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"names", "-netns", p.n.Pod.Path(), "-nic", "eth0"}, {"names", "-state", p.n.State}} {
		cmd := exec.Command(agent, args...)
		var out nstest.Output
		cmd.Stderr = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ask("host.internal", "\t192.0.2.2\n")
		nstest.Eventually(t, func() error {
			if !strings.Contains(out.String(), "the DNS proxy answers the guest") {
				return fmt.Errorf("%v says %s", args, out.String())
			}
			return nil
		})
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out.String())
		}
		if left := processes(); left != "" {
			t.Errorf("processes after %v: %s", args, left)
		}
	}
	p.agent(0, "teardown")
}
