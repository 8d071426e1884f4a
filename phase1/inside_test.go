package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

// The user namespace of a pod has users from nodeUsers and groups from nodeGroups on.
const (
	nodeUsers, nodeGroups = 100000, 300000
	mappedUsers           = 65536
)

// hostUsersFalse is a pod whose network namespace is owned by a user namespace of its own, as containerd makes one for
// a pod with hostUsers: false.
type hostUsersFalse struct {
	nstest.Network
	users *os.File // the user namespace
	end   func()   // ends the last process of the user namespace
}

func newHostUsersFalse(t *testing.T) hostUsersFalse {
	t.Helper()
	nstest.Need(t, "nsenter", "setpriv")
	nstest.NeedRoot(t, "only root maps other users")
	nstest.NeedTaps(t)
	n := hostUsersFalse{Network: nstest.NewWorld(t)}
	process := exec.Command("cat")
	process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, GidMappingsEnableSetgroups: true,
		UidMappings: []syscall.SysProcIDMap{{HostID: nodeUsers, Size: mappedUsers}},
		GidMappings: []syscall.SysProcIDMap{{HostID: nodeGroups, Size: mappedUsers}},
	}
	in, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.end = func() {
		in.Close()
		process.Wait()
	}
	t.Cleanup(n.end)
	proc := fmt.Sprintf("/proc/%d/ns/", process.Process.Pid)
	if n.users, err = os.Open(proc + "user"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.users.Close() })
	n.Pod = nstest.Adopt(t, "pod", proc+"net")
	if err := errors.Join(n.Pod.Prepare(), lab.Veth(n.Pod.Namespace, n.World.Namespace)); err != nil {
		t.Fatal(err)
	}
	return n
}

// launcher runs the launcher as a user and the group 107 inside, without capabilities.
func (n hostUsersFalse) launcher(t *testing.T, uid int, args ...string) *exec.Cmd {
	t.Helper()
	line := []string{
		"--user=/proc/self/fd/3", "--net=" + n.Pod.Path(), "setpriv", "--reuid", strconv.Itoa(uid), "--regid", "107", "--clear-groups",
		"--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--pdeathsig", "KILL", "--", nstest.Program(t, "examples/guestwire-launcher"),
	}
	cmd := exec.Command("nsenter", append(line, args...)...)
	cmd.ExtraFiles = []*os.File{n.users}
	return cmd
}

// output is what the command prints. The command's parent is a thread that stays.
func output(cmd *exec.Cmd) (string, error) {
	var out []byte
	err := netns.OnThread(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out), err
}

// inside is a configuration whose owner is named as inside of the pod.
func (n hostUsersFalse) inside(b infra.Binding, owner infra.Owner) wired.NIC {
	c := config(n.Network, b)
	c.Owner = owner
	c.Owner.Inside = true
	return c
}

// TestInside: Setup finds out which user of the node the pod's user 107 is, with and without a process in the pod. That
// user inside serves the guest and opens the guest's tap, another one cannot. Check and Teardown need no process there.
func TestInside(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		for _, living := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, process %t", b.Kind(), living), func(t *testing.T) {
				t.Parallel()
				n := newHostUsersFalse(t)
				if !living {
					n.end()
				}
				before := settled(t, n.Network)
				c := n.inside(b, infra.Owner{UID: 107, GID: 107})
				const both = "# owner: user 107 inside, 100107 on the node; group 107 inside, 300107 on the node\n"
				preview, err := c.Plan(t.Context())
				if err != nil || !strings.Contains(preview.String(), both) || !strings.Contains(preview.String(), "user 100107 group 300107") {
					t.Errorf("%v, the plan %v; want %s", err, preview, both)
				}
				setup(t, c)
				taps := n.Pod.IP("-d link show type tun")
				if want := "user 100107 group 300107"; !strings.Contains(taps, want) || strings.Count(taps, "user 100107") != strings.Count(taps, "type tap") {
					t.Errorf("the taps are\n%s\nwant %s", taps, want)
				}
				setup(t, c)
				check(t, c)
				if preview, err := c.Plan(t.Context()); err != nil || len(preview.Steps) > 0 || preview.OnNode != (infra.Owner{UID: 100107, GID: 300107}) {
					t.Errorf("the plan afterwards: %v, %+v", err, preview)
				}
				report, err := c.Status(t.Context())
				if err != nil || report.Drift != nil || report.Owner != c.Owner || report.OnNode != (infra.Owner{UID: 100107, GID: 300107}) {
					t.Errorf("the report %+v, %v", report, err)
				}
				other := c
				other.Owner.Inside = false
				if err := setupAlone(t.Context(), other); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "for user 107, group 107 inside; ") {
					t.Errorf("for the node's user 107: %v, want ErrWired", err)
				}

				// The launcher's command is in the place of QEMU, for which the launcher opens the guest's tap.
				if out, err := output(n.launcher(t, 107, "qemu", "-state", n.State, "--", "true")); err != nil {
					t.Errorf("the launcher as user 107: %v\n%s", err, out)
				}
				out, err := output(n.launcher(t, 108, "serve", "-state", n.State))
				if err == nil || !strings.Contains(out, "operation not permitted") {
					t.Errorf("the launcher as user 108: %v, want operation not permitted\n%s", err, out)
				}
				launcher := n.Pod.StartCommand(n.launcher(t, 107, "serve", "-state", n.State))
				g := boot(t, n.Network, record(t, n.Network))
				reaches(t, g, launcher, nstest.Beyond4, nstest.Beyond6)
				launcher.Stop(t)

				n.end()
				n.Pod.IP("link del eth0-tap")
				var drift *phase1.DriftError
				if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), "user 100107 group 300107") {
					t.Errorf("without its tap: %v, want a DriftError with the node's numbers", err)
				}
				repair(t, c)
				teardown(t, n.Network, wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Spec: infra.Spec{}}, before)
			})
		}
	}
}

// TestInsideRefused: a user whom the pod does not have, and one on the node who could not use the files, are refused
// before a change, and the error has the way out.
func TestInsideRefused(t *testing.T) {
	t.Parallel()
	n := newHostUsersFalse(t)
	n.end()
	before := settled(t, n.Network)
	private := filepath.Join(n.State, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		owner infra.Owner
		state string
		field string
		says  string
	}{
		"user":  {infra.Owner{UID: 70000}, n.State, "owner.uid", "70000 is not mapped in the user namespace that owns the network namespace, which has 0 to 65535: name one of these, or leave owner.inside out if 70000 is the number on the node"},
		"group": {infra.Owner{UID: 107, GID: 65536}, n.State, "owner.gid", "65536 is not mapped in the user namespace that owns the network namespace, which has 0 to 65535"},
		"state": {infra.Owner{UID: 107}, private, "", "user 107 inside, 100107 on the node cannot enter " + private},
		"root":  {infra.Owner{Root: true}, private, "", "user 0 inside, 100000 on the node cannot enter " + private},
	} {
		config := n.inside(infra.Redirect{}, c.owner)
		config.State = c.state
		_, planned := config.Plan(t.Context())
		for verb, err := range map[string]error{"Plan": planned, "Setup": setupAlone(t.Context(), config)} {
			var field *cache.FieldError
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.As(err, &field) != (c.field != "") || field != nil && field.Field != c.field {
				t.Errorf("%s, %s: %v, want %s of %q", name, verb, err, c.says, c.field)
			}
		}
	}
	// A root of yet another user namespace cannot see the one that owns the network namespace.
	outer := exec.Command("nsenter", "--net="+n.Pod.Path(), "unshare", "-Ur", nstest.Program(t, "examples/guestwire-agent"),
		"setup", "-uid", "0", "-own", "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-inside")
	const outside = "the user namespace that owns the network namespace is outside of this process's: operation not permitted: call Setup in a user namespace around it"
	if out, err := outer.CombinedOutput(); err == nil || !strings.Contains(string(out), outside) {
		t.Errorf("in another user namespace: %v, %s; want %s", err, out, outside)
	}
	asFound(t, n.Network, before)
	if left := journals(t, n.Network); len(left) > 0 {
		t.Errorf("the refused setups leave %v", left)
	}

	var field *cache.FieldError
	err := launch.Start(exec.Command("true"), n.Pod.File, infra.Owner{UID: 107, Inside: true})
	if !errors.As(err, &field) || field.Field != "owner.inside" {
		t.Errorf("Launch: %v, want a FieldError of owner.inside", err)
	}
	if err := setupAlone(t.Context(), wired.NIC{NIC: phase1.NIC{Name: n.inside(infra.Redirect{}, infra.Owner{Root: true}).Name}, Spec: n.inside(infra.Redirect{}, infra.Owner{Root: true}).Spec}); !errors.As(err, &field) || field.Field != "netns" {
		t.Errorf("without a namespace: %v, want a FieldError of netns", err)
	}
}

// TestInsideOwn: where the network namespace is of Setup's own user namespace, the numbers inside are those of the
// node.
func TestInsideOwn(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	c.Owner.Inside = true
	setup(t, c)
	check(t, c)
	report, err := c.Status(t.Context())
	if want := nstest.Owner(); err != nil || report.OnNode.UID != want.UID || report.OnNode.GID != want.GID {
		t.Errorf("%+v, %v; want OnNode with the numbers of %+v", report, err, want)
	}
	g, _ := online(t, n, nstest.Beyond4)
	end(t, g)
	teardown(t, n, c, before)
}

// TestInsideAgent: the agent's flag is the configuration's field, and its output has both numbers.
func TestInsideAgent(t *testing.T) {
	t.Parallel()
	n := newHostUsersFalse(t)
	before := settled(t, n.Network)
	agent := func(verb string, args ...string) string {
		t.Helper()
		return nstest.Run(t, nstest.Program(t, "examples/guestwire-agent"), append([]string{verb, "-netns", n.Pod.Path(), "-nic", "eth0"}, args...)...)
	}
	agent("setup", "-binding", "redirect", "-state", n.State, "-uid", "0", "-gid", "107", "-inside")
	if out, want := agent("status"), "user 0 inside, 100000 on the node; group 107 inside, 300107 on the node\n"; !strings.Contains(out, want) {
		t.Errorf("status says\n%s\nwant %s", out, want)
	}
	if out, want := nstest.Run(t, nstest.Program(t, "examples/guestwire-agent"), "list"), "0:107 inside, 100000:300107 "; !strings.Contains(out, want) {
		t.Errorf("list says\n%s\nwant %s", out, want)
	}
	teardown(t, n.Network, config(n.Network, nil), before)
	configuration := filepath.Join(nstest.Dir(t), "vm1.json")
	text := `{"binding": {"redirect": {}}, "owner": {"uid": 107, "inside": true}}`
	writeFile(t, configuration, text)
	if out, want := agent("plan", "-config", configuration), "# owner: user 107 inside, 100107 on the node\n"; !strings.Contains(out, want) {
		t.Errorf("plan says\n%s\nwant %s", out, want)
	}
	cmd := exec.Command(nstest.Program(t, "examples/guestwire-agent"), "run", "-netns", n.Pod.Path(), "-nic", "eth0", "-state", n.State, "-config", configuration, "--", "true")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "guestwire-agent: owner.inside: ") {
		t.Errorf("run: %v, %s", err, out)
	}
	asFound(t, n.Network, before)
}
