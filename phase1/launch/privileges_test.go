package launch_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
	"github.com/guestwire/guestwire/phase1/launch"
)

// privileges are the lines of /proc/PID/status about users and capabilities.
func privileges(status string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs":
			all[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return all
}

// powerless is what privileges returns of a process that has none.
func powerless(uid, gid int, groups string) map[string]string {
	const none = "0000000000000000"
	four := func(id int) string { return strings.Join(slices.Repeat([]string{strconv.Itoa(id)}, 4), " ") }
	return map[string]string{"Uid": four(uid), "Gid": four(gid), "Groups": groups, "NoNewPrivs": "1",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none}
}

// keptGroups are the supplementary groups that a command keeps where setgroups is denied.
func keptGroups(t *testing.T) string {
	t.Helper()
	if !sandbox.OneUser() {
		return ""
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	return privileges(string(status))["Groups"]
}

// TestLaunchKeyring: a command cannot read the keys of the caller's session, which the kernel shows to all who have its
// keyring.
func TestLaunchKeyring(t *testing.T) {
	const variable, name = "GUESTWIRE_TEST_KEYRING", "guestwire-test"
	if os.Getenv(variable) != "" {
		_, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", name, 0)
		fmt.Printf("found: %v\n", err)
		return
	}
	nstest.Need(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	self := filepath.Join(nstest.Dir(t), "launch.test") // where every user can execute it
	nstest.Run(t, "install", "-m", "755", os.Args[0], self)
	err := netns.OnThread(func() error {
		if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			nstest.LeaveOut(t, fmt.Sprintf("keys cannot be used here: %v", err))
			return nil
		} else if err != nil {
			return err
		}
		if _, err := unix.AddKey("user", name, []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
			return err
		}
		const missing = "found: required key not available\n"
		for _, test := range []struct {
			words []string
			want  string
		}{
			{nil, "found: <nil>\n"},
			{[]string{agent, "exec", "-uid", "0", "--"}, missing},
			{[]string{agent, "exec", "-uid", strconv.Itoa(nstest.LauncherUID), "--"}, missing},
		} {
			words := append(test.words, self, "-test.run", "^TestLaunchKeyring$")
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Env = append(os.Environ(), variable+"=1")
			if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), test.want) {
				t.Errorf("%v: %v, %s; want %q", words, err, out, test.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLaunchKeepsAttributes: other attributes are the caller's, also a terminal for the command's own session.
func TestLaunchKeepsAttributes(t *testing.T) {
	nstest.Need(t)
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	_, terminal := nstest.Terminal(t)
	for _, test := range []struct {
		attributes syscall.SysProcAttr
		terminal   string
	}{
		{syscall.SysProcAttr{Setsid: true, Setpgid: true, Noctty: true, Pdeathsig: syscall.SIGKILL}, "no terminal"},
		{syscall.SysProcAttr{Setctty: true}, "terminal"},
	} {
		cmd := exec.Command("sh", "-c", "cut -d' ' -f5,6 /proc/$$/stat; if (: </dev/tty) 2>&-; then echo terminal; else echo no terminal; fi")
		cmd.Stdin = terminal
		cmd.SysProcAttr = &test.attributes
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := launch.Start(cmd, nil, nstest.Owner()); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d %[1]d\n%s\n", cmd.Process.Pid, test.terminal)
		if out.String() != want {
			t.Errorf("process group, session and terminal are %q, want %q", out.String(), want)
		}
	}
}

// TestLaunchPrivileges: what a caller needs, and the words where a capability is missing. The caller is the agent, with
// the capabilities of setpriv(1).
func TestLaunchPrivileges(t *testing.T) {
	nstest.Need(t, "setpriv")
	nstest.NeedRoot(t, "the test needs two users")
	agent := nstest.Program(t, "examples/guestwire-agent")
	pod := nstest.New(t, "pod")
	// Docker's and Podman's, and what guestwire asks for.
	container := "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap,+net_admin"
	without := func(names ...string) string {
		set := container
		for _, n := range names {
			set = strings.Replace(set, ",+"+n, "", 1)
		}
		return set
	}
	for _, test := range []struct {
		name    string
		setpriv []string
		args    []string
		text    string // empty: the command runs
	}{
		{"container", []string{"--bounding-set", container}, []string{"-uid", "107"}, ""},
		{"container, root", []string{"--bounding-set", container}, []string{"-uid", "0"}, ""},
		{"container, own namespace by name", []string{"--bounding-set", container}, []string{"-netns", "/proc/self/ns/net", "-uid", "107"}, ""},
		{"container, another namespace", []string{"--bounding-set", container}, []string{"-netns", pod.Path(), "-uid", "107"}, "CAP_SYS_ADMIN is missing, which enters another network namespace"},
		{"no setpcap", []string{"--bounding-set", without("setpcap")}, []string{"-uid", "107"}, "CAP_SETPCAP is missing, which empties the bounding set"},
		{"no setuid", []string{"--bounding-set", without("setuid")}, []string{"-uid", "107"}, "CAP_SETUID is missing, which changes the user"},
		{"no setgid", []string{"--bounding-set", without("setgid")}, []string{"-uid", "107"}, "CAP_SETGID is missing, which changes the groups"},
		{"no kill", []string{"--bounding-set", without("kill")}, []string{"-uid", "107"}, "CAP_KILL is missing, which ends a command of another user"},
		{"no kill, the same user", []string{"--bounding-set", without("kill")}, []string{"-uid", "0"}, ""},
		{"a group to give up, another named twice", []string{"--groups", "36,42"}, []string{"-uid", "107", "-groups", "36,36"}, ""},
		{"no setgid, no group to give up", []string{"--bounding-set", without("setgid"), "--clear-groups"}, []string{"-uid", "0"}, ""},
		{"inheritable and ambient", []string{"--inh-caps", "+net_admin,+setuid", "--ambient-caps", "+net_admin,+setuid"}, []string{"-uid", "107"}, ""},
		{"ambient, root", []string{"--inh-caps", "+net_admin", "--ambient-caps", "+net_admin"}, []string{"-uid", "0"}, ""},
		{"no fixup of capabilities", []string{"--securebits", "+no_setuid_fixup"}, []string{"-uid", "107"}, ""},
		{"not root", []string{"--reuid", "107", "--regid", "107", "--clear-groups"}, []string{"-uid", "107", "-gid", "107"}, "CAP_SETPCAP is missing"},
		{"nothing to drop", []string{"--reuid", "107", "--regid", "107", "--clear-groups", "--bounding-set", "-all"}, []string{"-uid", "107", "-gid", "107"}, ""},
		{"nothing to drop, another user", []string{"--reuid", "107", "--regid", "107", "--clear-groups", "--bounding-set", "-all"}, []string{"-uid", "108", "-gid", "107"}, "CAP_SETUID is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := append(append(append(slices.Clone(test.setpriv), agent, "exec"), test.args...), "--", "cat", "/proc/self/status")
			out, err := exec.Command("setpriv", args...).CombinedOutput()
			if test.text != "" {
				if err == nil || !strings.Contains(string(out), test.text) || !strings.Contains(string(out), "permission denied") {
					t.Errorf("%v, %s; want %q", err, out, test.text)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v, %s", err, out)
			}
			got := privileges(string(out))
			want := powerless(0, 0, "")
			if slices.Contains(test.args, "107") {
				want = powerless(107, 107, "")
			}
			if slices.Contains(test.args, "-groups") {
				want["Groups"] = "36"
			}
			if !slices.Contains(test.args, "-gid") {
				delete(got, "Gid")
				delete(want, "Gid")
			}
			if !maps.Equal(got, want) {
				t.Errorf("privileges %v, want %v", got, want)
			}
		})
	}
}

// TestLaunchOneUser: in a user namespace with one user the command keeps the groups, and another user is refused.
func TestLaunchOneUser(t *testing.T) {
	nstest.Need(t, "unshare")
	agent := nstest.Program(t, "examples/guestwire-agent")
	inside := func(args ...string) (string, error) {
		out, err := exec.Command("unshare", append([]string{"-Urn", agent, "exec"}, args...)...).CombinedOutput()
		return string(out), err
	}
	out, err := inside("-uid", "0", "-netns", "/proc/self/ns/net", "--", "cat", "/proc/self/status")
	if err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	got, want := privileges(out), powerless(0, 0, "")
	delete(got, "Groups")
	delete(want, "Groups")
	if !maps.Equal(got, want) {
		t.Errorf("privileges %v, want %v", got, want)
	}
	for args, text := range map[string]string{
		"-uid 107":           "owner.uid: 107 is not mapped in this user namespace, which has 0 to 0",
		"-uid 0 -gid 107":    "owner.gid: 107 is not mapped",
		"-uid 0 -groups 107": "groups: 107 is not mapped",
		"-uid 1 -groups 0,0": "owner.uid: 1 is not mapped",
	} {
		out, err := inside(append(strings.Fields(args), "--", "true")...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(out, text) {
			t.Errorf("%s: %v, %s; want %q", args, err, out, text)
		}
	}
}
