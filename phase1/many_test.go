package phase1_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestManyNamespaces wires 60 namespaces, and every third ends without Teardown: List and Status know each of
// them, Forget removes what is left of those that are gone, and after Teardown of the others no file is left.
func TestManyNamespaces(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	const many = 60
	node, states := filepath.Join(nstest.Dir(t), "node"), nstest.Dir(t)
	configs := make([]wired.NIC, many)
	pods := make([]*nstest.Namespace, many)
	for i := range many {
		n := nstest.New(t, "many")
		n.IP("link add eth0 type veth peer name peer0")
		n.IP("link set eth0 up")
		pods[i] = n
		configs[i] = wired.NIC{NIC: phase1.NIC{NetNS: n.File, Dir: node, Name: "eth0"}, Spec: infra.Spec{
			Binding: infra.Redirect{}, State: filepath.Join(states, fmt.Sprint("vm", i)), Owner: nstest.Owner(),
		}}
		setup(t, configs[i])
	}
	gone := func(i int) bool { return i%3 == 0 }
	count := func(wantGone int) {
		t.Helper()
		list, err := phase1.List(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		living, places := 0, map[string]bool{}
		for _, w := range list {
			if len(w.FoundAt) > 0 {
				living++
				places[w.FoundAt[0]] = true
			}
			if w.Unreadable != "" || w.Binding != "redirect" || filepath.Dir(w.State) != states {
				t.Errorf("%+v", w)
			}
		}
		if len(list)-living != wantGone || len(places) != living {
			t.Errorf("%d are listed, %d of them gone, want %d; %d places", len(list), len(list)-living, wantGone, len(places))
		}
	}
	count(0)
	for i := range many {
		if gone(i) {
			pods[i].End()
			continue
		}
		report, err := configs[i].Status(t.Context())
		if err != nil || report.Drift != nil || len(report.FoundAt) == 0 || report.FoundAt[0] != pods[i].Path() || report.State != configs[i].State {
			t.Errorf("status of %s: %+v, %v", pods[i].Name, report, err)
		}
	}
	count(many / 3)
	removed := 0
	g := phase1.Gone{Dir: node, Progress: func(text string) { removed += strings.Count(text, "removes the journal") }}
	for range 2 {
		if err := phase1.Forget(t.Context(), g); err != nil {
			t.Error(err)
		}
	}
	if removed != many/3 {
		t.Errorf("Forget has removed %d journals, want %d", removed, many/3)
	}
	count(0)
	for i := range many {
		if gone(i) {
			continue
		}
		unwire(t, configs[i])
	}
	for _, dir := range []string{node, states} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && (!d.IsDir() || dir == node && path != node) {
				err = errors.New(path + " is left")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestUmask: the umask of the caller takes no right from the launcher, and gives no other user any.
func TestUmask(t *testing.T) {
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	agent := nstest.Program(t, "examples/guestwire-agent")
	for _, umask := range []string{"0777", "0077", "0000"} {
		c := config(n, infra.Bridge{})
		c.State, c.Dir = filepath.Join(nstest.Dir(t), "vm"), filepath.Join(nstest.Dir(t), "node")
		args := fmt.Sprintf("umask %s; exec %s setup -netns %s -nic eth0 -binding bridge -state %s -dir %s -uid %d", umask, agent, n.Pod.Path(), c.State, c.Dir, c.Owner.UID)
		if out, err := exec.Command("sh", "-c", args).CombinedOutput(); err != nil {
			t.Fatalf("umask %s: %v: %s", umask, err, out)
		}
		modes := map[string]fs.FileMode{c.State: 0o755, filepath.Join(c.State, "eth0.json"): 0o644, c.Dir: 0o700, filepath.Join(c.Dir, namespaceName(t, n), "eth0.journal"): 0o600}
		for path, want := range modes {
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("umask %s: %s has the mode %v, %v; want %v", umask, path, info.Mode(), err, want)
			}
		}
		unwire(t, c)
		asFound(t, n, before)
	}
}
