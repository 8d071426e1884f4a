package migration

import (
	"context"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFailedMigration kills the target's QEMU, and both launchers, in each state of a migration. The guest goes on at
// the source, without the loss of an octet, and at no time do frames pass both nodes. The launchers that are started
// anew serve as before. At last the source's QEMU is killed: then no QEMU has the guest, and both sides say so.
func TestFailedMigration(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	l := newLAN(t)
	from := source(ctx, l.pod(guestMAC, podAddresses...), infra.Bridge{})
	traffic := l.traffic(ctx, from.guest, nstest.Pod6)
	to := from.standby(ctx, l.pod(guestMAC, podAddresses...))
	continued := make(chan error, 1)
	check := func(when string) {
		t.Helper()
		onePasses(t, when, from, to)
	}
	for _, c := range []struct {
		state string
		// until does what a move does until the target's QEMU ends.
		until func(m *vm.Migration)
		// inactive: the source has been deactivated. continued: the source sends the rest of the guest to a target that
		// does not answer.
		inactive, continued bool
	}{
		{"active", func(*vm.Migration) {}, false, false},
		{"pre-switchover", func(m *vm.Migration) { preSwitchover(ctx, t, m) }, false, false},
		{"the source is inactive", func(m *vm.Migration) {
			preSwitchover(ctx, t, m)
			from.deactivate(ctx)
		}, true, false},
		{"the target is active", func(m *vm.Migration) {
			preSwitchover(ctx, t, m)
			from.deactivate(ctx)
			to.activate(ctx, from)
			check("the target is active")
		}, true, false},
		{"device", func(m *vm.Migration) {
			preSwitchover(ctx, t, m)
			from.deactivate(ctx)
			to.activate(ctx, from)
			if err := to.guest.Freeze(); err != nil { // the target must not be faster than its end
				t.Fatal(err)
			}
			// A source whose socket is full answers QMP no more until the target ends.
			go func() { continued <- m.Continue(ctx) }()
			select {
			case err := <-continued:
				continued <- err
			case <-time.After(time.Second):
			}
		}, true, true},
	} {
		t.Run(c.state, func(t *testing.T) {
			to.await(ctx)
			m, err := vm.NewMigration(ctx, from.guest, to.guest, true)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := m.Begin(ctx); err != nil {
				t.Fatal(err)
			}
			c.until(m)
			if err := to.guest.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, n := range []*node{from, to} {
				n.launcher.Kill(t)
			}
			// The way back is the way there: the target is inactive first, and its record is the source's proof.
			if c.inactive {
				to.deactivate(ctx)
				from.activate(ctx, to)
			}
			check("on the way back")
			if c.continued {
				if err := <-continued; err != nil {
					t.Error(err)
				}
				if _, err := m.Await(ctx, vm.StateFailed); err != nil {
					t.Fatal(err)
				}
			} else if err := m.Cancel(ctx); err != nil {
				t.Fatal(err)
			}
			if status, err := m.SourceStatus(ctx); err != nil || status != "running" {
				t.Errorf("the source's guest is %q, %v, want running", status, err)
			}
			check("at the end")
			for _, n := range []*node{from, to} {
				n.launcher = n.Serve(n.t, n.uid)
			}
			renews(ctx, t, from)
			for _, s := range []*Stream{traffic.in, traffic.out} {
				if err := s.Progress(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if t.Failed() {
		return
	}
	if measured := traffic.end(); measured.pings.Twice > 0 {
		t.Errorf("%d frames came twice", measured.pings.Twice)
	}
	to.await(ctx)
	m, err := vm.NewMigration(ctx, from.guest, to.guest, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	preSwitchover(ctx, t, m)
	from.deactivate(ctx)
	to.activate(ctx, from)
	if err := from.guest.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := m.Finish(ctx); err == nil {
		t.Error("the migration from a QEMU that has ended succeeds")
	}
	status, output, err := to.guest.Ended(ctx)
	if err != nil || status == 0 {
		t.Errorf("the target's QEMU ends with status %d, %v, want an error; it said %q", status, err, output)
	}
	check("without a guest")
}

// preSwitchover waits until the source has stopped the guest.
func preSwitchover(ctx context.Context, t testing.TB, m *vm.Migration) {
	t.Helper()
	if _, err := m.Await(ctx, vm.StatePreSwitchover); err != nil {
		t.Fatal(err)
	}
}
