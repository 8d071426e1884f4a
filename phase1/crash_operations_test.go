package phase1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// bed is a namespace in which trials are made, one after the other.
type bed struct {
	*testing.T
	n             nstest.Network
	c             wired.NIC
	before, wired string
	were          map[string]string // sysctls
}

const (
	specName     = "spec.json"
	inactiveName = "inactive.json" // of a move
)

// newBed makes the namespace, and learns how it looks before and after an undisturbed Setup.
func newBed(t *testing.T, binding infra.Binding) *bed {
	t.Helper()
	b := &bed{T: t, n: nstest.NewNetwork(t)}
	b.n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
	b.n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
	b.n.State = filepath.Join(b.n.State, "vm") // Setup makes it
	b.c = config(b.n, binding)
	b.c.Dir = filepath.Join(nstest.Dir(b.T), "node") // and this one
	b.c.DNS = nil                                    // as the agent's flags say
	if k := binding.Kind(); k == cache.BindingMasquerade || k == cache.BindingRouted {
		b.c.Egress = policy(t, "refuse metadata", "divert 192.0.2.7 80 127.0.0.1:8080", "divert 198.51.100.0/24 8443 :15443", "allow 198.51.100.0/24 443", "refuse all")
	}
	b.c.Spec.Flows = binding.Kind() == cache.BindingRouted
	settled(b.T, b.n)
	b.before, b.were = b.dump(), sysctls(b.n)
	setup(b.T, b.c)
	settled(b.T, b.n)
	b.wired = b.dump()
	if err := b.finish(false); err != nil {
		b.Fatal(err)
	}
	return b
}

// args are those of a verb.
func (b *bed) args(verb string, more ...string) []string {
	return append([]string{verb, "-dir", b.c.Dir, "-netns", b.n.Pod.Path(), "-nic", b.c.Name}, more...)
}

// setupArgs are those of setup. The Spec in JSON has what no flag says.
func (b *bed) setupArgs(more ...string) []string {
	b.Helper()
	text, err := json.Marshal(infra.Spec{Binding: b.c.Binding, Egress: b.c.Egress, Flows: b.c.Spec.Flows})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), specName)
	writeFile(b.T, path, string(text))
	args := b.args("setup", "-state", b.n.State, "-config", path, "-binding", string(b.c.Binding.Kind()))
	return slices.Concat(args, nstest.OwnerFlags(), more)
}

func (b *bed) setup() *operation {
	found := func(file bool) error {
		if file {
			return b.wantDump(b.before)
		}
		return b.isFound()
	}
	return &operation{args: b.setupArgs(), found: found, prepare: b.removeState, done: b.isWired, finish: b.finish}
}

func (b *bed) teardown() *operation {
	return &operation{args: b.args("teardown"), prepare: b.wire, done: b.isFound, finish: b.finish}
}

// change is a later Setup with other limits, addresses and, under masquerade, ports and destinations. Under routed it
// gives the sysctls of flows back. Whatever becomes of it, the rules are those from before it or those after it.
func (b *bed) change() *operation {
	other := b.c
	other.Limits = cache.Limits{FromGuest: cache.Limit{PacketsPerSecond: 1000}, ToGuest: cache.Shape{BitsPerSecond: 10_000_000}}
	other.Spec.Flows = false
	other.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28")}
	if m, is := other.Binding.(infra.Masquerade); is {
		m.Ports = []infra.Ports{{First: 80, Guest: 8080}}
		other.Binding = m
		other.Egress = policy(b.T, "divert all 8443 :15443", "divert 192.0.2.7 80 :8080", "allow 198.51.100.0/25 443", "allow 2001:db8:9::/64 icmp", "refuse all")
	}
	text, err := json.Marshal(infra.Spec{Binding: other.Binding, Limits: other.Limits, Guard: other.Guard, Egress: other.Egress})
	if err != nil {
		b.Fatal(err)
	}
	op := &operation{args: b.setupArgs(), prepare: b.wire}
	writeFile(b.T, op.args[slices.Index(op.args, "-config")+1], string(text))
	if err := errors.Join(b.wire(), setupAlone(b.Context(), other)); err != nil {
		b.Fatal(err)
	}
	settled(b.T, b.n)
	changed := b.dump()
	op.done = func() error {
		err := errors.Join(b.wantDump(changed), other.Check(b.Context()))
		now := sysctls(b.n)
		for _, path := range netstate.OfFlows() {
			if name := strings.ReplaceAll(path, "/", "."); now[name] != b.were[name] {
				err = errors.Join(err, fmt.Errorf("%s is %s, not %s", name, now[name], b.were[name]))
			}
		}
		return err
	}
	op.always = func() error {
		rules := func(dump string) string { return strings.Join(ofTables.FindAllString(dump, -1), "") }
		if have := rules(b.dump()); have != rules(changed) && have != rules(b.wired) {
			return fmt.Errorf("the rules are neither those from before nor those after:\n%s", have)
		}
		return nil
	}
	op.finish = func(again bool) error {
		if again {
			if err := errors.Join(setupAlone(b.Context(), other), op.done()); err != nil {
				return fmt.Errorf("setup again: %w", err)
			}
		}
		return b.finish(false)
	}
	if err := op.finish(false); err != nil {
		b.Fatal(err)
	}
	return op
}

// pin pins two ports. Whatever becomes of it, both are pinned or none is, and all else is as wired. A later Setup keeps
// the pins.
func (b *bed) pin() *operation {
	const flags = "-addresses 198.51.100.77 -ports 8444,53/udp -life 1h"
	op := &operation{args: append([]string{"pin", "-netns", b.n.Pod.Path(), "-nic", b.c.Name}, strings.Fields(flags)...), prepare: b.wire}
	pinned := func() []string {
		pins := onePin.FindAllString(b.n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"), -1)
		slices.Sort(pins)
		return pins
	}
	op.done = func() error {
		if have := pinned(); !slices.Equal(have, []string{"198.51.100.77 . tcp . 8444", "198.51.100.77 . udp . 53"}) {
			return fmt.Errorf("pinned are %q", have)
		}
		return nil
	}
	op.always = func() error {
		if len(pinned()) > 0 {
			return errors.Join(op.done(), b.isWired())
		}
		return b.isWired()
	}
	op.finish = func(again bool) error {
		before := pinned()
		if again {
			if err := setupAlone(b.Context(), b.c); err != nil {
				return fmt.Errorf("setup again: %w", err)
			}
			if after := pinned(); !slices.Equal(after, before) {
				return fmt.Errorf("setup again: the pins were %q and are %q", before, after)
			}
		}
		return b.finish(again)
	}
	return op
}

var onePin = regexp.MustCompile(`[0-9.]+ \. \w+ \. \d+`)

// wire prepares a Teardown.
func (b *bed) wire() error { return errors.Join(b.removeState(), setupAlone(b.Context(), b.c)) }

func (b *bed) finish(again bool) error {
	if again {
		if err := errors.Join(setupAlone(b.Context(), b.c), b.isWired()); err != nil {
			return fmt.Errorf("setup again: %w", err)
		}
	}
	refusePlans(b.T, b.c)
	return errors.Join(b.c.Teardown(b.Context()), b.isFound())
}

// wantDump waits for the namespace to be as in a dump taken before.
func (b *bed) wantDump(want string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := difference(want, b.dump())
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// dump leaves out what the kernel makes up for our links: the MACs of taps, and the multicast routes,
// which come late, with a carrier. A repair makes one table of nftables after another, so they are sorted.
func (b *bed) dump() string {
	dump := equalsSorted(ofLinks.ReplaceAllString(b.n.Pod.Dump(), "$1"))
	tables := ofTables.FindAllString(dump, -1)
	slices.Sort(tables)
	return ofTables.ReplaceAllStringFunc(dump, func(string) string {
		next := tables[0]
		tables = tables[1:]
		return next
	})
}

var ofTables = regexp.MustCompile(`(?m)^table \w+ guestwire-\S+ \{\n(?:\s.*\n|\n)*\}\n`)

var ofLinks = regexp.MustCompile(`(eth0-(?:tap|dhcp): [^\n]*\n *link/ether) [0-9a-f:]{17}|multicast ff00::/8 dev eth0-[^\n]*\n`)

// nothingLeft reports whether the state directory is empty, or was never made, and the node's directory has no more
// than the locks of killed calls, which Forget removes.
func (b *bed) nothingLeft() error {
	left, err := os.ReadDir(b.n.State)
	if len(left) > 0 {
		return fmt.Errorf("the state directory has %v", left)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for range 2 {
		left, err = os.ReadDir(b.c.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range left {
			if !aLock.MatchString(e.Name()) || !e.Type().IsRegular() {
				return fmt.Errorf("the journal directory has %v", left)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if err := phase1.Forget(b.Context(), phase1.Gone{Dir: b.c.Dir}); err != nil {
			return err
		}
	}
	return fmt.Errorf("Forget leaves the locks %v", left)
}

var aLock = regexp.MustCompile(`^(\d+|state-[0-9a-f]{16})$`)

// removeState lets Setup make both directories; a state directory in which something lies stays.
func (b *bed) removeState() error {
	for _, dir := range []string{b.n.State, b.c.Dir} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// isFound reports whether the namespace is as it was found, and the directory without a trace.
func (b *bed) isFound() error { return errors.Join(b.wantDump(b.before), b.nothingLeft()) }

// isWired reports whether all is as after an undisturbed Setup. One that got EPERM for force_forwarding lets the whole
// namespace forward: then Check alone judges.
func (b *bed) isWired() error {
	const all = "ipv6/conf/all/forwarding:"
	if strings.Contains(b.wired, all+"0") && strings.Contains(b.n.Pod.Dump(), all+"1") {
		return b.c.Check(b.Context())
	}
	return errors.Join(b.wantDump(b.wired), b.c.Check(b.Context()))
}

// force takes down a wiring whose journal is damaged. Setup does nothing before the work is finished, by Teardown or by
// force.
func (b *bed) force() *operation {
	forced := ""
	op := &operation{args: b.args("teardown", "-force", "-state", b.n.State)}
	op.prepare = func() error {
		if err := b.wire(); err != nil {
			return err
		}
		path, _ := journalIn(b.T, b.c.Dir, b.n)
		return os.WriteFile(path, []byte("{"), 0o600)
	}
	op.done = func() error { return errors.Join(b.wantDump(forced), b.nothingLeft()) }
	op.finish = func(again bool) error {
		if left, _ := filepath.Glob(filepath.Join(b.c.Dir, "*", "*.journal")); again && len(left) > 0 {
			before := b.n.Pod.Settled() // the wiring's IPv6 addresses are new
			if err := setupAlone(b.Context(), b.c); err == nil || !regexp.MustCompile("damaged|interrupted").MatchString(err.Error()) {
				return fmt.Errorf("setup before the end says %v", err)
			}
			if err := difference(before, b.n.Pod.Dump()); err != nil {
				return fmt.Errorf("setup before the end: %w", err)
			}
		}
		err := b.c.Teardown(b.Context())
		if !again || err != nil && strings.Contains(err.Error(), "Teardown by force") {
			if err = second(b.c.ForceTeardown(b.Context())); errors.Is(err, phase1.ErrNotWired) { // all was done
				err = nil
			}
		}
		return errors.Join(err, op.done(), b.createAgain())
	}
	// How the namespace looks after an undisturbed one.
	if err := errors.Join(op.prepare(), second(b.c.ForceTeardown(b.Context()))); err != nil {
		b.Fatal(err)
	}
	b.n.Pod.Settled()
	forced = b.dump()
	if err := errors.Join(b.nothingLeft(), b.createAgain()); err != nil {
		b.Fatal(err)
	}
	return op
}

// createAgain adds what a forced Teardown does not know.
func (b *bed) createAgain() error {
	for name, value := range sysctls(b.n) {
		if were := b.were[name]; value != were {
			setSysctl(b.n, name, were)
		}
	}
	if b.c.Binding == (infra.Bridge{}) {
		b.n.Pod.IP("route add default via 10.244.1.1")
		b.n.Pod.IP("route add default via fd00:244:1::1")
		b.n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
		b.n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
	}
	return b.isFound()
}

// forget removes what is left of a namespace that is gone, beside another wiring.
func forget(t *testing.T, byName bool) *operation {
	old, alive := nstest.NewNetwork(t), nstest.NewNetwork(t)
	c := config(alive, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	gone := config(old, infra.Bridge{})
	gone.Dir = c.Dir
	setup(t, gone)
	name := namespaceName(t, old)
	old.Pod.Gone()
	files := map[string]string{
		filepath.Join(c.Dir, "4026531999"):                               "",
		filepath.Join(c.Dir, "state-0011223344556677"):                   "",
		filepath.Join(c.Dir, "00000000-4026531999-5", ".eth0.journal.7"): "",
	}
	for _, path := range []string{filepath.Join(c.Dir, name, "eth0.journal"), filepath.Join(old.State, "eth0.json")} {
		files[path] = readFile(t, path)
	}
	setup(t, c)
	living := func() string { // the files of the wiring whose namespace lives
		_, text := journalIn(t, c.Dir, alive)
		return text + readFile(t, filepath.Join(alive.State, "eth0.json"))
	}
	before := living()
	isForgotten := func(locks bool) error { // locks may be left
		for path := range files {
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) && !(locks && aLock.MatchString(filepath.Base(path))) {
				return fmt.Errorf("%s is left (%v)", path, err)
			}
		}
		if left, err := os.ReadDir(c.Dir); err != nil || len(left) != 1 && !locks {
			return fmt.Errorf("the journal directory has %v, %v", left, err)
		}
		return nil
	}
	args := []string{"forget", "-dir", c.Dir, "-state", old.State, "-nic", "eth0"}
	if byName {
		args = []string{"forget", "-dir", c.Dir, "-namespace", name}
	}
	return &operation{
		args: args,
		prepare: func() (err error) { // puts the files where they were
			for path, text := range files {
				err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o644))
			}
			return err
		},
		done: func() error { return isForgotten(true) },
		always: func() error {
			if living() != before {
				return errors.New("journal or record of the living namespace have changed")
			}
			return c.Check(t.Context())
		},
		finish: func(bool) error {
			return errors.Join(phase1.Forget(t.Context(), phase1.Gone{Dir: c.Dir}), isForgotten(false))
		},
	}
}
