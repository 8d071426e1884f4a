package guests_test

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// renewing is a guest whose address changes, as that of a guest does that moves under bridge to a pod with another
// address.
type renewing struct {
	run  func(ctx context.Context, command string) (string, error)
	link func(ctx context.Context, up bool) error // nil: the client takes no notice of the link, and cannot be told to ask
	// renew makes the client ask again; nil: the client does so by itself when the link comes back.
	renew func(ctx context.Context) error
	// outages stop the guest for longer than the lease, or set its clock. The client asks again afterwards.
	outages []outage
}

// outage is what a guest may see of its VMM's life. Without an end it is over at once.
type outage struct {
	name       string
	begin, end func(ctx context.Context) error
}

// outageLease is the time of the lease before an outage, in seconds. With 2 seconds, a guest on a busy machine lost
// each lease before its address was seen.
const outageLease = 8

// renewalLease is how long the lease before a move is, in seconds. A client asks again after half of that time.
const renewalLease = 20

// checkRenewal gives the guest another address twice: with a short lease before, and with an infinite one by taking the
// link down and up.
func checkRenewal(ctx context.Context, t *testing.T, state string, g renewing) {
	t.Helper()
	root, err := os.OpenRoot(state)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	move := func(to string, lease uint32) {
		t.Helper()
		r, err := cache.Read(root, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		r.IPv4.Address, r.Options.LeaseSeconds = netip.MustParsePrefix(to), lease
		if err := cache.Write(root, r); err != nil {
			t.Fatal(err)
		}
	}
	has := func(how, address string) {
		t.Helper()
		start := time.Now()
		var out string
		for end := start.Add(3 * renewalLease * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if out, err = g.run(ctx, "ip -4 -o addr show dev eth0"); err == nil && strings.Contains(out, "inet "+address) {
				t.Logf("%s: %v after %.1f s", how, address, time.Since(start).Seconds())
				if strings.Count(out, "inet ") != 1 {
					t.Errorf("%s: the guest keeps the earlier address: %s", how, out)
				}
				return
			}
		}
		t.Fatalf("%s: the guest has %q, %v; want %s", how, out, err, address)
	}
	has("boot", "10.244.1.7/24")
	move("10.244.1.8/24", 0)
	has("a short lease", "10.244.1.8/24")
	if g.link == nil {
		return
	}
	move("10.244.1.9/24", 0)
	relink := func() {
		t.Helper()
		if err := g.link(ctx, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // a client that polls the link has to see it down
		if err := g.link(ctx, true); err != nil {
			t.Fatal(err)
		}
	}
	relink()
	if g.renew != nil {
		if err := g.renew(ctx); err != nil {
			t.Fatal(err)
		}
	}
	has("the link down and up", "10.244.1.9/24")
	if g.outages == nil {
		return
	}
	next := netip.MustParsePrefix("10.244.1.10/24")
	move(next.String(), outageLease)
	relink()
	has("the link down and up", next.String())
	for _, o := range g.outages {
		if err := o.begin(ctx); err != nil {
			t.Fatalf("%s: %v", o.name, err)
		}
		// The guest gets another address only if it asks afterwards.
		next = netip.PrefixFrom(next.Addr().Next(), next.Bits())
		move(next.String(), outageLease)
		if o.end != nil {
			time.Sleep(2 * outageLease * time.Second)
			if err := o.end(ctx); err != nil {
				t.Fatalf("%s: %v", o.name, err)
			}
		}
		has(o.name, next.String())
	}
}

// TestRenewal: which DHCP clients take another address after a move, and when.
func TestRenewal(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	for _, sys := range systems {
		if !slices.Contains([]string{"udhcpc", "dhclient", "dhcpcd"}, sys.name) {
			continue // as one of these, or as TestRenewalManagers
		}
		sys.lease = renewalLease
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, sys, networks[0])
			s.serve(t, launcher)
			s.boot(t)
			g := renewing{
				run: func(context.Context, string) (string, error) { return s.guest.IP("-4 -o addr show dev eth0"), nil },
				link: func(_ context.Context, up bool) error {
					s.guest.IP("link set eth0 carrier " + map[bool]string{true: "on", false: "off"}[up])
					return nil
				},
			}
			switch c := s.clients[0]; sys.name {
			case "udhcpc":
				g.renew = func(context.Context) error {
					_, err := c.machine.Run(c.program.renew)
					return err
				}
			case "dhclient":
				g.link = nil
			}
			checkRenewal(t.Context(), t, s.State, g)
		})
	}
}

// TestRenewalManagers is TestRenewal with systemd-networkd in a guest in QEMU, which is also stopped for longer than
// its lease, and whose clock is set. NetworkManager is left out: after the refusal of its earlier address it asks for
// that address again, with pauses that grow, and has not taken the other within a minute.
func TestRenewalManagers(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	ctx := bootTime(t)
	n := networks[0].create(t)
	c := bootConfig(n, infra.Bridge{}, uid, gid)
	c.Options.LeaseSeconds = renewalLease
	_, r := setupAndOpen(ctx, t, c)
	launcher := n.Serve(t, uid)
	nic := newNIC(t, r, qemu.Options{})
	guest := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Boot: vm.BootNetworkd}, nic)
	defer func() {
		if t.Failed() {
			out, err := guest.Run(ctx, "cat /run/manager; ip addr")
			t.Logf("guest: %s, %v\nlauncher: %s", out, err, launcher.Output.String())
		}
	}()
	q, err := guest.QMP(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	qmp := func(command string) func(context.Context) error {
		return func(ctx context.Context) error { return q.Execute(ctx, command, nil) }
	}
	set := func(change string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := guest.Run(ctx, "date -s @$(($(date +%s) "+change+"))")
			return err
		}
	}
	checkRenewal(ctx, t, n.State, renewing{
		run:  guest.Run,
		link: func(ctx context.Context, up bool) error { return q.Execute(ctx, "set_link", nic.Link(up)) },
		outages: []outage{
			{"QMP stop, longer than the lease", qmp("stop"), qmp("cont")},
			{"QEMU stopped by SIGSTOP, longer than the lease", func(context.Context) error { return guest.Freeze() }, func(context.Context) error { return guest.Thaw() }},
			{"the clock three days forward", set("+ 259200"), nil},
			{"the clock six days back", set("- 518400"), nil},
		},
	})
}
