package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestHold: a NIC that is held can be repaired by others, and not be taken down, until the holder lets it go.
func TestHold(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	held, release, err := c.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Hold(t.Context()); !errors.Is(err, phase1.ErrHeld) || !strings.Contains(err.Error(), "(phase1.test)") {
		t.Errorf("a second Hold: %v, want ErrHeld that names the process", err)
	}
	for _, nic := range []phase1.NIC{held, c.NIC} {
		if _, err := nic.Status(t.Context()); !errors.Is(err, phase1.ErrNotWired) || errors.Is(err, phase1.ErrHeld) {
			t.Errorf("Status before this process's Setup: %v, want ErrNotWired alone", err)
		}
	}
	if _, err := held.Setup(t.Context(), c.Spec); err != nil {
		t.Fatal(err)
	}
	setup(t, c)
	wiredNow := n.Pod.Dump()
	for name, call := range map[string]func() error{
		"Teardown":      func() error { return c.Teardown(t.Context()) },
		"Discard":       func() error { return c.NIC.Teardown(t.Context(), phase1.TeardownOptions{Discard: true}) },
		"ForceTeardown": func() error { _, err := c.ForceTeardown(t.Context()); return err },
	} {
		if err := call(); !errors.Is(err, phase1.ErrHeld) || !strings.Contains(err.Error(), "TeardownOptions.CutOff") {
			t.Errorf("%s: %v, want ErrHeld with the way out", name, err)
		}
	}
	if err := nstest.Difference(wiredNow, n.Pod.Dump()); err != nil {
		t.Errorf("a refused call has changed something: %v", err)
	}
	other := nstest.NewNetwork(t)
	elsewhere := config(other, infra.Redirect{})
	setup(t, elsewhere)
	_, releaseOther, err := elsewhere.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copied := held
	copied.NetNS = elsewhere.NetNS
	if err := copied.Teardown(t.Context(), phase1.TeardownOptions{}); !errors.Is(err, phase1.ErrHeld) {
		t.Errorf("a copy with the namespace of another NIC that is held: %v, want ErrHeld", err)
	}
	releaseOther()
	if err := held.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := held.Setup(t.Context(), c.Spec); err != nil {
		t.Fatal(err)
	}
	if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{CutOff: true}); err != nil {
		t.Errorf("with CutOff: %v", err)
	}
	if _, err := held.Setup(t.Context(), c.Spec); err != nil {
		t.Fatal(err)
	}
	release()
	setup(t, c)
	teardown(t, n, c, before)
	if err := held.Check(t.Context()); !errors.Is(err, phase1.ErrNotWired) {
		t.Errorf("a NIC that was let go: %v", err)
	}
}

// TestWhile: the wiring is there while the function runs, and gone after it, whatever it returned. TestRun has the
// wirings that others have left.
func TestWhile(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		ctx, cancel := context.WithCancel(t.Context())
		err := c.While(ctx, c.Spec, func(r cache.Record) error {
			if err := c.Check(ctx); err != nil || r.Tap != "eth0-tap" {
				t.Errorf("meanwhile: %v, %+v", err, r)
			}
			cancel() // Teardown comes nevertheless
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		asFound(t, n, before)
	}
	setup(t, c)
	if err := c.While(t.Context(), c.Spec, nil); !errors.Is(err, phase1.ErrForAnother) {
		t.Errorf("beside a wiring of Setup: %v, want ErrForAnother", err)
	}
	teardown(t, n, c, before)

	killed := c // as of a While that was killed
	killed.For = program()
	setup(t, killed)
	n.Pod.IP("link del eth0-tap")
	n.Pod.IP("link add eth0-tap type bridge")
	if err := c.While(t.Context(), c.Spec, nil); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "ip link del eth0-tap") {
		t.Errorf("beside another program's eth0-tap: %v, want ErrWired with the way out", err)
	}
	if links := n.Pod.IP("-br link"); !strings.Contains(links, "eth0-dhcp") {
		t.Errorf("another program's eth0-tap ended the wiring:\n%s", links)
	}
	n.Pod.IP("link del eth0-tap")
	if err := c.While(t.Context(), c.Spec, func(cache.Record) error { return nil }); err != nil {
		t.Error(err)
	}
	asFound(t, n, before)
}

// TestTapName: the guest's tap has the name that the Spec says, under each binding, and all calls find it.
func TestTapName(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		c.Tap = "tap0"
		record, err := c.Setup(t.Context())
		if err != nil || record.Tap != "tap0" {
			t.Fatalf("%v, tap %s", err, record.Tap)
		}
		if out := n.Pod.IP("-d link show tap0"); !strings.Contains(out, "tun type tap") {
			t.Error(out)
		}
		check(t, c)
		other := c
		other.Tap = ""
		if _, err := other.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), `tap "tap0"`) {
			t.Errorf("without the name: %v, want ErrWired that names the tap", err)
		}
		n.Pod.IP("link del tap0")
		n.Pod.IP("tuntap add tap0 mode tap")
		if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil || !strings.Contains(n.Pod.IP("-br link"), "tap0") {
			t.Errorf("another program's tap: %v\n%s", err, n.Pod.IP("-br link"))
		}
		n.Pod.IP("link del tap0")
		setup(t, c)
		teardown(t, n, c, before)
		setup(t, c)
		if err := os.RemoveAll(filepath.Join(phase1.DefaultDir, record.Namespace)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ForceTeardown(t.Context()); err != nil {
			t.Error(err)
		}
		if out := n.Pod.IP("-br link"); strings.Contains(out, "tap0") || strings.Contains(out, "eth0-") {
			t.Errorf("after ForceTeardown:\n%s", out)
		}
	})
}

// TestTapNameOfRoot: a tap without an owner is not the one that Setup made for root, as whose user it looks.
func TestTapNameOfRoot(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	c.Owner, c.Tap = infra.Owner{Root: true}, "tap0"
	setup(t, c)
	n.Pod.IP("link del tap0")
	n.Pod.IP("tuntap add tap0 mode tap")
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), "tap0 is another program's tap") {
		t.Errorf("%v, want a DriftError", err)
	}
	if err := c.NIC.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil || !strings.Contains(n.Pod.IP("-br link"), "tap0") {
		t.Errorf("another program's tap: %v\n%s", err, n.Pod.IP("-br link"))
	}
}

// TestSetupInOtherWords: a later Setup may leave out what the guest has by default, or name it.
func TestSetupInOtherWords(t *testing.T) {
	t.Parallel()
	within := infra.Masquerade{IPv4: netip.MustParsePrefix("10.244.1.64/26")}
	named := within
	named.Guest = []netip.Addr{netip.MustParseAddr("10.244.1.66")}
	for name, specs := range map[string][]infra.Spec{
		"tap":                           {{Binding: infra.Redirect{}, Tap: "eth0-tap"}, {Binding: infra.Redirect{}}},
		"guest in a network of the pod": {{Binding: named}, {Binding: within}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			for _, spec := range append(specs, specs[0]) {
				c := config(n, spec.Binding)
				c.Tap = spec.Tap
				setup(t, c)
				check(t, c)
			}
			unwire(t, config(n, nil))
		})
	}
}

// TestNoState: without a State there is no record on disk, and all else is as with one.
func TestNoState(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Bridge{})
	state := c.State
	c.State = ""
	first, err := c.Setup(t.Context())
	if err != nil || first.Validate() != nil {
		t.Fatalf("%v, %v", err, first.Validate())
	}
	if left, err := os.ReadDir(state); len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("records: %v, %v", left, err)
	}
	check(t, c)
	if plan, err := c.Plan(t.Context()); err != nil || len(plan.Steps) > 0 {
		t.Errorf("%v, %v", plan, err)
	}
	report, err := c.Status(t.Context())
	if err != nil || report.State != "" || report.Record.MAC != first.MAC || report.Drift != nil {
		t.Errorf("%+v, %v", report, err)
	}
	inactive, err := c.Deactivate(t.Context())
	if err != nil || inactive.Role != cache.RoleInactive {
		t.Errorf("%+v, %v", inactive, err)
	}
	if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
		t.Error(err)
	}
	check(t, c)
	withState := c
	withState.State = filepath.Join(nstest.Dir(t), "vm1")
	var field *cache.FieldError
	if _, err := withState.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !errors.As(err, &field) || field.Field != "state" {
		t.Errorf("another Setup with a State: %v, want ErrWired and the field", err)
	}
	teardown(t, n, c, before)
}

// TestHoldBesideForget: the lock of a holder that was killed is free, also while a Forget removes it.
func TestHoldBesideForget(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "dir")
	identity, err := netns.Identify(n.Pod.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := os.WriteFile(fmt.Sprintf("%s/hold-%d-eth0", c.Dir, identity.Inode), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := together(func(caller int) error {
			if caller != 0 {
				return phase1.Forget(t.Context(), phase1.Gone{State: n.State, Dir: c.Dir})
			}
			_, release, err := c.Hold(t.Context())
			if err == nil {
				release()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
