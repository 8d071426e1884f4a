package phase1_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// untouched reports whether the NIC is wired as Setup left it, with its record and its journal.
func untouched(t *testing.T, c wired.NIC, journalPath, journalText string) {
	t.Helper()
	check(t, c)
	sameFile(t, journalPath, journalText)
}

// TestTypedNamespace: a path that does not open is no proof that a namespace is gone.
func TestTypedNamespace(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	n := nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	c := config(n, infra.Bridge{})
	before := settled(t, n)
	setup(t, c)
	path, text := journal(t, n)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for name, netns := range map[string]string{
		"typed wrong":       n.Pod.Path() + "-typo",
		"an ended process":  filepath.Join("/proc", ended.ProcessState.String(), "ns/net"),
		"a relative path":   "run/netns/" + n.Pod.Name,
		"no namespace":      "/dev/null",
		"an empty argument": "",
	} {
		for _, state := range [][]string{nil, {"-state", n.State}} {
			out, err := exec.Command(agent, append([]string{"teardown", "-netns", netns, "-nic", "eth0"}, state...)...).CombinedOutput()
			if err == nil || len(out) == 0 {
				t.Errorf("%s: teardown says nothing is wrong: %s", name, out)
			}
			untouched(t, c, path, text)
		}
	}
	var bad *cache.FieldError
	forgotten := c
	forgotten.NetNS = nil
	if err := forgotten.Teardown(t.Context()); !errors.As(err, &bad) || bad.Field != "netns" {
		t.Errorf("Teardown without a namespace: %v, want a FieldError for netns", err)
	}
	untouched(t, c, path, text)
	teardown(t, n, c, before)
}

// TestTypedState: a State that is not the one of the wiring is an error, and none is needed.
func TestTypedState(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		before := settled(t, n)
		setup(t, c)
		path, text := journal(t, n)
		for _, state := range []string{n.State + "-typo", nstest.Dir(t), "relative", "."} {
			typed := c
			typed.State = state
			for verb, err := range map[string]error{
				"Setup": setupAlone(t.Context(), typed), "Teardown": typed.Teardown(t.Context()),
				"ForceTeardown": second(typed.ForceTeardown(t.Context())),
			} {
				var bad *cache.FieldError
				if !errors.As(err, &bad) || bad.Field != "state" || filepath.IsAbs(state) && !strings.Contains(err.Error(), n.State) {
					t.Errorf("%s with the State %s: %v, want a FieldError that names %s", verb, state, err, n.State)
				}
			}
			untouched(t, c, path, text)
		}
		c.State = ""
		check(t, c)
		teardown(t, n, c, before)
	})
}

// second is the error of a call that returns something else as well.
func second[T any](_ T, err error) error { return err }

// TestLostState: Teardown does not need the State directory, and Setup makes it anew.
func TestLostState(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Bridge{})
	before := settled(t, n)
	for _, again := range []bool{true, false} {
		setup(t, c)
		if err := os.RemoveAll(n.State); err != nil {
			t.Fatal(err)
		}
		var drift *phase1.DriftError
		if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "record" {
			t.Errorf("Check without the record: %v, want one difference", err)
		}
		if again {
			setup(t, c)
			check(t, c)
		}
		unwire(t, c)
		asFound(t, n, before)
		if err := os.MkdirAll(n.State, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLateDEL: an engine's second and late call for a sandbox that is gone never concerns the next sandbox, which has
// the same State and NIC.
func TestLateDEL(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	old, next := nstest.NewNetwork(t), nstest.NewNetwork(t)
	next.State = old.State
	ctx := t.Context()
	setup(t, config(old, infra.Bridge{}))
	oldName := namespaceName(t, old)
	byState := phase1.Gone{State: old.State, NIC: "eth0"}
	for name, g := range map[string]phase1.Gone{"by State and NIC": byState, "by name": {Namespace: oldName}} {
		if err := phase1.Forget(ctx, g); !errors.Is(err, phase1.ErrAlive) || !strings.Contains(err.Error(), old.Pod.Path()) {
			t.Errorf("%s, of a namespace that lives: %v, want ErrAlive with %s", name, err, old.Pod.Path())
		}
		if err := config(old, nil).Check(ctx); err != nil {
			t.Error(err)
		}
	}
	oldJournal, _ := journal(t, old)
	old.Pod.Gone()
	before := settled(t, next)
	setup(t, config(next, infra.Masquerade{})) // the next sandbox comes before the old one's DEL
	path, text := journal(t, next)
	if err := phase1.Forget(ctx, byState); !errors.Is(err, phase1.ErrAlive) || !strings.Contains(err.Error(), next.Pod.Path()) {
		t.Errorf("by State and NIC: %v, want ErrAlive with %s", err, next.Pod.Path())
	}
	if _, err := os.Stat(oldJournal); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old sandbox's journal: %v, want none", err)
	}
	for range 2 {
		if err := phase1.Forget(ctx, phase1.Gone{Namespace: oldName}); err != nil {
			t.Error(err)
		}
		untouched(t, config(next, nil), path, text)
	}
	teardown(t, next, config(next, nil), before)
	for range 2 {
		if err := phase1.Forget(ctx, byState); err != nil {
			t.Error(err)
		}
	}
}

// TestForget removes journal, record and lock of a namespace that is gone, says so, and leaves other files.
func TestForget(t *testing.T) {
	n := nstest.NewNetwork(t)
	dir := filepath.Join(nstest.Dir(t), "node")
	c := config(n, infra.Bridge{})
	c.Dir = dir
	setup(t, c)
	for _, name := range []string{"net1.json", "eth0-old.json", "notes"} {
		writeFile(t, filepath.Join(n.State, name), "{}")
	}
	for _, name := range []string{"4026531999", "state-0011223344556677", "notes"} {
		writeFile(t, filepath.Join(dir, name), "")
	}
	journals, _ := filepath.Glob(filepath.Join(dir, "*", "eth0.journal"))
	killed := filepath.Join(filepath.Dir(filepath.Dir(journals[0])), "00000000-4026531999-5")
	if err := errors.Join(os.Mkdir(killed, 0o700), os.WriteFile(filepath.Join(killed, ".eth0.journal.new"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n.Pod.Gone()
	var said []string
	g := phase1.Gone{Dir: dir, Progress: func(text string) { said = append(said, text) }}
	for range 2 {
		if err := phase1.Forget(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	all := strings.Join(said, "\n")
	for _, path := range []string{journals[0], filepath.Join(n.State, "eth0.json"), filepath.Join(dir, "4026531999"), filepath.Join(dir, "state-0011223344556677"), killed} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) || strings.Count(all, path) != 1 {
			t.Errorf("%s: %v, and Forget said\n%s", path, err, all)
		}
	}
	for path, want := range map[string]string{n.State: "eth0-old.json net1.json notes", dir: "notes"} {
		var left []string
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if strings.Join(left, " ") != want {
			t.Errorf("%s has %v, want %s", path, left, want)
		}
	}
}

// TestUnreadableNeighbour: a journal that cannot be read stops no other NIC of the namespace.
func TestUnreadableNeighbour(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	secondNIC(n, "10.245.0.7/24")
	before := settled(t, n)
	first, second := config(n, infra.Redirect{}), configOfSecondNIC(n, infra.Bridge{})
	setup(t, first)
	path, text := journal(t, n)
	for name, other := range map[string]string{"of another version": regexp.MustCompile(`"version":\d+`).ReplaceAllString(text, `"version":99`), "damaged": text[:len(text)/2]} {
		writeFile(t, path, other)
		setup(t, second)
		if err := second.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := second.Teardown(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := first.Teardown(t.Context()); err == nil {
			t.Errorf("%s: Teardown of the NIC whose journal it is succeeds", name)
		}
	}
	writeFile(t, path, text)
	teardown(t, n, first, before)
}
