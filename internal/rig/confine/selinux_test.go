package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSELinux: with Owner.SELinux the launcher's domain opens the taps without a rule for the domain of Setup's caller,
// another domain does not, and the caller checks, repairs and tears down. Without it the launcher's domain is denied. A
// context that does not exist, or that the policy forbids, is refused before a change.
func TestSELinux(t *testing.T) {
	t.Parallel()
	const compiled = "GUESTWIRE_CONFINE_POLICY"
	var policy string
	if !nstest.Emulated {
		policy = filepath.Join(nstest.Dir(t), "policy")
		out, err := tool(t, "usr/bin/secilc", "-c", "33", "-o", policy, "-f", os.DevNull, "testdata/policy.cil").CombinedOutput()
		if err != nil {
			t.Fatalf("secilc: %v\n%s", err, out)
		}
	}
	if !inStockKernel(t, "security=selinux selinux=1 enforcing=1", compiled+"="+policy) {
		return
	}
	loadPolicy(t, os.Getenv(compiled))
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	links := n.Pod.IP("-br link")
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	self := copyOfSelf(t)
	common := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	call := func(domain, verb string, more ...string) (string, error) {
		return output(append([]string{"sh", "-c", enter(domain) + ` && exec "$@"`, "sh", agent, verb}, append(common, more...)...)...)
	}
	configuration := func(context string) string {
		path := filepath.Join(t.TempDir(), "vm1.json")
		text := fmt.Sprintf(`{"binding": {"redirect": {}}, "owner": {"uid": %d, "selinux": %q}, "state": %q}`, nstest.LauncherUID, context, n.State)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	succeeds := func(domain, verb string, more ...string) string {
		t.Helper()
		out, err := call(domain, verb, more...)
		if err != nil {
			t.Fatalf("%s as %s: %v\n%s", verb, domain, err, out)
		}
		return out
	}
	serve := func(domain string) []string {
		return unprivileged(n, enter(domain), launcher, "serve", "-state", n.State, "-events")
	}
	denied := func(what, domain string, out string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(out, "SELinux denies") || !strings.Contains(out, "permission denied") {
			t.Errorf("%s as %s: %v, %s; want SELinux to deny it", what, domain, err, out)
		}
	}

	// Without the context.
	succeeds("agent_t", "setup", "-config", configuration(""))
	out, err := output(serve("vmm_t")...)
	denied("launcher", "vmm_t", out, err)
	out, err = startGuest(n, enter("vmm_t"), self, nstest.Record(t, n.State, "eth0"))
	denied("VMM", "vmm_t", out, err)
	succeeds("agent_t", "teardown")

	// What is refused.
	for _, c := range []struct{ domain, context, want string }{
		{"poor_t", "u:r:vmm_t", `allow poor_t self:process setcurrent; allow poor_t vmm_t:process dyntransition;`},
		{"agent_t", "u:r:other_t", `allow agent_t other_t:process dyntransition;`},
		{"agent_t", "u:r:nobody_t", "owner.selinux: the loaded policy has no context u:r:nobody_t: invalid argument: leave the field empty"},
		{"agent_t", "u:r:weak_t", "allow weak_t self:capability net_admin;"},
	} {
		out, err := call(c.domain, "setup", "-config", configuration(c.context))
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("setup as %s for %s: %v, %s; want %s", c.domain, c.context, err, out, c.want)
		}
		if now := n.Pod.IP("-br link"); now != links {
			t.Errorf("setup as %s for %s leaves\n%s", c.domain, c.context, now)
		}
	}

	// With the context.
	file := configuration("u:r:vmm_t")
	succeeds("agent_t", "setup", "-config", file)
	succeeds("agent_t", "check")
	if out := succeeds("agent_t", "plan", "-config", file); !strings.Contains(out, "nothing is left to do") {
		t.Errorf("a second setup would do:\n%s", out)
	}
	r := nstest.Record(t, n.State, "eth0")
	out, err = output(serve("other_t")...)
	denied("launcher", "other_t", out, err)
	out, err = startGuest(n, enter("other_t"), self, r)
	denied("VMM", "other_t", out, err)
	served := start(t, serve("vmm_t"))
	lease := func() {
		t.Helper()
		if out, err := startGuest(n, enter("vmm_t"), self, r); err != nil || !strings.Contains(out, "guest has 10.244.1.7/24 and fd00:244:1::7") {
			t.Errorf("VMM as vmm_t: %v, %s\nlauncher: %s", err, out, served.Output.String())
		}
	}
	lease()
	n.Pod.IP("link del eth0-tap")
	if out := succeeds("agent_t", "plan", "-config", file); !strings.Contains(out, "runcon u:r:vmm_t ip tuntap add eth0-tap ") {
		t.Errorf("the repair would be:\n%s", out)
	}
	succeeds("agent_t", "setup", "-config", file)
	succeeds("agent_t", "check")
	lease()
	// The guest has ended, and the launcher has not.
	if out, err := call("agent_t", "status"); err == nil || !strings.Contains(out, "u:r:vmm_t") || !strings.Contains(out, "responder  ") || !strings.Contains(out, "VMM        none") {
		t.Errorf("status does not show the context, and who serves the guest: %v\n%s", err, out)
	}
	served.stop(t)
	succeeds("agent_t", "teardown")
	nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Dump()) })
}

// enter is a shell's command that takes on the domain.
func enter(domain string) string { return "printf u:r:" + domain + " >/proc/self/attr/current" }

// loadPolicy makes SELinux enforce the policy.
func loadPolicy(t *testing.T, path string) {
	t.Helper()
	const directory = "/sys/fs/selinux"
	if err := unix.Mount("selinuxfs", directory, "selinuxfs", 0, ""); err != nil && err != unix.EBUSY {
		t.Fatalf("mount %s: %v", directory, err)
	}
	policy, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	load, err := os.OpenFile(directory+"/load", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer load.Close()
	if _, err := load.Write(policy); err != nil { // whole, in one call
		t.Fatalf("load the policy: %v", err)
	}
	if enforce, err := os.ReadFile(directory + "/enforce"); err != nil || string(enforce) != "1" {
		t.Fatalf("enforce is %q, %v", enforce, err)
	}
}
