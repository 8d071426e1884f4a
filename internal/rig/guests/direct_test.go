package guests_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// bootDirect wires the NIC and boots a guest with the record's libvirt element. It waits until the launcher
// logs that the record has no responder.
func bootDirect(ctx context.Context, t *testing.T, n nstest.Network, c wired.NIC, cfg vm.Config) *vm.Guest {
	t.Helper()
	network, _ := setupAndOpen(ctx, t, c)
	launcher := n.Serve(t, cfg.UID)
	g := bootLibvirt(ctx, t, cfg, network)
	nstest.Eventually(t, func() error {
		if !strings.Contains(launcher.Output.String(), "no responder") {
			return fmt.Errorf("the launcher says %q", launcher.Output.String())
		}
		return nil
	})
	return g
}

// TestPasst boots a guest behind passt, which an unprivileged libvirt starts: Debian 12's by a socket, and Debian 13's
// by shared memory. It tests passt's DHCP, connections out, a port below 1024 (which needs the first sysctl) and pings
// (which need the second).
func TestPasst(t *testing.T) {
	for name, vhostUser := range map[string]bool{"socket": false, "vhost-user": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPasst(t, vhostUser)
		})
	}
}

func testPasst(t *testing.T, vhostUser bool) {
	uid, gid := vm.NeedGuest(t)
	n := nstest.NewNetwork(t)
	before := n.Pod.Dump()
	ctx := bootTime(t)
	c := configOf(n, "eth0", infra.Passt{Ports: []infra.Ports{{First: 80, Guest: vm.AnswerPort}}, VhostUser: vhostUser}, uid, gid)
	g := bootDirect(ctx, t, n, c, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Backport: true, VhostUser: vhostUser})
	lease4, err := g.Lease4(ctx, "eth0")
	if err != nil || lease4["ip"] != nstest.Pod4.String() || lease4["router"] != nstest.Gateway4.String() {
		t.Fatalf("DHCPv4 lease %v, %v, want %v", lease4, err, nstest.Pod4)
	}
	lease6, err := g.Lease6(ctx, "eth0")
	if err != nil || lease6["ip6_address"] != nstest.Pod6.String() {
		t.Fatalf("DHCPv6 lease %v, %v, want %v", lease6, err, nstest.Pod6)
	}
	n.Pod.Listen("pod", "127.0.0.1:7001")
	for _, a := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		n.World.Listen("world", netip.AddrPortFrom(a, 7000).String())
	}
	for _, q := range []struct {
		to   netip.AddrPort
		want string
	}{
		{netip.AddrPortFrom(nstest.Beyond4, 7000), "world sees " + nstest.Pod4.String()},
		{netip.AddrPortFrom(nstest.Beyond6, 7000), "world sees [" + nstest.Pod6.String()},
		{netip.AddrPortFrom(nstest.Gateway4, 7001), "pod sees 127.0.0.1"}, // the record warns of this
	} {
		// sleep keeps nc's sending side open for a second, as passt would lose the answer otherwise. nc is
		// killed, as passt may not deliver the other side's FIN. timeout(1) would leave an orphan to the
		// guest's init.
		command := fmt.Sprintf("sleep 1 | nc %v %d & sleep 2; kill $!; wait", q.to.Addr(), q.to.Port())
		nstest.Eventually(t, func() error {
			out, err := g.Run(ctx, command)
			if err == nil && !strings.HasPrefix(out, q.want) {
				err = fmt.Errorf("guest to %v: %q, want %q", q.to, out, q.want)
			}
			return err
		})
	}
	for _, to := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		if _, err := g.Run(ctx, fmt.Sprintf("ping -c 3 -W 3 %v", to)); err != nil {
			t.Errorf("ping to %v: %v", to, err)
		}
	}
	for _, to := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
		nstest.Eventually(t, func() error {
			answer, err := askFirst(n.World, netip.AddrPortFrom(to, 80))
			if err == nil && (answer.Guest != "guest1" || answer.Peer.Addr() != nstest.Gateway(to)) {
				err = fmt.Errorf("%+v", answer)
			}
			if err != nil {
				return fmt.Errorf("world to %v: %w; want guest1 to answer and to see %v", to, err, nstest.Gateway(to))
			}
			return nil
		})
	}
	takeDown(ctx, t, c, g)
	if after := n.Pod.Dump(); after != before {
		t.Errorf("the namespace was\n%s\nand is\n%s", before, after)
	}
}

// takeDown checks the wiring, ends the guest, and calls Teardown.
func takeDown(ctx context.Context, t *testing.T, c wired.NIC, g interface{ Destroy() error }) {
	t.Helper()
	for _, step := range []func() error{func() error { return c.Check(ctx) }, g.Destroy, func() error { return c.Teardown(ctx) }} {
		if err := step(); err != nil {
			t.Error(err)
		}
	}
}

// askFirst connects, sends a line and reads the guest's answer. Debian 12's passt does not complete a
// connection to the guest before the client has sent something, and sometimes loses what the guest sends
// just before it closes.
func askFirst(from *nstest.Namespace, to netip.AddrPort) (answer vm.Answer, err error) {
	var conn net.Conn
	err = netns.Do(from.File, func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return vm.Answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return vm.Answer{}, err
	}
	if _, err := conn.Write([]byte("who is there?\n")); err != nil {
		return vm.Answer{}, err
	}
	return vm.ReadAnswer(conn)
}

// TestSlirp boots a guest behind QEMU's user network: under an unprivileged libvirt with networks of the configuration,
// and under the launcher with those of slirp, forwarded ports and a search domain.
func TestSlirp(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	t.Run("libvirt", func(t *testing.T) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		s := slirpTest{n, netip.MustParsePrefix("10.9.0.0/27"), netip.MustParsePrefix("fd09::/64"), n.Pod.Dump()}
		ctx := bootTime(t)
		c := configOf(n, "eth0", infra.Slirp{IPv4: s.v4, IPv6: s.v6}, uid, gid)
		s.check(ctx, t, c, bootDirect(ctx, t, n, c, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1"}))
	})
	t.Run("launcher", func(t *testing.T) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		s := slirpTest{n, netip.MustParsePrefix("10.0.2.0/24"), netip.MustParsePrefix("fd10:0:2::/64"), n.Pod.Dump()}
		ctx := bootTime(t)
		b := infra.Slirp{Ports: []infra.Ports{{First: 80, Guest: vm.AnswerPort}, {First: 8001, Last: 8002, Guest: vm.AnswerPort - 1}}}
		c := configOf(n, "eth0", b, uid, gid)
		c.DNS = &cache.DNS{Search: []string{"a.example", "b.example"}}
		if _, err := c.Setup(ctx); err != nil {
			t.Fatal(err)
		}
		g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Launcher: underLauncher(t, uid, gid, n)})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Destroy()
		if lease, err := g.Lease4(ctx, "eth0"); err != nil || lease["search"] != "a.example b.example" {
			t.Errorf("lease %v, %v; want the search domains", lease, err)
		}
		for _, port := range []uint16{80, 8002} {
			nstest.Eventually(t, func() error {
				answer, err := ask(n.World, netip.AddrPortFrom(nstest.Pod4, port))
				if err == nil && (answer.Guest != "guest1" || answer.Peer.Addr() != nstest.Gateway4) {
					err = fmt.Errorf("%+v", answer)
				}
				return err
			})
		}
		s.check(ctx, t, c, g)
	})
}

// TestWithoutSetup boots guests by sockets alone in a namespace that nobody has wired, as in a node's own, which Setup
// refuses. The test writes the record itself. Launcher, passt and QEMU have no capabilities, and while the guest uses
// the network, the namespace is as it was.
func TestWithoutSetup(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	mac := cache.MAC{2, 0, 0, 0, 0, 1}
	for _, r := range []cache.Record{
		{Version: cache.Version, Name: "eth0", Binding: cache.BindingPasst, Queues: 1, MAC: mac, MTU: 1400, Passt: &cache.Passt{}},
		{Version: cache.Version, Name: "eth0", Binding: cache.BindingSlirp, Queues: 1, MAC: mac, MTU: 1400, Slirp: &cache.Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24")}},
	} {
		t.Run(string(r.Binding), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			before := n.Pod.Dump()
			dir, err := os.OpenRoot(n.State)
			if err == nil {
				err = errors.Join(cache.Write(dir, r), dir.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx := bootTime(t)
			line := []string{nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", n.State, "--"}
			g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Name: "guest1", Launcher: line})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Destroy()
			if lease, err := g.Lease4(ctx, "eth0"); err != nil || lease["ip"] == "" {
				t.Fatalf("lease %v, %v", lease, err)
			}
			n.World.Listen("world", netip.AddrPortFrom(nstest.Beyond4, 7000).String())
			nstest.Eventually(t, func() error {
				out, err := g.Run(ctx, fmt.Sprintf("sleep 1 | nc %v 7000 & sleep 2; kill $!; wait", nstest.Beyond4))
				if want := "world sees " + nstest.Pod4.String(); err == nil && !strings.HasPrefix(out, want) {
					err = fmt.Errorf("%q, want %q", out, want)
				}
				return err
			})
			if err := nstest.Difference(before, n.Pod.Dump()); err != nil {
				t.Error(err)
			}
		})
	}
}

// slirpTest has the networks of a guest behind slirp, and the pod as it was.
type slirpTest struct {
	nstest.Network
	v4, v6 netip.Prefix
	before string
}

func (slirpTest) host(network netip.Prefix, number byte) netip.Addr {
	octets := network.Addr().AsSlice()
	octets[len(octets)-1] = number
	a, _ := netip.AddrFromSlice(octets)
	return a
}

// check checks what the guest gets and reaches, ends it, and takes the NIC down.
func (s slirpTest) check(ctx context.Context, t *testing.T, c wired.NIC, g *vm.Guest) {
	t.Helper()
	lease, err := g.Lease4(ctx, "eth0")
	if err != nil || lease["ip"] != s.host(s.v4, 15).String() || lease["router"] != s.host(s.v4, 2).String() || lease["dns"] != s.host(s.v4, 3).String() {
		t.Errorf("DHCPv4 lease %v, %v; want hosts 15, 2 and 3 of %v", lease, err, s.v4)
	}
	prefix := strings.TrimSuffix(s.v6.Addr().String(), ":")
	if _, err := g.Until(ctx, fmt.Sprintf("ip -6 addr show dev eth0 scope global -tentative | grep -q 'inet6 %s.*/64 '", prefix)); err != nil {
		t.Errorf("no address of %v: %v", s.v6, err)
	}
	s.Pod.Listen("pod", "127.0.0.1:7001")
	s.Pod.Listen("pod", "[::1]:7001")
	for _, a := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
		s.World.Listen("world", netip.AddrPortFrom(a, 7000).String())
	}
	for _, q := range []struct {
		to   netip.AddrPort
		want string
	}{
		{netip.AddrPortFrom(nstest.Beyond4, 7000), "world sees " + nstest.Pod4.String()},
		{netip.AddrPortFrom(nstest.Beyond6, 7000), "world sees [" + nstest.Pod6.String()},
		{netip.AddrPortFrom(s.host(s.v4, 2), 7001), "pod sees 127.0.0.1"}, // the record warns of these
		{netip.AddrPortFrom(s.host(s.v6, 2), 7001), "pod sees [::1]"},
	} {
		nstest.Eventually(t, func() error {
			out, err := g.Run(ctx, fmt.Sprintf("sleep 5 | nc -w 5 %v %d", q.to.Addr(), q.to.Port()))
			if err == nil && !strings.HasPrefix(out, q.want) {
				err = fmt.Errorf("guest to %v: %q, want %q", q.to, out, q.want)
			}
			return err
		})
	}
	if err := g.Ping(ctx, nstest.Beyond4); err != nil {
		t.Error(err)
	}
	takeDown(ctx, t, c, g)
	if after := s.Pod.Dump(); after != s.before {
		t.Errorf("the namespace was\n%s\nand is\n%s", s.before, after)
	}
}
