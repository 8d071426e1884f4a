package phase1_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// newRouted is a scene whose NIC is wired by the binding, with a guest that has the record's addresses.
func newRouted(t *testing.T, c func(s *scene) wired.NIC) (*scene, wired.NIC) {
	t.Helper()
	s := newScene(t)
	config := c(s)
	setup(t, config)
	s.routedGuest(t, record(t, s.Network))
	return s, config
}

// routedGuest puts a guest with the record's addresses behind the NIC.
func (s *scene) routedGuest(t *testing.T, r cache.Record) {
	t.Helper()
	g := recordsGuest(t, s.Network, r, r.MTU)
	s.who["guest"] = g
	s.at["pod"] = "guest"
	if r.IPv4 != nil && r.IPv6 != nil { // everybody serves at all of their addresses
		s.name("pod", "hop", lease.RoutedIPv4, lease.RoutedIPv6)
	}
	g.Settle("eth0")
}

// TestRouted: the guest has the pod's addresses in both directions, the namespace's own connections leave with them as
// well, and CNI's CHECK finds the addresses.
func TestRouted(t *testing.T) {
	t.Parallel()
	s, c := newRouted(t, func(s *scene) wired.NIC { return config(s.Network, infra.Routed{}) })
	s.ask(t, []exchange{
		{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
		{from: "world@beyond", to: "pod:8001", want: "guest:8001 sees beyond"},
		{from: "guest", to: "gateway:8002", want: "world:8002 sees pod"},
		{from: "guest", to: "beyond:8003", want: "world:8003 sees pod"},
		{from: "pod", to: "gateway:8004", want: "world:8004 sees pod"},
		{from: "pod", to: "beyond:8005", want: "world:8005 sees pod"},
		{from: "pod", to: "pod:8006", want: "guest:8006 sees hop"},
		{from: "guest", to: "hop:8007", want: ""},
		{from: "world", to: "pod:8008", size: 4000, protocol: "udp", want: "guest:8008 sees gateway"},
		{from: "guest", to: "beyond:8009", size: 4000, protocol: "udp", want: "world:8009 sees pod"},
	})
	for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
		if out := s.Pod.IP("addr show dev eth0"); !strings.Contains(out, a.String()) {
			t.Errorf("eth0 has not %v:\n%s", a, out)
		}
	}
	wired := s.Pod.Dump()
	setup(t, c)
	if err := difference(stable(wired), stable(s.Pod.Dump())); err != nil {
		t.Errorf("a second Setup changed something: %v", err)
	}
	// The kernel forgets routes and IPv6 addresses, and takes the IPv4 address again.
	s.Pod.IP("link set eth0 down")
	s.Pod.IP("link set eth0 up")
	if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "10.244.1.7") {
		t.Errorf("Check says %v of a NIC that was down", err)
	}
	setup(t, c)
	s.Pod.Settle("eth0")
	s.ask(t, []exchange{
		{from: "world", to: "pod:8010", want: "guest:8010 sees gateway"},
		{from: "guest", to: "beyond:8011", want: "world:8011 sees pod"},
		{from: "pod", to: "gateway:8012", want: "world:8012 sees pod"},
	})
}

// TestRoutedTwoNetworks: the namespace's own packets leave with the NIC's address that the kernel chose before Setup.
func TestRoutedTwoNetworks(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("addr add 192.168.5.2/24 dev eth0")
	n.Pod.IP("addr add 2001:db8:5::3/64 dev eth0 nodad")
	uplink := strings.Fields(n.World.IP("-o addr show to " + nstest.Gateway4.String()))[1]
	n.World.IP("addr add 192.168.5.1/24 dev " + uplink)
	n.World.IP("addr add 2001:db8:5::1/64 dev " + uplink + " nodad")
	n.World.Listen("the world", ":8001")
	destinations := []string{nstest.Gateway4.String(), nstest.Beyond4.String(), "192.168.5.1", nstest.Gateway6.String(), nstest.Beyond6.String(), "2001:db8:5::1"}
	seen := func() []string {
		var list []string
		for _, to := range destinations {
			answer, err := n.Pod.Ask(net.JoinHostPort(to, "8001"))
			if err != nil {
				t.Errorf("%s: %v", to, err)
			}
			list = append(list, to+": "+answer[:max(0, strings.LastIndex(answer, ":"))]) // without the source port
		}
		return list
	}
	before := seen()
	c := config(n, infra.Routed{})
	setup(t, c)
	if after := seen(); !slices.Equal(before, after) {
		t.Errorf("the world sees\n%s\nbefore Setup it saw\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// TestRoutedSidecar has REDIRECT rules as those of a mesh: what comes in by the NIC and what the guest sends go to
// processes of the namespace, which reach the guest from a loopback address.
func TestRoutedSidecar(t *testing.T) {
	t.Parallel()
	s, _ := newRouted(t, func(s *scene) wired.NIC {
		return config(s.Network, infra.Routed{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}}})
	})
	for _, line := range []string{
		"add table inet mesh",
		"add chain inet mesh pre { type nat hook prerouting priority dstnat; }",
		"add rule inet mesh pre iifname eth0 tcp dport 8100 redirect to :15006",
		"add rule inet mesh pre iifname eth0-tap tcp dport 8101 redirect to :15001",
	} {
		s.Pod.Exec("nft", line)
	}
	s.Pod.Listen("the proxy", ":15006")
	s.Pod.Listen("the other proxy", ":15001")
	s.who["guest"].Listen("the guest", ":8102")
	s.Pod.IP("addr add ::6/128 dev lo nodad")
	for _, a := range []struct{ pod, far, source, hop netip.Addr }{
		{nstest.Pod4, nstest.Gateway4, netip.MustParseAddr("127.0.0.6"), lease.RoutedIPv4},
		{nstest.Pod6, nstest.Gateway6, netip.MustParseAddr("::6"), lease.RoutedIPv6},
	} {
		if answer, err := s.World.Ask(netip.AddrPortFrom(a.pod, 8100).String()); err != nil || !strings.HasPrefix(answer, "the proxy sees") || !strings.Contains(answer, a.far.String()) {
			t.Errorf("from the network: %q, %v", answer, err)
		}
		if answer, err := s.who["guest"].Ask(netip.AddrPortFrom(a.far, 8101).String()); err != nil || !strings.HasPrefix(answer, "the other proxy sees") || !strings.Contains(answer, a.pod.String()) {
			t.Errorf("from the guest: %q, %v", answer, err)
		}
		q, err := s.Pod.Question("tcp", a.source, netip.AddrPortFrom(a.pod, 8102), 0)
		if err != nil {
			t.Errorf("from %v: %v", a.source, err)
			continue
		}
		q.Close()
	}
}

// TestRoutedFamilies: a NIC with addresses of one family.
func TestRoutedFamilies(t *testing.T) {
	t.Parallel()
	for family, flush := range map[int][]string{4: {"-6 route flush dev eth0", "-6 addr flush dev eth0"}, 6: {"-4 addr flush dev eth0"}} {
		t.Run(fmt.Sprint(family), func(t *testing.T) {
			s := newScene(t)
			for _, line := range flush {
				s.Pod.IP(line)
			}
			before := settled(t, s.Network)
			c := config(s.Network, infra.Routed{})
			setup(t, c)
			s.routedGuest(t, record(t, s.Network))
			guest := s.who["guest"]
			guest.Listen("the guest", ":8000")
			s.World.Listen("the world", ":8001")
			pod, far := nstest.Pod4, nstest.Beyond4
			if family == 6 {
				pod, far = nstest.Pod6, nstest.Beyond6
			}
			if answer, err := s.World.Ask(netip.AddrPortFrom(pod, 8000).String()); err != nil || !strings.HasPrefix(answer, "the guest sees") {
				t.Errorf("to the guest: %q, %v", answer, err)
			}
			for _, from := range []*nstest.Namespace{guest, s.Pod} {
				if answer, err := from.Ask(netip.AddrPortFrom(far, 8001).String()); err != nil || !strings.Contains(answer, pod.String()) {
					t.Errorf("to the world: %q, %v, want the world to see %v", answer, err, pod)
				}
			}
			c.Down.CutOff = true
			teardown(t, s.Network, c, before)
		})
	}
}

// TestRoutedInvalid: connection tracking does not know a segment of the namespace's own connection. The guest does not
// receive the segment, and so does not reset the connection.
func TestRoutedInvalid(t *testing.T) {
	t.Parallel()
	s, _ := newRouted(t, func(s *scene) wired.NIC { return config(s.Network, infra.Routed{}) })
	s.World.Exec("nft", "add table inet change")
	s.World.Exec("nft", "add chain inet change out { type filter hook output priority 0; }")
	for _, a := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		server := netip.AddrPortFrom(a, 9100)
		l, own := listen(t, s.World, server), dial(t, s.Pod, "tcp", server)
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		one := make([]byte, 1)
		say := func(what string, from, to net.Conn) {
			t.Helper()
			deadline := time.Now().Add(patience)
			if _, err := from.Write([]byte("x")); err != nil {
				t.Fatalf("%v, %s: %v", a, what, err)
			}
			if err := to.SetReadDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			if _, err := to.Read(one); err != nil {
				t.Fatalf("%v, %s: %v", a, what, err)
			}
		}
		say("to the world", own, far)
		say("to the namespace", far, own)
		// The next segment is far ahead of the window.
		s.World.Exec("nft", fmt.Sprintf("add rule inet change out tcp sport 9100 tcp sequence set %d", sequence(t, far.(*net.TCPConn))+1<<29))
		if _, err := far.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		s.World.Exec("nft", "flush chain inet change out") // the segment comes again, as it is
		say("to the world, after the segment", own, far)
		say("to the namespace, after the segment", far, own)
	}
}

// sequence is the sequence number of what the connection sends next (TCP_REPAIR, tcp(7)).
func sequence(t *testing.T, c *net.TCPConn) uint32 {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const sendQueue, offWithoutProbe = 2, -1 // TCP_SEND_QUEUE, TCP_REPAIR_OFF_NO_WP (linux/tcp.h)
	number := 0
	if e := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR_QUEUE, sendQueue))
		if err == nil {
			number, err = unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_QUEUE_SEQ)
		}
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, offWithoutProbe))
	}); e != nil || err != nil {
		t.Fatal(errors.Join(e, err))
	}
	return uint32(number)
}

// TestRoutedNeighbours: the NIC's network gets no answer for the namespace's own addresses, and learns of no process
// that sends with the guest's.
func TestRoutedNeighbours(t *testing.T) {
	t.Parallel()
	s, _ := newRouted(t, func(s *scene) wired.NIC { return config(s.Network, infra.Routed{}) })
	for _, hop := range []netip.Addr{lease.RoutedIPv4, lease.RoutedIPv6} {
		s.World.IP(fmt.Sprintf("route add %v dev %s", hop, "pod"))
		if answer, err := s.World.Ask(netip.AddrPortFrom(hop, 8200).String()); err == nil {
			t.Errorf("%v answers %q", hop, answer)
		}
		if out := s.World.IP(fmt.Sprintf("neigh show to %v", hop)); strings.Contains(out, "lladdr") {
			t.Errorf("the network has a neighbour: %s", out)
		}
	}
}
