package phase1_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// TestOneStateForTwo uses one state directory and one NIC's name for two namespaces: the record belongs to the first
// one, until that is taken down.
func TestOneStateForTwo(t *testing.T) {
	t.Parallel()
	first, second := nstest.NewNetwork(t), nstest.NewNetwork(t)
	second.State = first.State
	beforeFirst, beforeSecond := settled(t, first), settled(t, second)
	setup(t, config(first, infra.Bridge{}))
	written := record(t, first)
	for range 2 {
		_, err := config(second, infra.Masquerade{}).Setup(t.Context())
		if !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), first.Pod.Path()) || !strings.Contains(err.Error(), first.State) {
			t.Errorf("Setup of the second: %v, want ErrWired with %s and %s", err, first.Pod.Path(), first.State)
		}
		asFound(t, second, beforeSecond)
		unwire(t, config(second, infra.Bridge{})) // Teardown of the second, which is not wired
		if now := record(t, first); !reflect.DeepEqual(now, written) {
			t.Errorf("the record became %+v", now)
		}
	}
	if left := journals(t, second); len(left) > 0 {
		t.Errorf("the journal directory has %v of the second", left)
	}
	check(t, config(first, infra.Bridge{})) // the first, after Setup and Teardown of the second
	teardown(t, first, config(first, infra.Bridge{}), beforeFirst)
	setup(t, config(second, infra.Masquerade{}))
	teardown(t, second, config(second, infra.Masquerade{}), beforeSecond)
}

// TestOneStateAtOnce has sixteen namespaces compete for one state directory: one of them gets it.
func TestOneStateAtOnce(t *testing.T) {
	networks := make([]nstest.Network, atOnce)
	for i := range networks {
		networks[i] = nstest.NewNetwork(t)
		networks[i].State = networks[0].State
	}
	wired := make([]bool, atOnce)
	err := together(func(caller int) error {
		_, err := config(networks[caller], infra.Redirect{}).Setup(t.Context())
		wired[caller] = err == nil
		if errors.Is(err, infra.ErrWired) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	winners := 0
	for i, n := range networks {
		if !wired[i] {
			continue
		}
		winners++
		check(t, config(n, nil))
	}
	if winners != 1 {
		t.Errorf("%d namespaces have the state directory, want one", winners)
	}
}

// TestStandingWiring wants a Setup that cannot be had to leave alone what a guest may use.
func TestStandingWiring(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		setup(t, c)
		index := linkField(t, n, "eth0-tap", "ifindex")
		for name, change := range map[string]func(*wired.NIC){
			"another owner": func(c *wired.NIC) { c.Owner.UID = 5 },
			"more queues":   func(c *wired.NIC) { c.Queues = 4 },
		} {
			t.Run(name, func(t *testing.T) {
				other := c
				change(&other)
				if other.Owner != c.Owner {
					nstest.NeedRoot(t, "the test needs two users")
				}
				if _, err := other.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
					t.Errorf("%v, want ErrWired", err)
				}
			})
		}
		check(t, c)
		// Another link takes the name of the responder's tap, so Setup cannot repair the wiring.
		n.Pod.IP("link del eth0-dhcp")
		n.Pod.IP("link add eth0-dhcp type bridge")
		if _, err := c.Setup(t.Context()); err == nil {
			t.Error("Setup says that it made a tap whose name is in use")
		}
		if got := linkField(t, n, "eth0-tap", "master"); b.Kind() == "bridge" && got != "eth0-br" {
			t.Errorf("the guest's tap is at %s, want eth0-br", got)
		}
		if got := linkField(t, n, "eth0-tap", "ifindex"); got != index {
			t.Errorf("the guest's tap is another one: its index was %s and is %s", index, got)
		}
		n.Pod.IP("link del eth0-dhcp")
		teardown(t, n, c, before)
	})
}

// TestRefused are routes that the bridge binding could not give back.
func TestRefused(t *testing.T) {
	t.Parallel()
	n := nstest.NewVeth(t)
	n.Pod.IP("nexthop add id 7 via 10.244.1.1 dev eth0")
	n.Pod.IP("route add 192.0.2.0/24 nhid 7")
	before := settled(t, n)
	var refused *infra.RefusedError
	if _, err := config(n, infra.Bridge{}).Setup(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "192.0.2.0/24") {
		t.Errorf("error %v, want a RefusedError that names the route", err)
	}
	if err := difference(before, n.Pod.Dump()); err != nil {
		t.Error(err)
	}
}

// TestLargeTable creates more routes than a socket sends at once by default.
func TestLargeTable(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	var lines strings.Builder
	for i := range 12000 {
		lines.WriteString("route add 11." + strconv.Itoa(i/256) + "." + strconv.Itoa(i%256) + ".0/24 via 10.244.1.1\n")
	}
	file := filepath.Join(t.TempDir(), "routes")
	writeFile(t, file, lines.String())
	n.Pod.IP("-batch " + file)
	before := settled(t, n)
	c := config(n, infra.Bridge{}) // which takes all routes to the holder, and back
	setup(t, c)
	teardown(t, n, c, before)
}

// TestLockIsOurs lets the launcher's user hold whatever it can open.
func TestLockIsOurs(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	f, err := os.Open(n.Pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flock(t, f)
	setup(t, config(n, infra.Bridge{}))
	info, err := os.Stat("/run/guestwire.lock")
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("locks lie in %v, %v; want a directory for root alone", info.Mode(), err)
	}
}

func flock(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}
