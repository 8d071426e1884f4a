package podnet

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tunnels are the networks of pods whose NIC carries IP packets without Ethernet, and of a node that reaches other
// nodes by such a NIC.
var tunnels = []Network{
	{Name: "tun", Origin: RealLink, Create: tunnel},
	{Name: "WireGuard", Origin: RealLink, Kind: "wireguard", Create: wireguard},
}

// tunnel creates a pod whose NIC is a tun device. A VPN's program holds it, and hands the packets to a tun device of
// the node.
func tunnel(t testing.TB) *Instance {
	nstest.NeedTaps(t)
	node, pod := nstest.New(t, "node"), nstest.New(t, "pod")
	far := addBehindRouter(t, node)
	joinTuns(t, openTun(t, node, "vpn0"), openTun(t, pod, "tun0"))
	node.IP("link set vpn0 mtu 1400 up")
	pod.IP("link set tun0 mtu 1400 up")
	addAddresses(node, "vpn0", "10.29.0.1/24", "fd00:29::1/64")
	addAddresses(pod, "tun0", "10.29.0.2/24", "fd00:29::2/64")
	pod.IP("route add default via 10.29.0.1")
	pod.IP("-6 route add default dev tun0")
	pod.Settle("tun0")
	return &Instance{Pod: pod, NIC: "tun0", IPv4: addr("10.29.0.2"), IPv6: addr("fd00:29::2"), Stations: append([]Station{
		newStation("gateway", node, "10.29.0.1", "fd00:29::1"),
	}, far...)}
}

// openTun creates a tun device in the namespace and attaches to it, until the test ends.
func openTun(t testing.TB, n *nstest.Namespace, name string) *os.File {
	t.Helper()
	fd := -1
	err := netns.Do(n.File, func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		unix.Close(fd)
		t.Fatalf("create tun device %s: %v", name, err)
	}
	return os.NewFile(uintptr(fd), name)
}

// joinTuns hands the packets of each device, or socket, to the other, until the test ends.
func joinTuns(t testing.TB, a, b io.ReadWriteCloser) {
	var copying sync.WaitGroup
	for _, way := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		copying.Go(func() {
			packet := make([]byte, 1<<16)
			for {
				size, err := way[0].Read(packet)
				if err != nil {
					return // closed, or deleted with its namespace
				}
				_, _ = way[1].Write(packet[:size]) // a packet for a device that is down is lost
			}
		})
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
		copying.Wait()
	})
}

// wireguard creates a pod whose NIC is the node's WireGuard device: encrypted packets leave by the node's network,
// which the pod does not see. All other stations are behind the peer.
func wireguard(t testing.TB) *Instance {
	node, gateway, pod := nstest.New(t, "node"), nstest.New(t, "gateway"), nstest.New(t, "pod")
	far := addBehindRouter(t, gateway)
	connectNamespaces(node, "ens3", gateway, "ens3")
	addAddresses(node, "ens3", "10.25.0.1/24")
	addAddresses(gateway, "ens3", "10.25.0.2/24")
	joinWireguard(t, node, gateway, "10.29.0.2/32,fd00:29::2/128", "0.0.0.0/0,::/0")
	node.IP("link set wg0 netns " + pod.Name + " name eth0")
	for _, n := range []struct {
		namespace *nstest.Namespace
		link      string
		addresses []string
		routes    []string
	}{
		{gateway, "wg0", []string{"10.29.0.1/24", "fd00:29::1/64"}, nil},
		{pod, "eth0", []string{"10.29.0.2/32", "fd00:29::2/128"}, []string{"default", "::/0"}},
	} {
		n.namespace.IP("link set " + n.link + " up")
		addAddresses(n.namespace, n.link, n.addresses...)
		for _, to := range n.routes {
			n.namespace.IP("route add " + to + " dev " + n.link)
		}
	}
	shakeHands(pod, "10.29.0.1")
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("10.29.0.2"), IPv6: addr("fd00:29::2"), Stations: append([]Station{
		newStation("gateway", gateway, "10.29.0.1", "fd00:29::1"),
	}, far...)}
}

// shakeHands waits for the peers' first handshake, which WireGuard tries again after five seconds if a packet of it is
// lost.
func shakeHands(n *nstest.Namespace, peer string) { n.Exec("ping", "-q", "-c1", "-w60", peer) }

// joinWireguard creates a WireGuard device wg0 in both namespaces, each other's peer over the link ens3. allowed are
// the sources that a peer may have, as wg(8) takes them: what b takes from a, and what a takes from b.
func joinWireguard(t testing.TB, a, b *nstest.Namespace, allowedAtB, allowedAtA string) {
	t.Helper()
	dir := t.TempDir()
	public := map[*nstest.Namespace]string{}
	for _, n := range []*nstest.Namespace{a, b} {
		key := nstest.Run(t, "wg", "genkey")
		file := filepath.Join(dir, n.Name)
		if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		public[n] = strings.TrimSpace(nstest.Run(t, "sh", "-c", "wg pubkey <"+file))
		n.IP("link add wg0 type wireguard")
		n.Exec("wg", "set", "wg0", "listen-port", "51820", "private-key", file)
	}
	a.Exec("wg", "set", "wg0", "peer", public[b], "endpoint", "10.25.0.2:51820", "allowed-ips", allowedAtA)
	b.Exec("wg", "set", "wg0", "peer", public[a], "endpoint", "10.25.0.1:51820", "allowed-ips", allowedAtB)
}

// joinFlannel lets each node reach the other node's pods by a WireGuard device, as flannel's backend wireguard does.
func joinFlannel(t testing.TB, a, b flannelNode) {
	t.Helper()
	pods := func(n flannelNode) string { return fmt.Sprintf("%v,%v", n.subnet4, n.subnet6) }
	joinWireguard(t, a.Namespace, b.Namespace, pods(a), pods(b))
	for from, to := range map[flannelNode]flannelNode{a: b, b: a} {
		addAddresses(from.Namespace, "wg0", from.subnet4.Addr().String()+"/32", from.subnet6.Addr().String()+"/128")
		from.IP("link set wg0 up")
		from.IP(fmt.Sprintf("route add %v dev wg0", to.subnet4))
		from.IP(fmt.Sprintf("-6 route add %v dev wg0", to.subnet6))
	}
	shakeHands(a.Namespace, b.subnet4.Addr().String())
}
