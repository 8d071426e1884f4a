package migration

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// podAddresses are those of the pod, and of a guest that has them from the pod.
var podAddresses = []netip.Prefix{netip.PrefixFrom(nstest.Pod4, 24), netip.PrefixFrom(nstest.Pod6, 64)}

// node is a pod that is wired for the guest, with the launcher's responder and a QEMU.
type node struct {
	*pod
	t        testing.TB
	binding  infra.Binding
	uid, gid int
	record   cache.Record
	launcher *nstest.Process
	guest    *vm.Guest
}

func (n *node) config() wired.NIC {
	return wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Spec: infra.Spec{
		Binding: n.binding, State: n.State, Owner: infra.Owner{UID: uint32(n.uid), GID: uint32(n.gid)},
	}}
}

func (n *node) vm() vm.Config {
	return vm.Config{NetNS: n.Pod.File, UID: n.uid, GID: n.gid, Name: "guest1", Backport: n.lan.backport}
}

// source wires a pod, and boots a guest that has its leases.
func source(ctx context.Context, p *pod, binding infra.Binding) *node {
	t := p.lan.t
	t.Helper()
	uid, gid := vm.NeedGuest(t)
	n := &node{pod: p, t: t, binding: binding, uid: uid, gid: gid}
	p.connect()
	n.setup(ctx, n.config())
	n.guest = boot(ctx, t, n.vm(), n.record)
	n.leases(ctx)
	return n
}

// leases waits until the guest has its leases, and lets the guest answer Pings.
func (n *node) leases(ctx context.Context) {
	n.t.Helper()
	for _, lease := range []func(context.Context, string) (map[string]string, error){n.guest.Lease4, n.guest.Lease6} {
		if _, err := lease(ctx, "eth0"); err != nil {
			n.t.Fatalf("%v\n%s", err, n.launcher.Output.String())
		}
	}
	answerBroadcasts(ctx, n.t, n.guest)
}

// setup wires the pod and starts the responder.
func (n *node) setup(ctx context.Context, c wired.NIC) {
	n.t.Helper()
	var err error
	if n.record, err = c.Setup(ctx); err != nil {
		n.t.Fatal(err)
	}
	n.launcher = n.Serve(n.t, n.uid)
}

// standby wires a pod that waits for the guest of n, and makes it a port of the layer 2, which forwards at once: frames
// that the pod sends would take the guest's place there, and flooded frames come to the pod.
func (n *node) standby(ctx context.Context, p *pod) *node {
	n.t.Helper()
	to := &node{pod: p, t: n.t, binding: n.binding, uid: n.uid, gid: n.gid}
	c := to.config()
	c.Standby, c.From = true, &n.record
	to.setup(ctx, c)
	p.connect()
	return to
}

// await starts a QEMU that waits for the guest.
func (n *node) await(ctx context.Context) {
	n.t.Helper()
	n.guest = wait(ctx, n.t, n.vm(), n.record)
}

// deactivate takes the guest's tap down.
func (n *node) deactivate(ctx context.Context) {
	n.t.Helper()
	var err error
	if n.record, err = n.config().Deactivate(ctx); err != nil {
		n.t.Fatal(err)
	}
}

// activate brings the guest's tap up; the other node is inactive.
func (n *node) activate(ctx context.Context, other *node) {
	n.t.Helper()
	var err error
	if n.record, err = n.config().Activate(ctx, phase1.Other{Inactive: &other.record}); err != nil {
		n.t.Fatal(err)
	}
}

// passes reports whether frames pass the guest's tap.
func (n *node) passes() bool {
	n.t.Helper()
	flags := strings.TrimSpace(n.Pod.Exec("cat", "/sys/class/net/"+n.record.Tap+"/flags"))
	value, err := strconv.ParseUint(flags, 0, 32)
	if err != nil {
		n.t.Fatal(err)
	}
	return value&1 != 0 // IFF_UP
}

// onePasses fails unless frames pass one of the nodes alone.
func onePasses(t testing.TB, when string, nodes ...*node) {
	t.Helper()
	var passing []string
	for _, n := range nodes {
		if n.passes() {
			passing = append(passing, n.port)
		}
	}
	if len(passing) != 1 {
		t.Errorf("%s: frames pass %v, want one of the nodes", when, passing)
	}
}

// end ends the node's guest and wiring. The NIC gets its addresses back, so the network has to forget the pod before.
func (n *node) end(ctx context.Context) {
	n.t.Helper()
	if n.guest != nil {
		if err := n.guest.Destroy(); err != nil {
			n.t.Error(err)
		}
	}
	n.launcher.Stop(n.t)
	n.disconnect()
	if err := n.config().Teardown(ctx); err != nil {
		n.t.Error(err)
	}
}

// watcher counts the frames that come from a port of the world.
type watcher struct {
	sniffer *nstest.Sniffer
	port    int
	mark    func()
	seen    chan int // the count, at a mark
	stop    chan struct{}
	ended   sync.WaitGroup

	mu     sync.Mutex
	frames []string
}

// markType is the EtherType of a frame that says how far the watcher is (IEEE 802, local experiments).
const markType = 0x88b5

// watch sees the frames that come from the pod from now on. Each, if there is one, is called with them.
func (p *pod) watch(each func(frame []byte)) *watcher {
	l := p.lan
	l.t.Helper()
	w := &watcher{sniffer: l.world.Sniff(l.t), port: p.index(), seen: make(chan int, 16), stop: make(chan struct{})}
	lo := l.index("lo") // a link that is always there
	inject := l.world.Injector(l.t, lo)
	frame := make([]byte, 60)
	copy(frame, []byte{2, 0, 0, 0, 0, 0xee, 2, 0, 0, 0, 0, 0xef})
	binary.BigEndian.PutUint16(frame[12:], markType)
	w.mark = func() {
		if err := inject(frame); err != nil {
			l.t.Fatal(err)
		}
	}
	w.ended.Go(func() {
		for {
			select {
			case <-w.stop:
				return
			default:
			}
			f, ok := w.sniffer.Next()
			if !ok || len(f.Frame) < 14 {
				continue
			}
			switch {
			case f.Link == lo && f.Outgoing && binary.BigEndian.Uint16(f.Frame[12:]) == markType:
				w.mu.Lock()
				n := len(w.frames)
				w.mu.Unlock()
				w.seen <- n
			case f.Link == w.port && !f.Outgoing:
				w.mu.Lock()
				w.frames = append(w.frames, fmt.Sprintf("%s %x", time.Now().Format("05.000"), f.Frame))
				w.mu.Unlock()
				if each != nil {
					each(f.Frame)
				}
			}
		}
	})
	l.t.Cleanup(w.end)
	return w
}

func (w *watcher) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.ended.Wait()
}

// count returns the frames that have come so far.
func (w *watcher) count() []string {
	w.mark()
	n := <-w.seen
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frames[:n:n]
}

// settled waits until the pod's own kernel has reported its groups, three times as seen, and returns how many frames
// have come.
func (w *watcher) settled() int {
	for n := len(w.count()); ; {
		time.Sleep(500 * time.Millisecond) // a busy machine's kernel sends the last report late
		now := len(w.count())
		if now == n {
			return n
		}
		n = now
	}
}

// index is the number of a link in the world.
func (l *lan) index(link string) int {
	l.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(l.world.Exec("cat", "/sys/class/net/"+link+"/ifindex")))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// connectAtRARP takes the pod's NIC from the layer 2 until the guest's RARP comes from it, as OVN does for a port with
// the activation strategy "rarp" (ovn-nb(5)). The watcher's end ends that, too.
func (p *pod) connectAtRARP() *watcher {
	p.disconnect()
	connected := false
	return p.watch(func(frame []byte) {
		if connected || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_RARP || !bytes.Equal(frame[6:12], guestMAC[:]) {
			return
		}
		connected = true
		p.connect()
	})
}

// index is the number of the pod's port in the world.
func (p *pod) index() int { return p.lan.index(p.port) }
