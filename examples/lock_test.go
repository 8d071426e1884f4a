package examples_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLockIsOurs: an ordinary user holds a lock on whatever it can open of what the programs use, and all of them do
// their work.
func TestLockIsOurs(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent, node := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-node")
	dir := nstest.Dir(t)
	conf, bin, from, journals := filepath.Join(dir, "net.d"), filepath.Join(dir, "bin"), filepath.Join(dir, "from"), filepath.Join(dir, "node")
	list := filepath.Join(conf, "10-net.conflist")
	for _, path := range []string{dir, conf, bin, from} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		list:                              `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`,
		filepath.Join(from, "guestwire"):  "a plugin",
		filepath.Join(bin, "guestwire"):   "another build",
		filepath.Join(n.State, "a-file"):  "readable",
		filepath.Join(conf, "00-old.tmp"): "readable",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wire := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", journals}
	setup := append(wire, "-uid", "0", "-binding", "redirect", "-state", n.State)
	if out, status := run(t, agent, append([]string{"setup"}, setup...)...); status != 0 {
		t.Fatal(out)
	}
	held := nstest.HoldLocks(t, dir, n.State, n.Pod.Path())
	for _, want := range []string{conf, bin, list, filepath.Join(bin, "guestwire"), n.State, n.Pod.Path()} {
		if !slices.Contains(held, want) {
			t.Errorf("the other user holds %q, want also %s", held, want)
		}
	}
	if i := slices.IndexFunc(held, func(path string) bool { return strings.HasPrefix(path, journals) }); i >= 0 {
		t.Errorf("another user has opened %s", held[i])
	}
	install := []string{"-cni-bin", bin, "-cni-conf", conf, "-state", filepath.Join(dir, "state"), "-dir", journals}
	for _, args := range [][]string{
		append([]string{agent, "setup"}, setup...),
		append([]string{agent, "check"}, wire...),
		append([]string{agent, "teardown"}, wire...),
		append(append([]string{agent, "run"}, setup...), "--", "true"),
		{agent, "forget", "-dir", journals},
		{nstest.Program(t, "examples/guestwire-exporter"), "-dir", journals},
		append([]string{node, "install", "-from", from}, install...),
		append([]string{node, "uninstall"}, install...),
	} {
		if out, status := run(t, "timeout", append([]string{"60"}, args...)...); status != 0 {
			t.Errorf("%s: status %d\n%s", strings.Join(args[:2], " "), status, out)
		}
	}
}
