package migration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var snapshots = flag.Int("snapshots", 2, "how often TestSnapshot saves the guest to a file and restores it in a new namespace")

// TestSnapshot saves a guest to a file, ends its pod, and restores the guest in a new pod with the same addresses,
// several times. TCP connections survive the outage without the loss of an octet.
func TestSnapshot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*snapshots)*30*time.Second)
	defer cancel()
	l := newLAN(t)
	n := source(ctx, l.pod(guestMAC, podAddresses...), infra.Redirect{})
	traffic := l.traffic(ctx, n.guest, nstest.Pod6)
	dir := nstest.Dir(t)
	for i := range *snapshots {
		begin := time.Now()
		if err := n.guest.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		n.deactivate(ctx)
		file := filepath.Join(dir, fmt.Sprint("guest", i))
		saved, err := n.guest.Save(ctx, file)
		if err != nil {
			t.Fatal(err)
		}
		n.end(ctx)
		n.Pod.End()

		next := &node{pod: l.pod(guestMAC, podAddresses...), t: t, binding: n.binding, uid: n.uid, gid: n.gid}
		c := next.config()
		c.From = &n.record
		next.setup(ctx, c)
		next.connect()
		next.await(ctx)
		if err := next.guest.Restore(ctx, saved); err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: the guest stood still for %v", i, time.Since(begin))
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		renews(ctx, t, next)
		for _, s := range []*Stream{traffic.in, traffic.out} {
			if err := s.Progress(); err != nil {
				t.Fatal(err)
			}
		}
		n = next
	}
	if measured := traffic.end(); measured.pings.Twice > 0 {
		t.Errorf("%d frames came twice", measured.pings.Twice)
	}
}
