package podnet

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// exclusive are Terway's networks in which a pod has an elastic network interface (ENI) for itself.
var exclusive = []Network{terwayExclusive}

var terwayExclusive = Network{Name: "Terway exclusive ENI", Origin: Rules, Create: createExclusive}

// createExclusive creates a pod whose eth0 is an ENI of the node, moved by CNI's host-device. The namespace vpc is
// the VPC: its router, and the switch for 10.22.0.0/24 and fd00:22::/64, which accepts one MAC and one address of each
// family from a pod. The check fails if the VPC has dropped a packet of the pod.
//
// github.com/AliyunContainerService/terway: plugin/datapath/exclusive_eni_linux.go
func createExclusive(t testing.TB) *Instance {
	node, vpc, peer := nstest.New(t, "node"), nstest.New(t, "vpc"), nstest.New(t, "peer")
	far := addBehindRouter(t, vpc)
	enableForwarding(node)
	disableSolicitations(node)
	connectNamespaces(node, "eth0", vpc, "primary")
	addAddresses(vpc, "primary", "10.28.0.253/24", "fd00:28::fd/64")
	addAddresses(node, "eth0", "10.28.0.2/24", "fd00:28::2/64")
	node.IP("route add default via 10.28.0.253")
	node.IP("route add default via fd00:28::fd")

	vpc.IP("link add vswitch type bridge")
	vpc.IP("link set vswitch up")
	addAddresses(vpc, "vswitch", "10.22.0.253/24", "fd00:22::fd/64")
	connectNamespaces(node, "eth1", vpc, "eni1")
	connectNamespaces(peer, "eth0", vpc, "eni2")
	acceptOne(t, vpc, "eni1", macOf(node, "eth1"), "10.22.0.30", "fd00:22::30")
	acceptOne(t, vpc, "eni2", macOf(peer, "eth0"), "10.22.0.31", "fd00:22::31")

	a := newChain(t, node, `"type": "host-device", "device": "eth1", "ipam": {}`).add(t, nstest.New(t, "pod"), "eth0")
	a.IPv4, a.IPv6 = addr("10.22.0.30"), addr("fd00:22::30")
	addENI(a.pod, "10.22.0.30", "fd00:22::30")
	addENI(peer, "10.22.0.31", "fd00:22::31")
	l := a.instance(append([]Station{
		newStation("gateway", vpc, "10.22.0.253", "fd00:22::fd"),
		newStation("peer", peer, "10.22.0.31", "fd00:22::31"),
		newStation("node", node, "10.28.0.2", "fd00:28::2"),
	}, far...)...)
	l.Check = func(t testing.TB) {
		a.check(t)
		if dropped := vpc.Exec("nft", "list", "counter", "netdev", "vpc", "eni1"); !strings.Contains(dropped, "packets 0 bytes 0") {
			t.Errorf("the VPC has dropped packets of the pod: %s", dropped)
		}
	}
	return l
}

// acceptOne puts a port into the VPC's switch, which drops and counts each packet that does not come from the
// ENI's MAC and addresses.
func acceptOne(t testing.TB, vpc *nstest.Namespace, port, mac, ipv4, ipv6 string) {
	t.Helper()
	own, err := cache.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	vpc.Exec("nft", strings.NewReplacer("PORT", port, "MAC", mac, "IPV4", ipv4, "IPV6", ipv6, "LINKLOCAL", eui64.LinkLocal(own).String()).Replace(`
		add table netdev vpc
		add counter netdev vpc PORT
		add chain netdev vpc PORT { type filter hook ingress device PORT priority 0; policy accept; }
		add rule netdev vpc PORT ether saddr != MAC counter name PORT drop
		add rule netdev vpc PORT ether type != { arp, ip, ip6 } counter name PORT drop
		add rule netdev vpc PORT arp saddr ether != MAC counter name PORT drop
		add rule netdev vpc PORT arp saddr ip != { IPV4, 0.0.0.0 } counter name PORT drop
		add rule netdev vpc PORT ip saddr != IPV4 counter name PORT drop
		add rule netdev vpc PORT ip6 saddr != { IPV6, LINKLOCAL, :: } counter name PORT drop`))
	vpc.IP("link set " + port + " master vswitch")
}

// addENI gives an ENI its addresses and routes.
func addENI(pod *nstest.Namespace, ipv4, ipv6 string) {
	addAddresses(pod, "eth0", ipv4+"/32", ipv6+"/128")
	pod.IP("route add default via 10.22.0.253 dev eth0 onlink")
	pod.IP("route add fd00:22::fd dev eth0")
	pod.IP("route add default via fd00:22::fd dev eth0 onlink")
}
