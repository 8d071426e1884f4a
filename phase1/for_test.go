package phase1_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestFor: a wiring for one is neither set up nor taken down for another one, by force neither, and nothing changes.
// What the error says is the way out, works.
func TestFor(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	mine := config(n, infra.Redirect{})
	mine.For = "c1"
	theirs, nobodys := mine, mine
	theirs.For, nobodys.For = "c2", ""
	setup(t, nobodys)
	refuse := func(c wired.NIC) {
		t.Helper()
		now := n.Pod.Dump()
		for verb, call := range map[string]func() error{
			"Setup":    func() error { _, err := c.Setup(t.Context()); return err },
			"Plan":     func() error { _, err := c.Plan(t.Context()); return err },
			"While":    func() error { return c.While(t.Context(), c.Spec, nil) },
			"Teardown": func() error { return c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: c.For, CutOff: true}) },
			"Discard":  func() error { return c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: c.For, Discard: true}) },
			"Force":    func() error { return c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: c.For, Force: true}) },
		} {
			err := call()
			if !errors.Is(err, phase1.ErrForAnother) || !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "guestwire-agent teardown") {
				t.Errorf("%s for %q: %v, want ErrForAnother with the way out", verb, c.For, err)
			}
		}
		if err := nstest.Difference(now, n.Pod.Dump()); err != nil {
			t.Errorf("a call for %q has changed something: %v", c.For, err)
		}
	}
	refuse(theirs)
	teardown(t, n, nobodys, before)

	setup(t, mine)
	setup(t, mine) // the same one
	wiredFor(t, mine, "c1")
	refuse(theirs)
	var drift *phase1.DriftError
	n.Pod.IP("link set eth0-tap down")
	if err := mine.Check(t.Context()); !errors.As(err, &drift) {
		t.Errorf("%v, want a DriftError", err)
	}
	if _, err := mine.Repair(t.Context()); err != nil {
		t.Errorf("Repair, which names nobody: %v", err)
	}
	wiredFor(t, mine, "c1")
	if _, err := nobodys.Setup(t.Context()); !errors.Is(err, phase1.ErrForAnother) {
		t.Errorf("Setup for nobody: %v, want ErrForAnother", err)
	}
	mine.Down.For = "c1"
	teardown(t, n, mine, before)
	setup(t, mine)
	teardown(t, n, nobodys, before) // for anybody
	setup(t, theirs)
	teardown(t, n, theirs, before)
}

// TestForByForce: of a journal that cannot be used, what it says of the one counts. A lost journal is for anybody.
func TestForByForce(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	c.For = "c1"
	setup(t, c)
	path, text := journal(t, n)
	later := strings.Replace(string(text), `"version":`, `"version":1`, 1)
	if err := os.WriteFile(path, []byte(later), 0o600); err != nil || later == string(text) {
		t.Fatal(err)
	}
	if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: "c2", Force: true}); !errors.Is(err, phase1.ErrForAnother) {
		t.Errorf("of another version's journal: %v, want ErrForAnother", err)
	}
	if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: "c1", Force: true}); err != nil && !errors.As(err, new(*phase1.LeftError)) {
		t.Errorf("of another version's journal: %v", err)
	}
	asFound(t, n, before)
	setup(t, c)
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{For: "c2", Force: true}); err != nil && !errors.As(err, new(*phase1.LeftError)) {
		t.Errorf("of a lost journal: %v", err)
	}
	asFound(t, n, before)
}

// TestForgetFor: Forget by For removes what is left of that one alone, and refuses while the namespace lives. List says
// for whom each is. A record without a journal is for nobody.
func TestForgetFor(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(nstest.Dir(t), "node")
	networks := map[string]nstest.Network{"c1": nstest.NewNetwork(t), "c2": nstest.NewNetwork(t), "alive": nstest.NewNetwork(t)}
	for one, n := range networks {
		c := config(n, infra.Redirect{})
		c.Dir, c.For = dir, one
		setup(t, c)
	}
	networks["c1"].Pod.Gone()
	networks["c2"].Pod.Gone()
	listed := func(want ...string) {
		t.Helper()
		list, err := phase1.List(t.Context(), dir)
		have := map[string]bool{}
		for _, w := range list {
			have[w.For] = true
		}
		for _, one := range want {
			if !have[one] {
				t.Errorf("List has none for %s: %+v", one, list)
			}
		}
		if err != nil || len(list) != len(want) {
			t.Errorf("List: %+v, %v; want those for %v", list, err, want)
		}
	}
	listed("c1", "c2", "alive")
	if err := phase1.Forget(t.Context(), phase1.Gone{For: "alive", Dir: dir}); !errors.Is(err, phase1.ErrAlive) {
		t.Errorf("of a namespace that lives: %v, want ErrAlive", err)
	}
	for _, g := range []phase1.Gone{{For: "c3"}, {For: "c1", NIC: "net1"}, {For: "c2", State: networks["c1"].State}, {For: "c2", State: networks["c1"].State, NIC: "eth0"}} {
		g.Dir = dir
		if err := phase1.Forget(t.Context(), g); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
		listed("c1", "c2", "alive")
	}
	if err := phase1.Forget(t.Context(), phase1.Gone{For: "c1", NIC: "eth0", Dir: dir}); err != nil {
		t.Error(err)
	}
	listed("c2", "alive")
	for one, want := range map[string]bool{"c1": false, "c2": true} {
		if _, err := os.Stat(filepath.Join(networks[one].State, "eth0.json")); (err == nil) != want {
			t.Errorf("the record for %s: %v", one, err)
		}
	}
}

// TestForBesideWhile: a Setup that names nobody repairs what another process holds, and does not take over what a
// killed While has left.
func TestForBesideWhile(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	named := c
	named.For = program()
	_, release, err := c.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	setup(t, named)
	said := ""
	c.Progress = func(text string) { said += text }
	setup(t, c)
	wiredFor(t, c, program())
	if !strings.Contains(said, "(phase1.test) holds it") {
		t.Errorf("Setup said %q", said)
	}
	release() // as a kill does
	if _, err := c.Setup(t.Context()); !errors.Is(err, phase1.ErrForAnother) {
		t.Errorf("Setup for nobody after the kill: %v, want ErrForAnother", err)
	}
	ran := false
	if err := c.While(t.Context(), c.Spec, func(cache.Record) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("the next While: %v, ran %v", err, ran)
	}
	asFound(t, n, before)
}

// TestWhileFor: While says that it takes a wiring down if it does, which is not so for another one's, whatever else
// differs. What the caller has in For does not reach a terminal as it is.
func TestWhileFor(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	c.For = "c1\x1b[2J"
	setup(t, c)
	said := ""
	c.Progress = func(text string) { said += text }
	theirs := c
	theirs.For, theirs.State = "c2", nstest.Dir(t)
	if err := theirs.While(t.Context(), theirs.Spec, nil); !errors.Is(err, phase1.ErrForAnother) || strings.Contains(said, "taken down") {
		t.Errorf("for another one: %v, said %q", err, said)
	}
	c.Binding = infra.Bridge{} // another configuration
	if err := c.While(t.Context(), c.Spec, func(cache.Record) error { return nil }); err != nil || !strings.Contains(said, `what is wired for "c1\x1b[2J" has another`) {
		t.Errorf("for the same one: %v, said %q", err, said)
	}
	asFound(t, n, before)
}

// program is for whom While of this program wires a NIC.
func program() string { return filepath.Base(os.Args[0]) }

// wiredFor compares what Status reports.
func wiredFor(t *testing.T, c wired.NIC, want string) {
	t.Helper()
	if report, err := c.Status(t.Context()); err != nil || report.For != want {
		t.Errorf("%+v, %v; want one for %q", report, err, want)
	}
}
