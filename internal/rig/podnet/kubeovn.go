package podnet

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var (
	kubeOVN = Network{Name: "Kube-OVN", Origin: RealSwitch, Create: func(t testing.TB) *Instance { l, _ := createKubeOVN(t, true); return l }}
	// A pod and a logical port without addresses.
	kubeOVNWire = Network{Name: "Kube-OVN, MAC only", Origin: RealSwitch, Create: func(t testing.TB) *Instance { l, _ := createKubeOVN(t, false); return l }}
	// The pods' NICs are ports of the switch themselves, and no veths.
	kubeOVNInternal = Network{Name: "Kube-OVN, internal port", Origin: RealSwitch, Create: func(t testing.TB) *Instance {
		v := createVPC(t, 1500, 0)
		v.internal = true
		return v.createPods(true)
	}}
	// A pod on an underlay subnet that is interconnected with the overlay subnets (U2O), and one whose subnet is a VLAN
	// of the physical network.
	kubeOVNUnderlay = Network{Name: "Kube-OVN, underlay", Origin: RealSwitch, Create: func(t testing.TB) *Instance { return createKubeOVNUnderlay(t, 0) }}
	kubeOVNVLAN     = Network{Name: "Kube-OVN, underlay, VLAN", Origin: RealSwitch, Create: func(t testing.TB) *Instance { return createKubeOVNUnderlay(t, 100) }}
)

// vpc is Kube-OVN's default VPC on two nodes. Each node has its own Open vSwitch and ovn-controller, and a Geneve
// tunnel connects the two. OVN's databases and ovn-northd are on the first node.
//
// Each node has two uplinks: one in the nodes' network, 198.51.100.0/24 and 2001:db8:9::/64, and one in the
// physical network of the underlay subnet, 10.18.0.0/24 and fd00:10:18::/112. A router connects the two networks.
type vpc struct {
	nodes    [2]*vswitch
	router   *nstest.Namespace
	outside  *nstest.Namespace   // a host of the nodes' network
	physical *nstest.Namespace   // a host of the physical network
	provider *vswitch            // switch of the physical network; nil: a bridge of the kernel, without VLANs
	vlan     int                 // of the underlay subnet; 0: none
	internal bool                // the pods' NICs are internal ports
	members  map[string][]string // of the port groups
	mtu      int                 // of the pods in all subnets
}

// vpcSubnet is a subnet of the VPC. Its addresses are v4.0.N and v6::N.
type vpcSubnet struct {
	name, mac string // logical switch, and the MAC of the router's port
	v4, v6    string
	bits      int // of an IPv4 prefix
	router    int // number of the router's address, and of the pods' gateway
}

// The router's port in the subnet underlay has the interconnection address (U2O); the gateway in this network
// is another one, physicalGateway.
var (
	ovnDefault = vpcSubnet{"ovn-default", "00:00:00:1c:6d:92", "10.16", "fd00:10:16", 16, 1}
	blue       = vpcSubnet{"blue", "00:00:00:55:02:b4", "10.17", "fd00:10:17", 16, 1}
	join       = vpcSubnet{"join", "00:00:00:7e:3f:10", "100.64", "fd00:100:64", 16, 1}
	underlay   = vpcSubnet{"underlay", "00:00:00:c8:44:0d", "10.18", "fd00:10:18", 24, 2}
)

// Addresses of the router in the nodes' network.
const routerIPv4, routerIPv6 = "198.51.100.254", "2001:db8:9::fe"

// Numbers of the physical network's gateway and host, and of the first node's ovn0 in the subnet join.
const physicalGateway, physicalHost, joinNode = 1, 50, 2

func (s vpcSubnet) IPv4(number int) string { return fmt.Sprintf("%s.0.%d", s.v4, number) }
func (s vpcSubnet) IPv6(number int) string { return fmt.Sprintf("%s::%d", s.v6, number) }

// addresses returns the addresses of a number, with their prefix lengths.
func (s vpcSubnet) addresses(number int) []string {
	return []string{fmt.Sprintf("%s/%d", s.IPv4(number), s.bits), s.IPv6(number) + "/112"}
}

// networks returns the prefixes.
func (s vpcSubnet) networks() (v4, v6 string) {
	return fmt.Sprintf("%s.0.0/%d", s.v4, s.bits), s.v6 + "::/112"
}

// station returns the namespace that has the addresses of a number.
func (s vpcSubnet) station(name string, n *nstest.Namespace, number int) Station {
	return newStation(name, n, s.IPv4(number), s.IPv6(number))
}

// nodeAddress returns the addresses of a node in the nodes' network.
func nodeAddress(node int) (v4, v6 string) {
	return fmt.Sprintf("198.51.100.%d", node+1), fmt.Sprintf("2001:db8:9::%d", node+1)
}

// createVPC creates the nodes, the networks between them, and the logical network. The nodes' network carries packets
// of wire octets, and Geneve takes 100 of them from the pods. The underlay subnet has this VLAN's tag on the physical
// network; 0: none.
//
// github.com/kubeovn/kube-ovn: pkg/controller/{init,node,subnet}.go, pkg/daemon/{ovs,gateway}_linux.go
func createVPC(t testing.TB, wire, vlan int) *vpc {
	t.Helper()
	nstest.Need(t, "ethtool", "nsenter", "iptables", "ip6tables")
	v := &vpc{router: nstest.New(t, "router"), outside: nstest.New(t, "outside"), physical: nstest.New(t, "physical"), members: map[string][]string{}, mtu: wire - 100, vlan: vlan}
	enableForwarding(v.router)
	if vlan != 0 {
		v.provider = startOVS(t, v.router, false)
		v.provider.vsctl("add-br provider", "set bridge provider datapath_type=netdev", fmt.Sprintf("set port provider tag=%d", vlan))
	} else {
		v.router.IP("link add provider type bridge")
	}
	v.router.IP("link add nodes type bridge")
	for _, lan := range []string{"nodes", "provider"} {
		v.router.IP("link set " + lan + " mtu 1500 up")
		// The datapath in user space does not complete checksums.
		v.router.Exec("ethtool", "-K", lan, "tx", "off")
	}
	addAddresses(v.router, "nodes", routerIPv4+"/24", routerIPv6+"/64")
	addAddresses(v.router, "provider", underlay.addresses(physicalGateway)...)
	v.connect(v.outside, "eth0", "nodes", "outside")
	addAddresses(v.outside, "eth0", nstest.Beyond4.String()+"/24", nstest.Beyond6.String()+"/64")
	v.outside.IP("route add default via " + routerIPv4)
	v.outside.IP("route add default via " + routerIPv6)
	addNarrow(v.outside)
	routeNarrow(v.router, nstest.Beyond4.String(), nstest.Beyond6.String())
	v.connect(v.physical, "eth0", "provider", "host")
	addAddresses(v.physical, "eth0", underlay.addresses(physicalHost)...)
	v.physical.IP("route add default via " + underlay.IPv4(physicalGateway))
	v.physical.IP("route add default via " + underlay.IPv6(physicalGateway))
	for i := range v.nodes {
		v.startNode(t, i)
	}
	v.createRouter()
	for i := range v.nodes {
		v.createNode(i)
	}
	return v
}

// connect connects a link to one of the networks, which are bridges of the router. A host of the physical network is in
// the VLAN of the underlay subnet, and nodes are at trunks.
func (v *vpc) connect(n *nstest.Namespace, link, lan, port string) {
	connectNamespaces(n, link, v.router, port)
	switch {
	case lan != "provider" || v.provider == nil:
		v.router.IP("link set " + port + " master " + lan)
	case n == v.physical:
		v.provider.dropInKernel(port)
		v.provider.vsctl("add-port provider "+port, fmt.Sprintf("set port %s tag=%d", port, v.vlan))
	default:
		v.provider.dropInKernel(port)
		v.provider.vsctl("add-port provider "+port, fmt.Sprintf("set port %s trunks=%d", port, v.vlan))
	}
	n.Exec("ethtool", "-K", link, "tx", "off")
	v.router.Exec("ethtool", "-K", port, "tx", "off")
}

// startNode starts a node's Open vSwitch and ovn-controller. The bridge br-phy has the node's address, as a
// datapath in user space sends and receives a tunnel's packets by a bridge only; br-provider has the uplink to
// the physical network.
func (v *vpc) startNode(t testing.TB, i int) {
	t.Helper()
	node := nstest.New(t, "node")
	enableForwarding(node)
	v.connect(node, "uplink", "nodes", fmt.Sprint("node", i))
	node.IP(fmt.Sprintf("link set uplink mtu %d", v.mtu+100))
	v.router.IP(fmt.Sprintf("link set node%d mtu %d", i, v.mtu+100))
	v.connect(node, "physical", "provider", fmt.Sprint("physical", i))
	s := startOVS(t, node, i == 0)
	v.nodes[i] = s
	ipv4, ipv6 := nodeAddress(i)
	for bridge, link := range map[string]string{"br-phy": "uplink", "br-provider": "physical"} {
		s.dropInKernel(link)
		s.vsctl("add-br "+bridge, "set bridge "+bridge+" datapath_type=netdev", "add-port "+bridge+" "+link)
		node.IP("link set " + bridge + " up")
	}
	s.vsctl("set interface br-phy mtu_request=1500")
	addAddresses(node, "br-phy", ipv4+"/24", ipv6+"/64")
	node.IP("route add default via " + routerIPv4)
	node.IP("route add default via " + routerIPv6)
	node.IP(fmt.Sprintf("route add %v via %v mtu %d", Narrow4, nstest.Beyond4, NarrowMTU))
	node.IP(fmt.Sprintf("route add %v via %v mtu %d", Narrow6, nstest.Beyond6, NarrowMTU))
	s.vsctl("set open . external_ids:ovn-encap-ip="+ipv4+" external_ids:ovn-bridge-mappings=provider:br-provider",
		fmt.Sprintf("set open . 'external_ids:ovn-chassis-mac-mappings=\"provider:00:00:00:d4:00:0%d\"'", i+1))
	if i > 0 {
		s.startController(v.nodes[0])
	}
}

// startController starts an ovn-controller that uses the databases of another node.
func (v *vswitch) startController(central *vswitch) {
	v.t.Helper()
	v.vsctl("add-br br-int", "set bridge br-int datapath_type=netdev fail_mode=secure",
		fmt.Sprintf("set open . external_ids:system-id=other external_ids:ovn-remote=unix:%s/db.sock external_ids:ovn-encap-type=geneve", central.dir))
	cmd := exec.Command("nsenter", "--net="+v.node.Path(), "/bin/sh", "-c", `set -e
mount --make-rprivate /
mount -t proc proc /proc
"$1/bin/ovn-controller" --detach --no-chdir --pidfile="$PWD/ovn-controller.pid" --log-file="$PWD/ovn-controller.log" -vconsole:off -vsyslog:off
echo ready
exec cat`, "ovn-controller", v.programs)
	cmd.Dir = v.dir
	cmd.Env = v.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	machine.StartReady(v.t, "ovn-controller", cmd)
}

// createRouter creates the router ovn-cluster with the subnets, and the policies that are the same for all nodes.
func (v *vpc) createRouter() {
	c := v.nodes[0]
	c.nbctl("lr-add ovn-cluster")
	for _, s := range []vpcSubnet{ovnDefault, blue, join, underlay} {
		addresses := s.addresses(s.router)
		c.logicalSwitch(s.name, "ovn-cluster", s.mac, addresses[0]+" "+addresses[1])
	}
	// Packets to addresses outside all subnets: each is sent on by a policy.
	commands := []string{"lr-route-add ovn-cluster 0.0.0.0/0 " + join.IPv4(join.router), "lr-route-add ovn-cluster ::/0 " + join.IPv6(join.router)}
	for _, s := range []vpcSubnet{ovnDefault, blue, join} {
		v4, v6 := s.networks()
		commands = append(commands, policy(31000, "ip4.dst == "+v4, ""), policy(31000, "ip6.dst == "+v6, ""))
	}
	// The underlay subnet (U2O). Its switch is connected to the physical network on each node. A pod there sends
	// everything to the router, and the router sends what is not for a subnet to the physical gateway, packets to
	// a node too.
	v4, v6 := underlay.networks()
	nodes := [2][]string{}
	for i := range v.nodes {
		ipv4, ipv6 := nodeAddress(i)
		nodes[0], nodes[1] = append(nodes[0], ipv4), append(nodes[1], `"`+ipv6+`"`)
	}
	commands = append(commands,
		"lsp-add underlay localnet.underlay", "lsp-set-type localnet.underlay localnet", "lsp-set-addresses localnet.underlay unknown",
		"lsp-set-options localnet.underlay network_name=provider",
		"create address_set name=underlay.u2o_exclude_ip.ip4 addresses="+strings.Join(nodes[0], ","),
		"create address_set name=underlay.u2o_exclude_ip.ip6 'addresses="+strings.Join(nodes[1], ",")+"'",
		policy(29400, "ip4.dst == "+v4, ""), policy(29400, "ip6.dst == "+v6, ""),
		policy(31000, "ip4.dst == $underlay.u2o_exclude_ip.ip4 && ip4.src == "+v4, underlay.IPv4(physicalGateway)),
		policy(31000, "ip6.dst == $underlay.u2o_exclude_ip.ip6 && ip6.src == "+v6, underlay.IPv6(physicalGateway)),
		policy(29000, "ip4.src == "+v4, underlay.IPv4(physicalGateway)), policy(29000, "ip6.src == "+v6, underlay.IPv6(physicalGateway)))
	if v.vlan != 0 {
		commands = append(commands, fmt.Sprintf("set logical_switch_port localnet.underlay tag_request=%d", v.vlan))
	}
	c.nbctl(commands...)
}

// policy returns the command that adds a policy to the router: to send a packet to the next hop, or by the routes if
// next is empty.
func policy(priority int, match, next string) string {
	action := "allow"
	if next != "" {
		action = "reroute " + next
	}
	return fmt.Sprintf("lr-policy-add ovn-cluster %d '%s' %s", priority, match, action)
}

// createNode creates a node's port in the join network, a port group for each subnet, the policies that make the node
// its pods' gateway, and the node's routes and SNAT.
func (v *vpc) createNode(i int) {
	c, s := v.nodes[0], v.nodes[i]
	port, mac := fmt.Sprint("node-node", i+1), fmt.Sprintf("00:00:00:a2:40:0%d", i+1)
	own := joinNode + i
	ipv4, ipv6 := nodeAddress(i)
	commands := []string{policy(30000, "ip4.dst == "+ipv4, join.IPv4(own)), policy(30000, "ip6.dst == "+ipv6, join.IPv6(own))}
	for _, subnet := range []vpcSubnet{ovnDefault, blue} {
		group := subnet.portGroup(i)
		commands = append(commands, "pg-add "+group, policy(29000, "ip4.src == $"+group+"_ip4", join.IPv4(own)), policy(29000, "ip6.src == $"+group+"_ip6", join.IPv6(own)))
	}
	c.logicalPort(port, "join", fmt.Sprintf("%s %s %s", mac, join.IPv4(own), join.IPv6(own)), false)
	c.nbctl(commands...)
	s.nodePort("ovn0", port, mac, v.mtu, join.addresses(own)...)
	for _, subnet := range []vpcSubnet{ovnDefault, blue} {
		v4, v6 := subnet.networks()
		s.node.IP("route add " + v4 + " via " + join.IPv4(join.router) + " dev ovn0")
		s.node.IP("route add " + v6 + " via " + join.IPv6(join.router) + " dev ovn0")
		iptables(s.node, "iptables", "-t nat -A POSTROUTING -s "+v4+" -o br-phy -j MASQUERADE")
		iptables(s.node, "ip6tables", "-t nat -A POSTROUTING -s "+v6+" -o br-phy -j MASQUERADE")
	}
}

// portGroup returns the name of the port group of the subnet's pods on a node.
func (s vpcSubnet) portGroup(node int) string {
	return fmt.Sprintf("%s.node%d", strings.ReplaceAll(s.name, "-", "."), node+1)
}

// pod creates the pod with this number on a node. Unless addressed, neither the namespace nor the logical port has
// an address.
func (v *vpc) pod(name string, node int, s vpcSubnet, mac string, number int, addressed bool) *nstest.Namespace {
	c, on := v.nodes[0], v.nodes[node]
	c.t.Helper()
	port, pod := name+".default", nstest.New(c.t, name)
	addresses := mac
	if addressed {
		addresses += " " + s.IPv4(number) + " " + s.IPv6(number)
	}
	c.logicalPort(port, s.name, addresses, true)
	if s != underlay {
		group := s.portGroup(node)
		v.members[group] = append(v.members[group], port)
		c.nbctl("pg-set-ports " + group + " " + strings.Join(v.members[group], " "))
	}
	add := on.addPort
	if v.internal {
		add = on.addInternalPort
	}
	add(pod, v.mtu, "br-int", name+"_h", "external_ids:iface-id="+port)
	pod.IP("link set eth0 alias " + name + "_c")
	pod.IP("link set eth0 address " + mac)
	pod.IP("link set eth0 up")
	if !addressed {
		return pod
	}
	addAddresses(pod, "eth0", s.addresses(number)...)
	pod.IP("route add default via " + s.IPv4(s.router) + " dev eth0")
	pod.IP("route add default via " + s.IPv6(s.router) + " dev eth0")
	return pod
}

// delete does what a CNI DEL of the pod on the first node does.
func (v *vpc) delete(t testing.TB) {
	if v.internal {
		v.nodes[0].vsctl("del-port br-int pod_h")
	} else {
		v.nodes[0].removePort(t, "br-int", "pod_h")
	}
	v.nodes[0].nbctl("lsp-del pod.default")
}

// nodeStations returns the nodes at their own addresses.
func (v *vpc) nodeStations() []Station {
	a4, a6 := nodeAddress(0)
	b4, b6 := nodeAddress(1)
	return []Station{newStation("node", v.nodes[0].node, a4, a6), newStation("another node", v.nodes[1].node, b4, b6)}
}

// createKubeOVN creates a VPC with a pod of the subnet ovn-default on the first node.
func createKubeOVN(t testing.TB, addressed bool) (*Instance, *vpc) {
	v := createVPC(t, 1500, 0)
	return v.createPods(addressed), v
}

// createPods creates a pod of the subnet ovn-default on the first node, and others.
func (v *vpc) createPods(addressed bool) *Instance {
	l := &Instance{Pod: v.pod("pod", 0, ovnDefault, "00:00:00:5b:1f:c4", 7, addressed), NIC: "eth0", Delete: v.delete}
	if addressed {
		l.IPv4, l.IPv6 = addr(ovnDefault.IPv4(7)), addr(ovnDefault.IPv6(7))
	}
	for _, net := range []string{ovnDefault.v4 + ".0.0/16 via 198.51.100.1", ovnDefault.v6 + "::/112 via 2001:db8:9::1"} {
		v.outside.IP("route add " + net)
	}
	l.Stations = slices.Concat(
		[]Station{
			join.station("ovn0", v.nodes[0].node, joinNode),
			ovnDefault.station("peer", v.pod("peer", 0, ovnDefault, "00:00:00:e0:0b:37", 8, true), 8),
			blue.station("other subnet", v.pod("other", 0, blue, "00:00:00:91:c2:5a", 7, true), 7),
			ovnDefault.station("another node's pod", v.pod("remote", 1, ovnDefault, "00:00:00:2e:70:b8", 9, true), 9),
			underlay.station("underlay pod", v.pod("under", 0, underlay, "00:00:00:37:f9:61", 7, true), 7),
		},
		v.nodeStations(), []Station{{"outside", v.outside, nstest.Beyond4, nstest.Beyond6}})
	v.nodes[0].nbctl("--wait=hv sync") // wait until the switches have the flows
	return l
}

// createKubeOVNUnderlay creates a pod of the subnet underlay on the first node.
func createKubeOVNUnderlay(t testing.TB, vlan int) *Instance {
	v := createVPC(t, 1600, vlan)
	l := &Instance{Pod: v.pod("pod", 0, underlay, "00:00:00:37:f9:61", 7, true), NIC: "eth0", Delete: v.delete,
		IPv4: addr(underlay.IPv4(7)), IPv6: addr(underlay.IPv6(7))}
	l.Stations = slices.Concat(
		[]Station{
			underlay.station("gateway", v.router, physicalGateway),
			underlay.station("physical host", v.physical, physicalHost),
			ovnDefault.station("overlay pod", v.pod("over", 0, ovnDefault, "00:00:00:5b:1f:c4", 7, true), 7),
			underlay.station("another node's pod", v.pod("remote", 1, underlay, "00:00:00:64:9d:10", 8, true), 8),
			ovnDefault.station("another node's overlay pod", v.pod("far", 1, ovnDefault, "00:00:00:2e:70:b8", 9, true), 9),
		},
		v.nodeStations(), []Station{{"outside", v.outside, nstest.Beyond4, nstest.Beyond6}})
	v.nodes[0].nbctl("--wait=hv sync") // wait until the switches have the flows
	return l
}
