package migration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// guestMAC moves along with the guest. The NIC of another pod has otherMAC.
var (
	guestMAC = cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}
	otherMAC = cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0d}
)

// broadcast4 is that of the pods' network.
var broadcast4 = net.IPv4(10, 244, 1, 255)

// outPort is where the world listens for the guest's connections.
const outPort = 4711

// lan is a layer 2 with the gateway: a bridge in the world, whose ports are pods of several nodes.
type lan struct {
	t     testing.TB
	world *nstest.Namespace
	pods  int
	// backport: the nodes run the QEMU of Debian's backports, else Debian 12's.
	backport bool
}

func newLAN(t testing.TB) *lan {
	t.Helper()
	l := &lan{t: t, world: nstest.New(t, "world")}
	// A bridge without a MAC of its own has that of a port, and so another one when a port comes or goes.
	l.world.IP("link add lan address 02:00:00:00:02:01 type bridge")
	l.world.IP("link set lan mtu 1450 up")
	l.world.IP(fmt.Sprintf("addr add %v/24 brd + dev lan", nstest.Gateway4))
	l.world.IP(fmt.Sprintf("addr add %v/64 dev lan nodad", nstest.Gateway6))
	return l
}

// pod is a pod of one node.
type pod struct {
	nstest.Network
	lan  *lan
	port string // its NIC's other end, in the world
}

// pod makes a pod whose NIC is called eth0. The NIC's other end is no port of the layer 2 yet: see connect.
func (l *lan) pod(mac cache.MAC, addresses ...netip.Prefix) *pod {
	l.t.Helper()
	l.pods++
	p := &pod{Network: nstest.Network{Pod: nstest.New(l.t, "pod"), World: l.world, State: nstest.Dir(l.t)}, lan: l, port: "port" + strconv.Itoa(l.pods)}
	l.world.IP(fmt.Sprintf("link add %s mtu 1450 type veth peer name eth0 mtu 1450 address %v netns %s", p.port, mac, p.Pod.Name))
	l.world.IP("link set " + p.port + " addrgenmode none up")
	if len(addresses) == 0 {
		p.Pod.IP("link set eth0 addrgenmode none up")
		return p
	}
	// The kernel reports each group twice, and the second time within this interval.
	p.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.mldv2_unsolicited_report_interval=1")
	p.Pod.IP("link set eth0 up")
	for _, a := range addresses {
		if p.Pod.IP(fmt.Sprintf("addr add %v dev eth0 nodad", a)); a.Addr().Is6() {
			p.Pod.IP(fmt.Sprintf("route add default via %v dev eth0", nstest.Gateway6))
		} else {
			p.Pod.IP(fmt.Sprintf("route add default via %v", nstest.Gateway4))
		}
	}
	p.Pod.Settle("eth0")
	return p
}

// connect makes the pod's NIC a port of the layer 2. It forwards at once.
func (p *pod) connect() { p.lan.world.IP("link set " + p.port + " master lan") }

// disconnect takes the pod's NIC from the layer 2, as a network does that has moved the pod's addresses to another
// node.
func (p *pod) disconnect() { p.lan.world.IP("link set " + p.port + " nomaster") }

// dial connects to a station from the world.
func (l *lan) dial(ctx context.Context, to netip.AddrPort) (conn net.Conn, err error) {
	err = netns.Do(l.world.File, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		return err
	})
	return conn, err
}

// in connects to the guest's echo at an address.
func (l *lan) in(ctx context.Context, guest netip.Addr) *Stream {
	l.t.Helper()
	var conn net.Conn
	nstest.Eventually(l.t, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		conn, err = l.dial(ctx, netip.AddrPortFrom(guest, vm.EchoPort))
		return err
	})
	return l.stream(conn)
}

// out has the guest connect to the world's address, and to echo there.
func (l *lan) out(ctx context.Context, g *vm.Guest, world netip.Addr) *Stream {
	l.t.Helper()
	return l.stream(l.accept(ctx, g, world, "nc %v %d -e cat >/dev/null 2>&1 &"))
}

// accept takes a connection that the guest opens by a command with the place for the world's address and a port.
func (l *lan) accept(ctx context.Context, g *vm.Guest, world netip.Addr, command string) net.Conn {
	l.t.Helper()
	var listener net.Listener
	err := netns.Do(l.world.File, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(world, outPort).String())
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	if _, err := g.Run(ctx, fmt.Sprintf(command, world, outPort)); err != nil {
		l.t.Fatal(err)
	}
	deadline, _ := ctx.Deadline()
	if err := listener.(*net.TCPListener).SetDeadline(deadline); err != nil {
		l.t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		l.t.Fatalf("the guest does not connect to %v: %v", world, err)
	}
	return conn
}

// stream waits until octets have come back.
func (l *lan) stream(conn net.Conn) *Stream {
	l.t.Helper()
	s := NewStream(conn)
	l.t.Cleanup(func() { s.Close() })
	if err := s.Progress(); err != nil {
		l.t.Fatal(err)
	}
	return s
}

// newNIC returns QEMU's device for the record.
func newNIC(t testing.TB, r cache.Record) *qemu.NIC {
	t.Helper()
	nic, err := qemu.NewNIC(&r, qemu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return nic
}

// boot boots a guest.
func boot(ctx context.Context, t testing.TB, cfg vm.Config, r cache.Record) *vm.Guest {
	t.Helper()
	g, err := vm.BootQEMU(ctx, cfg, newNIC(t, r))
	return destroyed(t, g, err)
}

// wait starts a QEMU that waits for a guest.
func wait(ctx context.Context, t testing.TB, cfg vm.Config, r cache.Record) *vm.Guest {
	t.Helper()
	g, err := vm.BootIncoming(ctx, cfg, newNIC(t, r))
	return destroyed(t, g, err)
}

// destroyed ends the guest with the test.
func destroyed(t testing.TB, g *vm.Guest, err error) *vm.Guest {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return g
}
