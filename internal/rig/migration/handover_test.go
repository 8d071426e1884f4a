package migration

import (
	"context"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// TestHandover changes the nodes without a guest, there and back. The target's NIC has another MAC, and the target knows
// the guest from the source's record alone. Until it is active the target sends nothing, and the guest notices no change.
func TestHandover(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
		t.Run(b.Kind(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l := newLAN(t)
			from := &node{pod: l.pod(guestMAC, podAddresses...), t: t, binding: b, uid: nstest.LauncherUID, gid: nstest.LauncherUID}
			from.connect()
			from.setup(ctx, from.config())
			active := from.record
			p := l.pod(otherMAC, podAddresses...)
			watcher := p.watch(nil)
			before := watcher.settled()
			to := from.standby(ctx, p)
			onePasses(t, "the target is on standby", from, to)
			from.deactivate(ctx)
			if from.passes() || to.passes() {
				t.Error("the source is quiet, and frames pass")
			}
			if frames := watcher.count()[before:]; len(frames) > 0 {
				t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
			}
			watcher.end()
			to.activate(ctx, from)
			onePasses(t, "the target is active", from, to)
			if changes := cache.Changes(active, to.record); len(changes) > 0 {
				t.Errorf("the guest notices %v", changes)
			}
			to.deactivate(ctx)
			from.activate(ctx, to)
			onePasses(t, "the way back", from, to)
			if changes := cache.Changes(active, from.record); len(changes) > 0 {
				t.Errorf("the guest notices %v", changes)
			}
			for _, n := range []*node{from, to} {
				n.end(ctx)
			}
		})
	}
}
