package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// kernel is a namespace with a tap. Its kernel is the guest's only neighbour, with 10.9.0.1/24, fd09::1/64 and
// fe80::1/64 on the tap, and 192.0.2.1 and 2001:db8:ffff::1 behind it.
type kernel struct {
	t    *testing.T
	port io.ReadWriteCloser
	ns   *os.File
}

func TestMain(m *testing.M) { nstest.Main(m) }

var guestMAC = cache.MAC{0x02, 0x67, 0x75, 0x65, 0x73, 0x74}

// newKernel creates the namespace. It ends with the test.
func newKernel(t *testing.T) *kernel {
	t.Helper()
	nstest.Need(t)
	nstest.NeedTaps(t)
	k := &kernel{t: t, ns: nstest.New(t, "kernel").File}
	k.run("ip tuntap add tap0 mode tap")
	k.run("ip link set tap0 addrgenmode none")
	k.run("ip link set tap0 up")
	k.run("ip addr add 10.9.0.1/24 dev tap0")
	k.run("ip addr add fd09::1/64 dev tap0 nodad")
	k.run("ip addr add fe80::1/64 dev tap0 nodad")
	k.run("ip addr add 192.0.2.1/32 dev lo")
	k.run("ip addr add 2001:db8:ffff::1/128 dev lo nodad")
	k.inNamespace(func() (err error) {
		k.port, err = tap.Open("tap0")
		return err
	})
	return k
}

// inNamespace runs f in the namespace.
func (k *kernel) inNamespace(f func() error) {
	k.t.Helper()
	if err := netns.Do(k.ns, f); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) run(command string) {
	k.t.Helper()
	k.inNamespace(func() error {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
}

// start starts a guest on the tap. It is closed at the end of the test.
func (k *kernel) start() *guest.Guest {
	k.t.Helper()
	g, err := guest.Start(guest.Config{Port: k.port, MAC: guestMAC, Name: "alice"})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			k.t.Error(err)
		}
	})
	return g
}

// fakeServer answers DHCPv4, DHCPv6 and router solicitations on a kernel's tap. It leases one address of each
// family and checks nothing.
type fakeServer struct {
	mu sync.Mutex // guards all fields below while the server runs

	// ack modifies every DHCPOFFER and DHCPACK.
	ack []dhcpv4.Modifier
	// nak: every DHCPREQUEST is answered with DHCPNAK.
	nak bool
	// status6, if set, is in every answer instead of an address.
	status6 *dhcpv6.OptStatusCode
	ra      *ndp.RouterAdvertisement

	seen []string // the messages received, such as "REQUEST 10.9.0.50>10.9.0.1"
}

var lease4 = net.IPv4(10, 9, 0, 50)
var lease6 = net.ParseIP("fd09::50")

func defaultRA() *ndp.RouterAdvertisement {
	return &ndp.RouterAdvertisement{
		ManagedConfiguration: true,
		RouterLifetime:       1800 * time.Second,
		Options: []ndp.Option{
			ndp.NewMTU(1400),
			&ndp.PrefixInformation{Prefix: netip.MustParseAddr("fd09::"), PrefixLength: 64, OnLink: true, ValidLifetime: time.Hour, PreferredLifetime: time.Hour},
			&ndp.RouteInformation{Prefix: netip.MustParseAddr("2001:db8:1::"), PrefixLength: 48, RouteLifetime: time.Hour},
			&ndp.RecursiveDNSServer{Lifetime: time.Hour, Servers: []netip.Addr{netip.MustParseAddr("fd09::53")}},
		},
	}
}

func classless(routes ...string) dhcpv4.Modifier {
	var told []*dhcpv4.Route
	for _, r := range routes {
		to, via, _ := strings.Cut(r, " via ")
		_, dest, err := net.ParseCIDR(to)
		if err != nil {
			panic(err)
		}
		told = append(told, &dhcpv4.Route{Dest: dest, Router: net.ParseIP(via)})
	}
	return dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(told...))
}

// change calls change with the lock held. The next message gets the new answer.
func (f *fakeServer) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// record adds a line to seen. The caller holds mu.
func (f *fakeServer) record(format string, args ...any) {
	f.seen = append(f.seen, fmt.Sprintf(format, args...))
}

func (f *fakeServer) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.seen, "\n")
}

// serve answers until the end of the test. A message that comes at the end may find its socket closed.
func (k *kernel) serve(f *fakeServer) {
	k.t.Helper()
	var v4 net.PacketConn
	var v6 *ipv6.PacketConn
	var rs *ndp.Conn
	k.inNamespace(func() (err error) {
		onTap := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var set error
			err := c.Control(func(fd uintptr) {
				set = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
					unix.BindToDevice(int(fd), "tap0"))
			})
			return errors.Join(err, set)
		}}
		if v4, err = onTap.ListenPacket(context.Background(), "udp4", ":67"); err != nil {
			return err
		}
		socket, err := onTap.ListenPacket(context.Background(), "udp6", ":547")
		if err != nil {
			return err
		}
		v6 = ipv6.NewPacketConn(socket)
		tap0, err := net.InterfaceByName("tap0")
		if err != nil {
			return err
		}
		if err := v6.JoinGroup(tap0, &net.UDPAddr{IP: dhcpv6.AllDHCPRelayAgentsAndServers}); err != nil {
			return err
		}
		if rs, _, err = ndp.Listen(tap0, "fe80::1"); err != nil {
			return err
		}
		return rs.JoinGroup(netip.MustParseAddr("ff02::2"))
	})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := v4.ReadFrom(b)
			if err != nil {
				return
			}
			f.answer4(k.t, v4, b[:n], from)
		}
	})
	tasks.Go(func() {
		b := make([]byte, 1500)
		for {
			n, _, from, err := v6.ReadFrom(b)
			if err != nil {
				return
			}
			f.answer6(k.t, v6, b[:n], from)
		}
	})
	tasks.Go(func() {
		for {
			m, _, from, err := rs.ReadFrom()
			if err != nil {
				return
			}
			if _, ok := m.(*ndp.RouterSolicitation); ok {
				f.advertise(k.t, rs, from)
			}
		}
	})
	k.t.Cleanup(func() {
		if err := errors.Join(v4.Close(), v6.Close(), rs.Close()); err != nil {
			k.t.Error(err)
		}
		tasks.Wait()
	})
}

func (f *fakeServer) advertise(t *testing.T, c *ndp.Conn, from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("SOLICITATION %v", from.WithZone(""))
	if f.ra == nil {
		return
	}
	if err := c.WriteTo(f.ra, nil, netip.MustParseAddr("ff02::1")); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func (f *fakeServer) answer4(t *testing.T, c net.PacketConn, b []byte, from net.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Error("DHCPv4 from the guest:", err)
		return
	}
	f.record("%v %v", m.MessageType(), from)
	kind := map[dhcpv4.MessageType]dhcpv4.MessageType{
		dhcpv4.MessageTypeDiscover: dhcpv4.MessageTypeOffer,
		dhcpv4.MessageTypeRequest:  dhcpv4.MessageTypeAck,
	}[m.MessageType()]
	if kind == dhcpv4.MessageTypeNone {
		return
	}
	if f.nak && kind == dhcpv4.MessageTypeAck {
		kind = dhcpv4.MessageTypeNak
	}
	answer, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(lease4),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))),
		dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(24, 32))),
		dhcpv4.WithLeaseTime(3600),
	}, f.ack...)...)
	if err != nil {
		t.Error(err)
		return
	}
	to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	if !m.ClientIPAddr.IsUnspecified() {
		to.IP = m.ClientIPAddr
	}
	if _, err := c.WriteTo(answer.ToBytes(), to); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func (f *fakeServer) answer6(t *testing.T, c *ipv6.PacketConn, b []byte, from net.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		t.Error("DHCPv6 from the guest:", err)
		return
	}
	f.record("%v %v", m.MessageType, from.(*net.UDPAddr).IP)
	rapid := m.GetOneOption(dhcpv6.OptionRapidCommit) != nil
	var answer *dhcpv6.Message
	switch {
	case m.MessageType == dhcpv6.MessageTypeDecline:
		return
	case m.MessageType == dhcpv6.MessageTypeSolicit && !rapid:
		answer, err = dhcpv6.NewAdvertiseFromSolicit(m)
	default:
		answer, err = dhcpv6.NewReplyFromMessage(m)
	}
	if err != nil {
		t.Error(err)
		return
	}
	answer.AddOption(dhcpv6.OptServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}))
	ia := &dhcpv6.OptIANA{IaId: m.Options.OneIANA().IaId}
	if f.status6 != nil {
		ia.Options.Add(f.status6)
	} else {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: lease6, PreferredLifetime: time.Hour, ValidLifetime: 2 * time.Hour})
	}
	answer.AddOption(ia)
	answer.AddOption(dhcpv6.OptDNS(net.ParseIP("fd09::53")))
	if _, err := c.WriteTo(answer.ToBytes(), nil, from); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
