package phase1_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// dialFrom connects from a port of the namespace, which other sockets had before.
func dialFrom(t *testing.T, ns *nstest.Namespace, port int, to netip.AddrPort) (c net.Conn, err error) {
	t.Helper()
	in(t, ns, func() error {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: port}, Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		}}
		c, err = d.DialContext(context.Background(), "tcp", to.String())
		return nil
	})
	return c, err
}

// forgotten ends both sides of a connection without a packet: for connection tracking it stays open, also at a side.
func forgotten(t *testing.T, sides map[*nstest.Namespace]net.Conn) {
	t.Helper()
	for ns, c := range sides {
		ns.Exec("nft", "add table inet mute; add chain inet mute c { type filter hook output priority -400; }; add rule inet mute c tcp flags & (fin | rst) != 0 drop")
		if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil {
			t.Fatal(err)
		}
		ns.Exec("nft", "delete table inet mute")
	}
}

// TestEgressReopened: a connection between addresses and ports that connection tracking still knows is a new one. It is
// refused once the policy has changed, and once a pin has ended.
func TestEgressReopened(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		guest := s.who["guest"]
		for family := range 2 {
			at := func(port int) netip.AddrPort { return netip.AddrPortFrom(s.addresses["beyond"][family], uint16(port)) }
			server := listen(t, s.World, at(9300))
			refused := func(when string, source int) {
				t.Helper()
				conn, err := dialFrom(t, guest, source, at(9300))
				if err == nil {
					conn.Close()
				}
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("IPv%d, %s: %v, want %v", 4+2*family, when, err, syscall.ECONNREFUSED)
				}
			}
			open := func(source int) {
				t.Helper()
				client, err := dialFrom(t, guest, source, at(9300))
				if err != nil {
					t.Fatal(err)
				}
				peer, err := server.Accept()
				if err != nil {
					t.Fatal(err)
				}
				forgotten(t, map[*nstest.Namespace]net.Conn{guest: client, s.World: peer})
			}
			open(5000)
			open(5000) // as long as it is allowed

			c.Egress = policy(t, "refuse all")
			setup(t, c)
			refused("from a port that is known", 5000)
			refused("from another port", 5001)
			before := counted(t, c)["egress"]
			refused("once more", 5000)
			if n := counted(t, c)["egress"]; n != before+1 {
				t.Errorf("%d packets are counted, want 1", n-before)
			}

			far := at(0).Addr()
			if err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{far}, Ports: []infra.Ports{{First: 9300}}, Life: time.Hour}); err != nil {
				t.Fatal(err)
			}
			open(5002)
			s.Pod.Exec("nft", "delete", "element", "inet", "guestwire-eth0", fmt.Sprintf("pins-%d", 4+2*family), fmt.Sprintf("{ %v . tcp . 9300 }", far)) // it has ended
			refused("after the pin, from a port that is known", 5002)
			c.Egress = policy(t, "allow all")
			setup(t, c)
		}
	})
}

// TestEgressUnanswered: what nobody has answered is looked up packet by packet, so it ends when the policy changes.
// What was answered goes on.
func TestEgressUnanswered(t *testing.T) {
	nstest.Long(t)
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		c.Egress = policy(t, "allow all")
		setup(t, c)
		w := attach(t, n, true, true)
		kinds := openings(w)
		w.leave("allowed", true, kinds)
		w.leave("allowed, once more", true, kinds)
		// Errors about answers, which lead to the connections.
		wrong := func(protocol uint8, own, far netip.Addr, kind, code byte) []byte {
			body := frames.Datagram(5353, 5555, []byte("an answer"))
			w.send(w.link.Packet(unix.IPPROTO_UDP, own, far, frames.Datagram(5555, 5353, []byte("a question"))))
			return w.link.Packet(protocol, own, far, append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, w.link.Packet(unix.IPPROTO_UDP, far, own, body)[14:]...))
		}
		wrongs := [][]byte{ // port unreachable
			wrong(unix.IPPROTO_ICMP, w.link.IPv4, nstest.Beyond4, 3, 3), wrong(unix.IPPROTO_ICMPV6, w.link.IPv6, nstest.Beyond6, 1, 4),
		}
		for family, f := range wrongs {
			if world, _ := w.send(f); len(world) == 0 {
				t.Errorf("IPv%d: an error does not leave that is allowed", 4+2*family)
			}
		}
		c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), fmt.Sprintf("allow 2001:db8:9::9 %d/udp", frames.SentinelPort), "refuse all")
		setup(t, c)
		w.leave("refused", false, kinds)
		for family, f := range wrongs {
			if world, _ := w.send(f); len(world) > 0 {
				t.Errorf("IPv%d: an error about an answer that has not come leaves", 4+2*family)
			}
		}
	})
}

// TestEgressAuthenticated: an authentication header hides no beginning of a connection, of the guest's or the other
// side's.
func TestEgressAuthenticated(t *testing.T) {
	nstest.Long(t)
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		c.Egress = policy(t, "allow all")
		setup(t, c)
		n.World.Serve("beyond", "tcp", netip.AddrPortFrom(nstest.Beyond6, 9000))
		w := attach(t, n, true, true)
		behindAH := func(f []byte) []byte {
			return withHeader(f, unix.IPPROTO_AH, append([]byte{0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, make([]byte, 12)...)...)
		}
		segment := func(flags byte) []byte {
			return w.link.Packet(unix.IPPROTO_TCP, w.link.IPv6, nstest.Beyond6, frames.Segment(5000, 9000, flags, nil))
		}
		nstest.Eventually(t, func() error { // the world's answer makes it known
			w.send(segment(2))
			if list := connections(n.Pod, "dport=9000 "); len(list) == 0 || strings.Contains(list[0], "UNREPLIED") {
				return fmt.Errorf("it is not answered: %q", list)
			}
			return nil
		})
		stays := func(what string, f []byte, want bool) {
			t.Helper()
			if world, _ := w.send(f); (len(world) == 0) != want {
				t.Errorf("%s: it leaves: %t", what, want)
			}
		}
		stays("allowed", behindAH(segment(2)), false)
		c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), fmt.Sprintf("allow 2001:db8:9::9 %d/udp", frames.SentinelPort), "refuse all")
		setup(t, c)
		stays("the guest's beginning", behindAH(segment(2)), true)
		if _, err := c.CutRefused(t.Context()); err != nil {
			t.Fatal(err)
		}
		fromWorld := func(f []byte) []byte { return slices.Concat(w.own[0][:], w.router[:], f[12:]) }
		if err := w.inject(fromWorld(behindAH(w.link.Packet(unix.IPPROTO_TCP, nstest.Beyond6, nstest.Pod6, frames.Segment(9000, 5000, 0x10, nil))))); err != nil {
			t.Fatal(err)
		}
		w.send()
		stays("an answer to what the other side sends after a cut", segment(0x10), true)
	})
}

// TestEgressCookie: a server that keeps nothing of a SYN opens the connection by a later segment, which has the
// server's cookie. After the policy has changed a guest can keep such a segment back, and CutRefused ends that.
func TestEgressCookie(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Routed{})
	c.Egress = policy(t, "allow all")
	setup(t, c)
	n.World.Exec("sysctl", "-qw", "net.ipv4.tcp_syncookies=2") // always
	server := listen(t, n.World, netip.AddrPortFrom(nstest.Beyond4, 9000)).(*net.TCPListener)
	w := attach(t, n, true, false)
	segment := func(flags byte, sequence, acknowledged uint32) []byte {
		b := frames.Segment(5000, 9000, flags, nil)
		binary.BigEndian.PutUint32(b[4:], sequence)
		binary.BigEndian.PutUint32(b[8:], acknowledged)
		return w.link.Packet(unix.IPPROTO_TCP, w.link.IPv4, nstest.Beyond4, b)
	}
	opens := func(f []byte, wait time.Duration) bool {
		w.send(f)
		server.SetDeadline(time.Now().Add(wait))
		conn, err := server.Accept()
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	w.send(segment(2, 1000, 0))
	if err := w.port.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	f := make([]byte, 2048)
	for f[23] != unix.IPPROTO_TCP || f[47] != 0x12 { // SYN and ACK
		if _, err := w.port.Read(f); err != nil {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
	cookie := binary.BigEndian.Uint32(f[38:])
	c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), "refuse all")
	setup(t, c)
	if !opens(segment(0x10, 1001, cookie+1), patience) {
		t.Error("no connection opens by its cookie: the page says that it does")
	}
	if _, err := c.CutRefused(t.Context()); err != nil {
		t.Fatal(err)
	}
	if opens(segment(0x10, 1001, cookie+1), 100*time.Millisecond) {
		t.Error("a connection opens by its cookie after a cut")
	}
}

// TestEgressOwnSource: a packet in the name of a refused host opens no connection to that host, where the guest may
// send from any address, or from those of a short prefix: one that the guest sends to itself, and one that a process of
// the pod sends to an address that the guest may have.
func TestEgressOwnSource(t *testing.T) {
	nstest.Long(t)
	for name, guard := range map[string]infra.Guard{
		"no guard":       {Off: true},
		"short prefixes": {Prefixes: []netip.Prefix{netip.MustParsePrefix("196.0.0.0/6"), netip.MustParsePrefix("2000::/3")}},
	} {
		t.Run(name, func(t *testing.T) {
			eachTracking(t, func(t *testing.T, b infra.Binding) {
				n := nstest.NewNetwork(t)
				c := config(n, b)
				c.Guard = guard
				c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), fmt.Sprintf("allow 2001:db8:9::9 %d/udp", frames.SentinelPort), "refuse all")
				setup(t, c)
				w := attach(t, n, true, true)
				for family, no := range []netip.Addr{refused4, refused6} {
					own, outside := []netip.Addr{w.link.IPv4, w.link.IPv6}[family], []netip.Addr{nstest.Pod4, nstest.Pod6}[family]
					elsewhere := netip.MustParseAddr([]string{"198.51.100.77", "2001:db8:77::9"}[family])
					for i, to := range []netip.Addr{own, outside} {
						for _, protocol := range []uint8{unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_TCP} {
							port := uint16(5000 + i)
							body := func(from, to uint16) []byte {
								switch protocol {
								case unix.IPPROTO_SCTP:
									return association(from, to)
								case unix.IPPROTO_TCP:
									return frames.Segment(from, to, 2, nil)
								}
								return frames.Datagram(from, to, []byte("in another's name"))
							}
							answer := body(port, 53)
							if protocol == unix.IPPROTO_TCP {
								answer = frames.Segment(port, 53, 0x12, nil)
							}
							world, pod := w.send(w.link.Packet(protocol, no, to, body(53, port)), w.link.Packet(protocol, own, no, answer))
							if len(world)+len(pod) > 0 {
								t.Errorf("IPv%d, protocol %d, to %v: %d frames left for the refused host", 4+2*family, protocol, to, len(world)+len(pod))
							}
							if i > 0 {
								continue
							}
							if err := netns.Do(n.Pod.File, func() error { return sendRaw(w.link.Packet(protocol, no, elsewhere, body(54, port))[14:]) }); !errors.Is(err, unix.EPERM) {
								t.Errorf("IPv%d, protocol %d: a process sends to %v: %v, want EPERM", 4+2*family, protocol, elsewhere, err)
							}
						}
					}
				}
				check(t, c)
			})
		})
	}
}

// TestReopenedRate: MaxConnections' rate counts a TCP connection also where connection tracking knows its ports.
func TestReopenedRate(t *testing.T) {
	nstest.Long(t)
	const most = 4
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		switch of := b.(type) {
		case infra.Masquerade:
			of.MaxConnections = most
			b = of
		case infra.Routed:
			of.MaxConnections = most
			b = of
		}
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		w := attach(t, n, true, false)
		n.World.Serve("world", "tcp", netip.AddrPortFrom(w.link.Far4, 9000))
		begins := w.link.Packet(unix.IPPROTO_TCP, w.link.IPv4, w.link.Far4, frames.Segment(5000, 9000, 2, nil))
		nstest.Eventually(t, func() error { // the world's answer makes it known
			w.send(begins)
			if list := n.Pod.Exec("cat", "/proc/net/nf_conntrack"); !strings.Contains(list, "dport=9000 ") || strings.Contains(list, "UNREPLIED") && !strings.Contains(list, "SYN_RECV") {
				return fmt.Errorf("it is not answered:\n%s", list)
			}
			return nil
		})
		before := counted(t, c)["connection-limit"]
		for range 5 * most { // in far less than the minutes that the rate would allow
			w.send(begins)
		}
		if n := counted(t, c)["connection-limit"] - before; n < most {
			t.Errorf("%d of %d are above the rate of %d a minute", n, 5*most, most)
		}
	})
}

// TestGatewayIsTheGuests: what listens at the gateway's address answers the guest and the namespace, and no neighbour.
func TestGatewayIsTheGuests(t *testing.T) {
	nstest.Long(t)
	addresses := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	try := func(t *testing.T, s *scene, c wired.NIC, gateways, by []netip.Addr) {
		t.Helper()
		for family, gateway := range gateways {
			at := netip.AddrPortFrom(gateway, 53)
			s.Pod.Serve("pod", "udp", at)
			ask := func(from *nstest.Namespace) error {
				q, err := from.Question("udp", netip.Addr{}, at, 8)
				if err != nil {
					return err
				}
				defer q.Close()
				_, err = q.Answer(200 * time.Millisecond)
				return err
			}
			for who, from := range map[string]*nstest.Namespace{"the guest": s.who["guest"], "the namespace": s.Pod} {
				nstest.Eventually(t, func() error {
					if err := ask(from); err != nil {
						return fmt.Errorf("%s is not answered: %w", who, err)
					}
					return nil
				})
			}
			for _, by := range by {
				if by.Is4() != gateway.Is4() {
					continue
				}
				s.World.IP(fmt.Sprintf("route replace %v via %v", netip.PrefixFrom(gateway, gateway.BitLen()), by))
				before := counted(t, c)["not-forwarded"]
				if err := ask(s.World); err == nil {
					t.Errorf("IPv%d: a neighbour is answered by %v, by way of %v", 4+2*family, gateway, by)
				}
				if m, is := c.Binding.(infra.Masquerade); counted(t, c)["not-forwarded"] == before && (!is || m.Firewall == cache.FirewallNFTables) {
					t.Errorf("IPv%d: by way of %v nothing is counted", 4+2*family, by)
				}
			}
		}
		check(t, c)
	}
	open := []infra.Ports{{First: 53, Protocol: "udp"}}
	addOther := func(s *scene) {
		secondNIC(s.Network, "192.168.9.2/24", "fd00:9::2/64")
		s.World.IP("addr add 192.168.9.1/24 dev pod2")
		s.World.IP("addr add fd00:9::1/64 dev pod2 nodad")
		s.Pod.Settle("net1")
	}
	by := append(addresses("192.168.9.2", "fd00:9::2"), nstest.Pod4, nstest.Pod6)
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		addOther(s)
		c := config(s.Network, infra.Masquerade{Firewall: firewall})
		c.Guard.Open = open
		s.wire(t, "guest", c)
		try(t, s, c, addresses("10.0.2.1", "fd10:0:2::1"), by)
	})
	t.Run("routed", func(t *testing.T) {
		s, c := newRouted(t, func(s *scene) wired.NIC {
			addOther(s)
			c := config(s.Network, infra.Routed{})
			c.Guard.Open = open
			return c
		})
		try(t, s, c, []netip.Addr{lease.RoutedIPv4, lease.RoutedIPv6}, by)
	})
}
