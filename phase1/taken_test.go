package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// taking is how a name of the wiring becomes another's: by lines for a shell in the pod, in which NAME is the name, and
// whose links are in the group 77.
type taking struct {
	what, name, lines string
	// whose is what Check says; empty: the wiring counts what is there as its own, and replaces it.
	whose string
	// wires: the NIC net1 is wired, and its tap has the name.
	wires bool
}

// takings are all of them.
func takings() (list []taking) {
	const (
		deleted = "if ip link show NAME; then ip link del NAME; fi; "
		renamed = "if ip link show NAME; then ip link set NAME name other; fi; "
		veth    = "ip link add NAME group 77 type veth peer name far group 77"
	)
	tap := fmt.Sprintf("ip tuntap add NAME mode tap user %d group %[1]d", nstest.LauncherUID)
	for _, name := range []string{"eth0", "eth0-nic", "eth0-br", "eth0-tap", "eth0-dhcp"} {
		list = append(list,
			taking{"deleted", name, deleted + veth, name + " is another program's veth: ", false},
			taking{"renamed", name, renamed + veth, name + " is another program's veth: ", false},
			taking{"an altname", name, renamed + "ip link add far group 77 type bridge; ip link property add dev far altname NAME", name + " is an altname of far: ", false},
			taking{"a tap", name, renamed + tap + "; ip link set NAME group 77 alias theirs", name + " is another program's tap: ", false})
		if name == "eth0-tap" || name == "eth0-dhcp" {
			list = append(list, taking{"a tap without alias", name, deleted + tap, "", false})
		}
		if name != "eth0" {
			list = append(list, taking{"of another NIC", name, renamed, name + " is a link of the wiring of net1: ", true})
		}
	}
	for _, family := range []string{"inet", "bridge", "netdev"} {
		table := family + " guestwire-eth0"
		list = append(list, taking{"a table", table, "nft delete table NAME || true; nft add table NAME; nft add chain NAME theirs", "", false})
	}
	return list
}

// TestTaken: while a NIC is wired, another program takes a name of the wiring. Check and Status say whose it is. Each
// verb does its whole work, or refuses before its first change and offers a command, after which it does its whole
// work. After Teardown the namespace is as it was found.
func TestTaken(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		for _, how := range takings() {
			if b.Kind() != cache.BindingBridge && (how.name == "eth0-nic" || how.name == "eth0-br") {
				continue // such a wiring has no link of that name
			}
			t.Run(how.name+" "+how.what, func(t *testing.T) {
				k := &taken{T: t, b: b}
				for _, verb := range []string{"Setup", "Teardown", "ForceTeardown", "without a journal", "Discard"} {
					if !how.wires || verb != "without a journal" { // net1 has another one
						k.try(how, verb)
					}
				}
			})
		}
		t.Run("Forget", func(t *testing.T) {
			k := &taken{T: t, b: b}
			k.renew(false)
			k.take(takings()[0])
			path, _ := journal(t, k.n)
			name := namespaceName(t, k.n)
			k.n.Pod.Gone()
			if err := phase1.Forget(t.Context(), phase1.Gone{Namespace: name}); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", path, err)
			}
			empty(t, k.n.State)
		})
	})
}

// taken is a pod in which names are taken.
type taken struct {
	*testing.T
	b        infra.Binding
	n        nstest.Network
	c, other wired.NIC
	before   string // the pod as it was found; empty: a pod has to be made
}

func (k *taken) renew(two bool) {
	k.n = nstest.NewNetwork(k.T)
	if two {
		secondNIC(k.n, "10.250.0.7/24")
	}
	k.before, k.c, k.other = settled(k.T, k.n), config(k.n, k.b), configOfSecondNIC(k.n, infra.Redirect{})
}

// take wires the NIC, and then takes the name.
func (k *taken) take(how taking) {
	k.Helper()
	setup(k.T, k.c)
	k.shell(strings.ReplaceAll(how.lines, "NAME", how.name))
	if how.wires {
		k.other.Tap = how.name
		setup(k.T, k.other)
	}
}

func (k *taken) shell(lines string) {
	k.Helper()
	nstest.Run(k.T, "ip", "netns", "exec", k.n.Pod.Name, "sh", "-ec", "exec 2>/dev/null; "+lines)
}

// try takes the name, and calls the verb.
func (k *taken) try(how taking, verb string) {
	if k.before == "" {
		k.renew(how.wires)
	}
	found := k.before
	k.before = "" // until the namespace is as found
	k.take(how)
	gone := k.check(how)
	if verb == "without a journal" {
		harmJournal(k.T, k.n, "removed")
	}
	c := k.c
	c.Down.Discard = verb == "Discard"
	do := map[string]func() error{
		"Setup":             func() error { return setupAlone(k.Context(), c) },
		"Teardown":          func() error { return c.Teardown(k.Context()) },
		"ForceTeardown":     func() error { return second(c.ForceTeardown(k.Context())) },
		"without a journal": func() error { return second(c.ForceTeardown(k.Context())) },
		"Discard":           func() error { return c.Teardown(k.Context()) },
	}[verb]
	before, files := settled(k.T, k.n), k.files()
	err := do()
	if errors.Is(err, infra.ErrWired) {
		if err := errors.Join(difference(before, settled(k.T, k.n)), difference(files, k.files())); err != nil {
			k.Errorf("%s refuses, and has changed something: %v", verb, err)
		}
		k.offered(verb, err)
		err = do()
	}
	if errors.Is(err, infra.ErrNoNIC) && (gone || verb == "without a journal") { // which alone has the NIC under another name
		if verb == "Setup" {
			err = c.Teardown(k.Context())
		}
		if err != nil && !errors.Is(err, infra.ErrNoNIC) {
			k.Errorf("without the NIC: %v", err)
		}
		err = nil
	} else if verb == "Setup" && err == nil {
		check(k.T, c)
		unwire(k.T, c)
	}
	if err != nil {
		k.Errorf("%s: %v", verb, err)
	}
	unwire(k.T, k.other)
	filesAreGone(k.T, k.n)
	if gone || verb == "without a journal" || verb == "Discard" || k.Failed() {
		return
	}
	k.shell("ip link del group 77 || true")
	if how.name == "eth0" && (k.b.Kind() == cache.BindingMasquerade || k.b.Kind() == cache.BindingRouted) { // with its name the NIC has lost other things
		if err := nothingOfOurs(k.n); err != nil || linkField(k.T, k.n, "eth0", "kind") != "veth" {
			k.Errorf("what is left: %v", err)
		}
		return
	}
	nstest.Eventually(k.T, func() error { return difference(equalsSorted(found), equalsSorted(k.n.Pod.Dump())) })
	if !k.Failed() {
		k.before = found
	}
}

// check wants Check and Status to say whose the name is, or that the NIC is gone.
func (k *taken) check(how taking) (gone bool) {
	k.Helper()
	err := k.c.Check(k.Context())
	if errors.Is(err, infra.ErrNoNIC) {
		if how.name == "eth0" && !strings.Contains(err.Error(), strings.TrimSuffix(how.whose, ": ")) {
			k.Errorf("Check says %v", err)
		}
		return true
	}
	report, failed := k.c.Status(k.Context())
	if failed != nil {
		k.Fatal(failed)
	}
	var drift *phase1.DriftError
	if !errors.As(err, &drift) || report.Drift == nil || report.Drift.Error() != drift.Error() {
		k.Fatalf("Check says %v, and Status %v", err, report.Drift)
	}
	says := slices.ContainsFunc(drift.Differs, func(d cache.Finding) bool {
		return strings.HasPrefix(d.String(), how.whose) && d.Kind == "link-other" && d.Grave && d.Link == how.name
	})
	if how.whose != "" && (!says || len(drift.Repair) > 0) || how.whose == "" && len(drift.Repair) == 0 {
		k.Errorf("Check says %v\nwant %q without a repair, or a repair", err, how.whose)
	}
	return false
}

// files are those of journals and records.
func (k *taken) files() string {
	k.Helper()
	list := journals(k.T, k.n)
	entries, err := os.ReadDir(k.n.State)
	if err != nil {
		k.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, "\n") + "\n"
}

var offer = regexp.MustCompile(` first(?:, in this namespace)? \((?:Teardown, )?([^)]+)\)`)

// offered types the commands that the error offers.
func (k *taken) offered(verb string, err error) {
	k.Helper()
	ways := offer.FindAllStringSubmatch(err.Error(), -1)
	if len(ways) == 0 {
		k.Errorf("%s offers nothing: %v", verb, err)
	}
	for _, way := range ways {
		if way[1] == "guestwire-agent teardown -nic net1" {
			unwire(k.T, k.other)
		} else {
			k.shell(way[1])
		}
	}
}

// TestRenamed: a wired NIC that has been renamed is not wired a second time. Setup of its own name gives it that name
// again.
func TestRenamed(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		now := "eth0"
		if b.Kind() == cache.BindingBridge {
			now = "eth0-nic"
		}
		n.Pod.IP("link set " + now + " name net7")
		again := config(n, infra.Redirect{})
		again.Name, again.State = "net7", nstest.Dir(t)
		if _, err := again.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "it is the wired NIC eth0 under another name: name eth0") {
			t.Errorf("%s: %v", b.Kind(), err)
		}
		setup(t, c)
		check(t, c)
		unwire(t, c)
		n.Pod.IP("link show eth0")
	}
}
