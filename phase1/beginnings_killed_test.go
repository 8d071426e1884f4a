package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestBeginningsKilled: the Setup after a killed one, or after a killed Teardown, ends what was open before its policy.
// A Teardown that was killed before it deleted the guest's tap has ended nothing, and the guest goes on.
func TestBeginningsKilled(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "strace")
	nstest.NeedTaps(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	for _, binding := range []infra.Binding{infra.Routed{}, infra.Masquerade{}} {
		for _, verb := range []string{"setup", "teardown"} {
			if verb == "setup" && binding.Kind() == cache.BindingMasquerade {
				continue // what a process has open is its own
			}
			t.Run(fmt.Sprintf("%s, %s", verb, binding.Kind()), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, binding)
				track(b.n.Pod)
				from := []netip.Addr{nstest.Pod4, nstest.Pod6}
				if binding.Kind() == cache.BindingMasquerade {
					from = []netip.Addr{netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd10:0:2::2")}
				}
				open := func() error { // a protocol without ports is tracked for ten minutes
					return netns.Do(b.n.Pod.File, func() error {
						link := frames.Link{}
						return errors.Join(sendRaw(link.Packet(253, from[0], refused4, make([]byte, 40))[14:]), sendRaw(link.Packet(253, from[1], refused6, make([]byte, 40))[14:]))
					})
				}
				op := &operation{args: b.setupArgs(), prepare: func() error { return errors.Join(b.removeState(), open()) }}
				if verb == "teardown" {
					op.args = b.args("teardown")
					op.prepare = func() error {
						free := b.c
						free.Egress = nil // as the policy would drop the packets
						return errors.Join(b.removeState(), setupAlone(t.Context(), free), open())
					}
				}
				op.finish = func(bool) error {
					_, err := b.c.Setup(t.Context())
					return errors.Join(err, b.c.Teardown(t.Context()))
				}
				trials, killed, ended := &trials{t, agent, nil}, 0, 0
				points := trials.points(attempt{op, nil})
				last := -1
				for i, p := range points {
					if strings.Contains(p.what, "eth0.sight") && last < 0 {
						last = i // from here on the rules are in force
					}
				}
				for i, p := range points {
					if !p.mutates || verb == "setup" && i < last && i%8 > 0 {
						continue
					}
					if err := op.prepare(); err != nil {
						t.Fatal(err)
					}
					if len(trackedRefused(b.n)) != 2 {
						t.Fatalf("before: tracked are\n%s", strings.Join(trackedRefused(b.n), ""))
					}
					if trials.run(attempt{op, []harm{{point: p}}}).killed {
						killed++
					}
					goesOn := verb == "teardown" && strings.Contains(b.n.Pod.IP("-br link"), "eth0-tap")
					if err := setupAlone(t.Context(), b.c); err != nil {
						t.Fatalf("killed at %s: %v", p.what, err)
					}
					if list := trackedRefused(b.n); !goesOn && len(list) > 0 {
						t.Errorf("killed at %s, then Setup: tracked are\n%s", p.what, strings.Join(list, ""))
					} else if !goesOn {
						ended++
					}
					unwire(t, b.c)
				}
				if killed < 5 || ended < 5 {
					t.Errorf("%d kills, and %d times all has ended: strace did too little", killed, ended)
				}
				t.Logf("%d kills, %d times all has ended", killed, ended)
			})
		}
	}
}

// TestCutKilled: a Setup takes diverts away, and is killed. The next one ends what they had led to their targets.
func TestCutKilled(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "strace")
	nstest.NeedTaps(t)
	b := newBed(t, infra.Masquerade{})
	track(b.n.Pod)
	with, without := b.c, b.c
	without.Egress = policy(t, "allow 198.51.100.0/24 443", "refuse all")
	b.c = without
	args := b.setupArgs()
	open := func() error {
		return netns.Do(b.n.Pod.File, func() error {
			return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 1000, ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED},
				Forward: netlink.IPTuple{SrcIP: net.IPv4(10, 0, 2, 2).To4(), DstIP: net.IPv4(192, 0, 2, 7).To4(), SrcPort: 1000, DstPort: 80, Protocol: unix.IPPROTO_TCP},
				Reverse: netlink.IPTuple{SrcIP: net.IPv4(127, 0, 0, 1).To4(), DstIP: net.IPv4(10, 0, 2, 2).To4(), SrcPort: 8080, DstPort: 1000, Protocol: unix.IPPROTO_TCP},
			})
		})
	}
	op := &operation{
		args: args, prepare: func() error { return errors.Join(b.removeState(), setupAlone(t.Context(), with), open()) },
		finish: func(bool) error { return without.Teardown(t.Context()) },
	}
	led := func() []string { return connections(b.n.Pod, "src=10.0.2.2", "dst=192.0.2.7") }
	trials, kept := &trials{t, nstest.Program(t, "examples/guestwire-agent"), nil}, 0
	for _, p := range trials.points(attempt{op, nil}) {
		if !p.mutates {
			continue
		}
		if err := op.prepare(); err != nil {
			t.Fatal(err)
		}
		if len(led()) != 1 {
			t.Fatalf("before: the connection is not tracked\n%s", b.n.Pod.Exec("cat", "/proc/net/nf_conntrack"))
		}
		trials.run(attempt{op, []harm{{point: p}}})
		if len(led()) > 0 {
			kept++
		}
		if err := setupAlone(t.Context(), without); err != nil {
			t.Fatalf("killed at %s: %v", p.what, err)
		}
		if list := led(); len(list) > 0 {
			t.Errorf("killed at %s, then Setup: tracked are\n%s", p.what, strings.Join(list, ""))
		}
		unwire(t, without)
	}
	if kept < 5 {
		t.Errorf("%d kills left the connection: strace did too little", kept)
	}
}

// endsAt is done when Err has been called some times.
type endsAt struct {
	context.Context
	calls, at atomic.Int64
}

func (c *endsAt) Err() error {
	if n := c.calls.Add(1); c.at.Load() > 0 && n >= c.at.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// TestCutCancelled: a Setup takes diverts away, and its context ends. The next one ends what they had led to their
// targets.
func TestCutCancelled(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.NeedTaps(t)
	b := newBed(t, infra.Masquerade{})
	track(b.n.Pod)
	with, without := b.c, b.c
	without.Egress = policy(t, "allow 198.51.100.0/24 443", "refuse all")
	open := func() error {
		return netns.Do(b.n.Pod.File, func() error {
			return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 1000, ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED},
				Forward: netlink.IPTuple{SrcIP: net.IPv4(10, 0, 2, 2).To4(), DstIP: net.IPv4(192, 0, 2, 7).To4(), SrcPort: 1000, DstPort: 80, Protocol: unix.IPPROTO_TCP},
				Reverse: netlink.IPTuple{SrcIP: net.IPv4(127, 0, 0, 1).To4(), DstIP: net.IPv4(10, 0, 2, 2).To4(), SrcPort: 8080, DstPort: 1000, Protocol: unix.IPPROTO_TCP},
			})
		})
	}
	led := func() []string { return connections(b.n.Pod, "src=10.0.2.2", "dst=192.0.2.7") }
	calls, kept := int64(1000), 0
	for at := int64(0); at <= calls; at++ { // the first one is not cancelled
		if at == 1 {
			at = max(1, calls-30) // what is before has changed nothing yet
		}
		if err := errors.Join(b.removeState(), setupAlone(t.Context(), with), open()); err != nil {
			t.Fatal(err)
		}
		ctx := &endsAt{Context: t.Context()}
		ctx.at.Store(at)
		err := setupAlone(ctx, without)
		if at == 0 {
			calls = ctx.calls.Load()
		}
		if len(led()) > 0 {
			kept++
		}
		if err := setupAlone(t.Context(), without); err != nil {
			t.Fatalf("cancelled at call %d: %v", at, err)
		}
		if list := led(); len(list) > 0 {
			t.Errorf("cancelled at call %d of %d (%v), then Setup: tracked are\n%s", at, calls, err, strings.Join(list, ""))
		}
		unwire(t, without)
	}
	if kept < 2 {
		t.Errorf("%d of the contexts left the connection", kept)
	}
}
