package phase1_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// listenUDP opens a UDP socket, until the test ends.
func listenUDP(t *testing.T, n *nstest.Namespace, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	in(t, n, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// sendUntil sends the text until the other socket gets it, and returns the sender that this one sees.
func sendUntil(t *testing.T, from *net.UDPConn, to netip.AddrPort, at *net.UDPConn, text string) netip.AddrPort {
	t.Helper()
	b := make([]byte, 1500)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := from.WriteToUDPAddrPort([]byte(text), to); err != nil {
			time.Sleep(10 * time.Millisecond) // an ICMP error about an earlier datagram
			continue
		}
		at.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		for {
			size, seen, err := at.ReadFromUDPAddrPort(b)
			if err != nil {
				break
			}
			if string(b[:size]) == text {
				return netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
			}
		}
	}
	t.Errorf("%q does not arrive at %v", text, at.LocalAddr())
	return netip.AddrPort{}
}

// serveTFTP answers each request with a file of one block, from a port of its own (RFC 1350 section 4).
func serveTFTP(t *testing.T, n *nstest.Namespace, host netip.Addr, file string) {
	server := listenUDP(t, n, netip.AddrPortFrom(host, 69))
	var serving sync.WaitGroup
	serving.Go(func() {
		b := make([]byte, 1500)
		for {
			size, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if size < 2 || b[1] != 1 { // no read request
				continue
			}
			in(t, n, func() error {
				transfer, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 0)), net.UDPAddrFromAddrPort(from))
				if err != nil {
					return err
				}
				defer transfer.Close()
				for range 10 {
					transfer.Write(append([]byte{0, 3, 0, 1}, file...))
					transfer.SetReadDeadline(time.Now().Add(time.Second))
					if size, err := transfer.Read(b); err == nil && bytes.HasPrefix(b[:size], []byte{0, 4, 0, 1}) {
						break
					}
				}
				return nil
			})
		}
	})
	t.Cleanup(func() { server.Close(); serving.Wait() })
}

// TestKeptPorts: a UDP port of the guest that is forwarded to the guest stays, also one of those that the kernel gives
// to clients. So TFTP works, whose server answers from another port, and so does what finds the guest by a port that a
// third host has seen. Of TCP such a port changes, unless ip_local_port_range ends elsewhere before Setup.
func TestKeptPorts(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "curl")
	const port, portOfTCP = 40000, 40001
	for _, c := range []struct {
		name     string
		ports    []infra.Ports
		clients  string // ip_local_port_range
		udp, tcp bool   // the port stays
		source   bool   // the default routes say to send from other addresses of the NIC
	}{
		{name: "everything", udp: true},
		{name: "everything, and clients have other ports", clients: "61000 65000", udp: true, tcp: true},
		{name: "the clients' ports of UDP", ports: []infra.Ports{{Protocol: "udp", First: 32768, Last: 60999}}, udp: true},
		{name: "nothing", ports: []infra.Ports{}},
		{name: "routes with a source", udp: true, source: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
				if c.name == "everything" && firewall == cache.FirewallNFTables { // five minutes each in an emulated kernel
					nstest.KernelDecides(t, "source ports of a masquerade")
				} else if c.name != "everything" && !c.source && firewall != cache.FirewallNFTables {
					return // the texts of the rules are compared by TestSourcePorts
				}
				n := nstest.NewNetwork(t)
				if c.clients != "" {
					n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_local_port_range="+c.clients)
				}
				if c.source {
					n.Pod.IP("addr add 10.244.1.8/24 dev eth0")
					n.Pod.IP("addr add fd00:244:1::8/64 dev eth0 nodad")
					n.Pod.IP("addr add fd00:244:1::9/64 dev eth0 nodad") // the last one is the kernel's choice
					n.Pod.IP("route replace default via 10.244.1.1 dev eth0 src 10.244.1.8")
					n.Pod.IP("-6 route replace default via fd00:244:1::1 dev eth0 src fd00:244:1::8")
				}
				pods := map[netip.Addr]netip.Addr{} // from which address the namespace sends to others
				for _, to := range []netip.Addr{nstest.Beyond4, nstest.Gateway4, nstest.Beyond6, nstest.Gateway6} {
					_, from, _ := strings.Cut(n.Pod.IP("route get "+to.String()), " src ")
					pods[to] = netip.MustParseAddr(strings.Fields(from)[0])
				}
				spec := config(n, infra.Masquerade{Firewall: firewall, Ports: c.ports})
				setup(t, spec)
				r := record(t, n)
				guest := recordsGuest(t, n, r, 1450)
				guest.Settle("eth0")
				for _, v := range []struct{ guest, host, third netip.Addr }{
					{r.IPv4.Address.Addr(), nstest.Beyond4, nstest.Gateway4},
					{r.IPv6.Address, nstest.Beyond6, nstest.Gateway6},
				} {
					inside, host, third := listenUDP(t, guest, netip.AddrPortFrom(v.guest, port)), listenUDP(t, n.World, netip.AddrPortFrom(v.host, 9001)), listenUDP(t, n.World, netip.AddrPortFrom(v.third, 9002))
					seen := sendUntil(t, inside, netip.AddrPortFrom(v.host, 9001), host, "to one")
					also := sendUntil(t, inside, netip.AddrPortFrom(v.third, 9002), third, "to another")
					if (seen.Port() == port) != c.udp || (also.Port() == port) != c.udp || seen.Addr() != pods[v.host] || also.Addr() != pods[v.third] {
						t.Errorf("UDP from port %d leaves from %v and %v", port, seen, also)
					}
					server := listen(t, n.World, netip.AddrPortFrom(v.host, 9003))
					client, err := dialFrom(t, guest, portOfTCP, netip.AddrPortFrom(v.host, 9003))
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					accepted, err := server.Accept()
					if err != nil {
						t.Fatal(err)
					}
					defer accepted.Close()
					if from := accepted.RemoteAddr().(*net.TCPAddr).AddrPort(); (from.Port() == portOfTCP) != c.tcp || from.Addr().Unmap() != pods[v.host] {
						t.Errorf("TCP from port %d leaves from %v", portOfTCP, from)
					}
					if !c.udp {
						continue
					}
					fourth := listenUDP(t, n.World, netip.AddrPortFrom(v.third, 9004))
					sendUntil(t, fourth, seen, inside, "from a host that has read the port elsewhere")
					serveTFTP(t, n.World, v.host, "a file by TFTP")
					if file := guest.Exec("curl", "-sS", "--max-time", "60", fmt.Sprintf("tftp://%v/file", netip.AddrPortFrom(v.host, 69))); !strings.Contains(file, "a file by TFTP") {
						t.Errorf("TFTP from %v: %q", v.host, file)
					}
				}
				check(t, spec)
			})
		})
	}
}

// TestKeptPortsOfTheNamespace: an exchange of the namespace goes on, and its answers are the namespace's, whatever the
// guest sends from the same port to the same peer before or after.
func TestKeptPortsOfTheNamespace(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "source ports of a masquerade")
		}
		n := nstest.NewNetwork(t)
		setup(t, config(n, infra.Masquerade{Firewall: firewall}))
		r := record(t, n)
		guest := recordsGuest(t, n, r, 1450)
		guest.Settle("eth0")
		for _, v := range []struct{ guest, pod, host netip.Addr }{
			{r.IPv4.Address.Addr(), nstest.Pod4, nstest.Beyond4}, {r.IPv6.Address, nstest.Pod6, nstest.Beyond6},
		} {
			for i, order := range []string{"the guest first", "the namespace first"} {
				port := uint16(40010 + i)
				to := netip.AddrPortFrom(v.host, port)
				inside, own, host := listenUDP(t, guest, netip.AddrPortFrom(v.guest, port)), listenUDP(t, n.Pod, netip.AddrPortFrom(v.pod, port)), listenUDP(t, n.World, to)
				var guests, pods netip.AddrPort
				if i == 0 {
					guests = sendUntil(t, inside, to, host, "the guest's")
					pods = sendUntil(t, own, to, host, "the namespace's")
				} else {
					pods = sendUntil(t, own, to, host, "the namespace's")
					guests = sendUntil(t, inside, to, host, "the guest's")
				}
				if guests == pods || guests.Addr() != v.pod || pods.Addr() != v.pod || i == 1 && pods.Port() != port {
					t.Errorf("%s: the guest sends from %v, the namespace from %v", order, guests, pods)
				}
				sendUntil(t, host, pods, own, "to the namespace")
				sendUntil(t, host, guests, inside, "to the guest")
			}
		}
	})
}
