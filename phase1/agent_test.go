package phase1_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/nftables"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestStatusWithoutNIC: a NIC that has gone is not reported as whole, neither to people nor to Prometheus.
func TestStatusWithoutNIC(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	agent := nstest.Program(t, "examples/guestwire-agent")
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	setup(t, c)
	n.World.IP("link del pod")
	out, err := exec.Command(agent, "status", "-netns", n.Pod.Path(), "-nic", "eth0", "-dir", c.Dir).CombinedOutput()
	if err == nil || strings.Contains(string(out), "as recorded") || !strings.Contains(string(out), "any more in this namespace") {
		t.Errorf("%v, %s; want an error, and that the NIC has gone", err, out)
	}
	out, err = exec.Command(nstest.Program(t, "examples/guestwire-exporter"), "-dir", c.Dir).Output()
	if differences := regexp.MustCompile(`(?m)^guestwire_differences.* 1$`); err != nil || !differences.Match(out) {
		t.Errorf("%v, %s; want a difference", err, out)
	}
}

// TestStatusFoundAt: the path by which the namespace was opened counts while it leads there. Then others are looked
// for.
func TestStatusFoundAt(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	path := filepath.Join(t.TempDir(), "link")
	for _, leads := range []bool{true, false} {
		if err := os.Symlink(n.Pod.Path(), path); err != nil {
			t.Fatal(err)
		}
		opened, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		want := path
		if !leads {
			want = n.Pod.Path()
			os.Remove(path)
		}
		report, err := phase1.NIC{NetNS: opened, Name: "eth0", Dir: c.Dir}.Status(t.Context())
		if err != nil || report.FoundAt[0] != want {
			t.Errorf("the path leads there: %v: %v, %v", leads, report, err)
		}
		os.Remove(path)
	}
}

// TestForeignNames: whoever is root in the namespace names links, and can add chains to guestwire's table. The control
// characters of a name reach no terminal: they are shown. They do not end the metrics of the node.
func TestForeignNames(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	agent := nstest.Program(t, "examples/guestwire-agent")
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	const link, shown, inJSON = "e\x1b[2Jt", `e\x1b[2Jt`, `e\u001b[2Jt`
	n.Pod.IP("link add " + link + " type veth peer name v1")
	n.Pod.IP("link set " + link + " up")
	n.Pod.IP("route add 192.0.2.0/24 dev " + link)
	call := func(args ...string) {
		t.Helper()
		out, err := exec.Command(args[0], append(args[1:], "-dir", c.Dir)...).CombinedOutput()
		if err != nil && err.Error() != "exit status 1" && err.Error() != "exit status 4" || strings.Contains(string(out), "\x1b") || !utf8.Valid(out) {
			t.Errorf("%v: %v, %q", args, err, out)
		}
		name := shown
		if slices.Contains(args, "-json") {
			name = inJSON
		}
		if args[0] == agent && !slices.Contains([]string{"list", "check", "teardown"}, args[1]) && !strings.Contains(string(out), name) {
			t.Errorf("%v: want %s in %s", args, name, out)
		}
	}
	of := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
	for _, binding := range []string{"bridge", "redirect", "routed", "masquerade"} {
		call(slices.Concat([]string{agent, "plan", "-uid", "0", "-binding", binding}, of)...)
		call(slices.Concat([]string{agent, "plan", "-uid", "0", "-binding", binding, "-json"}, of)...)
	}
	setup(t, c)
	nft, err := nftables.New(nftables.WithNetNSFd(int(n.Pod.File.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nft.ListTables()
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, name := range []string{"drop-\xff", "drop-\x1b[31mred"} {
		chain := nft.AddChain(&nftables.Chain{Name: name, Table: tables[0]})
		nft.AddRule(&nftables.Rule{Table: tables[0], Chain: chain})
	}
	if err := nft.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"status", "check", "doctor"} {
		call(slices.Concat([]string{agent, verb}, of)...)
		call(slices.Concat([]string{agent, verb, "-json"}, of)...)
	}
	call(agent, "list")
	call(agent, "status", "-all")
	call(nstest.Program(t, "examples/guestwire-exporter"))
	call(slices.Concat([]string{agent, "teardown", "-force"}, of)...)
}
