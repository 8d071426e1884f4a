package migration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
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
			to.Guest(t, to.record) // opens the tap, as QEMU does
			onePasses(t, "the target is on standby", from, to)
			from.deactivate(ctx)
			if from.passes() || to.passes() {
				t.Error("the source is quiet, and frames pass")
			}
			if frames := watcher.count()[before:]; len(frames) > 0 {
				t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
			}
			to.activate(ctx, from)
			if b.Kind() != cache.BindingMasquerade {
				awaitAnnouncement(t, watcher, before)
			}
			watcher.end()
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
				n.cutOff = true
				n.end(ctx)
			}
		})
	}
}

// awaitAnnouncement waits until the launcher has announced the guest to switches and to stations.
func awaitAnnouncement(t *testing.T, w *watcher, before int) {
	t.Helper()
	nstest.Eventually(t, func() error {
		frames := strings.Join(w.count()[before:], "\n")
		for name, etherType := range map[string]string{"RARP": "8035", "ARP": "0806"} {
			if !strings.Contains(frames, fmt.Sprintf(" ffffffffffff%x%s", guestMAC[:], etherType)) {
				return fmt.Errorf("no %s of the guest among %q", name, frames)
			}
		}
		return nil
	})
}
