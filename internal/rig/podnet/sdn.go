package podnet

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

var openShiftSDN = Network{Name: "OpenShift SDN", Origin: RealSwitch, Create: func(t testing.TB) *Instance { l, _ := createSDN(t); return l }}

// sdnNode is a node of OpenShift SDN with its address in the nodes' network, and the network of its pods.
type sdnNode struct {
	*vswitch
	address, subnet, gateway string
	ports                    []string // of its pods in the switch
}

// createSDN creates two nodes of OpenShift SDN with its network policies, connected by VXLAN, and pods of one project
// that may use multicast. There is no IPv6. The node of the pod is returned, too.
//
// A service has a cluster address, which a pod reaches by a rule of the switch. The SDN has the node's iptables
// translate there, and takes the answer back by connection tracking that the kernel's switch shares with iptables; the
// datapath in user space has connection tracking of its own, so the switch translates. Iptables serves the node, and
// who comes through the node: outside, by the service's address or by a port of the node.
//
// github.com/openshift/sdn: pkg/network/node/ovscontroller.go, cmd/sdn-cni-plugin/openshift-sdn_linux.go
func createSDN(t testing.TB) (*Instance, *sdnNode) {
	node, outside := newNode(t, "10.128.0.0/14", "172.30.0.0/16")
	other := nstest.New(t, "node")
	enableForwarding(other)
	connectNamespaces(node, "ens3", other, "ens3")
	a := startSDN(t, node, "10.25.0.1", "10.128.0.0/23", "10.128.0.1")
	b := startSDN(t, other, "10.25.0.2", "10.130.0.0/23", "10.130.0.1")
	pod := a.addPod("vethpod", "10.128.0.5")
	peer := a.addPod("vethpeer", "10.128.0.6")
	remote := b.addPod("vethother", "10.130.0.5")
	services := []sdnService{
		{"172.30.0.5:80", "10.128.0.5:8000"},
		{"172.30.0.6:80", "10.128.0.6:9000"},
		{"172.30.0.7:80", "10.130.0.5:9000"},
	}
	a.addFlows("br0", a.replace(b, sdnFlows)+a.replace(b, sdnServiceFlows(services)))
	b.addFlows("br0", b.replace(a, sdnFlows)+b.replace(a, sdnServiceFlows(services)))
	rules := []string{
		// The switch would give the answer of a pod on this node to the pod that has asked.
		"-t nat -A POSTROUTING -s " + a.subnet + " -o tun0 -m conntrack --ctstate DNAT -j MASQUERADE",
	}
	for _, s := range append(services, sdnService{"198.51.100.1:8080", "10.128.0.5:8000"}) { // the last one is a hostport
		at := netip.MustParseAddrPort(s.address)
		for _, chain := range []string{"PREROUTING", "OUTPUT"} {
			rules = append(rules, fmt.Sprintf("-t nat -A %s -d %v/32 -p tcp -m tcp --dport %d -j DNAT --to-destination %s", chain, at.Addr(), at.Port(), s.pod))
		}
	}
	iptables(node, "iptables", rules...)
	other.IP("route add default via " + a.address)
	iptables(other, "iptables", "-t nat -A POSTROUTING -s "+b.subnet+" -o br-phy -j MASQUERADE")
	return &Instance{
		Pod: pod, NIC: "eth0", IPv4: addr("10.128.0.5"),
		Stations: []Station{
			{Name: "gateway", Namespace: node, IPv4: addr("10.128.0.1")},
			{Name: "peer", Namespace: peer, IPv4: addr("10.128.0.6")},
			{Name: "other node's pod", Namespace: remote, IPv4: addr("10.130.0.5")},
			{Name: "outside", Namespace: outside.Namespace, IPv4: outside.IPv4},
		},
		Mapped: []netip.AddrPort{netip.MustParseAddrPort(services[0].address), netip.MustParseAddrPort("198.51.100.1:8080")},
		Services: map[netip.AddrPort]string{
			netip.MustParseAddrPort(services[1].address): "peer",
			netip.MustParseAddrPort(services[2].address): "other node's pod",
		},
		Delete: func(t testing.TB) { a.removePort(t, "br0", "vethpod") },
	}, a
}

// startSDN starts a node's switch. A datapath in user space sends and receives a tunnel's packets by a bridge with the
// node's address.
func startSDN(t testing.TB, node *nstest.Namespace, address, subnet, gateway string) *sdnNode {
	t.Helper()
	n := &sdnNode{vswitch: startOVS(t, node, false), address: address, subnet: subnet, gateway: gateway}
	n.dropInKernel("ens3")
	node.Exec("ethtool", "-K", "ens3", "tx", "off")
	n.vsctl("add-br br-phy", "set bridge br-phy datapath_type=netdev", "add-port br-phy ens3",
		"add-br br0", "set bridge br0 datapath_type=netdev fail_mode=secure protocols=OpenFlow13",
		"add-port br0 vxlan0", "set interface vxlan0 type=vxlan options:remote_ip=flow options:key=flow options:dst_port=4789 ofport_request=1",
		"add-port br0 tun0", "set interface tun0 type=internal mtu_request=1450 ofport_request=2")
	n.run("", "ovs-ofctl", "-O", "OpenFlow13", "set-frags", "br0", "nx-match")
	addAddresses(node, "br-phy", address+"/24")
	addAddresses(node, "tun0", gateway+"/23")
	node.IP("link set br-phy up")
	node.IP("link set tun0 up")
	node.IP("route add 10.128.0.0/14 dev tun0")
	node.IP("route add 172.30.0.0/16 dev tun0")
	return n
}

// addPod creates a pod. Its routes have an MTU below the link's, as during a change of the cluster's MTU.
func (n *sdnNode) addPod(port, address string) *nstest.Namespace {
	n.t.Helper()
	pod := nstest.New(n.t, "pod")
	number := strconv.Itoa(3 + len(n.ports))
	n.ports = append(n.ports, number)
	n.addPort(pod, 1450, "br0", port, fmt.Sprintf("external_ids:sandbox=%s external_ids:ip=%s ofport_request=%s", port, address, number))
	n.addPodFlows(number, address, 42)
	pod.IP("link set eth0 address " + addressMAC(address))
	pod.IP("addr add " + address + "/23 broadcast + dev eth0")
	pod.IP("link set eth0 up")
	pod.IP("route add default via " + n.gateway + " dev eth0 mtu 1400")
	pod.IP("route add 10.128.0.0/14 dev eth0 scope global mtu 1400")
	pod.IP("route add 224.0.0.0/4 dev eth0 scope global")
	pod.IP("route add 172.30.0.0/16 via " + n.gateway + " dev eth0 mtu 1400")
	return pod
}

// addPodFlows adds the flows of a pod at a port, whose project has the number.
func (n *sdnNode) addPodFlows(port, address string, project int) {
	n.t.Helper()
	n.addFlows("br0", strings.NewReplacer("PORT", port, "ADDRESS", address, "PROJECT", strconv.Itoa(project),
		"MAC", "00:00"+addressMAC(address)[5:]+"/00:00:ff:ff:ff:ff").Replace(sdnPodFlows))
}

// updatePod does what CNI_UPDATE does: it replaces the flows of a pod, whose project has got another number.
func (n *sdnNode) updatePod(port, address string, project int) {
	n.t.Helper()
	for _, of := range []string{"ip,nw_dst=", "ip,nw_src=", "arp,nw_dst=", "arp,nw_src="} {
		n.run("", "ovs-ofctl", "-O", "OpenFlow13", "del-flows", "br0", of+address)
	}
	n.addPodFlows(port, address, project)
}

// allowProject adds the flow by which pods of the project receive from pods of all projects.
func (n *sdnNode) allowProject(project int) {
	n.t.Helper()
	n.addFlows("br0", fmt.Sprintf("table=80, priority=50, reg1=%d, actions=output:NXM_NX_REG2[]\n", project))
}

// replace puts the node's and the other node's addresses into flows.
func (n *sdnNode) replace(other *sdnNode, flows string) string {
	return strings.NewReplacer("SUBNET", n.subnet, "GATEWAY", n.gateway, "REMOTE", other.subnet, "NODE", other.address,
		"PODS", "output:"+strings.Join(n.ports, ",output:")).Replace(flows)
}

// sdnService is a service: its address and port, and those of the pod behind.
type sdnService struct{ address, pod string }

// sdnServiceFlows are the flows by which pods reach services. An answer is translated back in table 30.
func sdnServiceFlows(services []sdnService) string {
	var flows strings.Builder
	for _, s := range services {
		at, pod := netip.MustParseAddrPort(s.address), netip.MustParseAddrPort(s.pod)
		fmt.Fprintf(&flows, "table=60, priority=300, tcp, nw_dst=%v, tp_dst=%d, actions=set_field:%s->eth_dst,ct(commit,nat(dst=%v),table=30)\n",
			at.Addr(), at.Port(), addressMAC(pod.Addr().String()), pod)
	}
	return flows.String()
}

// sdnFlows are the flows of a node for the project with the number 42, without egress policies.
const sdnFlows = `
# Table 0: where from. Port 1 is the other nodes, 2 the node, and all else are pods.
table=0, priority=1000, ip, ct_state=-trk, actions=ct(table=0)
table=0, priority=200, in_port=1, arp, nw_src=10.128.0.0/14, nw_dst=SUBNET, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=200, in_port=1, ip, nw_src=10.128.0.0/14, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=200, in_port=1, ip, nw_dst=10.128.0.0/14, actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
table=0, priority=150, in_port=1, actions=drop
table=0, priority=400, in_port=2, ip, nw_src=GATEWAY, actions=goto_table:30
table=0, priority=300, in_port=2, ip, nw_src=SUBNET, nw_dst=10.128.0.0/14, actions=goto_table:25
table=0, priority=250, in_port=2, ip, nw_dst=224.0.0.0/4, actions=drop
table=0, priority=200, in_port=2, arp, nw_src=GATEWAY, nw_dst=10.128.0.0/14, actions=goto_table:30
table=0, priority=200, in_port=2, ip, actions=goto_table:30
table=0, priority=150, in_port=2, actions=drop
table=0, priority=100, arp, actions=goto_table:20
table=0, priority=100, ip, actions=goto_table:20
table=0, priority=0, actions=drop

# Table 10: from another node. Table 20: from a pod, which is checked.
table=10, priority=100, tun_src=NODE, actions=goto_table:30
table=10, priority=0, actions=drop
table=20, priority=300, udp, udp_dst=4789, actions=drop
table=20, priority=0, actions=drop
table=21, priority=200, ip, nw_dst=10.128.0.0/14, ct_state=-rpl, actions=ct(commit,nat(src=0.0.0.0),table=30)
table=21, priority=0, actions=goto_table:30
table=25, priority=0, actions=drop

# Table 30: where to.
table=30, priority=300, arp, nw_dst=GATEWAY, actions=output:2
table=30, priority=200, arp, nw_dst=SUBNET, actions=goto_table:40
table=30, priority=100, arp, nw_dst=10.128.0.0/14, actions=goto_table:50
table=30, priority=300, ip, nw_dst=GATEWAY, actions=output:2
table=30, priority=250, ip, nw_dst=SUBNET, ct_state=+rpl, actions=ct(nat,table=70)
table=30, priority=200, ip, nw_dst=SUBNET, actions=goto_table:70
table=30, priority=100, ip, nw_dst=172.30.0.0/16, actions=goto_table:60
table=30, priority=100, ip, nw_dst=10.128.0.0/14, actions=goto_table:90
table=30, priority=50, in_port=1, ip, nw_dst=224.0.0.0/4, actions=goto_table:120
table=30, priority=25, ip, nw_dst=224.0.0.0/4, actions=goto_table:110
table=30, priority=0, ip, actions=goto_table:101
table=30, priority=0, arp, actions=drop

# ARP to a pod of this node, and of another one.
table=40, priority=0, actions=drop
table=50, priority=100, arp, nw_dst=REMOTE, actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:NODE->tun_dst,output:1
table=50, priority=0, actions=drop

# Table 60: to a service.
table=60, priority=200, actions=output:2
table=60, priority=0, actions=drop

# IP to a pod of this node, which policies of the network may forbid; of another one; and to outside.
table=70, priority=0, actions=drop
table=80, priority=300, ip, nw_src=GATEWAY/32, actions=output:NXM_NX_REG2[]
table=80, priority=200, ip, ct_state=+rpl, actions=output:NXM_NX_REG2[]
table=80, priority=50, reg1=42, actions=output:NXM_NX_REG2[]
table=80, priority=0, actions=drop
table=90, priority=100, ip, nw_dst=REMOTE, actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:NODE->tun_dst,output:1
table=90, priority=0, actions=drop
table=101, priority=0, actions=output:2

# Multicast of a project that may use it: to the other nodes, and to all pods of this node.
table=110, priority=100, reg0=42, actions=goto_table:111
table=110, priority=0, actions=drop
table=111, priority=100, actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:NODE->tun_dst,output:1,goto_table:120
table=120, priority=100, reg0=42, actions=PODS
table=120, priority=0, actions=drop
`

// sdnPodFlows are the flows of a pod. They check the pod's MAC in ARP only.
const sdnPodFlows = `
table=20, priority=100, in_port=PORT, arp, nw_src=ADDRESS, arp_sha=MAC, actions=load:PROJECT->NXM_NX_REG0[],goto_table:21
table=20, priority=100, in_port=PORT, ip, nw_src=ADDRESS, actions=load:PROJECT->NXM_NX_REG0[],goto_table:21
table=25, priority=100, ip, nw_src=ADDRESS, actions=load:PROJECT->NXM_NX_REG0[],goto_table:30
table=40, priority=100, arp, nw_dst=ADDRESS, actions=output:PORT
table=70, priority=100, ip, nw_dst=ADDRESS, actions=load:PROJECT->NXM_NX_REG1[],load:PORT->NXM_NX_REG2[],goto_table:80
`
