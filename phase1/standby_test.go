package phase1_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// side is a pod in which a guest is wired.
type side struct {
	nstest.Network
	c      wired.NIC
	before string
}

// newSide makes a pod whose guest has movedMAC.
func newSide(t *testing.T, b infra.Binding) side {
	t.Helper()
	n := nstest.NewNetwork(t)
	if m, ok := b.(infra.Masquerade); ok {
		m.MAC = movedMAC
		b = m
	} else {
		n.Pod.IP("link set eth0 address " + movedMAC.String())
	}
	return side{n, config(n, b), settled(t, n)}
}

// wantRole compares what Check, the record's file and the kernel say of the role.
func (s side) wantRole(t *testing.T, role cache.Role, turn uint64) {
	t.Helper()
	check(t, s.c)
	if r := record(t, s.Network); r.Role != role || r.Turn != turn {
		t.Errorf("the record has the role %q, turn %d; want %q, %d", r.Role, r.Turn, role, turn)
	}
	if flags := s.Pod.IP("-o link show " + record(t, s.Network).Tap); strings.Contains(flags, ",UP") != (role == cache.RoleActive) {
		t.Errorf("the role is %q, and the tap is %s", role, flags)
	}
	report, err := s.c.Status(t.Context())
	if err != nil || report.Role != role || report.Turn != turn || report.Record.Role != role {
		t.Errorf("Status reports %+v, %v; want the role %q, turn %d", report, err, role, turn)
	}
}

func (s side) deactivate(t *testing.T, turn uint64) *cache.Record {
	t.Helper()
	role := cache.RoleInactive
	if record(t, s.Network).Role == cache.RoleStandby {
		role = cache.RoleStandby
	}
	r, err := s.c.Deactivate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.wantRole(t, role, turn)
	if r.Role != role || r.Turn != turn {
		t.Fatalf("Deactivate returns the role %q, turn %d; want %q, %d", r.Role, r.Turn, role, turn)
	}
	return &r
}

func (s side) activate(t *testing.T, inactive *cache.Record) *cache.Record {
	t.Helper()
	r, err := s.c.Activate(t.Context(), phase1.Other{Inactive: inactive})
	if err != nil {
		t.Fatal(err)
	}
	s.wantRole(t, cache.RoleActive, inactive.Turn)
	return &r
}

// refuses says that Activate fails with ErrActive, and changes nothing.
func (s side) refuses(t *testing.T, inactive *cache.Record, words string) {
	t.Helper()
	before := record(t, s.Network)
	_, err := s.c.Activate(t.Context(), phase1.Other{Inactive: inactive})
	if !errors.Is(err, phase1.ErrActive) || !strings.Contains(err.Error(), words) {
		t.Errorf("Activate by a record of turn %d: %v; want ErrActive, %s", inactive.Turn, err, words)
	}
	s.wantRole(t, before.Role, before.Turn)
}

// serves boots a guest that gets its addresses and pings the world.
func (s side) serves(t *testing.T) {
	t.Helper()
	launcher := s.Serve(t, nstest.LauncherUID)
	defer launcher.Stop(t)
	g := plugIn(t, s.Network, record(t, s.Network))
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true}); err != nil {
		t.Fatalf("%v\n%s", err, launcher.Output.String())
	}
	if _, err := g.Ping(ctx, nstest.Beyond4); err != nil {
		t.Error(err)
	}
	if _, err := g.Ping(ctx, nstest.Beyond6); err != nil {
		t.Error(err)
	}
}

// TestMove moves a guest between two pods, there and back, and gives a move up. At each time one side at most is
// active, and only the latest record of a side allows the other to be.
func TestMove(t *testing.T) {
	t.Parallel()
	eachMovable(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		source, target := newSide(t, b), newSide(t, b)
		setup(t, source.c)
		source.wantRole(t, cache.RoleActive, 0) // without From it waits only with Standby
		target.c.Standby = true
		preview, err := target.c.Plan(t.Context())
		if err != nil || preview.Record.Role != cache.RoleStandby || !strings.Contains(preview.String(), "# standby: ") || strings.Contains(preview.String(), "ip link set eth0-tap up") {
			t.Errorf("Plan on standby: %v\n%v", err, preview)
		}
		setup(t, target.c)
		target.wantRole(t, cache.RoleStandby, 0)
		target.c.Standby = false
		setup(t, target.c) // keeps it
		target.wantRole(t, cache.RoleStandby, 0)

		active, own := record(t, source.Network), record(t, target.Network)
		target.refuses(t, &active, "active")
		target.refuses(t, &active, "("+source.Pod.Path()+")")
		target.refuses(t, &own, "this namespace")
		target.refuses(t, &own, "("+target.Pod.Path()+")")
		other := active
		other.MAC[5]++
		other.Role, other.Turn = cache.RoleInactive, 9
		target.refuses(t, &other, other.MAC.String())
		target.refuses(t, &other, "guestwire-agent setup -from")
		other = active
		other.Role, other.Turn, other.Namespace = cache.RoleInactive, 9, ""
		target.refuses(t, &other, "no namespace")
		for _, o := range []phase1.Other{{}, {Inactive: &active, Gone: true}, {Inactive: &cache.Record{}}} {
			var field *cache.FieldError
			if _, err := target.c.Activate(t.Context(), o); !errors.As(err, &field) || !strings.HasPrefix(field.Field, "other") {
				t.Errorf("Activate by %+v: %v, want a *cache.FieldError", o, err)
			}
		}
		target.wantRole(t, cache.RoleStandby, 0)

		first := source.deactivate(t, 1)
		setup(t, source.c)
		source.wantRole(t, cache.RoleInactive, 1)
		target.activate(t, first)
		target.activate(t, first) // is active already
		var reported []string
		target.c.Standby = true // as at the first time
		target.c.Progress = func(text string) { reported = append(reported, text) }
		setup(t, target.c)
		if !slices.ContainsFunc(reported, func(text string) bool { return strings.Contains(text, "guestwire-agent deactivate") }) {
			t.Errorf("Setup with Standby of an active NIC reports %q, want what makes the guest inactive", reported)
		}
		target.c.Progress = nil
		target.wantRole(t, cache.RoleActive, 1)
		target.serves(t)

		// Back.
		source.refuses(t, &active, "this namespace")
		now := record(t, target.Network)
		source.refuses(t, &now, "active")
		back := target.deactivate(t, 2)
		source.activate(t, back)
		target.refuses(t, first, "call Deactivate there until")
		source.serves(t)

		// A move that is given up.
		second := source.deactivate(t, 3)
		up := target.deactivate(t, 4)
		source.activate(t, up)
		target.refuses(t, second, "call Deactivate there until")

		// And one by a caller who has lost what Deactivate answered.
		source.deactivate(t, 5)
		third := source.deactivate(t, 7)
		target.refuses(t, back, "this namespace")
		target.activate(t, third)

		// The source is gone.
		target.deactivate(t, 8)
		if _, err := target.c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
			t.Error(err)
		}
		target.wantRole(t, cache.RoleActive, 8)
		target.deactivate(t, 9)

		teardown(t, source.Network, source.c, source.before)
		teardown(t, target.Network, target.c, target.before)
	})
}

// TestStandbyRepair: on standby, a tap that another program has brought up is a difference, and Setup takes the tap
// down. When active again, it is the other way round.
func TestStandbyRepair(t *testing.T) {
	t.Parallel()
	eachMovable(t, func(t *testing.T, b infra.Binding) {
		s := newSide(t, b)
		s.c.Standby = true
		setup(t, s.c)
		s.Pod.IP("link set eth0-tap up")
		drifts(t, s.c, "eth0-tap is up")
		repair(t, s.c)
		s.wantRole(t, cache.RoleStandby, 0)

		// Deactivate needs no more than the tap.
		s.Pod.IP("link set eth0-tap up")
		s.Pod.Exec("nft", "flush", "ruleset")
		r, err := s.c.Deactivate(t.Context())
		if err != nil || r.Turn != 2 {
			t.Errorf("Deactivate of a damaged wiring: %+v, %v", r, err)
		}
		if flags := s.Pod.IP("-o link show eth0-tap"); strings.Contains(flags, ",UP") {
			t.Errorf("Deactivate leaves the tap %s", flags)
		}
		s.Pod.IP("link del eth0-tap")
		if _, err := s.c.Deactivate(t.Context()); err != nil {
			t.Errorf("Deactivate without a tap: %v", err)
		}
		if _, err := s.c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
			t.Fatal(err)
		}
		s.wantRole(t, cache.RoleActive, 4)
		s.Pod.IP("link set eth0-tap down")
		drifts(t, s.c, "eth0-tap is down")
		if _, err := s.c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
			t.Fatal(err)
		}
		s.wantRole(t, cache.RoleActive, 4)
		teardown(t, s.Network, s.c, s.before)
	})
}

// drifts wants Check to say the words.
func drifts(t *testing.T, c wired.NIC, words string) {
	t.Helper()
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), words) {
		t.Errorf("Check: %v, want %s", err, words)
	}
}

// TestStandbyWithoutTap: a binding for which guestwire makes no tap is refused, and nothing is changed.
func TestStandbyWithoutTap(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Passt{})
	c.DNS, c.Standby = nil, true
	var refused *infra.RefusedError
	if _, err := c.Setup(t.Context()); !errors.As(err, &refused) {
		t.Errorf("Setup on standby with passt: %v, want a *infra.RefusedError", err)
	}
	asFound(t, n, before)
	c.Standby = false
	setup(t, c)
	if _, err := c.Deactivate(t.Context()); !errors.As(err, &refused) {
		t.Errorf("Deactivate with passt: %v, want a *infra.RefusedError", err)
	}
	check(t, c)
	teardown(t, n, c, before)
}

// TestStandbyTapType: on standby the tap is down, and its owner changes its type (TUNSETLINK; the kernel refuses it to
// the port of a bridge). Check says so, and Setup makes the tap again.
func TestStandbyTapType(t *testing.T) {
	t.Parallel()
	s := newSide(t, infra.Redirect{})
	setup(t, s.c)
	wired := wiring(settled(t, s.Network))
	s.deactivate(t, 1)
	err := netns.Do(s.Pod.File, func() error {
		f, err := tap.Open("eth0-tap")
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETLINK, unix.ARPHRD_PPP)
	})
	if err != nil {
		t.Fatal(err)
	}
	if link := s.Pod.IP("-o link show eth0-tap"); !strings.Contains(link, "link/ppp") {
		t.Fatalf("the tap has its type still: %s", link)
	}
	var drift *phase1.DriftError
	if err := s.c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), "tap eth0-tap is no Ethernet link any more") {
		t.Errorf("Check says %v, want a DriftError", err)
	}
	setup(t, s.c)
	s.wantRole(t, cache.RoleInactive, 1)
	if _, err := s.c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error { return difference(wired, wiring(s.Pod.Dump())) })
	s.serves(t)
	teardown(t, s.Network, s.c, s.before)
}
