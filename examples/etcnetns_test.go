package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestEtcNetns: a command in a named namespace, and its guest, get the files of /etc/netns/NAME, as those of ip netns
// exec do; those of another namespace get the machine's. They have a copy of /etc.
func TestEtcNetns(t *testing.T) {
	nstest.NeedRoot(t, "the test mounts a copy of /etc")
	named, other := nstest.NewNetwork(t), nstest.NewNetwork(t)
	etc := nstest.Dir(t)
	if out, err := exec.Command("cp", "-a", "/etc/.", etc).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	// As under systemd-resolved, and with a directory of a program that the machine does not have.
	os.Remove(filepath.Join(etc, "resolv.conf"))
	if err := os.Symlink("resolved.conf", filepath.Join(etc, "resolv.conf")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(etc, "netns", named.Pod.Name)
	if err := os.MkdirAll(filepath.Join(dir, "no-such-file-in-etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(etc, "resolved.conf"): "nameserver 10.244.1.53\n", filepath.Join(etc, "fruit"): "apple\n",
		filepath.Join(dir, "resolv.conf"): "# of the VPN\nnameserver 10.244.1.99\n", filepath.Join(dir, "fruit"): "pear\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	for _, n := range []nstest.Network{named, other} {
		server, fruit := "10.244.1.99", "pear"
		if n == other {
			server, fruit = "10.244.1.53", "apple"
		}
		wire(t, n, infra.Bridge{}, func(s *infra.Spec) { s.DNS = nil })
		process := n.Serve(t, nstest.LauncherUID)
		user := "-uid " + strconv.Itoa(nstest.LauncherUID)
		inside := fmt.Sprintf("sh -c 'cat /etc/resolv.conf /etc/fruit; %s config -format networkd -state %s'", launcher, n.State)
		for _, command := range []string{
			"ip netns exec " + n.Pod.Name + " " + inside,
			agent + " exec -netns " + n.Pod.Path() + " " + user + " -- " + inside,
			fmt.Sprintf("%s exec -netns /proc/%d/ns/net %s -- %s", agent, process.Process.Pid, user, inside),
		} {
			checkEtc(t, etc, command, "nameserver "+server, fruit, "DNS="+server)
		}
		// As a unit with NetworkNamespacePath=, and from outside.
		config := fmt.Sprintf("%s config -format networkd -state %s", launcher, n.State)
		checkEtc(t, etc, "nsenter --net="+n.Pod.Path()+" "+config, "DNS="+server)
		checkEtc(t, etc, config, "DNS="+server)
		process.Stop(t)
		checkEtc(t, etc, fmt.Sprintf("%s teardown -netns %s -nic eth0 && %[1]s run -netns %[2]s -nic eth0 -binding slirp -state %s %s -- cat /etc/resolv.conf /etc/fruit",
			agent, n.Pod.Path(), n.State, user), "nameserver "+server, fruit)
		// slirp and passt ask what /etc/resolv.conf names.
		wire(t, n, infra.Slirp{}, func(s *infra.Spec) { s.DNS = nil })
		const warning = "the resolvers of /etc/resolv.conf, and not those of /etc/netns/"
		serve := launcher + " qemu -state " + n.State + " -- true 2>&1"
		checkEtc(t, etc, agent+" exec -netns "+n.Pod.Path()+" "+user+" -- "+serve+" | grep -c '"+warning+"' | grep -x 0")
		checkEtc(t, etc, "nsenter --net="+n.Pod.Path()+" "+serve+" | grep -c '"+warning+"' | grep -x "+map[bool]string{true: "1", false: "0"}[n == named])
	}
}

// TestEtcNetnsRefused: a file that cannot be put over one of /etc is an error, and its way out is true.
func TestEtcNetnsRefused(t *testing.T) {
	nstest.NeedRoot(t, "the test mounts a copy of /etc")
	n, etc := nstest.NewNetwork(t), nstest.Dir(t)
	if out, err := exec.Command("cp", "-a", "/etc/.", etc).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	dir := filepath.Join(etc, "netns", n.Pod.Name)
	agent, user := nstest.Program(t, "examples/guestwire-agent"), " exec -uid "+strconv.Itoa(nstest.LauncherUID)
	for name, make := range map[string]func(name string) error{
		"a link to nothing over a file": func(name string) error {
			return errors.Join(os.WriteFile(filepath.Join(etc, name), nil, 0o644), os.Symlink("nothing", filepath.Join(dir, name)))
		},
		"a file over a link to nothing": func(name string) error {
			return errors.Join(os.Symlink("nothing", filepath.Join(etc, name)), os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		},
		"a directory over a file": func(name string) error {
			return errors.Join(os.WriteFile(filepath.Join(etc, name), nil, 0o644), os.Mkdir(filepath.Join(dir, name), 0o755))
		},
	} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), make("fruit")); err != nil {
			t.Fatal(err)
		}
		checkEtc(t, etc, "! "+agent+user+" -netns "+n.Pod.Path()+" -- true", "put the files of /etc/netns/"+n.Pod.Name, "mount on /etc/fruit: ", "nsenter --net=PATH")
		checkEtc(t, etc, "nsenter --net="+n.Pod.Path()+" "+agent+user+" -- cat /proc/self/net/dev", "eth0:")
		if err := errors.Join(os.RemoveAll(dir), os.Remove(filepath.Join(etc, "fruit"))); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// checkEtc runs the command with the directory as /etc, and wants its output to have these words.
func checkEtc(t *testing.T, etc, command string, want ...string) {
	t.Helper()
	out, err := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "mount --bind "+etc+" /etc && "+command).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	for _, word := range want {
		if !strings.Contains(string(out), word) {
			t.Errorf("%s: want %q:\n%s", command, word, out)
		}
	}
}
