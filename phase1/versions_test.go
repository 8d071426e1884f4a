package phase1_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestEarlierVersion: this program takes over what a program of the earlier journal version has wired, with the guest's tap
// in place, and gives the namespace back. The earlier program refuses what this one has wired, and changes nothing.
func TestEarlierVersion(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	earlier := buildAgent(t, history(t).before)
	eachWith(t, func(t *testing.T, n nstest.Network, b infra.Binding, before string) {
		c := direct(n, b)
		must(t, earlier, n, b, "setup")
		takeOver(t, n, c)

		wired := everything(t, n)
		for _, verb := range []string{"setup", "check", "teardown"} {
			if out, err := agent(earlier, n, b, verb); err == nil || !strings.Contains(out, "use the version of guestwire that w") {
				t.Errorf("the earlier version's %s: %v, %s; want to use the version of guestwire that wired the NIC", verb, err, out)
			}
		}
		if err := difference(wired, everything(t, n)); err != nil {
			t.Errorf("the earlier version has changed the wiring: %v", err)
		}
		teardown(t, n, c, before)

		must(t, earlier, n, b, "setup")
		teardown(t, n, c, before)
		if left := ofNode(t, n); len(left) > 0 {
			t.Errorf("the teardown of the earlier version's wiring leaves %v", left)
		}
	})
}

// TestSameVersion: this program and the first one with its versions of journal and record take over each other's wirings,
// with the guest's tap in place. They may want other rules and another queue, which are drift until the next Setup; they never want
// another record.
func TestSameVersion(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	h := history(t)
	if h.first == "" {
		t.Logf("no earlier commit has the versions of this one: there is no program to compare with")
		return
	}
	first := buildAgent(t, h.first)
	eachWith(t, func(t *testing.T, n nstest.Network, b infra.Binding, before string) {
		c := direct(n, b)
		must(t, first, n, b, "setup")
		takeOver(t, n, c)
		teardown(t, n, c, before)

		setup(t, c)
		guests := guestTap(t, n, b)
		if out, err := agent(first, n, b, "check"); err != nil && (!strings.Contains(out, "NIC eth0 is not as it was set up:\n") || strings.Contains(out, "record")) {
			t.Errorf("the first version's check of what this one has wired: %v\n%s", err, out)
		}
		tapDown(n, b)
		must(t, first, n, b, "setup")
		must(t, first, n, b, "check")
		if now := guestTap(t, n, b); now != guests {
			t.Errorf("the guest's tap %s became %s", guests, now)
		}
		must(t, first, n, b, "teardown")
		asFound(t, n, before)
		if left := ofNode(t, n); len(left) > 0 {
			t.Errorf("the first version's teardown leaves %v", left)
		}
	})
}

// eachWith runs the test with each binding that programs of several versions have, in a namespace of its own.
func eachWith(t *testing.T, test func(t *testing.T, n nstest.Network, b infra.Binding, before string)) {
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Passt{}} {
		t.Run(b.Kind(), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			test(t, n, b, settled(t, n))
		})
	}
}

// takeOver checks and repairs what another program has wired, whose rules and queue may be other ones.
func takeOver(t *testing.T, n nstest.Network, c phase1.Config) {
	t.Helper()
	guests := guestTap(t, n, c.Binding)
	var drift *phase1.DriftError
	if err := phase1.Check(t.Context(), c); errors.As(err, &drift) {
		for _, d := range drift.Differs {
			ofResponder := d.Kind == "filter-missing" && d.Link == "eth0-dhcp" // by which the responder announces the guest
			if !strings.HasPrefix(d.Kind, "table-") && d.Kind != "txqueuelen" && !ofResponder {
				t.Errorf("Check of what the other program has wired: %s", d.Text)
			}
		}
	} else if err != nil {
		t.Error(err)
	}
	tapDown(n, c.Binding)
	setup(t, c)
	check(t, c)
	if now := guestTap(t, n, c.Binding); now != guests {
		t.Errorf("the guest's tap %s became %s", guests, now)
	}
}

// guestTap is the index of the guest's tap; empty: there is none.
func guestTap(t *testing.T, n nstest.Network, b infra.Binding) string {
	t.Helper()
	if _, tapless := b.(infra.Passt); tapless {
		return ""
	}
	return linkField(t, n, "eth0-tap", "ifindex")
}

// tapDown takes the guest's tap down, if there is one.
func tapDown(n nstest.Network, b infra.Binding) {
	if _, tapless := b.(infra.Passt); !tapless {
		n.Pod.IP("link set eth0-tap down")
	}
}

// everything is what a wiring has changed: the namespace, the State directory and the node's journals.
func everything(t *testing.T, n nstest.Network) string {
	t.Helper()
	all := n.Pod.Settled()
	for _, dir := range []string{n.State, filepath.Join(phase1.DefaultDir, namespaceName(t, n))} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
				return nil
			}
			if err != nil {
				return err
			}
			text, err := os.ReadFile(path)
			all += "# " + path + "\n" + string(text) + "\n"
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// agent runs a verb of an earlier agent on the NIC.
func agent(program string, n nstest.Network, b infra.Binding, verb string) (string, error) {
	args := []string{verb, "-netns", n.Pod.Path(), "-nic", "eth0", "-state", n.State}
	if verb == "setup" {
		owner := direct(n, b).Owner
		args = append(args, "-binding", b.Kind(), "-uid", fmt.Sprint(owner.UID), "-gid", fmt.Sprint(owner.GID))
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	return string(out), err
}

func must(t *testing.T, program string, n nstest.Network, b infra.Binding, verb string) {
	t.Helper()
	if out, err := agent(program, n, b, verb); err != nil {
		t.Fatalf("%s by %s: %v\n%s", verb, program, err, out)
	}
}

// commits are those whose agents are compared with this program.
type commits struct {
	before string // the last one with the earlier journal version
	first  string // the first one with the present versions of journal and record; empty: it is the present one
}

// history finds the commits by their content, as their names change when history is written anew. It skips the test if
// there is no history.
func history(t *testing.T) commits {
	t.Helper()
	if nstest.Emulated {
		nstest.LeaveOut(t, "compilers are slow here, and the programs of earlier commits are built")
	}
	if _, err := exec.LookPath("git"); err != nil {
		nstest.Skip(t, "no git on this machine")
	}
	root, err := filepath.Abs("..")
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	if top, err := git("rev-parse", "--show-toplevel"); err != nil || top != root {
		nstest.LeaveOut(t, "this tree is no git repository, so there are no earlier commits")
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	journal := firstWith(t, "phase1/journal.go", `(?m)^const journalVersion = \d+$`)
	if journal == "" {
		return commits{before: head} // the present version is not committed yet
	}
	before, err := git("rev-parse", "--verify", "--quiet", journal+"^")
	if err != nil {
		if shallow, _ := git("rev-parse", "--is-shallow-repository"); shallow == "true" {
			nstest.LeaveOut(t, "a shallow clone does not have the commits of the earlier journal version")
		}
		t.Fatalf("the journal's version came with the first commit: %v", err)
	}
	first := firstWith(t, "cache/record.go", `(?m)^\tVersion += \d+$`)
	// Version 5 got the MACs that do not depend on the NIC before it was released, and after the numbers.
	for _, other := range []string{journal, firstWith(t, "internal/netstate/snapshot.go", `(?m)^\tNICMACs .*$`)} {
		if other == "" {
			return commits{before: before}
		}
		if _, err := git("merge-base", "--is-ancestor", first, other); err == nil {
			first = other
		}
	}
	if first == head {
		first = ""
	}
	return commits{before: before, first: first}
}

// firstWith is the first commit with the present line of the file; empty: there is none yet. The path is below the
// repository.
func firstWith(t *testing.T, path, pattern string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(pattern).FindString(string(source))
	if line == "" {
		t.Fatalf("%s has no version", path)
	}
	changes, err := git("log", "--format=%H", "-S"+line, "--", ":/"+path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(changes)
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// git runs git in this repository, whoever owns its files.
func git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// buildAgent builds the agent of the commit.
func buildAgent(t *testing.T, commit string) string {
	t.Helper()
	dir := nstest.Dir(t)
	source, program := filepath.Join(dir, "source"), filepath.Join(dir, "agent-"+commit[:12])
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(dir, "source.tar")
	if _, err := git("archive", "--format=tar", "-o", tar, commit); err != nil {
		t.Fatalf("git archive %s: %v", commit, err)
	}
	nstest.Run(t, "tar", "-xf", tar, "-C", source)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./examples/agent")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the agent of %s: %v\n%s", commit, err, out)
	}
	return program
}
