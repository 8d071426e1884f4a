package migration

import (
	"context"
	"testing"
	"time"

	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMigrationLibvirt moves a guest from one unprivileged libvirtd to another one. libvirt has no place for a call in
// the middle of a migration, so the guest arrives paused, and goes on when the nodes have changed.
func TestMigrationLibvirt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	uid, gid := vm.NeedGuest(t)
	l := newLAN(t)
	from := &node{pod: l.pod(guestMAC, podAddresses...), t: t, binding: infra.Bridge{}, uid: uid, gid: gid}
	from.connect()
	from.setup(ctx, from.config())
	iface, err := domain.Interface(&from.record)
	if err != nil {
		t.Fatal(err)
	}
	element, err := iface.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	g, err := vm.BootLibvirt(ctx, from.vm(), element)
	from.guest = destroyed(t, g, err)
	from.leases(ctx)
	traffic := l.traffic(ctx, from.guest, nstest.Pod6)

	p := l.pod(guestMAC, podAddresses...)
	watcher := p.watch(nil)
	before := watcher.settled()
	to := from.standby(ctx, p)
	g, err = vm.WaitLibvirt(ctx, to.vm())
	to.guest = destroyed(t, g, err)
	if err := from.guest.MigrateLibvirt(ctx, to.guest); err != nil {
		t.Fatal(err)
	}
	from.deactivate(ctx)
	if frames := watcher.count()[before:]; len(frames) > 0 {
		t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
	}
	watcher.end()
	to.activate(ctx, from)
	if err := to.guest.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	onePasses(t, "after the move", from, to)
	renews(ctx, t, to)
	from.end(ctx)
	if m := traffic.end(); m.pings.Twice > 0 {
		t.Errorf("%d frames came twice", m.pings.Twice)
	}
}
