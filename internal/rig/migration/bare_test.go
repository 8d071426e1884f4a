package migration

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// bare makes a pod without guestwire: a bridge between the NIC and a tap.
func (l *lan) bare(uid int) *pod {
	l.t.Helper()
	p := l.pod(cache.MAC{2, 0, 0, 0, 1, byte(l.pods)})
	p.Pod.IP("link add br0 mtu 1450 type bridge")
	p.Pod.IP(fmt.Sprintf("tuntap add tap0 mode tap vnet_hdr user %d", uid))
	for _, link := range []string{"br0", "eth0", "tap0"} {
		p.Pod.IP("link set " + link + " addrgenmode none")
		if link != "br0" {
			p.Pod.IP("link set " + link + " mtu 1450 master br0")
		}
		p.Pod.IP("link set " + link + " up")
	}
	p.connect()
	return p
}

// configure gives a guest without DHCP its addresses.
func configure(ctx context.Context, t testing.TB, g *vm.Guest) {
	t.Helper()
	// The clients and their scripts would remove the addresses again.
	if _, err := g.Until(ctx, "killall udhcpc"); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("while pidof udhcpc udhcpc-script; do sleep 0.1; done; ip addr add %v/24 brd + dev eth0; ip addr add %v/64 dev eth0 nodad; ip route add default via %v",
		nstest.Pod4, nstest.Pod6, nstest.Gateway4)
	if _, err := g.Run(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// answerBroadcasts lets the guest answer Pings.
func answerBroadcasts(ctx context.Context, t testing.TB, g *vm.Guest) {
	t.Helper()
	if _, err := g.Run(ctx, "echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_broadcasts"); err != nil {
		t.Fatal(err)
	}
}

// TestBare moves a guest between two bare bridges: what QEMU does without guestwire. Frames that were flooded while the
// target waited come twice, so the test shows that Pings can see that.
func TestBare(t *testing.T) {
	m := moveBare(t)
	if m.pings.Twice == 0 {
		t.Error("no flooded frame came twice: the other tests' measure sees nothing")
	}
}

// measures is what the world has noticed of a guest that has moved.
type measures struct {
	in, out, pings Measured
	gap            time.Duration // the longest one of the TCP connections at the move
}

// moveBare moves a guest between two bare bridges.
func moveBare(t testing.TB) measures {
	t.Helper()
	uid, gid := vm.NeedGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l := newLAN(t)
	source, target := l.bare(uid), l.bare(uid)
	record := cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, MAC: guestMAC, MTU: 1450, Queues: 1, Tap: "tap0",
	}
	cfg := vm.Config{NetNS: source.Pod.File, UID: uid, GID: gid, Name: "guest1"}
	g := boot(ctx, t, cfg, record)
	configure(ctx, t, g)
	answerBroadcasts(ctx, t, g)
	traffic := l.traffic(ctx, g, nstest.Pod6)
	cfg.NetNS = target.Pod.File
	to := wait(ctx, t, cfg, record)
	time.Sleep(200 * time.Millisecond) // the target's tap takes flooded frames
	m, err := vm.NewMigration(ctx, g, to, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	gap := traffic.gap(func() {
		if err := m.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		if err := m.Finish(ctx); err != nil {
			t.Fatal(err)
		}
	})
	if out, err := to.Run(ctx, "hostname"); err != nil || out != "guest1\n" {
		t.Errorf("the moved guest says %q, %v", out, err)
	}
	measured := traffic.end()
	measured.gap = gap
	for _, g := range []*vm.Guest{g, to} {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	}
	return measured
}

// traffic is a connection into the guest, one out of the guest, and Pings.
type traffic struct {
	t       testing.TB
	in, out *Stream
	pings   *Pings
}

func (l *lan) traffic(ctx context.Context, g *vm.Guest, guest netip.Addr) *traffic {
	l.t.Helper()
	tr := &traffic{t: l.t, in: l.in(ctx, guest), out: l.out(ctx, g, nstest.Gateway4)}
	var err error
	if tr.pings, err = NewPings(l.world.File, broadcast4); err != nil {
		l.t.Fatal(err)
	}
	return tr
}

// gap moves the guest, and returns the longest gap of the TCP connections from the begin until both go on.
func (tr *traffic) gap(move func()) time.Duration {
	tr.t.Helper()
	for _, s := range []*Stream{tr.in, tr.out} {
		s.Forget()
	}
	move()
	for _, s := range []*Stream{tr.in, tr.out} {
		if err := s.Progress(); err != nil {
			tr.t.Fatal(err)
		}
	}
	gap := max(tr.in.Gap(), tr.out.Gap())
	tr.t.Logf("longest gap of the move: %v", gap)
	return gap
}

// end waits until all connections go on, ends them, and returns what they have noticed. Not an octet may be lost.
func (tr *traffic) end() measures {
	tr.t.Helper()
	for _, s := range []*Stream{tr.in, tr.out} {
		if err := s.Progress(); err != nil {
			tr.t.Error(err)
		}
	}
	var m measures
	var errs [3]error
	m.pings, errs[0] = tr.pings.End()
	m.in, errs[1] = tr.in.End()
	m.out, errs[2] = tr.out.End()
	for _, err := range errs {
		if err != nil {
			tr.t.Error(err)
		}
	}
	tr.t.Logf("into the guest: %v", m.in)
	tr.t.Logf("out of the guest: %v", m.out)
	tr.t.Logf("broadcasts: %v", m.pings)
	return m
}
