package phase1_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// nothingOfOurs reports whether no link, no table and no file of a wiring is left.
func nothingOfOurs(n nstest.Network) error {
	if out := n.Pod.IP("-d link") + n.Pod.Exec("nft", "list", "ruleset"); strings.Contains(out, "guestwire") || strings.Contains(out, "eth0-") {
		return errors.New(out)
	}
	left, err := os.ReadDir(n.State)
	if len(left) > 0 {
		return errors.New("the state directory is not empty: " + left[0].Name())
	}
	return err
}

// TestWayBackAsksNobody: where no planner makes a plan of the wirings, Check refuses them, and Teardown gives the
// namespace back all the same. It leaves the sysctls that another NIC needs. unwire, TestGenerated and TestCrash take
// down the same way.
func TestWayBackAsksNobody(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		secondNIC(n, "10.250.0.7/24", "fd00:250::7/64")
		before := equalsSorted(settled(t, n))
		other := b
		if b.Kind() == cache.BindingMasquerade {
			other = infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120")}
		}
		first, second := config(n, b), configOfSecondNIC(n, other)
		setup(t, first)
		setup(t, second)
		shared := sysctls(n)
		if !refusePlans(t, first) || !refusePlans(t, second) {
			t.Fatal("no journal")
		}
		for _, c := range []wired.NIC{second, first} {
			if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "mtu") {
				t.Errorf("%s: Check says %v", c.Name, err)
			}
			unwire(t, c)
			for path, value := range sysctls(n) {
				if c.Name == second.Name && !strings.Contains(path, second.Name) && value != shared[path] {
					t.Errorf("%s was %s and is %s, and eth0 needs it", path, shared[path], value)
				}
			}
		}
		nstest.Eventually(t, func() error { return difference(before, equalsSorted(n.Pod.Dump())) })
		filesAreGone(t, n)
	})
}

// TestTeardownWithoutNIC deletes the NIC under the wiring: all else goes, and the error says so.
func TestTeardownWithoutNIC(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "redirect" {
			nstest.KernelDecides(t, "a chain goes with its link before Linux 6.16")
		}
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		n.World.IP("link del pod")
		if err := c.Teardown(t.Context()); !errors.Is(err, infra.ErrNoNIC) || !strings.Contains(err.Error(), "eth0") {
			t.Errorf("%v, want ErrNoNIC that names the NIC", err)
		}
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
		unwire(t, c) // the second time

		n = nstest.NewNetwork(t) // where the namespace goes as well, that is no error
		c = config(n, b)
		setup(t, c)
		n.World.IP("link del pod")
		c.Down.Discard = true
		unwire(t, c)
		filesAreGone(t, n)
	})
}

// TestTeardownLeavesOthers has links of other programs beside the wiring's, some in the wiring's group.
func TestTeardownLeavesOthers(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		group := linkField(t, n, "eth0-tap", "group")
		for _, line := range []string{
			"link add eth0-theirs type bridge",
			"link set eth0-theirs addrgenmode none alias theirs group " + group + " up", // without an address that the kernel checks
			"addr add 192.0.2.77/24 dev eth0-theirs",
			"tuntap add dev eth0-mine mode tap",
			"link add plain type veth peer name plain-peer",
		} {
			n.Pod.IP(line)
		}
		n.Pod.Exec("nft", "add", "table", "inet", "theirs")
		theirs := func() string {
			out := n.Pod.Exec("nft", "list", "ruleset")
			if !strings.Contains(out, "table inet theirs") {
				t.Errorf("their table has gone:\n%s", out)
			}
			for _, link := range []string{"eth0-theirs", "eth0-mine", "plain"} {
				out += linkField(t, n, link, "ifindex") + linkField(t, n, link, "group") + n.Pod.IP("-o addr show dev "+link)
			}
			return out[strings.Index(out, "table inet theirs"):]
		}
		before := theirs()
		unwire(t, c)
		if err := difference(before, theirs()); err != nil {
			t.Errorf("what is theirs: %v", err)
		}
		for _, link := range []string{"eth0-br", "eth0-tap", "eth0-dhcp"} {
			if out := n.Pod.IP("-br link"); strings.Contains(out, link+" ") {
				t.Errorf("%s is left:\n%s", link, out)
			}
		}
	})
}

// TestTeardownLeavesRecord: without the NIC, ErrNoNIC says that everything else is removed. A record that cannot be
// removed is another error, of Teardown and of While, and a later Teardown removes it.
func TestTeardownLeavesRecord(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	for name, end := range map[string]func(wired.NIC, func()) error{
		"Teardown": func(c wired.NIC, f func()) error { setup(t, c); f(); return c.Teardown(t.Context()) },
		"While": func(c wired.NIC, f func()) error {
			return c.While(t.Context(), c.Spec, func(cache.Record) error { f(); return nil })
		},
	} {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Bridge{})
		path := filepath.Join(c.State, "eth0.json")
		err := end(c, func() {
			n.World.IP("link del pod")
			if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
				t.Fatal(err)
			}
		})
		if err == nil || errors.Is(err, infra.ErrNoNIC) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error of the record, and not ErrNoNIC", name, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := c.Teardown(t.Context()); !errors.Is(err, infra.ErrNoNIC) {
			t.Errorf("%s: later: %v, want ErrNoNIC", name, err)
		}
	}
}
