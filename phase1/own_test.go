package phase1_test

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

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// container is what an engine gives a process in the pod's namespace: PIDs and mounts of its own, root with NET_ADMIN
// and what engines give in addition, and no CAP_SYS_ADMIN.
type container struct {
	nstest.Network
	sysctls string // how /proc/sys is mounted; empty: as on the machine
}

const (
	readOnlySysctls = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
	maskedSysctls   = "mount -t tmpfs -o ro none /proc/sys/net"
)

// command runs a program in the container.
func (c container) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	nstest.Need(t, "unshare", "setpriv", "nsenter")
	mounts := c.sysctls
	if mounts == "" {
		mounts = ":"
	}
	const caps = "-all,+net_admin,+setuid,+setgid,+setpcap,+chown,+kill"
	line := []string{
		"--net=" + c.Pod.Path(), "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", mounts + `; exec "$@"`, "sh",
		"setpriv", "--bounding-set", caps, "--inh-caps", "-all", "--",
	}
	return exec.CommandContext(t.Context(), "nsenter", append(line, args...)...)
}

// agent runs the agent with the flags that name NIC, owner and state directory.
func (c container) agent(t *testing.T, verb string, flags ...string) (string, error) {
	t.Helper()
	args := []string{nstest.Program(t, "examples/guestwire-agent"), verb, "-nic", "eth0"}
	switch verb {
	case "setup", "plan":
		args = append(args, "-state", c.State, "-uid", strconv.Itoa(nstest.LauncherUID))
	}
	out, err := c.command(t, append(args, flags...)...).CombinedOutput()
	return string(out), err
}

func (c container) mustAgent(t *testing.T, verb string, flags ...string) string {
	t.Helper()
	out, err := c.agent(t, verb, flags...)
	if err != nil {
		t.Fatalf("agent %s %v: %v\n%s", verb, flags, err, out)
	}
	return out
}

// TestOwnWithoutNetAdmin: the error names the capability, as the engine's command line does, and nothing is changed.
func TestOwnWithoutNetAdmin(t *testing.T) {
	t.Parallel()
	c := container{Network: nstest.NewNetwork(t)}
	before := c.Pod.Settled()
	for verb, flags := range map[string][]string{
		"setup": {"-uid", strconv.Itoa(nstest.LauncherUID), "-state", c.State, "-binding", "redirect"}, "status": nil, "check": nil, "teardown": nil,
	} {
		line := append([]string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-all", "--",
			nstest.Program(t, "examples/guestwire-agent"), verb, "-own", "-nic", "eth0"}, flags...)
		out, err := c.command(t, line...).CombinedOutput()
		want := "guestwire-agent: " + verb + " eth0: CAP_NET_ADMIN is missing, which reads and changes the namespace (in a container, --cap-add NET_ADMIN): permission denied\n"
		if err == nil || string(out) != want {
			t.Errorf("%s: %v, %q; want %q", verb, err, out, want)
		}
	}
	asFound(t, c.Network, before)
}

// TestOwnNamespace: every call works in the namespace of the calling process, with CAP_NET_ADMIN and no CAP_SYS_ADMIN.
func TestOwnNamespace(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		nstest.NeedRoot(t, "it has no capabilities to choose from")
		c := container{Network: n}
		before := settled(t, n)
		if out := c.mustAgent(t, "plan", "-own", "-binding", string(b.Kind())); !strings.Contains(out, "eth0-tap") {
			t.Errorf("the plan says %s", out)
		}
		if out, err := c.agent(t, "setup", "-netns", n.Pod.Path(), "-binding", string(b.Kind())); err == nil || !strings.Contains(out, "-own") {
			t.Errorf("without -own: %v, %s; want an error that names it", err, out)
		}
		if again := n.Pod.Dump(); again != before {
			t.Fatalf("a plan and a refusal changed the namespace: %v", difference(before, again))
		}
		c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind()))
		c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind()))
		c.mustAgent(t, "check", "-own")
		if out := c.mustAgent(t, "status", "-own"); !strings.Contains(out, "as recorded") {
			t.Errorf("the status says %s", out)
		}
		// The directory is shared with the containers of other tests.
		metrics, err := c.command(t, nstest.Program(t, "examples/guestwire-exporter"), "-own").Output()
		if err != nil || strings.Count(string(metrics), "\nguestwire_differences{") != 1 {
			t.Errorf("%v, the metrics are %s", err, metrics)
		}
		online(t, n, nstest.Gateway4, nstest.Gateway6)
		n.Pod.IP("link del eth0-tap")
		if out, err := c.agent(t, "check", "-own"); err == nil || !strings.Contains(out, "eth0-tap") {
			t.Errorf("without its tap: %v, %s", err, out)
		}
		c.mustAgent(t, "teardown", "-own")
		if out := c.mustAgent(t, "teardown", "-own"); !strings.Contains(out, "not wired") {
			t.Errorf("a second teardown says %s", out)
		}
		asFound(t, n, before)
		c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind()))
		if err := os.RemoveAll(filepath.Join(phase1.DefaultDir, namespaceName(t, n))); err != nil {
			t.Fatal(err)
		}
		c.mustAgent(t, "teardown", "-own", "-force", "-state", n.State)
	})
}

// TestOwnThread: a program that has moved one of its threads wires the namespace of that thread, and the thread stays
// there.
func TestOwnThread(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	c.NetNS, c.Own = nil, true
	err := netns.Do(n.Pod.File, func() error {
		here, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		if _, err := c.Setup(t.Context()); err != nil {
			return err
		}
		if _, err := c.Counters(t.Context()); err != nil {
			return err
		}
		if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != here {
			return fmt.Errorf("the thread is in %s, %v; want %s", now, err, here)
		}
		return c.Check(t.Context())
	})
	if err != nil {
		t.Error(err)
	}
	teardown(t, n, config(n, infra.Redirect{}), before)

	var field *cache.FieldError
	c.NetNS = n.Pod.File
	if _, err := c.Setup(t.Context()); !errors.As(err, &field) || field.Field != "netns" {
		t.Errorf("Own and NetNS: %v, want a FieldError of netns", err)
	}
}

// TestOwnAgain: the wiring of a container that is gone does not keep the next one from its state directory.
func TestOwnAgain(t *testing.T) {
	t.Parallel()
	nstest.NeedRoot(t, "it has no capabilities to choose from")
	first, second := nstest.NewNetwork(t), nstest.NewNetwork(t)
	second.State = first.State
	dir := filepath.Join(nstest.Dir(t), "journals") // of the container alone
	a, b := container{Network: first}, container{Network: second}
	a.mustAgent(t, "setup", "-own", "-binding", "redirect", "-dir", dir)
	first.Pod.Gone()
	if out, err := b.agent(t, "setup", "-own", "-binding", "redirect", "-dir", dir); err == nil || !strings.Contains(out, "guestwire-agent forget -own") {
		t.Errorf("with the record of another namespace: %v, %s", err, out)
	}
	if out, err := b.agent(t, "forget", "-dir", dir, "-state", first.State); err == nil || !strings.Contains(out, "-own") {
		t.Errorf("forget without -own: %v, %s", err, out)
	}
	b.mustAgent(t, "forget", "-own", "-dir", dir, "-state", first.State)
	b.mustAgent(t, "setup", "-own", "-binding", "redirect", "-dir", dir)
	if out, err := b.agent(t, "forget", "-own", "-dir", dir, "-state", first.State); err == nil || !strings.Contains(out, second.Pod.Path()) {
		t.Errorf("forget of the own namespace: %v, %s; want where it is found", err, out)
	}
	b.mustAgent(t, "teardown", "-own", "-dir", dir)
}

// TestReadOnlySysctls: in a container, whose sysctls are read-only, auto becomes redirect, and a binding that needs a
// sysctl is refused before the first change, with the flags of the engine's command line. With these flags it works.
func TestReadOnlySysctls(t *testing.T) {
	nstest.KernelDecides(t, "IPv6 forwarding is one switch before Linux 6.17, and br_netfilter is a module")
	nstest.NeedRoot(t, "it has no capabilities to choose from")
	// Without br_netfilter, which is a module of some kernels, a bridge needs no sysctl. No other test runs before
	// Parallel: a namespace that was wired without the module would differ from its plan.
	if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
		nstest.Run(t, "modprobe", "br_netfilter")
	}
	t.Parallel()
	serve := func(t *testing.T, n nstest.Network) {
		t.Helper()
		g, launcher := online(t, n, nstest.Beyond4, nstest.Beyond6)
		launcher.Stop(t)
		end(t, g)
	}
	t.Run("auto", func(t *testing.T) {
		n := nstest.NewNetwork(t)
		c := container{Network: n, sysctls: readOnlySysctls}
		before := settled(t, n)
		if out := c.mustAgent(t, "setup", "-own", "-binding", "auto"); !strings.Contains(out, "binding: redirect") {
			t.Errorf("the agent says %s", out)
		}
		serve(t, n)
		c.mustAgent(t, "teardown", "-own")
		asFound(t, n, before)
	})
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			c := container{Network: n, sysctls: readOnlySysctls}
			before := settled(t, n)
			out, err := c.agent(t, "setup", "-own", "-binding", string(b.Kind()))
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 5 || !strings.Contains(out, "redirect would work") {
				t.Fatalf("%v, %s; want a refusal", err, out)
			}
			if err := difference(before, n.Pod.Dump()); err != nil {
				t.Fatalf("the refusal changed the namespace: %v", err)
			}
			flags := regexp.MustCompile(`--sysctl (\S+=[^ ;]+)`).FindAllStringSubmatch(out, -1)
			if len(flags) == 0 {
				t.Fatalf("no flag in %s", out)
			}
			for _, f := range flags {
				n.Pod.Exec("sysctl", "-qw", f[1])
			}
			n.Pod.Settle("eth0")
			before = settled(t, n)
			c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind()))
			serve(t, n)
			c.mustAgent(t, "check", "-own")
			n.Pod.IP("link del eth0-tap")
			c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind())) // a new tap needs no sysctl that cannot be written
			c.mustAgent(t, "check", "-own")
			c.mustAgent(t, "teardown", "-own")
			asFound(t, n, before)
			c.mustAgent(t, "setup", "-own", "-binding", string(b.Kind()))
			if err := os.RemoveAll(filepath.Join(phase1.DefaultDir, namespaceName(t, n))); err != nil {
				t.Fatal(err)
			}
			c.mustAgent(t, "teardown", "-own", "-force", "-state", n.State)
		})
	}
}
