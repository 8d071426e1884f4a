package podnet

import (
	"fmt"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

var (
	ovnKubernetes = Network{Name: "OVN-Kubernetes", Origin: RealSwitch, Create: func(t testing.TB) *Instance { return createOVNKubernetes(t, true) }}
	// A pod of a VM with live migration: the namespace has no address, and OVN answers the guest's DHCP.
	ovnKubernetesVM = Network{Name: "OVN-Kubernetes, for a VM", Origin: RealSwitch, Create: func(t testing.TB) *Instance { return createOVNKubernetes(t, false) }}
)

// createOVNKubernetes creates a node of OVN-Kubernetes in local gateway mode, where the node routes packets that leave
// the cluster: the router ovn_cluster_router with a switch for each of two nodes, and the node's own port on its
// switch. The pod's routes have an MTU below the link's, as during a change of the cluster's MTU.
//
// Unless addressed, only the logical port has addresses, and OVN answers the guest's DHCP. The gateway is the
// router's address, not 169.254.1.1: not every client accepts 169.254.1.1 with a lease of a /24.
//
// github.com/ovn-org/ovn-kubernetes: go-controller/pkg/cni/helper_linux.go, go-controller/pkg/kubevirt
func createOVNKubernetes(t testing.TB, addressed bool) *Instance {
	node, outside := newNode(t, "10.244.0.0/16", "fd00:10:244::/48")
	v := startOVS(t, node, true)
	v.nbctl("lr-add ovn_cluster_router")
	v.logicalSwitch("node1", "ovn_cluster_router", addressMAC("10.244.1.1"), "10.244.1.1/24 fd00:10:244:1::1/64")
	v.logicalSwitch("node2", "ovn_cluster_router", addressMAC("10.244.2.1"), "10.244.2.1/24 fd00:10:244:2::1/64")
	v.nbctl("--policy=src-ip lr-route-add ovn_cluster_router 10.244.1.0/24 10.244.1.2",
		"--policy=src-ip lr-route-add ovn_cluster_router fd00:10:244:1::/64 fd00:10:244:1::2")
	const mac = "ca:67:1d:8f:02:5e"
	v.logicalPort("k8s-node1", "node1", mac+" 10.244.1.2 fd00:10:244:1::2", false)
	v.nodePort("ovn-k8s-mp0", "k8s-node1", mac, 1400, "10.244.1.2/24", "fd00:10:244:1::2/64")
	node.IP("route add 10.244.0.0/16 via 10.244.1.1 dev ovn-k8s-mp0")
	node.IP("route add fd00:10:244::/48 via fd00:10:244:1::1 dev ovn-k8s-mp0")
	l := &Instance{
		Pod: v.ovnKubernetesPod("pod", 1, 5, addressed), NIC: "eth0", IPv4: addr("10.244.1.5"), IPv6: addr("fd00:10:244:1::5"),
		Stations: []Station{
			newStation("node", node, "10.244.1.2", "fd00:10:244:1::2"),
			newStation("peer", v.ovnKubernetesPod("peer", 1, 6, true), "10.244.1.6", "fd00:10:244:1::6"),
			newStation("other node's pod", v.ovnKubernetesPod("other", 2, 5, true), "10.244.2.5", "fd00:10:244:2::5"),
			outside,
		},
		Delete: func(t testing.TB) {
			v.removePort(t, "br-int", "pod_h")
			v.nbctl("lsp-del default_pod")
		},
	}
	if l.Wire = !addressed; l.Wire {
		v.nbctl("set logical_router_port ovn_cluster_router-node1 ipv6_ra_configs:address_mode=dhcpv6_stateful",
			"--id=@v4 create dhcp_options cidr=10.244.1.0/24 options:lease_time=3500 options:mtu=1400 options:router=10.244.1.1"+
				" options:server_id=10.244.1.1 'options:server_mac=\"0a:58:0a:f4:01:01\"'",
			"--id=@v6 create dhcp_options 'cidr=\"fd00:10:244:1::/64\"' 'options:server_id=\"0a:58:0a:f4:01:01\"'",
			"set logical_switch_port default_pod dhcpv4_options=@v4 dhcpv6_options=@v6")
	}
	v.nbctl("--wait=hv sync") // wait until the switch has the flows
	return l
}

// ovnKubernetesPod creates the pod with this number on a node's switch.
func (v *vswitch) ovnKubernetesPod(name string, node, number int, addressed bool) *nstest.Namespace {
	v.t.Helper()
	net4, net6 := fmt.Sprintf("10.244.%d.", node), fmt.Sprintf("fd00:10:244:%d::", node)
	ipv4, ipv6 := fmt.Sprint(net4, number), fmt.Sprint(net6, number)
	mac, pod := addressMAC(ipv4), nstest.New(v.t, name)
	v.logicalPort("default_"+name, fmt.Sprint("node", node), mac+" "+ipv4+" "+ipv6, true)
	v.addPort(pod, 1400, "br-int", name+"_h", "external_ids:iface-id=default_"+name)
	pod.IP("link set eth0 address " + mac)
	if !addressed {
		// Otherwise the router's advertisements would change the pod at any time.
		pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=0")
		pod.IP("link set eth0 up")
		return pod
	}
	pod.IP("link set eth0 up")
	addAddresses(pod, "eth0", ipv4+"/24", ipv6+"/64")
	for _, to := range []string{"default", "10.244.0.0/16", "10.96.0.0/16", "100.64.0.0/16"} {
		pod.IP("route add " + to + " via " + net4 + "1 dev eth0 mtu 1380")
	}
	for _, to := range []string{"default", "fd00:10:244::/48", "fd00:10:96::/112", "fd98::/64"} {
		pod.IP("route add " + to + " via " + net6 + "1 dev eth0 mtu 1380")
	}
	return pod
}
