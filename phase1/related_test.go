package phase1_test

import (
	"bytes"
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
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// An ICMP or ICMPv6 error.
type icmpError struct {
	name       string
	kind, code [2]byte // of ICMP, of ICMPv6
	mtu        uint16
}

var icmpErrors = []icmpError{
	{"port unreachable", [2]byte{3, 1}, [2]byte{3, 4}, 0},
	{"too big", [2]byte{3, 2}, [2]byte{4, 0}, 1280},
	{"time exceeded", [2]byte{11, 3}, [2]byte{0, 0}, 0},
	{"parameter problem", [2]byte{12, 4}, [2]byte{0, 1}, 0},
}

// error returns a frame with an error of the guest to the host, about a UDP datagram.
func (w *wire) error(e icmpError, to netip.Addr, from, destination netip.AddrPort) []byte {
	family, protocol := 0, uint8(unix.IPPROTO_ICMP)
	if to.Is6() {
		family, protocol = 1, unix.IPPROTO_ICMPV6
	}
	about := w.link.Packet(unix.IPPROTO_UDP, from.Addr(), destination.Addr(), frames.Datagram(from.Port(), destination.Port(), []byte("what was sent")))[14:]
	rest := binary.BigEndian.AppendUint32(nil, uint32(e.mtu))
	return w.link.Packet(protocol, w.guestAddress(to), to, slices.Concat([]byte{e.kind[family], e.code[family], 0, 0}, rest, about))
}

// TestErrorsOfTheGuest has a guest that sends ICMP and ICMPv6 errors about connections of the namespace's own, to the
// namespace and to the world. Connection tracking calls them related. They change nothing in the namespace, and none
// leaves by the NIC. An error about a connection of the guest arrives.
func TestErrorsOfTheGuest(t *testing.T) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Masquerade{Firewall: firewall, Ports: []infra.Ports{{Protocol: "udp", First: 9}}, Loopback: true})
		c.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/20")}
		setup(t, c)
		w := attach(t, n, true, true)
		var beyond []netip.AddrPort
		for _, world := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			beyond = append(beyond, netip.AddrPortFrom(world, 9000))
		}
		n.World.Serve("world", "udp", beyond...)
		for i, pod := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			gateway := []netip.Addr{w.link.Gateway4, w.link.Gateway6}[i]
			world := beyond[i]
			w.get([]byte("nothing"), world.Addr())
			own := dial(t, n.Pod, "udp", world).(*net.UDPConn)
			here := own.LocalAddr().(*net.UDPAddr).AddrPort()
			said := func() error {
				if err := own.SetDeadline(time.Now().Add(patience)); err != nil {
					return err
				}
				if _, err := own.Write(make([]byte, 100)); err != nil {
					return err
				}
				_, err := own.Read(make([]byte, 200))
				return err
			}
			if err := said(); err != nil {
				t.Fatal(err)
			}
			for _, e := range icmpErrors {
				for _, to := range []netip.Addr{pod, gateway, world.Addr()} {
					// As the receiver of what the namespace has sent, and as the receiver of the answers.
					w.pod, w.world = n.Pod.Sniff(t), n.World.Sniff(t)
					out, _ := w.send(w.error(e, to, here, world), w.error(e, to, world, here))
					if len(out) > 0 {
						t.Errorf("%s about the namespace's connection, to %v: it left by the NIC", e.name, to)
					}
					if err := said(); err != nil {
						t.Errorf("%s about the namespace's connection, to %v: its socket gets %v", e.name, to, err)
					}
				}
			}
			if out := n.Pod.IP("route get " + world.Addr().String()); strings.Contains(out, "mtu") {
				t.Errorf("the namespace believes the guest's error:\n%s", out)
			}

			// The namespace asks the guest, by the NIC's address and by the loopback's, and learns that the port is
			// closed.
			for _, to := range []netip.Addr{pod, map[bool]netip.Addr{true: netip.MustParseAddr("127.0.0.1"), false: netip.IPv6Loopback()}[pod.Is4()]} {
				asked := dial(t, n.Pod, "udp", netip.AddrPortFrom(to, 9))
				from := asked.LocalAddr().(*net.UDPAddr).AddrPort()
				if to.IsLoopback() {
					from = netip.AddrPortFrom(gateway, from.Port())
				}
				if _, err := asked.Write([]byte("is that the guest?")); err != nil {
					t.Fatal(err)
				}
				guest := netip.AddrPortFrom(w.guestAddress(to), 9)
				w.write(w.error(icmpErrors[1], from.Addr(), from, guest))
				w.get([]byte("nothing"), world.Addr())
				if out := n.Pod.IP("route get " + to.String()); strings.Contains(out, "mtu") && !strings.Contains(out, "mtu 65536") {
					t.Errorf("the namespace sends smaller packets to %v:\n%s", to, out)
				}
				nstest.Eventually(t, func() error {
					w.write(w.error(icmpErrors[0], from.Addr(), from, guest))
					asked.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
					if _, err := asked.Read(make([]byte, 100)); !errors.Is(err, syscall.ECONNREFUSED) {
						return fmt.Errorf("to %v: %v, want connection refused", to, err)
					}
					return nil
				})
			}

			// The world asks the guest, and receives it as well.
			nstest.Eventually(t, func() error {
				asked := dial(t, n.World, "udp", netip.AddrPortFrom(pod, 9))
				from := asked.LocalAddr().(*net.UDPAddr).AddrPort()
				if _, err := asked.Write([]byte("is that the guest?")); err != nil {
					return err
				}
				w.get([]byte("nothing"), world.Addr())
				w.write(w.error(icmpErrors[0], from.Addr(), from, netip.AddrPortFrom(w.guestAddress(pod), 9)))
				asked.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := asked.Read(make([]byte, 100)); !errors.Is(err, syscall.ECONNREFUSED) {
					return fmt.Errorf("the world: %v, want connection refused", err)
				}
				return nil
			})
		}
	})
}

// TestNamespaceOutput has a process of the namespace that has no capability and chooses the link by which it sends. By
// the taps nothing comes out: not to the guest, not as the guest. By the bridge the namespace speaks to its guest, but
// not as a DHCP server.
func TestNamespaceOutput(t *testing.T) {
	nstest.NeedRoot(t, "the process that sends is of another user")
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0")
		setup(t, config(n, infra.Masquerade{Firewall: firewall}))
		w := attach(t, n, true, true)
		send := func(link string, from, to uint16, at netip.Addr) {
			in(t, n.Pod, func() error { return sendBy(link, from, netip.AddrPortFrom(at, to)) })
		}
		for _, c := range []struct {
			link     string
			from, to uint16
			passes   bool
		}{
			{"eth0-tap", 67, 68, false}, {"eth0-tap", 547, 546, false}, {"eth0-tap", 5000, 5001, true},
			{"eth0-dhcp", 5000, 5001, false}, {"eth0-dhcp", 68, 67, false},
		} {
			hosts := []netip.Addr{w.link.IPv4, netip.MustParseAddr("255.255.255.255"), w.link.IPv6, netip.MustParseAddr("ff02::1")}
			for _, to := range hosts {
				if to.Is4() && (c.from == 547) || to.Is6() && (c.from == 67 || c.from == 68) {
					continue
				}
				w.pod, w.world = n.Pod.Sniff(t), n.World.Sniff(t)
				send(c.link, c.from, c.to, to)
				seen := false
				w.sentinels++
				mark := frames.SentinelData(w.sentinels)
				sentinel := func() { w.write(w.link.Sentinel(w.link.IPv4, w.sentinels)) }
				sentinel()
				for _, s := range w.pod.Until(func(s nstest.Sniffed) bool {
					return s.Link == w.nic && s.Outgoing && strings.Contains(string(s.Frame), string(mark))
				}, sentinel) {
					seen = seen || (s.Link == w.tap || s.Link == w.dhcp) && s.Outgoing && strings.Contains(string(s.Frame), "of the namespace")
				}
				if seen != c.passes {
					t.Errorf("by %s from port %d to %v port %d: sent %t, want %t", c.link, c.from, to, c.to, seen, c.passes)
				}
			}
		}
	})
}

// TestNothingPastTheTap takes the guest's tap away: Deactivate takes it down, and a launcher can delete its own. What
// processes of the namespace send to forwarded ports then leaves by no default route.
func TestNothingPastTheTap(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Masquerade{Firewall: firewall})
		setup(t, c)
		for name, away := range map[string]func() error{
			"standby": func() error { _, err := c.Deactivate(t.Context()); return err },
			"deleted": func() error { n.Pod.IP("link del eth0-tap"); return nil },
		} {
			if err := away(); err != nil {
				t.Fatal(err)
			}
			world := n.World.Sniff(t)
			send := func(to netip.Addr, port uint16) {
				in(t, n.Pod, func() error { return sendBy("", 5000, netip.AddrPortFrom(to, port)) })
			}
			send(nstest.Pod4, 5001)
			send(nstest.Pod6, 5001)
			end := func() { send(nstest.Gateway4, 5002) }
			end()
			for _, s := range world.Until(func(s nstest.Sniffed) bool { return bytes.Contains(s.Frame, frames.Datagram(5000, 5002, nil)[:4]) }, end) {
				if bytes.Contains(s.Frame, frames.Datagram(5000, 5001, nil)[:4]) {
					t.Errorf("%s: the network gets\n%x", name, s.Frame)
				}
			}
			setup(t, c)
		}
	})
}

// sendBy sends a datagram by a link, or by what the routes say if it is empty, as a user without capabilities: another
// one, if there is one. It is for a thread that ends then.
func sendBy(link string, from uint16, to netip.AddrPort) error {
	if sandbox.OneUser() {
		if err := dropCapabilities(); err != nil {
			return err
		}
	} else if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
		return errno
	}
	family, any := unix.AF_INET, netip.IPv4Unspecified()
	if to.Addr().Is6() {
		family, any = unix.AF_INET6, netip.IPv6Unspecified()
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), // a child process of another test can have the last one
		unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
		unix.Bind(fd, udpAddress(netip.AddrPortFrom(any, from))),
	)
	if err == nil {
		unix.Sendto(fd, []byte("of the namespace"), 0, udpAddress(to)) // an error says that it was dropped
	}
	return err
}

func udpAddress(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
