package podnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

var clouds = []Network{
	{Name: "Terway ENI multi-IP, veth", Origin: Rules, Create: func(t testing.TB) *Instance { return eni(t, terwayVeth) }},
	{Name: "Terway ENI multi-IP, ipvlan", Origin: Rules, Kind: "ipvlan", Create: func(t testing.TB) *Instance { return eni(t, terwayIPvlan) }},
	{Name: "Terway trunk ENI, veth", Origin: Rules, Kind: "vlan", Create: func(t testing.TB) *Instance { return createENI(t, terwayVeth, 27) }},
	{Name: "Terway trunk ENI, ipvlan", Origin: Rules, Kind: "ipvlan", Create: func(t testing.TB) *Instance { return createENI(t, terwayIPvlanOfTrunk, 27) }},
	{Name: "AWS VPC CNI", Origin: Rules, Create: func(t testing.TB) *Instance { return eni(t, aws) }},
}

// routed is a pod with /32 and /128 addresses. host is the name of its veth's end on the node.
type routed struct {
	pod        *nstest.Namespace
	IPv4, IPv6 netip.Addr
	host       string
	mac        string // of the end on the node
}

func (r routed) station(name string) Station { return Station{name, r.pod, r.IPv4, r.IPv6} }

func (r routed) instance(stations ...Station) *Instance {
	return &Instance{Pod: r.pod, NIC: "eth0", IPv4: r.IPv4, IPv6: r.IPv6, Stations: stations}
}

// newRouted creates the veth, the addresses, and the routes on the node.
func newRouted(t testing.TB, node *nstest.Namespace, name, v4, v6, mac string, mtu int) routed {
	r := routed{nstest.New(t, name), addr(v4), addr(v6), "veth-" + name, mac}
	node.IP(fmt.Sprintf("link add %s address %s mtu %d type veth peer name eth0 mtu %d netns %s", r.host, mac, mtu, mtu, r.pod.Name))
	node.IP("link set " + r.host + " up")
	r.pod.IP("link set eth0 up")
	addAddresses(r.pod, "eth0", v4+"/32", v6+"/128")
	node.IP("route add " + v4 + " dev " + r.host + " scope link")
	node.IP("route add " + v6 + " dev " + r.host)
	r.pod.Settle("eth0")
	node.Settle(r.host)
	return r
}

// podOnENI creates a pod with the addresses on a node.
type podOnENI func(t testing.TB, node *nstest.Namespace, name, v4, v6 string) routed

// eni creates a node with two network interfaces (ENIs) in a VPC. The VPC sends packets for the pods, 10.22.0.0/24
// and fd00:22::/64, to the second interface.
func eni(t testing.TB, create podOnENI) *Instance { return createENI(t, create, 0) }

// createENI is eni, with the second interface in a VLAN; 0: none. The trunk of the VPC ends on the node, which takes
// the tag off what arrives, and puts it on what leaves.
//
// github.com/AliyunContainerService/terway: plugin/driver/utils, EnsureVlanUntagger and EnsureVlanTag
func createENI(t testing.TB, create podOnENI, vlan int) *Instance {
	node, vpc := nstest.New(t, "node"), nstest.New(t, "vpc")
	far := addBehindRouter(t, vpc)
	enableForwarding(node)
	connectNamespaces(node, "eth0", vpc, "eni0")
	if vlan == 0 {
		connectNamespaces(node, "eth1", vpc, "eni1")
	} else {
		connectNamespaces(node, "eth1", vpc, "trunk")
		vpc.IP(fmt.Sprintf("link add link trunk name eni1 type vlan id %d", vlan))
		vpc.IP("link set eni1 up")
		node.Exec("tc", "qdisc", "add", "dev", "eth1", "clsact")
		filter := "exec tc filter add dev eth1 "
		node.Exec("sh", "-c", filter+"ingress protocol 802.1q u32 match u32 0 0 action vlan pop")
		node.Exec("sh", "-c", filter+fmt.Sprintf("egress protocol all u32 match u32 0 0 action vlan push id %d", vlan))
	}
	addAddresses(vpc, "eni0", "10.28.0.253/24", "fd00:28::fd/64")
	addAddresses(vpc, "eni1", "10.22.0.253/24", "fd00:22::fd/64")
	addAddresses(node, "eth0", "10.28.0.2/24", "fd00:28::2/64")
	node.IP("route add default via 10.28.0.253 dev eth0")
	node.IP("route add default via fd00:28::fd dev eth0")
	mac := macOf(node, "eth1")
	pod, peer := create(t, node, "pod", "10.22.0.20", "fd00:22::20"), create(t, node, "peer", "10.22.0.21", "fd00:22::21")
	for _, r := range []routed{pod, peer} {
		vpc.IP(fmt.Sprintf("neigh replace %v lladdr %s dev eni1 nud permanent", r.IPv4, mac))
		vpc.IP(fmt.Sprintf("neigh replace %v lladdr %s dev eni1 nud permanent", r.IPv6, mac))
	}
	return pod.instance(append(far, newStation("node", node, "10.28.0.2", "fd00:28::2"), newStation("gateway", vpc, "10.22.0.253", "fd00:22::fd"),
		peer.station("peer"))...)
}

// macOf returns the link's MAC.
func macOf(n *nstest.Namespace, link string) string {
	return strings.TrimSpace(n.Exec("cat", "/sys/class/net/"+link+"/address"))
}

// addPolicyRules adds rules on the node: packets to the pod use the main table, packets from the pod the ENI's
// table.
func (r routed) addPolicyRules(node *nstest.Namespace, toPod, fromPod, table int) {
	for _, a := range []netip.Addr{r.IPv4, r.IPv6} {
		family, gateway := "-4", "10.22.0.253"
		if a.Is6() {
			family, gateway = "-6", "fd00:22::fd"
		}
		node.IP(fmt.Sprintf("%s rule add to %v priority %d table main", family, a, toPod))
		node.IP(fmt.Sprintf("%s rule add from %v priority %d table %d", family, a, fromPod, table))
		node.IP(fmt.Sprintf("%s route replace default via %s dev eth1 onlink table %d", family, gateway, table))
	}
}

// permanentGateway adds a permanent neighbour entry for a gateway for which no station answers ARP or NS.
func (r routed) permanentGateway(gateway string) {
	r.pod.IP("neigh add " + gateway + " lladdr " + r.mac + " dev eth0 nud permanent")
}

// terwayVeth creates a pod of Terway's policy route mode: the gateways are on the link, with permanent entries in
// the pod's neighbour table.
func terwayVeth(t testing.TB, node *nstest.Namespace, name, v4, v6 string) routed {
	r := newRouted(t, node, name, v4, v6, fmt.Sprintf("ee:ff:ff:ff:ff:%02x", addr(v4).As4()[3]), 1500)
	r.pod.IP("route add default via 169.254.1.1 dev eth0 onlink")
	r.pod.IP("route add default via fe80::1 dev eth0 onlink")
	r.permanentGateway("169.254.1.1")
	r.permanentGateway("fe80::1")
	r.addPolicyRules(node, 512, 2048, 1000+3)
	return r
}

// aws creates a pod of AWS VPC CNI. It differs from terwayVeth in the route to the gateway, the MTU and the rules'
// priorities.
func aws(t testing.TB, node *nstest.Namespace, name, v4, v6 string) routed {
	r := newRouted(t, node, name, v4, v6, fmt.Sprintf("0a:00:00:00:00:%02x", addr(v4).As4()[3]), 9001)
	r.pod.IP("route add 169.254.1.1 dev eth0 scope link")
	r.pod.IP("route add default via 169.254.1.1 dev eth0")
	r.pod.IP("route add fe80::1 dev eth0")
	r.pod.IP("route add default via fe80::1 dev eth0")
	r.permanentGateway("169.254.1.1")
	r.permanentGateway("fe80::1")
	r.addPolicyRules(node, 512, 1536, 2)
	return r
}

// terwayIPvlan creates a pod whose addresses have the prefix lengths of the VPC's switch.
func terwayIPvlan(t testing.TB, node *nstest.Namespace, name, v4, v6 string) routed {
	return addIPvlan(t, node, name, v4, v6, "/24", "/64")
}

// terwayIPvlanOfTrunk creates a pod behind a trunk.
func terwayIPvlanOfTrunk(t testing.TB, node *nstest.Namespace, name, v4, v6 string) routed {
	return addIPvlan(t, node, name, v4, v6, "/32", "/128")
}

// addIPvlan creates a pod on an ipvlan of the second ENI. Pods reach the node by the node's own ipvlan of this ENI.
//
// github.com/AliyunContainerService/terway: plugin/datapath/ipvlan_linux.go
func addIPvlan(t testing.TB, node *nstest.Namespace, name, v4, v6, bits4, bits6 string) routed {
	r := routed{pod: nstest.New(t, name), IPv4: addr(v4), IPv6: addr(v6), host: "ipvl-3", mac: macOf(node, "eth1")}
	if !strings.Contains(node.IP("-br link"), "ipvl-3") {
		node.IP("link add ipvl-3 link eth1 type ipvlan mode l2")
		node.IP("link set ipvl-3 up")
		addAddresses(node, "ipvl-3", "10.28.0.2/32", "fd00:28::2/128")
	}
	node.IP("link add " + name + " link eth1 type ipvlan mode l2")
	node.IP("link set " + name + " netns " + r.pod.Name + " name eth0")
	r.pod.IP("link set eth0 up")
	addAddresses(r.pod, "eth0", v4+bits4, v6+bits6)
	r.pod.IP("route add default via 10.22.0.253 dev eth0 onlink")
	r.pod.IP("route add default via fd00:22::fd dev eth0 onlink")
	r.pod.IP("route add 10.28.0.2 dev eth0 scope link")
	r.pod.IP("route add fd00:28::2 dev eth0")
	r.permanentGateway("10.28.0.2")
	r.permanentGateway("fd00:28::2")
	for _, a := range []string{v4, v6} {
		node.IP("route add " + a + " dev ipvl-3")
		node.IP("neigh add " + a + " lladdr " + r.mac + " dev ipvl-3 nud permanent")
	}
	r.pod.Settle("eth0")
	return r
}
