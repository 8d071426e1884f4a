package migration

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// atOnce is less than the guest's kernel needs to find out that a neighbour has another MAC (three probes, a second
// apart, after five seconds of delay), and enough for one lost SYN.
const atOnce = 7 * time.Second

// moved4 and moved6 are the addresses of the target's pod.
var moved4, moved6 = netip.MustParseAddr("10.244.1.8"), netip.MustParseAddr("fd00:244:1::8")

// TestMigrationMasquerade moves a guest behind masquerade to a pod with other addresses and another MAC. The guest
// keeps its own. New connections work at once, in both directions and both families. The old ones end: the guest's ends
// by the answers of the world's stations, the world's ends as soon as the source's pod answers for itself.
func TestMigrationMasquerade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l := newLAN(t)
	l.world.Listen("world", netip.AddrPortFrom(nstest.Gateway4, outPort+1).String())
	l.world.Listen("world", netip.AddrPortFrom(nstest.Gateway6, outPort+1).String())
	from := source(ctx, l.pod(guestMAC, podAddresses...), infra.Masquerade{})
	in, out := l.in(ctx, nstest.Pod6), l.out(ctx, from.guest, nstest.Gateway4)
	// The guest sends by itself here. The world's end does nothing.
	talk := l.accept(ctx, from.guest, nstest.Gateway6, "{ while echo still here; do sleep 0.2; done | nc %v %d; touch /run/ended; } >/dev/null 2>&1 &")
	defer talk.Close()

	p := l.pod(otherMAC, netip.PrefixFrom(moved4, 24), netip.PrefixFrom(moved6, 64))
	watcher := p.watch(nil)
	before := watcher.settled()
	to := from.standby(ctx, p)
	to.await(ctx)
	move(ctx, t, from, to, func() {
		if frames := watcher.count()[before:]; len(frames) > 0 {
			t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
		}
	})
	watcher.end()
	onePasses(t, "after the move", from, to)

	begin := time.Now()
	for _, pod := range []netip.Addr{moved4, moved6} {
		ctx, cancel := context.WithTimeout(ctx, atOnce)
		conn, err := l.dial(ctx, netip.AddrPortFrom(pod, vm.AnswerPort))
		if err != nil {
			t.Errorf("world to guest, %v after the move: %v", time.Since(begin), err)
		} else {
			if answer, err := vm.ReadAnswer(conn); err != nil || answer.Guest != "guest1" {
				t.Errorf("world to guest: %+v, %v", answer, err)
			}
			conn.Close()
		}
		cancel()
	}
	for _, station := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		answer, err := to.guest.Run(ctx, fmt.Sprintf("nc -w %d %v %d </dev/null", int(atOnce.Seconds()), station, outPort+1))
		if err != nil || !strings.HasPrefix(answer, "world ") {
			t.Errorf("guest to world, %v after the move: %q, %v", time.Since(begin), answer, err)
		}
	}
	t.Logf("four new connections within %v of the move", time.Since(begin))
	renews(ctx, t, to)
	from.end(ctx)
	from.connect()
	for name, s := range map[string]*Stream{"into the guest": in, "out of the guest": out} {
		if err := s.Ended(); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the old connection %s: %v, want its reset", name, err)
		}
	}
	if _, err := to.guest.Until(ctx, "test -e /run/ended"); err != nil {
		t.Errorf("the guest keeps its old connection: %v", err)
	}
}
