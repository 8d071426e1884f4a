package migration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// gapLimit bounds the longest gap in tests that share the machine with others. The measure is BenchmarkMigration.
const gapLimit = 5 * time.Second

// TestMigration moves a guest, with its addresses and its MAC, to the pod of another node, whose NIC has another MAC.
func TestMigration(t *testing.T) {
	for _, tr := range []trip{
		{binding: infra.Bridge{}, capture: true},
		{binding: infra.Redirect{}, capture: true, back: true, postcopy: true},
	} {
		t.Run(string(tr.binding.Kind()), func(t *testing.T) {
			m := moveWired(t, tr)
			if m.pings.Twice > 0 {
				t.Errorf("%d frames came twice", m.pings.Twice)
			}
			if m.gap > gapLimit {
				t.Errorf("the longest gap is %v, want at most %v", m.gap, gapLimit)
			}
		})
	}
}

// trip is what moveWired does.
type trip struct {
	binding infra.Binding
	// capture: see what the target sends before the switch, which takes time.
	capture bool
	// back: move the guest back then, to a port that the network opens for the guest's RARP.
	back bool
	// postcopy: move the guest before its memory, by the QEMU of Debian's backports, and at last to a QEMU that ends
	// before it has all of it.
	postcopy bool
}

// moveWired moves a guest between two wired pods.
func moveWired(t testing.TB, tr trip) measures {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l := newLAN(t)
	l.backport = tr.postcopy
	from := source(ctx, l.pod(guestMAC, podAddresses...), tr.binding)
	active := from.record
	traffic := l.traffic(ctx, from.guest, nstest.Pod6)

	p := l.pod(otherMAC, podAddresses...)
	atSwitch, unwatch := func() {}, func() {}
	if tr.capture {
		watcher := p.watch(nil)
		before := watcher.settled()
		unwatch = watcher.end
		atSwitch = func() {
			if frames := watcher.count()[before:]; len(frames) > 0 {
				t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
			}
		}
	}
	to := from.standby(ctx, p)
	to.await(ctx)
	var capabilities []string
	if tr.postcopy {
		capabilities = append(capabilities, vm.Postcopy)
	}
	gap := traffic.gap(func() { move(ctx, t, from, to, atSwitch, capabilities...) })
	unwatch()
	onePasses(t, "after the move", from, to)
	if changes := cache.Changes(active, to.record); len(changes) > 0 {
		t.Errorf("the guest notices %v", changes)
	}
	renews(ctx, t, to)
	if tr.back {
		if err := from.guest.Destroy(); err != nil {
			t.Fatal(err)
		}
		from.await(ctx)
		opener := from.connectAtRARP()
		move(ctx, t, to, from, func() {}, capabilities...)
		for _, s := range []*Stream{traffic.in, traffic.out} {
			if err := s.Progress(); err != nil {
				t.Fatal(err)
			}
		}
		opener.end()
		onePasses(t, "after the way back", from, to)
		renews(ctx, t, from)
		from, to = to, from
	}
	from.end(ctx)
	measured := traffic.end()
	measured.gap = gap
	if tr.postcopy {
		lose(ctx, t, to, to.standby(ctx, l.pod(guestMAC, podAddresses...)))
	}
	to.end(ctx)
	return measured
}

// lose kills the target's QEMU when it runs the guest with a part of the memory. The source's does not go on then.
func lose(ctx context.Context, t testing.TB, from, to *node) {
	t.Helper()
	to.await(ctx)
	m, err := vm.NewMigration(ctx, from.guest, to.guest, true, vm.Postcopy)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := errors.Join(m.Slow(ctx), m.Begin(ctx)); err != nil {
		t.Fatal(err)
	}
	preSwitchover(ctx, t, m)
	from.deactivate(ctx)
	to.activate(ctx, from)
	if err := m.Continue(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Await(ctx, vm.StatePostcopyActive); err != nil {
		t.Fatal(err)
	}
	if err := to.guest.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Await(ctx, vm.StatePostcopyPaused); err != nil {
		t.Fatal(err)
	}
	to.deactivate(ctx)
	from.activate(ctx, to)
	onePasses(t, "without the whole guest", from, to)
	if err := m.Cancel(ctx); err == nil {
		t.Error("the source ends a migration whose guest has gone on at the target")
	}
	if status, err := m.SourceStatus(ctx); err != nil || status != "finish-migrate" {
		t.Errorf("the source's guest is %q, %v; a guest that stands still was wanted", status, err)
	}
}

// move moves the guest; atSwitch is called when the source is inactive and the target is not active yet.
func move(ctx context.Context, t testing.TB, from, to *node, atSwitch func(), capabilities ...string) {
	t.Helper()
	m, err := vm.NewMigration(ctx, from.guest, to.guest, true, capabilities...)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	preSwitchover(ctx, t, m)
	begin := time.Now()
	from.deactivate(ctx)
	inactive := time.Since(begin)
	atSwitch()
	begin = time.Now()
	to.activate(ctx, from)
	active := time.Since(begin)
	if err := m.Continue(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("Deactivate %v, Activate %v, the rest of the migration %v", inactive, active, time.Since(begin)-active)
}

// renews checks that the guest runs at the node, and that the responder there renews its lease.
func renews(ctx context.Context, t testing.TB, n *node) {
	t.Helper()
	if out, err := n.guest.Run(ctx, "hostname; rm /run/lease4.eth0; killall -USR1 udhcpc"); err != nil || out != "guest1\n" {
		t.Fatalf("the guest says %q, %v", out, err)
	}
	lease, err := n.guest.Lease4(ctx, "eth0")
	if err != nil {
		t.Fatalf("%v\n%s", err, n.launcher.Output.String())
	}
	if want := n.record.IPv4.Address.Addr().String(); lease["ip"] != want {
		t.Errorf("the renewed lease is %v, want %s", lease, want)
	}
}

// median is the upper one of an even number.
func median(d []time.Duration) time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }

// BenchmarkMigration compares the longest gap of a guest that guestwire wires with that between two bare bridges.
func BenchmarkMigration(b *testing.B) {
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		b.Run(string(binding.Kind()), func(b *testing.B) {
			var wired, bare []time.Duration
			for b.Loop() {
				bare = append(bare, moveBare(b).gap)
				wired = append(wired, moveWired(b, trip{binding: binding}).gap)
			}
			b.ReportMetric(median(bare).Seconds()*1e3, "bare-ms")
			b.ReportMetric(median(wired).Seconds()*1e3, "wired-ms")
			b.ReportMetric(median(wired).Seconds()/median(bare).Seconds(), "ratio")
		})
	}
}
