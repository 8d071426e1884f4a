package podnet

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// bridges are networks of bridges with settings that change what a port receives or sends, network cards, and NICs
// found as macvtaps.
var bridges = []Network{
	{Name: "bridge, ipMasq, hairpinMode", Origin: RealProgram, Create: onNode(bridgePlugin + `, "ipMasq": true, "hairpinMode": true`)},
	{Name: "bridge, promiscMode, forceAddress", Origin: RealProgram, Create: forcedAddress},
	{Name: "host-device, a network card", Origin: RealProgram, Kind: kindCards, Create: createCard},
	{Name: "macvtap", Origin: RealLink, Create: createMacvtap},
	{Name: "Azure", Origin: Rules, Create: createAzure},
}

// forcedAddress creates a pod on a bridge whose IPv4 address the plugin has to replace.
func forcedAddress(t testing.TB) *Instance {
	node := nstest.New(t, "node")
	node.IP("link add cni0 type bridge")
	addAddresses(node, "cni0", "10.22.0.77/24")
	return createOnNode(t, node, bridgePlugin+`, "promiscMode": true, "forceAddress": true`)
}

// createMacvtap creates a pod whose NIC is a macvtap of the node's link, with addresses. No process opens its character
// device.
func createMacvtap(t testing.TB) *Instance {
	node, _, stations := lan(t)
	pod := nstest.New(t, "pod")
	node.IP("link add link up0 name eth0 netns " + pod.Name + " type macvtap mode bridge")
	node.IP("link set up0 up")
	pod.IP("link set eth0 up")
	addAddresses(pod, "eth0", "10.22.0.10/24", "fd00:22::10/64")
	pod.IP("route add default via 10.22.0.1")
	pod.IP("route add default via fd00:22::1")
	pod.Settle("eth0")
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("10.22.0.10"), IPv6: addr("fd00:22::10"), Stations: stations}
}

// createAzure creates pods of Azure's CNI plugin in mode bridge: the node's NIC is a port of the bridge azure0, which
// has the node's address, and pods have addresses of the same network. The fabric accepts and knows the node's MAC
// alone, so rules of ebtables(8) put the node's MAC into frames to the fabric, and the pod's MAC into packets from
// there. ARP replies from there go to all ports, and the bridge answers all ARP requests for pods. There is no IPv6.
//
// github.com/Azure/azure-container-networking: network/bridge_endpointclient_linux.go, ebtables
func createAzure(t testing.TB) *Instance {
	node, router, stations := lan(t)
	mac := macOf(node, "up0")
	// What the fabric does: it drops other MACs, and answers ARP to the frame's source.
	router.Exec("nft", "add table netdev fabric; add chain netdev fabric node { type filter hook ingress device node priority 0; };"+
		"add rule netdev fabric node ether saddr != "+mac+" drop; add rule netdev fabric node ether type arp arp saddr ether set "+mac)
	node.IP("link add azure0 address " + mac + " type bridge")
	node.IP("link set azure0 up")
	node.IP("link set up0 master azure0")
	addAddresses(node, "azure0", "10.22.0.4/24")
	node.IP("route add default via 10.22.0.1 dev azure0")
	enableForwarding(node)
	ebtables := []string{
		"-A PREROUTING -p ARP -i up0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT",
		"-A POSTROUTING -s unicast -o up0 -j snat --to-src " + mac + " --snat-target ACCEPT",
	}
	create := func(name, address string) Station {
		n := nstest.New(t, name)
		node.IP("link add azv" + name + " type veth peer name eth0 netns " + n.Name)
		node.IP("link set azv" + name + " master azure0 up")
		n.IP("link set eth0 up")
		addAddresses(n, "eth0", address+"/24")
		n.IP("route add default via 10.22.0.1 dev eth0")
		n.Settle("eth0")
		ebtables = append(ebtables,
			"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst "+address+" -j arpreply --arpreply-mac "+macOf(n, "eth0")+" --arpreply-target DROP",
			"-A PREROUTING -p IPv4 -i up0 --ip-dst "+address+" -j dnat --to-dst "+macOf(n, "eth0")+" --dnat-target ACCEPT")
		router.IP("neigh replace " + address + " lladdr " + mac + " dev lan0 nud permanent")
		return Station{Name: name, Namespace: n, IPv4: addr(address)}
	}
	pod, peer := create("pod", "10.22.0.10"), create("peer", "10.22.0.11")
	for _, line := range ebtables {
		node.Exec("sh", "-c", "ebtables-nft -t nat "+line)
	}
	l := &Instance{Pod: pod.Namespace, NIC: "eth0", IPv4: pod.IPv4, Stations: []Station{peer, {Name: "node", Namespace: node, IPv4: addr("10.22.0.4")}}}
	for _, s := range stations {
		s.IPv6 = netip.Addr{}
		if s.Name == "peer" {
			s.Name = "another node"
		}
		l.Stations = append(l.Stations, s)
	}
	return l
}
