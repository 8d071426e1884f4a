package phase1_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLeaseOwner: a DHCP client with packet sockets has leased the NIC's address before Setup. While the NIC is wired,
// it receives what the network's servers send, and they receive what it sends. The guest receives none of it, the
// namespace answers nothing, and nothing else of what the network sends gets to the client's sockets.
func TestLeaseOwner(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		for _, guard := range []infra.Guard{{}, {Off: true}} {
			t.Run(fmt.Sprintf("%s, guard.off %v", b.Kind(), guard.Off), func(t *testing.T) {
				if b.Kind() == "bridge" && guard.Off {
					nstest.KernelDecides(t, "a chain is bound to the NIC before Linux 6.16, and to the NIC's name since")
				}
				n := nstest.NewNetwork(t)
				client := map[int]*leaseClient{4: newLeaseClient(t, n.Pod, netstate.EthernetIPv4), 6: newLeaseClient(t, n.Pod, netstate.EthernetIPv6)}
				c := config(n, b)
				c.Guard = guard
				setup(t, c)
				record := record(t, n)
				w := attach(t, n, true, true)
				client[4].received(t)
				client[6].received(t)
				before := w.dropped()
				var answers [][]byte
				for _, k := range frames.Outer(w.link) {
					tagged := !slices.Contains([]string{"\x08\x00", "\x86\xdd"}, string(k.Frames[0][12:14]))
					if k.Reason != firewall.NetworkDHCP || k.Pass > 0 || tagged {
						continue
					}
					answers = append(answers, k.Frames[0])
					deliver := func() bool {
						if err := w.inject(k.Frames...); err != nil {
							t.Fatal(err)
						}
						return slices.ContainsFunc(client[k.Version].received(t), func(f []byte) bool { return bytes.HasSuffix(k.Frames[0], f) })
					}
					came := deliver()
					for again := 0; !came && again < 3; again++ { // a busy machine loses frames
						came = deliver()
					}
					if !came {
						t.Errorf("%s: did not come to the lease's owner", k.Name)
					}
				}
				if len(answers) < 8 {
					t.Errorf("%d kinds of answers were sent, so the test tests little", len(answers))
				}
				for _, f := range w.frames() {
					if slices.ContainsFunc(answers, func(a []byte) bool { return bytes.Equal(a, f) }) {
						t.Errorf("came to the guest: %x", f)
					}
				}
				if have := more(before, w.dropped()); have == "" {
					t.Errorf("kept from the guest: %q", have)
				}

				for _, k := range frames.OuterLegitimate(w.link) {
					if err := w.inject(k.Frames...); err != nil {
						t.Fatal(err)
					}
				}
				for version, received := range map[int][][]byte{4: client[4].received(t), 6: client[6].received(t)} {
					for _, f := range received {
						t.Errorf("the namespace receives IPv%d that is no DHCP: %x", version, f)
					}
				}
				if world, pod := w.send(); len(world)+len(pod) > 0 {
					t.Errorf("the namespace answers: %v, %v", world, pod)
				}

				for version, frame := range map[int][]byte{
					4: w.link.Packet(firewall.ProtocolUDP, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), frames.Datagram(68, 67, []byte("renew"))),
					6: w.link.Packet(firewall.ProtocolUDP, eui64.LinkLocal(record.MAC), netip.MustParseAddr("ff02::1:2"), frames.Datagram(546, 547, []byte("renew"))),
				} {
					request := frame[14:]
					client[version].send(t, request)
					world, _ := w.send()
					if !slices.ContainsFunc(world, func(s nstest.Sniffed) bool { return bytes.HasSuffix(s.Frame, request) }) {
						t.Errorf("the owner's DHCPv%d request did not leave", version)
					}
				}
				check(t, c)
			})
		}
	}
}

// leaseClient is a packet socket on the pod's NIC that takes one protocol, without Ethernet headers.
type leaseClient struct {
	fd      int
	link    int
	version uint16
}

func newLeaseClient(t *testing.T, pod *nstest.Namespace, protocol uint16) *leaseClient {
	t.Helper()
	c := &leaseClient{fd: -1, version: protocol<<8 | protocol>>8}
	err := netns.Do(pod.File, func() (err error) {
		nic, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c.link = nic.Index
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(c.version)); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: c.version, Ifindex: c.link})
	})
	if err == nil {
		err = unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err != nil {
		t.Fatalf("packet socket: %v", err)
	}
	t.Cleanup(func() { unix.Close(c.fd) })
	return c
}

// received returns the packets that have come since the last call.
func (c *leaseClient) received(t *testing.T) (list [][]byte) {
	t.Helper()
	buffer := make([]byte, 1<<16)
	for {
		size, _, err := unix.Recvfrom(c.fd, buffer, 0)
		switch err {
		case nil:
			list = append(list, slices.Clone(buffer[:size]))
		case unix.ENETDOWN, unix.EINTR: // the NIC was down for a moment
		case unix.EAGAIN:
			return list
		default:
			t.Fatal(err)
		}
	}
}

func (c *leaseClient) send(t *testing.T, packet []byte) {
	t.Helper()
	to := &unix.SockaddrLinklayer{Protocol: c.version, Ifindex: c.link, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := unix.Sendto(c.fd, packet, 0, to); err != nil {
		t.Fatal(err)
	}
}

// frames returns what has come to the guest.
func (w *wire) frames() (list [][]byte) {
	w.t.Helper()
	w.sentinels++
	sentinel := w.link.FromGateway().Sentinel(w.link.Gateway4, w.sentinels)
	buffer := make([]byte, 1<<16)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := w.inject(sentinel); err != nil {
			w.t.Fatal(err)
		}
		for {
			if err := w.port.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				w.t.Fatal(err)
			}
			size, err := w.port.Read(buffer)
			if err != nil {
				break
			}
			if bytes.Equal(buffer[:size], sentinel) {
				return list
			}
			list = append(list, slices.Clone(buffer[:size]))
		}
	}
	w.t.Fatal("the sentinel does not come to the guest")
	return nil
}

// TestDHCPv6Owner: a DHCPv6 client in the namespace, which has a UDP socket, goes on asking for more time for an
// address with a lifetime, and receives the answer. The launcher cannot send the same, and nothing passes for an
// address without a lifetime.
func TestDHCPv6Owner(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedRoot(t, "the test needs two users")
	for name, lifetime := range map[string]string{"leased": " valid_lft 9000 preferred_lft 9000", "static": ""} {
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			n.Pod.IP("addr add fd00:244:1::77/128 dev eth0 nodad" + lifetime)
			c := config(n, infra.Redirect{})
			setup(t, c)
			w := attach(t, n, true, true)
			local := eui64.LinkLocal(w.link.MAC)
			to := &unix.SockaddrInet6{Port: 547, ZoneId: uint32(w.nic), Addr: netip.MustParseAddr("ff02::1:2").As16()}
			// ask sends from the client's port and returns the frames that leave.
			ask := func(fd int, text string) (left int) {
				err := unix.Sendto(fd, []byte(text), 0, to)
				if err != nil && err != unix.EPERM {
					t.Fatal(err)
				}
				world, _ := w.send()
				for _, s := range world {
					if bytes.HasSuffix(s.Frame, []byte(text)) {
						left++
					}
				}
				return left
			}
			open := func(uid int) int {
				fd := -1
				err := netns.Do(n.Pod.File, func() (err error) {
					if uid != 0 { // the socket's user is that of the thread
						if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0); errno != 0 {
							return errno
						}
						defer unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
					}
					if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
						return err
					}
					if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
						return err
					}
					return unix.Bind(fd, &unix.SockaddrInet6{Port: 546})
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Close(fd) })
				return fd
			}
			launcher := open(nstest.LauncherUID)
			client := open(0)
			if left := ask(launcher, "of the launcher"); left > 0 {
				t.Errorf("the launcher's request left")
			}
			if left := ask(client, "of the client"); left != map[string]int{"leased": 1, "static": 0}[name] {
				t.Errorf("%d requests of the client left", left)
			}
			to.Port = 548
			if left := ask(client, "to another port"); left > 0 {
				t.Error("a datagram to another port left")
			}
			to.Port = 547
			to.Addr = netip.MustParseAddr("ff02::1").As16()
			if left := ask(client, "to another group"); left > 0 {
				t.Error("a datagram to another group left")
			}

			if err := unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
				t.Fatal(err)
			}
			answer := w.link.FromGateway().Packet(firewall.ProtocolUDP, eui64.LinkLocal(w.router), local, frames.Datagram(547, 546, []byte("reply")))
			nstest.Eventually(t, func() error {
				if err := w.inject(answer); err != nil {
					return err
				}
				buffer := make([]byte, 100)
				size, _, err := unix.Recvfrom(client, buffer, 0)
				if err == nil && string(buffer[:size]) != "reply" {
					err = fmt.Errorf("the client receives %q", buffer[:size])
				}
				return err
			})
			check(t, c)
		})
	}
}
