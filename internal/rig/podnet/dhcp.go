package podnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// leaseTime is the time for which the network's DHCP server leases an address: short, so that a test can wait for its
// end.
const leaseTime = 6 * time.Second

// leased are the networks in which CNI's dhcp plugin leases the pod's address, and the plugin's daemon renews the lease
// as long as the pod is there.
var leased = []Network{
	{Name: "bridge, dhcp", Origin: RealProgram, Create: createLeased(bridgedPlugin)},
	{Name: "macvlan, dhcp", Origin: RealProgram, Create: createLeased(macvlanPlugin)},
}

// Both put the pod on the node's LAN.
const (
	bridgedPlugin = `"type": "bridge", "bridge": "cni0"`
	macvlanPlugin = `"type": "macvlan", "master": "up0", "mode": "bridge"`
)

func createLeased(config string) func(t testing.TB) *Instance {
	return func(t testing.TB) *Instance {
		l, _ := withServer(t, config)
		return l
	}
}

// withServer creates a pod whose address the LAN's DHCP server leases.
func withServer(t testing.TB, config string) (*Instance, *server) {
	node, router, stations := lan(t)
	if config != macvlanPlugin {
		node.IP("link add cni0 type bridge")
		node.IP("link set cni0 up")
		node.IP("link set up0 master cni0")
	}
	s := serveLeases(t, router, "lan0", leaseTime)
	socket, daemon := startDaemon(t, node)
	s.client = daemon
	config += fmt.Sprintf(`, "ipam": {"type": "dhcp", "daemonSocketPath": %q}`, socket)
	pod := nstest.New(t, "pod")
	disableSolicitations(pod) // under the routed binding the namespace has the guest's MAC
	l := newChain(t, node, config).add(t, pod, "eth0").instance(stations...)
	return l, s
}

// startDaemon starts the daemon of CNI's dhcp plugin on the node, and returns the path of its socket, and what it says.
func startDaemon(t testing.TB, node *nstest.Namespace) (socket string, output *nstest.Output) {
	t.Helper()
	program := filepath.Join(cniDir, "dhcp")
	if _, err := os.Stat(program); err != nil {
		nstest.Skip(t, "no "+program+": install containernetworking-plugins")
	}
	socket, output = filepath.Join(nstest.Dir(t), "dhcp.sock"), new(nstest.Output)
	cmd := exec.Command("ip", "netns", "exec", node.Name, program, "daemon", "-socketpath", socket)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("the dhcp daemon says\n%s", output.String())
		}
	})
	nstest.Eventually(t, func() error { _, err := os.Stat(socket); return err })
	return socket, output
}

// server is a DHCP server with one address.
type server struct {
	conn   *net.UDPConn
	client *nstest.Output // what the client says
	lease  time.Duration

	mu   sync.Mutex
	seen []request
}

// request is a message that the server got.
type request struct {
	at   time.Time
	kind dhcpv4.MessageType
	// renews: the client has the address and asks for more time, in state RENEWING or REBINDING.
	renews bool
}

// The server's address, and what it leases.
var (
	serverAddress = netip.MustParseAddr("10.22.0.1")
	leasedAddress = netip.MustParseAddr("10.22.0.77")
)

// serveLeases serves the address on the link until the test ends. Where the client has an address, the server answers
// to this address, which it has to find by ARP.
func serveLeases(t testing.TB, router *nstest.Namespace, link string, lease time.Duration) *server {
	t.Helper()
	s := &server{lease: lease}
	err := netns.Do(router.File, func() error {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link),
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			}), err)
		}}
		conn, err := config.ListenPacket(context.Background(), "udp4", "0.0.0.0:67")
		if err == nil {
			s.conn = conn.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<16)
		for {
			size, err := s.conn.Read(buffer)
			if err != nil {
				return // closed
			}
			if m, err := dhcpv4.FromBytes(buffer[:size]); err == nil {
				s.answer(m)
			}
		}
	}()
	t.Cleanup(func() {
		s.conn.Close()
		<-done
	})
	return s
}

func (s *server) answer(m *dhcpv4.DHCPv4) {
	renews := !m.ClientIPAddr.IsUnspecified()
	s.mu.Lock()
	s.seen = append(s.seen, request{time.Now(), m.MessageType(), renews})
	s.mu.Unlock()
	kind := dhcpv4.MessageTypeAck
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeRequest:
	default:
		return
	}
	r, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(leasedAddress.AsSlice()), dhcpv4.WithServerIP(serverAddress.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(serverAddress.AsSlice())),
		dhcpv4.WithRouter(serverAddress.AsSlice()), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithLeaseTime(uint32(s.lease.Seconds())))
	if err != nil {
		return
	}
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if renews {
		to, _ = netip.AddrFromSlice(m.ClientIPAddr.To4())
	}
	s.conn.WriteToUDPAddrPort(r.ToBytes(), netip.AddrPortFrom(to, 68)) // a client asks again
}

// requests returns what the server got.
func (s *server) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.seen...)
}
