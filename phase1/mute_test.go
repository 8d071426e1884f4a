package phase1_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// TestNamespaceIsMute has a process without capabilities send by each link of the wiring, with each kind of
// socket that needs none, also without the guest filter. Nothing comes to the network or to the guest, and the
// network's neighbour entry of the guest stays. Without the table that drops, each link of the wiring leaks.
func TestNamespaceIsMute(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]infra.Binding{
		"bridge": infra.Bridge{}, "redirect": infra.Redirect{},
		"bridge with a MAC": infra.Bridge{MAC: movedMAC}, "redirect with a MAC": infra.Redirect{MAC: movedMAC},
	} {
		for _, guard := range []infra.Guard{{}, {Off: true}} {
			t.Run(fmt.Sprintf("%s, guard.off %v", name, guard.Off), func(t *testing.T) {
				n := nstest.NewNetwork(t)
				groups := "0 2147483647" // as container engines set it
				if sandbox.OneUser() {
					groups = "0 0" // more does not exist
				}
				n.Pod.Exec("sysctl", "-qw", "net.ipv4.ping_group_range="+groups)
				c := config(n, b)
				c.Guard = guard
				setup(t, c)
				w := attach(t, n, true, true)
				responder := openPort(t, n, "eth0-dhcp")
				links := []string{"eth0", "eth0-tap", "eth0-dhcp"}
				if b.Kind() == cache.BindingBridge {
					links = []string{"eth0-br", "eth0-nic", "eth0-tap", "eth0-dhcp"}
				}
				for _, entry := range []string{nstest.Pod4.String(), nstest.Pod6.String()} {
					n.World.IP("neigh replace " + entry + " lladdr " + w.link.MAC.String() + " dev pod nud reachable")
				}
				for _, l := range links {
					if leaked := w.speak(l, responder); len(leaked) > 0 {
						t.Errorf("by %s %d frames leak, such as\n%s", l, len(leaked), strings.Join(leaked[:min(5, len(leaked))], "\n"))
					}
				}
				for _, entry := range []string{nstest.Pod4.String(), nstest.Pod6.String()} {
					if out := n.World.IP("neigh show " + entry + " dev pod"); !strings.Contains(out, " "+w.link.MAC.String()+" ") {
						t.Errorf("the network's neighbour entry of the guest is %q, want %v", out, w.link.MAC)
					}
				}
				if out := n.Pod.IP("neigh show dev " + links[0]); strings.Contains(out, "10.244.1.9") {
					t.Errorf("%s has neighbours:\n%s", links[0], out)
				}
				if counted := w.dropped()[namespaceOutput]; counted == 0 {
					t.Errorf("no drop is counted for %s", namespaceOutput)
				}
				check(t, c)

				w.send() // Check has asked for the gateway's MAC
				if b.Kind() == cache.BindingBridge {
					n.Pod.Exec("nft", "flush", "chain", "inet", "guestwire-eth0", "to-bridge")
					if leaked := w.speak("eth0-br", responder); len(leaked) > 0 {
						t.Errorf("the family bridge alone leaks by eth0-br: %s", leaked[0])
					}
					n.Pod.Exec("nft", "flush", "chain", "bridge", "guestwire-eth0", "from-namespace")
				}
				n.Pod.Exec("nft", "delete", "table", "inet", "guestwire-eth0")
				for _, l := range links {
					if leaked := w.speak(l, responder); len(leaked) == 0 {
						t.Errorf("by %s nothing leaks without the table, so the test tests nothing", l)
					}
				}
			})
		}
	}
}

// TestBridgeCalls: another program lets the frames of bridges pass iptables. The guest keeps its network.
func TestBridgeCalls(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Bridge{})
	s.wireBare(t, c)
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		path := "/proc/sys/net/bridge/bridge-nf-call-" + name
		if err := netns.Do(s.Pod.File, func() error { _, err := os.Stat(path); return err }); errors.Is(err, os.ErrNotExist) {
			nstest.LeaveOut(t, "this kernel has no br_netfilter")
		} else if err != nil {
			t.Fatal(err)
		}
		s.Pod.Exec("sysctl", "-qw", "net.bridge.bridge-nf-call-"+name+"=1")
	}
	s.ask(t, []exchange{
		{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
		{from: "guest", to: "gateway:8000", want: "world:8000 sees pod"},
	})
	if out := s.Pod.Exec("sysctl", "-n", "net.bridge.bridge-nf-call-iptables"); strings.TrimSpace(out) != "1" {
		t.Errorf("bridge-nf-call-iptables is %s, so the test tests nothing", out)
	}
}

const namespaceOutput = "namespace-output"

// speak sends by a link of the pod what a process without capabilities can, and returns the frames that come to the
// network, to the guest or to the responder.
func (w *wire) speak(link string, responder *os.File) (leaked []string) {
	w.t.Helper()
	if err := unprivileged(w.n.Pod, func() error { return speakBy(link) }); err != nil {
		w.t.Fatal(err)
	}
	world, _ := w.send()
	for _, s := range world {
		leaked = append(leaked, fmt.Sprintf("to the network: %x", s.Frame))
	}
	for _, f := range w.frames() {
		if !bytes.Equal(f[6:12], w.router[:]) { // the gateway may speak
			leaked = append(leaked, fmt.Sprintf("to the guest: %x", f))
		}
	}
	buffer := make([]byte, 1<<16)
	for {
		if err := responder.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil { // sent is received
			w.t.Fatal(err)
		}
		size, err := responder.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return leaked
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if !bytes.Equal(buffer[6:12], w.router[:]) { // what the gateway says of itself is copied
			leaked = append(leaked, fmt.Sprintf("to the responder: %x", buffer[:size]))
		}
	}
}

// dropCapabilities takes all capabilities from the thread.
func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return os.NewSyscallError("capset", unix.Capset(&head, &make([]unix.CapUserData, 2)[0]))
}

// unprivileged calls f on a thread of the namespace without any capability.
func unprivileged(n *nstest.Namespace, f func() error) error {
	return netns.Do(n.File, func() error {
		if err := dropCapabilities(); err != nil {
			return err
		}
		if fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != unix.EPERM {
			unix.Close(fd)
			return fmt.Errorf("a packet socket opens: %v; want no capability", err)
		}
		return f()
	})
}

// speakBy sends by a link with sockets of all kinds that need no capability: UDP, UDP-Lite, TCP and ping, by three ways
// to choose a link, and multicast memberships, which the kernel reports. Sources are the pod's addresses, and the
// gateway's where the kernel lets a process have it (IPV6_FREEBIND). The kernel may refuse any of it.
func speakBy(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	var sockets []int
	defer func() {
		for _, fd := range sockets {
			unix.Close(fd)
		}
	}()
	open := func(family, kind, protocol int) (fd int, opened bool) {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err == nil {
			sockets = append(sockets, fd)
		}
		return fd, err == nil
	}
	const udpLite = 136
	const freebind6 = 78 // IPV6_FREEBIND, linux/in6.h
	echo4, echo6 := []byte{8, 0, 0, 0, 0, 1, 0, 1}, []byte{128, 0, 0, 0, 0, 1, 0, 1}
	addresses := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	for _, f := range []struct {
		family, level, freebind, hops, multicast, icmp int
		echo                                           []byte
		from, to                                       []netip.Addr
	}{
		{unix.AF_INET, unix.SOL_IP, unix.IP_FREEBIND, unix.IP_MULTICAST_TTL, unix.IP_MULTICAST_IF, unix.IPPROTO_ICMP, echo4,
			[]netip.Addr{nstest.Pod4, nstest.Gateway4, {}}, append(addresses("10.244.1.9", "255.255.255.255", "224.0.0.251"), nstest.Gateway4, nstest.Beyond4)},
		{unix.AF_INET6, unix.SOL_IPV6, freebind6, unix.IPV6_MULTICAST_HOPS, unix.IPV6_MULTICAST_IF, unix.IPPROTO_ICMPV6, echo6,
			[]netip.Addr{nstest.Pod6, nstest.Gateway6, {}}, append(addresses("fe80::9", "ff02::1", "ff0e::9"), nstest.Gateway6, nstest.Beyond6)},
	} {
		// by opens a socket whose packets go by the link, and sends.
		by := func(kind, protocol int, from, to netip.Addr, choose string) error {
			fd, opened := open(f.family, kind, protocol)
			if !opened {
				return nil
			}
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			unix.SetsockoptInt(fd, f.level, f.freebind, 1)
			unix.SetsockoptInt(fd, f.level, f.hops, 255)
			address := udpAddress(netip.AddrPortFrom(to, 7))
			var control []byte
			switch choose {
			case "device":
				if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, name); err != nil {
					return os.NewSyscallError("SO_BINDTODEVICE", err)
				}
			case "packet information":
				if to.Is6() {
					info := unix.Inet6Pktinfo{Ifindex: uint32(link.Index)}
					if from.IsValid() {
						info.Addr = from.As16()
					}
					control = unix.PktInfo6(&info)
					break
				}
				info := unix.Inet4Pktinfo{Ifindex: int32(link.Index)}
				if from.IsValid() {
					info.Spec_dst = from.As4()
				}
				control = unix.PktInfo4(&info)
			case "scope":
				if to, is := address.(*unix.SockaddrInet6); is {
					to.ZoneId = uint32(link.Index)
				}
			case "multicast interface":
				if to.Is6() {
					unix.SetsockoptInt(fd, f.level, f.multicast, link.Index)
				} else {
					unix.SetsockoptIPMreqn(fd, f.level, f.multicast, &unix.IPMreqn{Ifindex: int32(link.Index)})
				}
			}
			if from.IsValid() {
				unix.Bind(fd, udpAddress(netip.AddrPortFrom(from, 0)))
			}
			if kind == unix.SOCK_STREAM {
				unix.Connect(fd, address)
			} else {
				unix.Sendmsg(fd, f.echo, control, address, 0)
			}
			return nil
		}
		for _, how := range []struct{ kind, protocol int }{
			{unix.SOCK_DGRAM, unix.IPPROTO_UDP}, {unix.SOCK_DGRAM, udpLite}, {unix.SOCK_DGRAM, f.icmp}, {unix.SOCK_STREAM, unix.IPPROTO_TCP},
		} {
			for _, from := range f.from {
				for _, to := range f.to {
					for _, choose := range []string{"device", "packet information", "scope", "multicast interface"} {
						if err := by(how.kind, how.protocol, from, to, choose); err != nil {
							return err
						}
					}
				}
			}
		}
	}
	// The kernel reports a membership when it begins and when it ends.
	if fd, opened := open(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP); opened {
		group := &unix.IPMreqn{Multiaddr: [4]byte{239, 1, 2, 3}, Ifindex: int32(link.Index)}
		unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, group)
		unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_DROP_MEMBERSHIP, group)
	}
	if fd, opened := open(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP); opened {
		group := &unix.IPv6Mreq{Multiaddr: netip.MustParseAddr("ff0e::1:2:3").As16(), Interface: uint32(link.Index)}
		unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_JOIN_GROUP, group)
		unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_LEAVE_GROUP, group)
	}
	return nil
}
