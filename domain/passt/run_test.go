package passt_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestPasst starts passt with the arguments, as an ordinary user in the pod's namespace, and is its VMM: passt accepts
// the connection, listens on the ports, gives the guest the NIC's address and the record's MTU, and ends with the
// connection.
func TestPasst(t *testing.T) {
	nstest.Need(t, "passt")
	n := nstest.NewVeth(t)
	n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0") // as Setup does
	rec := record(
		cache.Forward{Protocol: "tcp", First: 80, Last: 80, Guest: 8080},
		cache.Forward{Protocol: "tcp", First: 8000, Last: 8002, Guest: 9000},
		cache.Forward{Protocol: "tcp", First: 443, Last: 443, Guest: 443},
		cache.Forward{Protocol: "udp", First: 53, Last: 54, Guest: 5353},
	)
	conn, server := connect(t, n.Pod, rec)
	defer conn.Close()
	discover, err := dhcpv4.NewDiscovery(net.HardwareAddr(rec.MAC[:]), dhcpv4.WithRequestedOptions(dhcpv4.OptionInterfaceMTU, dhcpv4.OptionRouter))
	if err != nil {
		t.Fatal(err)
	}
	if err := send(conn, request(rec.MAC, discover.ToBytes())); err != nil {
		t.Fatal(err)
	}
	offer, err := receive(conn, discover.TransactionID)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := netip.AddrFromSlice(offer.YourIPAddr.To4()); got != nstest.Pod4 {
		t.Errorf("passt offers %v, want %v", got, nstest.Pod4)
	}
	if got := offer.Options.Get(dhcpv4.OptionInterfaceMTU); len(got) != 2 || int(binary.BigEndian.Uint16(got)) != rec.MTU {
		t.Errorf("passt reports the MTU % x, want %d", got, rec.MTU)
	}

	for protocol, want := range map[string][]int{"tcp": {80, 443, 8000, 8001, 8002}, "udp": {53, 54}} {
		sockets := n.Pod.Exec("cat", "/proc/net/"+protocol, "/proc/net/"+protocol+"6")
		for _, port := range want {
			if !strings.Contains(sockets, fmt.Sprintf("00000000:%04X ", port)) {
				t.Errorf("passt does not listen on %s port %d:\n%s", protocol, port, sockets)
			}
		}
	}
	// A connection to the port reaches the guest, at the guest's port.
	if err := netns.Do(n.World.File, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(nstest.Pod4, 8001).String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		return err
	}); err != nil {
		t.Errorf("the world connects to the pod's port: %v", err)
	}
	if port, err := synPort(conn); err != nil || port != 9001 {
		t.Errorf("the guest gets a connection to port %d, %v; want 9001", port, err)
	}

	conn.Close()
	server.Await(t)
}

// TestFamilies: what the plan calls lost is what passt does not serve. An answer to the last question says that there
// is none to the first. A passt that knows vhost-user serves the same by a socket.
func TestFamilies(t *testing.T) {
	nstest.Need(t, "passt")
	gateway, routers := nstest.Gateway4.String(), netip.MustParseAddr("ff02::2")
	help, _ := exec.Command("passt", "--help").CombinedOutput()
	newer := strings.Contains(string(help), "--vhost-user")
	for name, routes := range map[string][]string{
		"both":                  nil,
		"no default route, 4":   {"-4 route del default"},
		"no default route, 6":   {"-6 route del default"},
		"another table":         {"-4 route del default", "route add default via " + gateway + " table 100", "rule add from all lookup 100"},
		"a route by the device": {"-4 route replace default dev eth0"},
		"a gateway of IPv6":     {"-4 route replace default via inet6 fe80::1 dev eth0"},
		"a nexthop object":      {"nexthop add id 5 via " + gateway + " dev eth0", "-4 route replace default nhid 5"},
		"another link first": {"link add v0 type veth peer name v1", "link set v0 up", "addr add 198.51.100.2/24 dev v0", "-4 route del default",
			"-4 route add default metric 4000 via " + gateway, "-4 route add default metric 1 via 198.51.100.1"},
		"two gateways": {"-4 route replace default nexthop via " + gateway + " nexthop via 10.244.1.99"},
		"two halves":   {"-4 route del default", "route add 0.0.0.0/1 via " + gateway, "route add 128.0.0.0/1 via " + gateway},
	} {
		t.Run(name, func(t *testing.T) {
			n := nstest.NewVeth(t)
			for _, route := range routes {
				n.Pod.IP(route)
			}
			nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
			plan, err := nic.Plan(t.Context(), infra.Spec{Binding: infra.Passt{VhostUser: newer}, Owner: infra.Owner{Root: true}, AcceptLosses: true})
			if err != nil {
				t.Fatal(err)
			}
			lost := map[string]bool{}
			for _, l := range plan.Record.Losses {
				lost[l.What] = l.Kind == "family"
			}
			answers := map[string]bool{}
			plan.Record.Passt.VhostUser = false
			conn, _ := connect(t, n.Pod, &plan.Record)
			defer conn.Close()
			order := []string{"IPv6", "IPv4"} // a router advertises itself unasked, too
			if lost["IPv4"] {
				order = []string{"IPv4", "IPv6"}
			}
			mac := plan.Record.MAC
			discover, err := dhcpv4.NewDiscovery(net.HardwareAddr(mac[:]))
			if err != nil {
				t.Fatal(err)
			}
			questions := map[string][]byte{
				"IPv4": request(mac, discover.ToBytes()),
				"IPv6": frame.AppendICMPv6(nil, frame.MulticastMAC(routers), mac, routers, eui64.LinkLocal(mac), []byte{frame.RouterSolicitation, 0, 0, 0, 0, 0, 0, 0}),
			}
			// passt answers what it has read at once by family, so only an answer to what is sent after one comes last.
			for _, of := range []string{order[0], order[1], order[1]} {
				if err := send(conn, questions[of]); err != nil {
					t.Fatal(err)
				}
				for of == order[1] {
					f, err := next(conn)
					if err != nil {
						t.Fatal(err)
					}
					is := ""
					switch {
					case len(f) > 42 && f[12] == 8 && f[23] == frame.UDP:
						is = "IPv4"
					case len(f) > 54 && f[12] == 0x86 && f[54] == 134: // a router advertisement
						is = "IPv6"
					}
					answers[is] = true
					if is == of {
						break
					}
				}
			}
			for _, of := range order {
				if answers[of] == lost[of] {
					t.Errorf("%s: passt answers: %v; the plan calls it lost: %v", of, answers[of], lost[of])
				}
			}
		})
	}
}

// connect starts passt with the record's arguments as an ordinary user in the pod, and connects as its VMM.
func connect(t *testing.T, pod *nstest.Namespace, rec *cache.Record) (net.Conn, *nstest.Process) {
	t.Helper()
	dir := nstest.Dir(t)
	if err := os.Chown(dir, nstest.LauncherUID, nstest.LauncherUID); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "passt.sock")
	args, err := passt.Args(rec, socket)
	if err != nil {
		t.Fatal(err)
	}
	server := pod.Start(nstest.LauncherUID, append([]string{"passt", "--stderr"}, args...)...)
	var conn net.Conn
	nstest.Eventually(t, func() (err error) {
		if conn, err = net.Dial("unix", socket); err != nil {
			err = fmt.Errorf("%w; passt says %s", err, server.Output.String())
		}
		return err
	})
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn, server
}

// send writes a frame as QEMU does: after its length.
func send(conn net.Conn, frame []byte) error {
	_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

// next reads a frame.
func next(conn net.Conn) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(conn, frame)
	return frame, err
}

// request is a frame with a message of a DHCP client that has no address.
func request(mac cache.MAC, message []byte) []byte {
	frame := append([]byte{255, 255, 255, 255, 255, 255}, mac[:]...)
	frame = append(frame, 8, 0, 0x45, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(28+len(message)))
	frame = append(frame, 0, 0, 0, 0, 64, 17)
	sum := 0x4500 + uint32(28+len(message)) + 64<<8 + 17 + 0xffff + 0xffff
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	frame = binary.BigEndian.AppendUint16(frame, ^uint16(sum))
	frame = append(frame, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68, 0, 67)
	frame = binary.BigEndian.AppendUint16(frame, uint16(8+len(message)))
	return append(append(frame, 0, 0), message...)
}

// receive waits for the answer to a DHCP message.
func receive(conn net.Conn, id dhcpv4.TransactionID) (*dhcpv4.DHCPv4, error) {
	for {
		frame, err := next(conn)
		if err != nil {
			return nil, err
		}
		if len(frame) < 42 || frame[12] != 8 || frame[13] != 0 || frame[23] != 17 {
			continue
		}
		if message, err := dhcpv4.FromBytes(frame[42:]); err == nil && message.TransactionID == id {
			return message, nil
		}
	}
}

// synPort waits for a TCP connection to the guest and returns the guest's port.
func synPort(conn net.Conn) (uint16, error) {
	for {
		frame, err := next(conn)
		if err != nil {
			return 0, err
		}
		if len(frame) < 54 || frame[12] != 8 || frame[13] != 0 || frame[23] != 6 {
			continue
		}
		if flags := frame[47]; flags&2 == 0 {
			return 0, errors.New("no SYN")
		}
		return binary.BigEndian.Uint16(frame[36:]), nil
	}
}
