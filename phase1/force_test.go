package phase1_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// journalHarms are what can become of a journal. The State can be read only of one of another version.
var journalHarms = map[string]func(t *testing.T, path, text string) error{
	"removed": func(_ *testing.T, path, _ string) error { return os.RemoveAll(filepath.Dir(path)) },
	"cut in half": func(_ *testing.T, path, text string) error {
		return os.WriteFile(path, []byte(text[:len(text)/2]), 0o600)
	},
	"empty": func(_ *testing.T, path, _ string) error { return os.WriteFile(path, nil, 0o600) },
	"of another version": func(t *testing.T, path, text string) error {
		return os.WriteFile(path, []byte(regexp.MustCompile(`"version":\d+`).ReplaceAllString(text, `"version":99`)), 0o600)
	},
	"of no plan": func(t *testing.T, path, text string) error {
		return os.WriteFile(path, []byte(strings.Replace(text, `"name":"eth0"`, `"name":"eth9"`, 1)), 0o600)
	},
}

// harmJournal does harm to the namespace's only journal.
func harmJournal(t *testing.T, n nstest.Network, how string) {
	t.Helper()
	path, text := journal(t, n)
	if err := journalHarms[how](t, path, text); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err == nil && string(now) == text {
		t.Fatalf("%s: the journal is as it was", how)
	}
}

// lostAre wants phrases that begin with the words, in that order, and no others. The phrase of the sysctls is left
// out: which ones there are is the kernel's choice.
func lostAre(t *testing.T, lost []string, words ...string) {
	t.Helper()
	lost = slices.DeleteFunc(slices.Clone(lost), func(l string) bool { return strings.HasPrefix(l, "sysctls, if they were not ") })
	if !slices.EqualFunc(lost, words, strings.HasPrefix) {
		t.Errorf("lost are\n%s\nwant\n%s", strings.Join(lost, "\n"), strings.Join(words, "\n"))
	}
}

// wiredNothing wants ErrNotWired, and nothing to be changed.
func wiredNothing(t *testing.T, n nstest.Network, c phase1.Config) {
	t.Helper()
	before := settled(t, n)
	lost, err := phase1.ForceTeardown(t.Context(), c)
	if !errors.Is(err, phase1.ErrNotWired) || len(lost) > 0 {
		t.Errorf("%q, %v, want ErrNotWired", lost, err)
	}
	if err := difference(before, n.Pod.Dump()); err != nil {
		t.Errorf("what is not wired has changed: %v", err)
	}
}

// addAgain runs the commands that a phrase has by the record, and adds what the record does not have.
func addAgain(n nstest.Network, lost []string) {
	for _, l := range lost {
		_, commands, _ := strings.Cut(l, "; by the record: ")
		for command := range strings.SplitSeq(commands, ", ") {
			if line, is := strings.CutPrefix(command, "ip "); is && !strings.Contains(line, "(or another address") {
				n.Pod.IP(line)
			}
		}
	}
}

// TestForceTeardown takes a NIC down whose journal cannot be used.
func TestForceTeardown(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
		n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
		before := settled(t, n)
		for how := range journalHarms {
			for _, named := range []bool{true, false} {
				t.Run(how, func(t *testing.T) {
					c := config(n, b)
					setup(t, c)
					harmJournal(t, n, how)
					for verb, err := range map[string]error{"Setup": setupAlone(t.Context(), c), "Teardown": phase1.Teardown(t.Context(), c)} {
						if err == nil {
							t.Errorf("%s does without the journal", verb)
						}
					}
					if !named {
						c.State = ""
					}
					lost, err := phase1.ForceTeardown(t.Context(), c)
					if err != nil {
						t.Fatal(err)
					}
					var words []string
					known := named || how == "of another version" || how == "of no plan"
					switch {
					case b == infra.Bridge{} && known:
						words = []string{"routes and permanent neighbours of eth0; by the record: ip route add 0.0.0.0/0 via 10.244.1.1 dev eth0, ip route add ::/0 via fe80:"}
					case b == infra.Bridge{}:
						words = []string{"routes and permanent neighbours of eth0"}
					case b.Kind() == cache.BindingRouted:
						words = []string{"the preferred source (src) of routes of eth0, if they had one"}
					case b == infra.Redirect{} && !known:
						words = []string{"addresses and routes that eth0 has lost since Setup"}
					}
					if !known {
						words = append(words, "whether a directory still has the record eth0.json")
					}
					lostAre(t, lost, words...)
					if left := ofNode(t, n); len(left) > 0 {
						t.Errorf("the journal directory has %v", left)
					}
					if !known {
						c.State = n.State
						if err := second(phase1.ForceTeardown(t.Context(), c)); err != nil {
							t.Errorf("of the record: %v", err)
						}
					}
					if err := nothingOfOurs(n); err != nil {
						t.Error(err)
					}
					wiredNothing(t, n, c)
					if (b == infra.Bridge{}) {
						addAgain(n, lost)
						if !known {
							n.Pod.IP("route add default via 10.244.1.1")
						}
						n.Pod.IP("route add default via fd00:244:1::1")
						n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
						n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
					}
					asFound(t, n, before)
				})
			}
		}
	})
}

// TestForceTeardownOfWiring: with a journal that can be read, it is Teardown.
func TestForceTeardownOfWiring(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		setup(t, c)
		if lost, err := phase1.ForceTeardown(t.Context(), c); err != nil || len(lost) > 0 {
			t.Errorf("%q, %v, want nothing", lost, err)
		}
		teardown(t, n, c, before)
	})
}

// TestForceTeardownOfNothing changes nothing where nothing is wired, and no other namespace's record.
func TestForceTeardownOfNothing(t *testing.T) {
	t.Parallel()
	n, other := nstest.NewNetwork(t), nstest.NewNetwork(t)
	setup(t, config(other, infra.Bridge{}))
	path, text := journal(t, other)
	c := config(n, infra.Bridge{})
	for _, state := range []string{"", n.State, filepath.Join(n.State, "never-made"), other.State} {
		c.State = state
		wiredNothing(t, n, c)
	}
	untouched(t, config(other, nil), path, text)
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	n.Pod.IP("link set net1 up")
	n.World.IP("link set pod2 up")
	second := config(n, infra.Redirect{})
	second.NIC = "net1"
	setup(t, second)
	c.State = n.State
	wiredNothing(t, n, c)
	check(t, second)
}

// TestForceTeardownBesides leaves another wired NIC of the namespace, which then takes its own sysctls back.
func TestForceTeardownBesides(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		for _, other := range bindings {
			n := nstest.NewNetwork(t)
			n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
			n.World.IP("link set pod2 up")
			n.Pod.IP("link set net1 up")
			n.Pod.IP("addr add 10.245.0.7/24 dev net1")
			n.Pod.IP("addr add fd00:245::7/64 dev net1 nodad")
			before := settled(t, n)
			first, second := config(n, b), config(n, other)
			if other.Kind() == "masquerade" {
				second.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120")}
			}
			second.NIC = "net1"
			setup(t, first)
			path, _ := journal(t, n)
			setup(t, second)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			lost, err := phase1.ForceTeardown(t.Context(), first)
			if err != nil {
				t.Fatal(err)
			}
			check(t, second)
			if err := phase1.Teardown(t.Context(), second); err != nil {
				t.Error(err)
			}
			if (b == infra.Bridge{}) {
				addAgain(n, lost)
				n.Pod.IP("route add default via fd00:244:1::1")
			}
			// Routes that differ in the link alone are in the order of their addition.
			nstest.Eventually(t, func() error { return difference(equalsSorted(before), equalsSorted(n.Pod.Dump())) })
			if err := nothingOfOurs(n); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestForceTeardownDamaged: other programs have deleted a part of the wiring as well.
func TestForceTeardownDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		binding infra.Binding
		damage  func(n nstest.Network)
		named   bool
		lost    []string
		gone    bool
	}{
		"holder": {infra.Bridge{}, func(n nstest.Network) { n.Pod.IP("link del eth0") }, false,
			[]string{"MAC and addresses of eth0", "how eth0 made its IPv6 addresses", "whether eth0 was down", "routes and permanent neighbours of eth0", "whether a directory"}, false},
		"holder, with the record": {infra.Bridge{}, func(n nstest.Network) { n.Pod.IP("link del eth0") }, true,
			[]string{"addresses of eth0, as another program has deleted the link that kept them; by the record: ip addr add 10.244.1.7/24 dev eth0, ip addr add fd00:244:1::7/64 dev eth0",
				"how eth0 made its IPv6 addresses", "whether eth0 was down", "routes and permanent neighbours of eth0; by the record: ip route add 0.0.0.0/0"}, false},
		"bridge":                  {infra.Bridge{}, func(n nstest.Network) { n.Pod.IP("link del eth0-br") }, true, []string{"routes and permanent neighbours of eth0"}, false},
		"NIC":                     {infra.Bridge{}, func(n nstest.Network) { n.World.IP("link del pod") }, true, nil, true},
		"NIC behind a redirect":   {infra.Redirect{}, func(n nstest.Network) { n.World.IP("link del pod") }, true, nil, true},
		"NIC behind a masquerade": {infra.Masquerade{}, func(n nstest.Network) { n.World.IP("link del pod") }, true, nil, true},
		"rules": {infra.Masquerade{}, func(n nstest.Network) { n.Pod.Exec("nft", "flush", "ruleset") }, true,
			[]string{"whether eth0 forwarded before Setup"}, false},
		"an address": {infra.Redirect{}, func(n nstest.Network) { n.Pod.IP("addr del 10.244.1.7/24 dev eth0") }, true,
			[]string{"addresses and routes that eth0 has lost since Setup; by the record: ip addr add 10.244.1.7/24 dev eth0, ip route add 0.0.0.0/0 via 10.244.1.1 dev eth0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			before, mac := settled(t, n), linkField(t, n, "eth0", "address")
			cf := config(n, c.binding)
			setup(t, cf)
			harmJournal(t, n, "removed")
			c.damage(n)
			if !c.named {
				cf.State = ""
			}
			lost, err := phase1.ForceTeardown(t.Context(), cf)
			if err != nil && !(c.gone && errors.Is(err, infra.ErrNoNIC)) {
				t.Fatal(err)
			}
			lostAre(t, lost, c.lost...)
			if !c.named {
				if err := os.Remove(filepath.Join(n.State, "eth0.json")); err != nil {
					t.Fatal(err)
				}
			}
			if err := nothingOfOurs(n); err != nil {
				t.Error(err)
			}
			if c.gone {
				return
			}
			if back := linkField(t, n, "eth0", "address") == mac; back != (name != "holder") {
				t.Errorf("eth0 has its MAC: %v", back)
			}
			if name == "an address" { // whose broadcast address the record does not have
				addAgain(n, lost)
				nstest.Eventually(t, func() error {
					return difference(before, strings.Replace(n.Pod.Dump(), "10.244.1.7/24 scope", "10.244.1.7/24 brd 10.244.1.255 scope", 1))
				})
			}
		})
	}
}

// TestForceTeardownInterrupted: a name is taken, so the NIC cannot have it back. Setup waits for the end; Teardown or
// ForceTeardown finishes the work, and the latter tells again what is lost.
func TestForceTeardownInterrupted(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Bridge{})
		setup(t, c)
		harmJournal(t, n, "cut in half")
		n.Pod.IP("link del eth0")
		n.Pod.IP("link add eth0 type bridge")
		first, err := phase1.ForceTeardown(t.Context(), c)
		if err == nil || len(first) == 0 {
			t.Fatalf("%q, %v: the name is taken, and something is lost", first, err)
		}
		if err := setupAlone(t.Context(), c); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "forced Teardown was interrupted") {
			t.Errorf("Setup: %v", err)
		}
		if err := phase1.Check(t.Context(), c); !errors.Is(err, phase1.ErrNotWired) {
			t.Errorf("Check: %v, want ErrNotWired", err)
		}
		n.Pod.IP("link del eth0")
		var said []string
		c.Progress = func(text string) { said = append(said, strings.TrimPrefix(text, "not known: ")) }
		if again {
			said, err = phase1.ForceTeardown(t.Context(), c)
		} else {
			err = phase1.Teardown(t.Context(), c)
		}
		if err != nil || !slices.Equal(first, said) {
			t.Errorf("%v, and lost are %q, want %q", err, said, first)
		}
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		if out := n.Pod.IP("-d link show dev eth0"); !strings.Contains(out, "veth") {
			t.Errorf("eth0 is not the NIC:\n%s", out)
		}
		wiredNothing(t, n, c)
	}
}

// TestForceTeardownIPTables removes the rules of a masquerade by iptables, and leaves those of others.
func TestForceTeardownIPTables(t *testing.T) {
	t.Parallel()
	eachIPTables(t, func(t *testing.T, v4, v6 string) {
		n := nstest.NewNetwork(t)
		others(n.Pod, v4, v6)
		found, before := saved(n.Pod, v4, v6), settled(t, n)
		for _, state := range []string{n.State, ""} {
			c := config(n, infra.Masquerade{Firewall: v4})
			setup(t, c)
			harmJournal(t, n, "removed")
			c.State = state
			lost, err := phase1.ForceTeardown(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if state == "" {
				lostAre(t, lost, "whether a directory still has the record")
			} else {
				lostAre(t, lost)
			}
			if err := difference(found, saved(n.Pod, v4, v6)); err != nil {
				t.Errorf("iptables: %v", err)
			}
			asFound(t, n, before)
		}
	})
}

// TestForceTeardownDirect: these bindings leave no trace in the namespace. Journal and record are removed.
func TestForceTeardownDirect(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Macvtap{}, infra.Passt{}, infra.SRIOV{PCI: "0000:03:10.1"}} {
		for how := range journalHarms {
			t.Run(b.Kind()+" "+how, func(t *testing.T) {
				n := nstest.NewMacvtap(t)
				n.Pod.IP("addr add 10.68.0.17/24 dev eth0")
				for _, named := range []bool{true, false} {
					c := direct(n, b)
					setup(t, c)
					harmJournal(t, n, how)
					wired := settled(t, n)
					if !named {
						c.State = ""
					}
					lost, err := phase1.ForceTeardown(t.Context(), c)
					if !named && how == "removed" {
						if !errors.Is(err, phase1.ErrNotWired) {
							t.Errorf("%v, want ErrNotWired, as nothing tells of the wiring", err)
						}
						c.State = n.State
						lost, err = phase1.ForceTeardown(t.Context(), c)
					}
					if err != nil {
						t.Fatal(err)
					}
					known := named || how != "cut in half" && how != "empty"
					switch {
					case !known:
						lostAre(t, lost, "whether a directory", "what Setup changed in the namespace, where nothing bears guestwire's mark")
						if err := os.Remove(filepath.Join(n.State, "eth0.json")); err != nil {
							t.Error(err)
						}
					case b.Kind() == "macvtap":
						lostAre(t, lost, "whether eth0 was up")
					case b.Kind() == "passt":
						lostAre(t, lost, "net.ipv4.ip_unprivileged_port_start")
					default:
						lostAre(t, lost)
					}
					if err := difference(wired, n.Pod.Dump()); err != nil {
						t.Errorf("the namespace has changed: %v", err)
					}
					if err := nothingOfOurs(n); err != nil {
						t.Error(err)
					}
					if left := ofNode(t, n); len(left) > 0 {
						t.Errorf("the journal directory has %v", left)
					}
					c.State = n.State
					wiredNothing(t, n, c)
				}
			})
		}
	}
}

// TestForceTeardownState: a State that is not the one of the journal is an error, also if the journal is of another
// version; one that others can write to is refused before anything has changed.
func TestForceTeardownState(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Bridge{})
	setup(t, c)
	harmJournal(t, n, "of another version")
	before := settled(t, n)
	c.State = nstest.Dir(t)
	var bad *cache.FieldError
	if err := second(phase1.ForceTeardown(t.Context(), c)); !errors.As(err, &bad) || bad.Field != "state" || !strings.Contains(err.Error(), n.State) {
		t.Errorf("%v, want a FieldError that names %s", err, n.State)
	}
	harmJournal(t, n, "empty")
	if err := os.Chmod(c.State, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := second(phase1.ForceTeardown(t.Context(), c)); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want fs.ErrPermission", err)
	}
	if err := difference(before, n.Pod.Dump()); err != nil {
		t.Errorf("the namespace has changed: %v", err)
	}
}
