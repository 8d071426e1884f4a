package podnet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

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
