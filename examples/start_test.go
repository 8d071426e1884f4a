package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestStartAsUser: a program that cannot be started as another user is reported with the cause, and with the command
// that helps, which is typed.
func TestStartAsUser(t *testing.T) {
	nstest.NeedRoot(t, "the test gives files capabilities, and mounts")
	nstest.Need(t, "setcap")
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Bridge{}, nil)
	agent := fmt.Sprintf("%s exec -netns %s -uid %d -gid %[3]d -- ", nstest.Program(t, "examples/guestwire-agent"), n.Pod.Path(), nstest.LauncherUID)
	qemu := agent + nstest.Program(t, "examples/guestwire-launcher") + " qemu -state " + n.State + " -- "
	for name, command := range map[string]string{"of the agent": agent, "of the launcher": qemu} {
		for cause, test := range map[string]struct{ make, way string }{
			"capabilities": {"setcap cap_net_admin+ep %s/true", `setcap -r .*/true"`},
			"noexec":       {"mount -o remount,noexec %s", `mount -o remount,exec .*/true"\)`},
		} {
			t.Run(cause+", "+name, func(t *testing.T) {
				dir := nstest.Dir(t)
				sh := func(command string) (string, error) {
					out, err := exec.Command("sh", "-c", command).CombinedOutput()
					return string(out), err
				}
				if out, err := sh("mount -t tmpfs -o mode=755 test " + dir + " && cp /bin/true " + dir + " && " + fmt.Sprintf(test.make, dir)); err != nil {
					t.Fatal(out, err)
				}
				t.Cleanup(func() {
					if out, err := sh("umount " + dir); err != nil {
						t.Error(out, err)
					}
				})
				var exit *exec.ExitError
				out, err := sh(command + dir + "/true")
				way := regexp.MustCompile("(?m)" + test.way).FindString(out)
				if !errors.As(err, &exit) || exit.ExitCode() != 1 || way == "" {
					t.Fatalf("%v, %s; want 1 and %q", err, out, test.way)
				}
				if out, err := sh(way + " && " + command + dir + "/true"); err != nil {
					t.Errorf("%s: %v, %s", way, err, out)
				}
			})
		}
	}
}

// TestStartEnvironment: guestwire-agent exec leaves out directories of root's to which the user cannot write. A
// launcher that has such a TMPDIR names it.
func TestStartEnvironment(t *testing.T) {
	nstest.NeedRoot(t, "the test needs two users")
	nstest.Need(t, "passt", "setpriv")
	closed, readable, open := nstest.Dir(t), nstest.Dir(t), nstest.Dir(t)
	for dir, mode := range map[string]os.FileMode{closed: 0o700, readable: 0o755, open: 0o777 | os.ModeSticky} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	uid := strconv.Itoa(nstest.LauncherUID)
	for value, kept := range map[string]bool{closed: false, readable: false, open: true, filepath.Join(open, "gone"): false} {
		cmd := exec.Command(nstest.Program(t, "examples/guestwire-agent"), "exec", "-uid", uid, "--", "env")
		cmd.Env = append(os.Environ(), "TMPDIR="+value, "HOME="+value, "XDG_RUNTIME_DIR="+value, "OTHER="+value)
		out, err := cmd.CombinedOutput()
		for _, name := range []string{"TMPDIR", "HOME", "XDG_RUNTIME_DIR"} {
			if err != nil || strings.Contains(string(out), name+"="+value+"\n") != kept || !strings.Contains(string(out), "OTHER="+value) {
				t.Errorf("%s=%s: %v, want kept %t:\n%s", name, value, err, kept, out)
			}
		}
	}
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Passt{}, func(s *infra.Spec) { s.DNS = nil })
	launcher := func(temp string) (string, error) {
		cmd := exec.Command("nsenter", "--net="+n.Pod.Path(), "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "env", "TMPDIR="+temp,
			nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", n.State, "--", "true")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := launcher(closed); err == nil || !strings.Contains(out, "name one to which user "+uid+" can write by TMPDIR") {
		t.Errorf("%v, %s; want TMPDIR", err, out)
	}
	if out, err := launcher(open); err != nil {
		t.Error(out, err)
	}
}

// TestProcSubset: without /proc/sys, as under systemd's ProcSubset=pid, each verb that needs a namespace ends with 1,
// and says what helps.
func TestProcSubset(t *testing.T) {
	nstest.NeedRoot(t, "the test mounts another /proc")
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Bridge{}, nil)
	agent, at := nstest.Program(t, "examples/guestwire-agent"), " -netns "+n.Pod.Path()+" "
	for _, verb := range []string{
		"setup" + at + "-nic eth0 -binding bridge -uid 107 -state " + n.State, "plan" + at + "-nic eth0 -binding bridge -uid 107", "check" + at + "-nic eth0",
		"status" + at + "-nic eth0", "status -state " + n.State, "status -all", "list", "doctor", "teardown" + at + "-nic eth0", "teardown -state " + n.State + " -nic eth0", "exec" + at + "-uid 107 -- true", "forget",
	} {
		cmd := exec.Command("unshare", "--mount", "sh", "-c", "mount -t proc -o subset=pid proc /proc && exec "+agent+" "+verb)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "ProcSubset=all") || strings.Contains(string(out), "ip netns list") {
			t.Errorf("%s: %v, want 1 and ProcSubset=all:\n%s", verb, err, out)
		}
	}
	if out, status := run(t, agent, "check", "-netns", n.Pod.Path(), "-nic", "eth0"); status != 0 {
		t.Error(out)
	}
}

// TestFirewallGone: each verb says what to do if the programs of iptables with which a NIC was wired are gone.
func TestFirewallGone(t *testing.T) {
	for _, firewall := range []string{"iptables-legacy", "iptables-nft"} {
		t.Run(firewall, func(t *testing.T) {
			t.Parallel()
			nstest.Need(t, firewall, "ip6"+strings.TrimPrefix(firewall, "ip"))
			n := nstest.NewNetwork(t)
			agent, at := nstest.Program(t, "examples/guestwire-agent"), []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
			config := filepath.Join(nstest.Dir(t), "config")
			text := fmt.Sprintf(`{"binding": {"masquerade": {"firewall": %q}}, "owner": {"uid": %d}, "state": %q}`, firewall, nstest.LauncherUID, n.State)
			if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			setup := append([]string{"setup", "-config", config}, at...)
			if out, status := run(t, agent, setup...); status != 0 {
				t.Fatal(out)
			}
			empty := nstest.Dir(t)
			for _, verb := range [][]string{append([]string{"check"}, at...), append([]string{"status"}, at...), setup, append([]string{"teardown"}, at...), append([]string{"teardown", "-force"}, at...), append([]string{"doctor"}, at...)} {
				cmd := exec.Command(agent, verb...)
				cmd.Env = []string{"PATH=" + empty}
				if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "install it again: the NIC was wired with it") {
					t.Errorf("%s: %v, %s", verb[0], err, out)
				}
			}
			for _, verb := range []string{"check", "teardown"} {
				if out, status := run(t, agent, append([]string{verb}, at...)...); status != 0 {
					t.Errorf("%s with the programs: %s", verb, out)
				}
			}
		})
	}
}
