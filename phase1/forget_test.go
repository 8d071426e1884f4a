package phase1_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/longjson"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestForgetInOtherPIDNamespace: Forget sees no process of the node there, so it removes nothing, and Setup does not
// take another namespace's record. With CAP_SYS_ADMIN, a kernel since 6.18 says nevertheless that the namespace is
// there.
func TestForgetInOtherPIDNamespace(t *testing.T) {
	nstest.NeedRoot(t, "the test makes a PID namespace")
	nstest.Need(t, "unshare", "setpriv")
	n, next := nstest.NewNetwork(t), nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	c := config(n, infra.Redirect{})
	setup(t, c)
	path, text := journal(t, n)
	// Without its mount, the namespace is found by processes and open files alone.
	container := func(args ...string) (string, error) {
		line := append([]string{"--pid", "--fork", "--mount", "sh", "-c", `mount -t proc proc /proc; umount ` + n.Pod.Path() + `; exec "$@"`, "sh"}, args...)
		out, err := exec.Command("unshare", line...).CombinedOutput()
		return string(out), err
	}
	for _, selection := range [][]string{nil, {"-namespace", namespaceName(t, n)}, {"-state", n.State, "-nic", "eth0"}} {
		forget := append([]string{agent, "forget"}, selection...)
		if out, err := container(append([]string{"setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"}, forget...)...); err == nil || !strings.Contains(out, "PID namespace") {
			t.Errorf("forget %v: %v, %s", selection, err, out)
		}
		untouched(t, c, path, text)
		if out, err := container(forget...); selection != nil && err == nil || err != nil && !strings.Contains(out, "PID namespace") && !strings.Contains(out, "is not gone") {
			t.Errorf("forget %v, with CAP_SYS_ADMIN: %v, %s", selection, err, out)
		}
		untouched(t, c, path, text)
	}
	out, err := container(agent, "setup", "-netns", next.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", "107")
	if err == nil || !strings.Contains(out, "already wired in another namespace") {
		t.Errorf("setup of another namespace with the same State: %v, %s", err, out)
	}
	untouched(t, c, path, text)
}

// TestForgetSaysNothingFound: a typed name is an error, as is a selection by which nothing can be found, or one that
// depends on the working directory, and a directory that is not there. A selection that fits no wiring is reported.
func TestForgetSaysNothingFound(t *testing.T) {
	dir, long := filepath.Join(nstest.Dir(t), "node"), "/"+strings.Repeat("a", 4<<20)
	for _, c := range []struct {
		field string
		gone  phase1.Gone
	}{
		{"namespace", phase1.Gone{Namespace: "/run/netns/pod", Dir: dir}}, {"namespace", phase1.Gone{Namespace: "pod", Dir: dir}},
		{"namespace", phase1.Gone{Namespace: "4026532281", Dir: dir}},
		{"nic", phase1.Gone{NIC: "eth0"}}, {"state", phase1.Gone{State: "vm1", NIC: "eth0"}}, {"dir", phase1.Gone{Dir: "journals"}},
		{"namespace", phase1.Gone{Namespace: long, Dir: dir}}, {"nic", phase1.Gone{NIC: long, State: "/vm1"}},
		{"state", phase1.Gone{State: long, NIC: "eth0"}}, {"dir", phase1.Gone{Dir: long}},
	} {
		var bad *cache.FieldError
		if err := phase1.Forget(t.Context(), c.gone); !errors.As(err, &bad) || bad.Field != c.field || len(err.Error()) > longjson.MostError {
			t.Errorf("%.200s: %.3000v, want a FieldError for %s, which is short", fmt.Sprintf("%+v", c.gone), err, c.field)
		}
	}
	for _, there := range []bool{false, true} {
		if there {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		list, err := phase1.List(t.Context(), dir)
		if len(list) > 0 || there && err != nil || !there && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("List, with the directory %v: %v, %v", there, list, err)
		}
		for _, g := range []phase1.Gone{{Namespace: "00000000-4026531999-5"}, {State: "/run/guestwire/typo"}, {State: "/run/guestwire/typo", NIC: "eth0"}} {
			said := ""
			g.Dir, g.Progress = dir, func(text string) { said += text }
			err := phase1.Forget(t.Context(), g)
			if there && (err != nil || !strings.Contains(said, "nothing is left to forget")) {
				t.Errorf("%+v: %v, and Forget said %q", g, err, said)
			}
			if !there && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) || said != "") {
				t.Errorf("%+v: %v, and Forget said %q; want an error that names the directory", g, err, said)
			}
		}
	}
}

// TestForgetWithoutJournal: a record whose journal is lost says whose it is; so it does after a boot, when
// the node's directory is gone, and a State on disk still has the record.
func TestForgetWithoutJournal(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"*", "."} {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Redirect{})
		c.Dir = filepath.Join(nstest.Dir(t), "node")
		setup(t, c)
		paths, err := filepath.Glob(filepath.Join(c.Dir, lost))
		if err != nil || len(paths) != 1 {
			t.Fatalf("%v, %v", paths, err)
		}
		if err := os.RemoveAll(filepath.Clean(paths[0])); err != nil {
			t.Fatal(err)
		}
		said := ""
		g := phase1.Gone{State: n.State, NIC: "eth0", Dir: c.Dir, Progress: func(text string) { said += text + "\n" }}
		if err := phase1.Forget(t.Context(), g); !errors.Is(err, phase1.ErrAlive) {
			t.Errorf("of a namespace that lives: %v, want ErrAlive", err)
		}
		n.Pod.Gone()
		if err := phase1.Forget(t.Context(), g); err != nil {
			t.Error(err)
		}
		empty(t, n.State)
		if strings.Contains(said, "removes the journal") || !strings.Contains(said, "has no journal in "+c.Dir) {
			t.Errorf("Forget said %s", said)
		}
	}
}

// TestForgetSaysWhatIsTrue: Forget reports what it removes, and nothing of what another call has removed since Forget
// listed the directory. A journal that is not there is not removed, either.
func TestForgetSaysWhatIsTrue(t *testing.T) {
	dir := filepath.Join(nstest.Dir(t), "node")
	locks := []string{"4026532281", "4026532282", "hold-4026532281-eth0", "hold-4026532282-eth0", "name-a", "name-b", "proxy-a-eth0", "proxy-b-eth0", "state-a", "state-b"}
	empty := []string{"00000000-4026531999-5", "00000000-4026531999-6"}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, empty[0]), 0o700), os.Mkdir(filepath.Join(dir, empty[1]), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range locks {
		writeFile(t, filepath.Join(dir, name), "")
	}
	var said []string
	g := phase1.Gone{State: "/run/guestwire/none", Dir: dir, Progress: func(text string) {
		said = append(said, text)
		for _, all := range [][]string{locks, empty} {
			for i := range all {
				if i%2 == 1 && strings.Contains(text, "/"+all[i-1]) { // the next one goes before Forget gets there
					os.RemoveAll(filepath.Join(dir, all[i]))
				}
			}
		}
	}}
	if err := phase1.Forget(t.Context(), g); err != nil {
		t.Error(err)
	}
	want := []string{"nothing is left to forget: no wiring of the node is selected"}
	for _, name := range []string{empty[0], locks[0], locks[2], locks[4], locks[6], locks[8]} {
		what := map[bool]string{true: "directory %s, which has no journal", false: "lock %s, which no call holds"}[name == empty[0]]
		want = append(want, "removes the "+fmt.Sprintf(what, filepath.Join(dir, name)))
	}
	if !slices.Equal(said, want) {
		t.Errorf("Forget said\n%q, want\n%q", said, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestNextNamespace: a Setup with the State of a namespace that is gone replaces its record, and its journal goes. The
// journal stays if its State is another. After Teardown nothing is left without a Forget.
func TestNextNamespace(t *testing.T) {
	t.Parallel()
	first, next := nstest.NewNetwork(t), nstest.NewNetwork(t)
	c := config(first, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	setup(t, c)
	stray := filepath.Join(nstest.Dir(t), "stray") // names the first namespace as well, and is not its State
	if err := os.Mkdir(stray, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(stray, "eth0.json"), readFile(t, filepath.Join(first.State, "eth0.json")))
	first.Pod.Gone()

	for _, state := range []string{stray, first.State} {
		second := config(next, infra.Redirect{})
		second.Dir, second.State = c.Dir, state
		setup(t, second)
		want := map[string]int{stray: 2, first.State: 1}[state]
		if list, err := phase1.List(t.Context(), c.Dir); err != nil || len(list) != want {
			t.Errorf("with the State %s: %v, %v; want %d", state, list, err, want)
		}
		if err := second.Teardown(t.Context()); err != nil {
			t.Error(err)
		}
		empty(t, state)
	}
	empty(t, c.Dir)
}

// TestForgetThroughLink: a State that was removed with its parent is the same State by another path.
func TestForgetThroughLink(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	above := nstest.Dir(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(above, "real/guests"), 0o755), os.Symlink("real", filepath.Join(above, "link"))); err != nil {
		t.Fatal(err)
	}
	c := config(n, infra.Redirect{})
	c.State = filepath.Join(above, "link/guests/vm")
	setup(t, c)
	path, _ := journal(t, n)
	if err := os.RemoveAll(filepath.Join(above, "real/guests")); err != nil {
		t.Fatal(err)
	}
	if err := phase1.Forget(t.Context(), phase1.Gone{State: c.State, NIC: "eth0"}); !errors.Is(err, phase1.ErrAlive) {
		t.Errorf("of a namespace that lives: %v, want ErrAlive", err)
	}
	n.Pod.Gone()
	if err := phase1.Forget(t.Context(), phase1.Gone{State: c.State, NIC: "eth0"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal: %v, want none", err)
	}
}

// TestTeardownLeavesForeignRecord: a record of another namespace stays, also one of another version of guestwire.
func TestTeardownLeavesForeignRecord(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	path := filepath.Join(n.State, "eth0.json")
	for name, change := range map[string]func(string) string{
		"this version":    func(text string) string { return text },
		"another version": func(text string) string { return strings.Replace(text, recordVersion, `"version": 999, "more": 1`, 1) },
	} {
		setup(t, c)
		foreign := change(strings.Replace(readFile(t, path), namespaceName(t, n), "00000000-4026531999-5", 1))
		writeFile(t, path, foreign)
		if err := c.Teardown(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		sameFile(t, path, foreign)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// TestForgetRecordOfAnotherVersion: a record of a later version does not keep its State for ever.
func TestForgetRecordOfAnotherVersion(t *testing.T) {
	t.Parallel()
	old, next := nstest.NewNetwork(t), nstest.NewNetwork(t)
	setup(t, config(old, infra.Redirect{}))
	path := filepath.Join(old.State, "eth0.json")
	writeFile(t, path, strings.Replace(readFile(t, path), recordVersion, `"version": 999, "more": 1`, 1))
	c := config(next, infra.Redirect{})
	c.State = old.State
	g := phase1.Gone{State: old.State, NIC: "eth0"}
	old.Pod.Gone()
	if err := setupAlone(t.Context(), c); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "Forget") {
		t.Errorf("%v, want ErrWired, and that Forget helps", err)
	}
	if err := phase1.Forget(t.Context(), g); err != nil {
		t.Error(err)
	}
	setup(t, c)
	unwire(t, c)
}
