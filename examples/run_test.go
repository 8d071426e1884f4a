package examples_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// container is a process 1 with the rights of a container's: NET_ADMIN and what engines give in addition, sysctls that
// are read-only, and journals of its own.
type container struct {
	nstest.Network
	dir string
}

// run is guestwire-agent run as process 1, of a shell script.
func (c container) run(t *testing.T, binding, script string, args ...string) *exec.Cmd {
	t.Helper()
	nstest.Need(t, "unshare", "setpriv", "nsenter")
	line := []string{
		"--net=" + c.Pod.Path(), "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec",
		`mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"`, "sh",
		"setpriv", "--bounding-set", "-all,+net_admin,+setuid,+setgid,+setpcap,+chown,+kill", "--inh-caps", "-all", "--",
		nstest.Program(t, "examples/guestwire-agent"), "run", "-own", "-nic", "eth0", "-binding", binding, "-state", c.State, "-dir", c.dir,
		"-uid", strconv.Itoa(nstest.LauncherUID), "--", "sh", "-c", script,
	}
	return exec.CommandContext(t.Context(), "nsenter", append(line, args...)...) // the end of the test ends unshare, and that ends its child
}

// process is a run that has not ended.
type process struct {
	*exec.Cmd
	lines *bufio.Reader
	in    io.WriteCloser
}

// start runs a script and waits for its first line.
func (c container) start(t *testing.T, binding, script, first string) process {
	t.Helper()
	p := process{Cmd: c.run(t, binding, script)}
	var errs nstest.Output
	p.Stderr = &errs
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewReader(out)
	if line, err := p.lines.ReadString('\n'); line != first+"\n" {
		p.Process.Kill()
		t.Fatalf("%q, %v, %s", line, err, errs.String())
	}
	return p
}

// one is the process of the machine that is the container's process 1.
func (p process) one(t *testing.T) int {
	t.Helper()
	pid := p.Process.Pid // nsenter became unshare, which has one child
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatalf("children of %d: %q", pid, children)
	}
	return child
}

func newContainer(t *testing.T) (container, string) {
	t.Helper()
	nstest.NeedRoot(t, "it has no capabilities to choose from")
	c := container{nstest.NewNetwork(t), filepath.Join(nstest.Dir(t), "journals")}
	return c, c.Pod.Settled()
}

func (c container) asFound(t *testing.T, before string) {
	t.Helper()
	nstest.Eventually(t, func() error { return nstest.Difference(before, c.Pod.Dump()) })
	for _, dir := range []string{c.State, c.dir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v; want nothing", dir, left, err)
		}
	}
}

// TestRun: the command has the wiring and no privileges, and its end ends the wiring and the agent.
func TestRun(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	out, err := c.run(t, "redirect", `ip -br link show eth0-tap; id -u; grep CapBnd /proc/self/status; exit 42`).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("%v, want the command's status 42", err)
	}
	for _, want := range []string{"eth0-tap", fmt.Sprintf("\n%d\n", nstest.LauncherUID), "CapBnd:\t0000000000000000"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the command says %q, want %q", out, want)
		}
	}
	c.asFound(t, before)

	out, err = c.run(t, "bridge", "exit 42").CombinedOutput() // /proc/sys is read-only
	if !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("a refusal: %v, %s", err, out)
	}
	c.asFound(t, before)
}

// TestRunWithoutNetAdmin: the one line that is printed names the flag that the container was started without.
func TestRunWithoutNetAdmin(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	cmd := c.run(t, "auto", "true")
	for i, arg := range cmd.Args {
		cmd.Args[i] = strings.Replace(arg, "-all,+net_admin,", "-all,", 1)
	}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--cap-add NET_ADMIN") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v, %q; want one line that names --cap-add NET_ADMIN", err, out)
	}
	if err := nstest.Difference(before, c.Pod.Settled()); err != nil {
		t.Error(err)
	}
}

// TestRunElsewhere: the node's agent runs a command in a pod's namespace.
func TestRunElsewhere(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), "run", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "bridge",
		"-state", n.State, "-uid", strconv.Itoa(nstest.LauncherUID), "--", "sh", "-c", "ip -br link show eth0-br; exit 7")
	if status != 7 || !strings.Contains(out, "eth0-br") {
		t.Errorf("%d, %s", status, out)
	}
	nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Dump()) })
}

// TestRunSignals: SIGTERM, SIGINT and SIGHUP reach the command, and the agent waits for its end.
func TestRunSignals(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := c.start(t, "redirect", `trap 'echo bye; exit 7' TERM INT HUP; echo ready; while sleep 0.1; do :; done`, "ready")
		if err := syscall.Kill(p.one(t), s); err != nil {
			t.Error(err)
		}
		rest, err := io.ReadAll(p.lines)
		p.in.Close()
		p.Wait()
		if string(rest) != "bye\n" || p.ProcessState.ExitCode() != 7 {
			t.Errorf("%v: %q, %v, %v", s, rest, err, p.ProcessState)
		}
		c.asFound(t, before)
	}
}

// TestRunOrphans: process 1 of a container waits for the processes that others leave.
func TestRunOrphans(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	// The orphan ends when the inner shell has ended, which has closed the pipe.
	p := c.start(t, "redirect", `(sh -c 'read line' <&3 &) 3<&0; echo ready; read line; exec 0<&-
for try in $(seq 500); do ps -e -o stat= -o comm= | grep -q '^Z' || break; sleep 0.02; done; ps -e -o stat= -o comm= | grep ^Z; echo end`, "ready")
	fmt.Fprint(p.in, "one\ntwo\n")
	rest, err := io.ReadAll(p.lines)
	p.in.Close()
	if wait := p.Wait(); wait != nil || string(rest) != "end\n" {
		t.Errorf("%v, %v, left are %q", wait, err, rest)
	}
	c.asFound(t, before)
}

// TestRunBesideSetup: run leaves a wiring alone that another call has made, and that a VM may be using, also where a
// run was killed before. A killed run's wiring is no setup's. That of a run that lives stays run's beside a setup.
func TestRunBesideSetup(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	setup := func() {
		t.Helper()
		nstest.Run(t, agent, "setup", "-netns", c.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", c.State, "-dir", c.dir,
			"-uid", strconv.Itoa(nstest.LauncherUID))
	}
	teardown := func() {
		t.Helper()
		nstest.Run(t, agent, "teardown", "-netns", c.Pod.Path(), "-nic", "eth0", "-dir", c.dir)
	}
	kill := func() {
		t.Helper()
		p := c.start(t, "redirect", "echo ready; read line", "ready")
		if err := syscall.Kill(p.one(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.Wait()
	}
	refused := func() {
		t.Helper()
		wired := c.Pod.Dump()
		for _, binding := range []string{"redirect", "masquerade"} {
			if out, err := c.run(t, binding, "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "wired for another one: for nobody, and this call is for \"guestwire-agent\"") {
				t.Errorf("%s: %v, %s; want a refusal", binding, err, out)
			}
		}
		if err := nstest.Difference(wired, c.Pod.Dump()); err != nil {
			t.Errorf("the wiring has changed: %v", err)
		}
	}
	setup()
	refused()
	teardown()
	kill()
	teardown()
	setup()
	refused() // the killed run's wiring was another one
	teardown()
	kill()
	killed := c.Pod.Dump()
	out, status := run(t, agent, "setup", "-netns", c.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", c.State, "-dir", c.dir,
		"-uid", strconv.Itoa(nstest.LauncherUID))
	if status != 1 || !strings.Contains(out, "wired for another one: for \"guestwire-agent\"") {
		t.Errorf("setup of what a killed run has left: status %d, %s; want a refusal", status, out)
	}
	if err := nstest.Difference(killed, c.Pod.Dump()); err != nil {
		t.Errorf("the wiring has changed: %v", err)
	}
	teardown()
	// Of a run that lives, teardown -cut-off takes the guest's network away. status and doctor say whose it was.
	cut := c.start(t, "redirect", "echo ready; read line", "ready")
	nic := []string{"-netns", c.Pod.Path(), "-nic", "eth0", "-dir", c.dir}
	if out, status := run(t, agent, append([]string{"teardown", "-cut-off"}, nic...)...); status != 0 {
		t.Errorf("teardown -cut-off: status %d, %s", status, out)
	}
	for verb, code := range map[string]int{"status": 3, "doctor": 1} {
		if out, status := run(t, agent, append([]string{verb}, nic...)...); status != code ||
			!matches("not wired in this namespace, and its guest has no network, since ... (guestwire-agent): end it first, and start it again", out) {
			t.Errorf("%s of a guest that was cut off: status %d, %s", verb, status, out)
		}
	}
	if err := syscall.Kill(cut.one(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cut.Wait()
	if out, err := c.run(t, "redirect", "true").CombinedOutput(); err != nil {
		t.Errorf("run again after a guest was cut off: %v, %s", err, out)
	}

	// Of a run that lives, setup repairs the wiring, and says whose it is.
	p := c.start(t, "redirect", "echo ready; read line", "ready")
	c.Pod.IP("link set eth0-tap down")
	out, status = run(t, agent, "setup", "-netns", c.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", c.State, "-dir", c.dir,
		"-uid", strconv.Itoa(nstest.LauncherUID))
	if status != 0 || !strings.Contains(out, "(guestwire-agent) holds it") {
		t.Errorf("beside a run that lives: status %d, %s", status, out)
	}
	if out, status := run(t, agent, "status", "-netns", c.Pod.Path(), "-nic", "eth0", "-dir", c.dir); status != 0 || !matches("for  guestwire-agent", out) {
		t.Errorf("after setup beside a run that lives: status %d\n%s", status, out)
	}
	if err := syscall.Kill(p.one(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	if out, err := c.run(t, "redirect", "true").CombinedOutput(); err != nil {
		t.Errorf("the run after: %v, %s; want it to use what the killed run had", err, out)
	}
	nstest.Run(t, agent, "forget", "-own", "-dir", c.dir) // the killed run's lock
	c.asFound(t, before)
}

// TestRunKilled: after a kill, the next run finds the wiring, also in another configuration, and ends it. Two runs of
// one NIC do not meet.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	kill := func(p process) {
		t.Helper()
		if err := syscall.Kill(p.one(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.Wait()
		if out := c.Pod.IP("-br link"); !strings.Contains(out, "eth0-tap") {
			t.Fatalf("the kill left %s", out)
		}
	}
	tap := func() string { return c.Pod.IP("-br link show eth0-tap") }
	p := c.start(t, "redirect", "echo ready; read line", "ready")
	first := tap()
	if out, err := c.run(t, "redirect", "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "another guestwire-agent run") {
		t.Errorf("beside another run: %v, %s", err, out)
	}
	kill(p)
	p = c.start(t, "redirect", "echo ready; read line", "ready")
	if second := tap(); strings.Fields(second)[2] != strings.Fields(first)[2] {
		t.Errorf("the tap is %s, it was %s", second, first)
	}
	kill(p)
	other := c
	other.State = nstest.Dir(t)
	p = other.start(t, "redirect", "echo ready; read line", "ready")
	if _, err := os.Stat(filepath.Join(c.State, "eth0.json")); err == nil {
		t.Error("the record is in both directories")
	}
	kill(p)
	c.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
	if out, err := c.run(t, "masquerade", "ip addr show eth0-tap").CombinedOutput(); err != nil || !strings.Contains(string(out), "taken down first") || !strings.Contains(string(out), "10.0.2.1/24") {
		t.Errorf("with another configuration: %v, %s", err, out)
	}
	c.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=0")
	c.asFound(t, before)
}

// TestRunSharedDirectories: a container that shares the directories of another one by mistake is refused, and leaves
// that one's wiring and journal alone.
func TestRunSharedDirectories(t *testing.T) {
	t.Parallel()
	c, before := newContainer(t)
	other, untouched := newContainer(t)
	other.State, other.dir = c.State, c.dir
	p := c.start(t, "redirect", "echo ready; read line", "ready")
	cmd := other.run(t, "redirect", "true")
	for i, arg := range cmd.Args { // one container does not see the other's namespace
		cmd.Args[i] = strings.Replace(arg, "mount --bind", "umount --lazy "+c.Pod.Path()+"; mount --bind", 1)
	}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "another guestwire-agent run") {
		t.Errorf("beside another container's run: %v, %s", err, out)
	}
	if err := nstest.Difference(untouched, other.Pod.Dump()); err != nil {
		t.Error(err)
	}
	fmt.Fprintln(p.in)
	if err := p.Wait(); err != nil {
		t.Errorf("the first run: %v", err)
	}
	c.asFound(t, before)
}

// TestRunNextContainer: what a killed container left in its directories, whose network is gone, does not keep the next
// one from them.
func TestRunNextContainer(t *testing.T) {
	t.Parallel()
	c, _ := newContainer(t)
	p := c.start(t, "redirect", "echo ready; read line", "ready")
	if err := syscall.Kill(p.one(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	c.Pod.End()
	next, before := newContainer(t)
	next.State, next.dir = c.State, c.dir
	if out, err := next.run(t, "redirect", "true").CombinedOutput(); err != nil {
		t.Errorf("%v, %s", err, out)
	}
	next.asFound(t, before)
}
