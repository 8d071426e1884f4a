package phase1_test

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
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

// lostAre wants phrases that begin with the words, in that order, and no others, but for sysctls: which ones there are
// is the kernel's choice.
func lostAre(t *testing.T, lost []string, words ...string) {
	t.Helper()
	lost = slices.DeleteFunc(slices.Clone(lost), func(l string) bool { return strings.HasPrefix(l, sysctlsStay) })
	if !slices.EqualFunc(lost, words, strings.HasPrefix) {
		t.Errorf("lost are\n%s\nwant\n%s", strings.Join(lost, "\n"), strings.Join(words, "\n"))
	}
}

const (
	sysctlsStay = "sysctls that Setup may have changed, and that stay as they are: "
	ofBridge    = "routes, permanent neighbours and the state, up or down, of eth0"
	ofRecord    = "what the record has of eth0: "
	ofDirectory = "whether a directory still has the record eth0.json"
)

// wiredNothing wants ErrNotWired, and nothing to be changed.
func wiredNothing(t *testing.T, n nstest.Network, c wired.NIC) {
	t.Helper()
	before := settled(t, n)
	lost, err := c.ForceTeardown(t.Context())
	if !errors.Is(err, phase1.ErrNotWired) || len(lost) > 0 {
		t.Errorf("%q, %v, want ErrNotWired", lost, err)
	}
	if err := difference(before, n.Pod.Dump()); err != nil {
		t.Errorf("what is not wired has changed: %v", err)
	}
}

// sysctls are the values of those that a wiring of eth0 or net1 may change, and that the kernel has.
func sysctls(n nstest.Network) map[string]string {
	args := []string{"sysctl", "-e"}
	for _, nic := range []string{"eth0", "net1"} {
		for _, path := range append(netstate.SysctlOrder(nic), "net/ipv4/conf/"+nic+"/forwarding") {
			args = append(args, strings.ReplaceAll(path, "/", "."))
		}
	}
	values := map[string]string{}
	for line := range strings.Lines(n.Pod.Exec(args...)) {
		name, value, _ := strings.Cut(line, " = ")
		values[name] = strings.TrimSpace(value)
	}
	return values
}

// setSysctl sets a sysctl to its value before Setup. Those of br_netfilter came with a bridge.
func setSysctl(n nstest.Network, name, were string) {
	n.Pod.Exec("sysctl", "-qw", name+"="+cmp.Or(were, "1"))
}

// giveLost does by hand what the phrases name: it sets sysctls to what they were, and runs the record's commands.
func giveLost(n nstest.Network, lost []string, were map[string]string) {
	for _, l := range lost {
		if list, is := strings.CutPrefix(l, sysctlsStay); is {
			for sysctl := range strings.SplitSeq(list, ", ") {
				name, _, _ := strings.Cut(sysctl, " = ")
				setSysctl(n, name, were[name])
			}
		}
		if list, is := strings.CutPrefix(l, ofRecord); is {
			for command := range strings.SplitSeq(list, "; ") {
				n.Pod.IP(strings.TrimPrefix(command, "ip "))
			}
		}
	}
}

// TestForceTeardown takes a NIC down whose journal cannot be used, with and without the record. What it names as lost
// is all that differs afterwards. With a journal that can be used, nothing is lost.
func TestForceTeardown(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "bridge" || b.Kind() == "masquerade" {
			nstest.KernelDecides(t, "a dummy has what the NIC had, and the sysctls of forwarding")
		}
		t.Parallel()
		n := nstest.NewNetwork(t)
		n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
		n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
		before, were := settled(t, n), sysctls(n)
		for _, c := range []struct {
			how          string
			named, known bool // State by the call; the record by the call or the journal
		}{
			{"", true, true}, {"removed", true, true}, {"removed", false, false}, {"cut in half", false, false}, {"of another version", false, true},
		} {
			t.Run(c.how, func(t *testing.T) {
				cf := config(n, b)
				setup(t, cf)
				if c.how != "" {
					harmJournal(t, n, c.how)
					for verb, err := range map[string]error{"Setup": setupAlone(t.Context(), cf), "Teardown": cf.Teardown(t.Context())} {
						if err == nil {
							t.Errorf("%s does without the journal", verb)
						}
					}
				}
				if !c.named {
					cf.State = ""
				}
				lost, err := cf.ForceTeardown(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var words []string
				switch {
				case c.how == "":
				case b == infra.Bridge{} && c.known:
					words = []string{ofBridge, ofRecord + "ip route add 10.99.0.0/16 via 10.244.1.1 dev eth0 table 1000; ip route add default via 10.244.1.1 dev eth0; ip route add "}
				case b == infra.Bridge{}:
					words = []string{ofBridge}
				case b.Kind() == cache.BindingRouted:
					words = []string{"the preferred source (src) of routes, and the preferred lifetime of IPv6 addresses of eth0"}
				case b == infra.Redirect{} && !c.named && !c.known:
					words = []string{"whether eth0 was wired by redirect or masquerade", "addresses and routes that eth0 has lost since Setup"}
				}
				if b.Kind() == cache.BindingRouted && !c.known {
					words = append(words, "addresses and routes that eth0 has lost since Setup")
				}
				if !c.known {
					words = append(words, ofDirectory)
				}
				lostAre(t, lost, words...)
				if left := journals(t, n); len(left) > 0 {
					t.Errorf("the journal directory has %v", left)
				}
				if !c.known {
					cf.State = n.State
					if err := second(cf.ForceTeardown(t.Context())); err != nil {
						t.Errorf("of the record: %v", err)
					}
				}
				if err := nothingOfOurs(n); err != nil {
					t.Error(err)
				}
				wiredNothing(t, n, cf)
				giveLost(n, lost, were)
				if (b == infra.Bridge{} && c.how != "") {
					if !c.known {
						n.Pod.IP("route add default via 10.244.1.1")
						n.Pod.IP("route add default via fd00:244:1::1")
						n.Pod.IP("route add 10.99.0.0/16 via 10.244.1.1 table 1000")
					}
					n.Pod.IP("neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
				}
				asFound(t, n, before)
			})
		}
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
	secondNIC(n)
	second := configOfSecondNIC(n, infra.Redirect{})
	setup(t, second)
	c.State = n.State
	wiredNothing(t, n, c)
	check(t, second)
}

// TestForceTeardownBesides leaves another wired NIC of the namespace as it is.
func TestForceTeardownBesides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, second infra.Binding }{
		{infra.Bridge{}, infra.Routed{}},
		{infra.Redirect{}, infra.Bridge{}},
		{infra.Masquerade{}, otherMasquerade},
		{infra.Routed{}, infra.Redirect{}},
	} {
		t.Run(string(c.first.Kind()+" beside "+c.second.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			secondNIC(n, "10.245.0.7/24", "fd00:245::7/64")
			before, were := settled(t, n), sysctls(n)
			first, second := config(n, c.first), configOfSecondNIC(n, c.second)
			setup(t, first)
			path, _ := journal(t, n)
			setup(t, second)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			lost, err := first.ForceTeardown(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.first.Kind() == cache.BindingMasquerade {
				setup(t, second) // eth0 still forwards, so that guest may leave by it
			}
			check(t, second)
			unwire(t, second)
			giveLost(n, lost, were)
			// Routes that differ in the link alone are in the order of their addition.
			nstest.Eventually(t, func() error { return difference(equalsSorted(before), equalsSorted(n.Pod.Dump())) })
			if err := nothingOfOurs(n); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestForceTeardownDamaged: other programs have deleted a part of the wiring as well.
func TestForceTeardownDamaged(t *testing.T) {
	t.Parallel()
	const mac = "whether eth0 made IPv6 addresses of its MAC"
	flush := func(n nstest.Network) { n.Pod.Exec("nft", "flush", "ruleset") }
	deleted := func(link string) func(nstest.Network) { return func(n nstest.Network) { n.Pod.IP("link del " + link) } }
	noNIC := func(n nstest.Network) { n.World.IP("link del pod") }
	for name, c := range map[string]struct {
		binding infra.Binding
		damage  func(n nstest.Network)
		named   bool
		lost    []string
	}{
		"holder":                  {infra.Bridge{}, deleted("eth0"), false, []string{"the MAC of eth0: ip link set", mac, ofBridge, ofDirectory}},
		"holder, with the record": {infra.Bridge{}, deleted("eth0"), true, []string{mac, ofBridge, ofRecord + "ip addr add 10.244.1.7/24 broadcast 10.244.1.255 dev eth0; ip addr replace fd00:244:1::7/64 dev eth0; ip route add"}},
		"bridge":                  {infra.Bridge{}, deleted("eth0-br"), true, []string{ofBridge, ofRecord + "ip route add"}},
		"NIC":                     {infra.Bridge{}, noNIC, true, nil},
		"NIC behind a masquerade": {infra.Masquerade{}, noNIC, true, nil},
		"rules":                   {infra.Masquerade{}, flush, true, nil},
		"tap of a masquerade":     {infra.Masquerade{}, deleted("eth0-tap"), true, []string{"the guest's address, as another program has deleted eth0-tap"}},
		"an address": {infra.Redirect{}, func(n nstest.Network) { n.Pod.IP("addr del 10.244.1.7/24 dev eth0") }, true,
			[]string{"addresses and routes that eth0 has lost since Setup", ofRecord + "ip addr add 10.244.1.7/24 broadcast 10.244.1.255 dev eth0; ip route add default via 10.244.1.1 dev eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			before, were := settled(t, n), sysctls(n)
			cf := config(n, c.binding)
			setup(t, cf)
			harmJournal(t, n, "removed")
			c.damage(n)
			if !c.named {
				cf.State = ""
			}
			lost, err := cf.ForceTeardown(t.Context())
			if gone := strings.HasPrefix(name, "NIC"); gone != errors.Is(err, infra.ErrNoNIC) || !gone && err != nil {
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
			if c.named && err == nil {
				if slices.Contains(c.lost, mac) {
					n.Pod.IP("link set eth0 down")
					n.Pod.IP("link set eth0 addrgenmode eui64")
					n.Pod.IP("link set eth0 up")
				}
				giveLost(n, lost, were)
				asFound(t, n, before)
			}
		})
	}
}

// TestForceTeardownInterrupted: a directory in its place keeps a file of the journal from being removed. Setup waits
// for the end; Teardown or ForceTeardown finishes the work, and reports what is lost. The interrupted call has no
// LeftError, as that says that all else is done.
func TestForceTeardownInterrupted(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"force", "Teardown", "force, with the State"} {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Bridge{})
		setup(t, c)
		path, _ := journal(t, n)
		sight := strings.TrimSuffix(path, ".journal") + ".sight"
		if err := errors.Join(os.RemoveAll(sight), os.MkdirAll(filepath.Join(sight, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		harmJournal(t, n, "cut in half")
		n.Pod.IP("link del eth0")
		interrupted := c
		if end == "force, with the State" { // as the first call advises, which does not know the record's place
			interrupted.State = ""
		}
		if lost, err := interrupted.ForceTeardown(t.Context()); err == nil || lost != nil {
			t.Fatalf("%q, %v: the journal stays", lost, err)
		}
		if err := setupAlone(t.Context(), c); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "forced Teardown was interrupted") {
			t.Errorf("Setup: %v", err)
		}
		if err := c.Check(t.Context()); !errors.Is(err, phase1.ErrNotWired) {
			t.Errorf("Check: %v, want ErrNotWired", err)
		}
		if err := os.RemoveAll(sight); err != nil {
			t.Fatal(err)
		}
		var said []string
		var err error
		c.Progress = func(text string) { said = append(said, strings.TrimPrefix(text, "not known: ")) }
		if end != "Teardown" {
			said, err = c.ForceTeardown(t.Context())
		} else {
			err = c.Teardown(t.Context())
		}
		begins := func(start string) bool {
			return slices.ContainsFunc(said, func(l string) bool { return strings.HasPrefix(l, start) })
		}
		if err != nil || !begins("sysctls") || begins(ofDirectory) != (interrupted.State == "") {
			t.Errorf("%v, and lost are %q", err, said)
		}
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		if out := n.Pod.IP("-d link show dev eth0"); !strings.Contains(out, "veth") {
			t.Errorf("eth0 is not the NIC:\n%s", out)
		}
		filesAreGone(t, n)
		wiredNothing(t, n, c)
	}
}

// TestForceTeardownIPTables removes the rules of a masquerade by iptables, and leaves those of others.
func TestForceTeardownIPTables(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachIPTables(t, func(t *testing.T, v4, v6 string) {
		n := nstest.NewNetwork(t)
		others(n.Pod, v4, v6)
		found, before, were := saved(n.Pod, v4, v6), settled(t, n), sysctls(n)
		c := config(n, infra.Masquerade{Firewall: cache.Firewall(v4)})
		setup(t, c)
		harmJournal(t, n, "removed")
		c.State = ""
		lost, err := c.ForceTeardown(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lostAre(t, lost, ofDirectory)
		if err := difference(found, saved(n.Pod, v4, v6)); err != nil {
			t.Errorf("iptables: %v", err)
		}
		giveLost(n, lost, were)
		asFound(t, n, before)
	})
}

// TestForceTeardownDirect: these bindings leave no trace in the namespace. Journal and record are removed, if the call
// or the journal says where the record is.
func TestForceTeardownDirect(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Macvtap{}, infra.Passt{}, infra.Slirp{}, infra.SRIOV{PCI: "0000:03:10.1"}} {
		for how, named := range map[string]bool{"removed": true, "of no plan": false, "cut in half": false} {
			t.Run(string(b.Kind())+" "+how, func(t *testing.T) {
				t.Parallel()
				n := nstest.NewMacvtap(t)
				n.Pod.IP("addr add 10.68.0.17/24 dev eth0")
				c := direct(n, b)
				c.AcceptLosses = true // passt serves nothing without a gateway
				setup(t, c)
				harmJournal(t, n, how)
				wired := settled(t, n)
				if !named {
					c.State = ""
				}
				lost, err := c.ForceTeardown(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case how == "cut in half":
					lostAre(t, lost, ofDirectory, "what Setup changed in the namespace, where nothing bears guestwire's mark")
					if err := os.Remove(filepath.Join(n.State, "eth0.json")); err != nil {
						t.Error(err)
					}
				case b.Kind() == "macvtap":
					lostAre(t, lost, "the state, up or down, of eth0", "whether eth0 received all multicast")
				default:
					lostAre(t, lost)
				}
				if says := slices.ContainsFunc(lost, func(l string) bool { return strings.HasPrefix(l, sysctlsStay+"net.ipv4.ip_unprivileged_port_start = ") }); says != ((b.Kind() == cache.BindingPasst || b.Kind() == cache.BindingSlirp) && how != "cut in half") {
					t.Errorf("lost are %q", lost)
				}
				if err := difference(wired, n.Pod.Dump()); err != nil {
					t.Errorf("the namespace has changed: %v", err)
				}
				if err := nothingOfOurs(n); err != nil {
					t.Error(err)
				}
				c.State = n.State
				wiredNothing(t, n, c)
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
	if err := second(c.ForceTeardown(t.Context())); !errors.As(err, &bad) || bad.Field != "state" || !strings.Contains(err.Error(), n.State) {
		t.Errorf("%v, want a FieldError that names %s", err, n.State)
	}
	harmJournal(t, n, "empty")
	if err := os.Chmod(c.State, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := second(c.ForceTeardown(t.Context())); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want fs.ErrPermission", err)
	}
	if err := difference(before, n.Pod.Dump()); err != nil {
		t.Errorf("the namespace has changed: %v", err)
	}
}

// TestForceTeardownOtherState: a call that names a directory without the wiring's record says that the record may be
// elsewhere.
func TestForceTeardownOtherState(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	harmJournal(t, n, "removed")
	c.State = t.TempDir()
	if lost, err := c.ForceTeardown(t.Context()); err != nil || !slices.ContainsFunc(lost, func(what string) bool {
		return strings.HasPrefix(what, "whether a directory still has the record eth0.json")
	}) {
		t.Errorf("another directory: %q, %v", lost, err)
	}
	c.State = n.State
	if _, err := c.ForceTeardown(t.Context()); err != nil { // the way out
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(n.State, "eth0.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record: %v", err)
	}
}
