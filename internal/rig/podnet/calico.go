package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// calico are the networks of Calico on two nodes, with the links, routes and rules of Felix and BIRD.
var calico = []Network{
	{Name: "Calico, VXLAN", Origin: Rules, Create: func(t testing.TB) *Instance { return createCalico(t, 1430, calicoNode.addVXLAN) }},
	{Name: "Calico, IPIP", Origin: Rules, Kind: "ipip", Create: func(t testing.TB) *Instance { return createCalico(t, 1480, calicoNode.addIPIP) }},
}

// Pools of all pods of Calico's cluster.
const calico4, calico6 = "10.22.0.0/16", "fd00:22::/64"

// calicoNode is a node of Calico's cluster with its underlay addresses, and the blocks of its pods' addresses.
type calicoNode struct {
	*nstest.Namespace
	public4, public6 string
	block4, block6   netip.Prefix
}

// createCalico creates two nodes with pods. connect makes the way to the other node's pods.
func createCalico(t testing.TB, mtu int, connect func(from, to calicoNode)) *Instance {
	node, other := nstest.New(t, "node"), nstest.New(t, "node")
	far := addBehindRouter(t, node)
	a := calicoNode{node, "10.25.0.1", "fd00:25::1", netip.MustParsePrefix("10.22.0.0/26"), netip.MustParsePrefix("fd00:22::/122")}
	b := calicoNode{other, "10.25.0.2", "fd00:25::2", netip.MustParsePrefix("10.22.0.64/26"), netip.MustParsePrefix("fd00:22::40/122")}
	connectNamespaces(node, "ens3", other, "ens3")
	for _, n := range []calicoNode{a, b} {
		addAddresses(n.Namespace, "ens3", n.public4+"/24", n.public6+"/64")
		enableForwarding(n.Namespace)
		n.IP("route add blackhole " + n.block4.String() + " proto 80")
		n.IP("route add blackhole " + n.block6.String() + " proto 80")
		n.addRules()
	}
	// proxy_arp answers for addresses to which the node has a route.
	other.IP("route add default via " + a.public4)
	other.IP("route add default via " + a.public6)
	connect(a, b)
	connect(b, a)
	pod, peer := a.addPod(t, "pod", "10.22.0.10", "fd00:22::10", mtu), a.addPod(t, "peer", "10.22.0.11", "fd00:22::11", mtu)
	remote := b.addPod(t, "remote", "10.22.0.74", "fd00:22::4a", mtu)
	return pod.instance(append(far, newStation("node", node, "10.23.0.1", "fd00:23::1"), peer.station("peer"),
		newStation("another node", other, b.public4, b.public6), remote.station("another node's pod"))...)
}

// addPod adds a pod. All veths on a node have the same MAC; its link-local address is the pods' IPv6 gateway. By
// proxy_arp the node answers ARP for 169.254.1.1 and all other addresses.
func (n calicoNode) addPod(t testing.TB, name, v4, v6 string, mtu int) routed {
	r := newRouted(t, n.Namespace, name, v4, v6, "ee:ee:ee:ee:ee:ee", mtu)
	n.Exec("sysctl", "-qw", "net.ipv4.conf."+r.host+".proxy_arp=1", "net.ipv4.conf."+r.host+".rp_filter=1",
		"net.ipv4.neigh."+r.host+".proxy_delay=0", "net.ipv6.conf."+r.host+".proxy_ndp=1")
	var rules []string
	for chain, dispatch := range map[string]string{"cali-fw-" + name: "cali-from-wl-dispatch -i", "cali-tw-" + name: "cali-to-wl-dispatch -o"} {
		rules = append(rules,
			"-N "+chain,
			"-A "+chain+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"-A "+chain+" -m conntrack --ctstate INVALID -j DROP",
			"-A "+chain+" -p udp -m multiport --dports 4789 -j DROP",
			"-A "+chain+" -p 4 -j DROP",
			"-A "+chain+" -j MARK --set-xmark 0x10000/0x10000",
			"-I "+dispatch+" "+r.host+" -g "+chain)
	}
	iptables(n.Namespace, "iptables", rules...)
	iptables(n.Namespace, "ip6tables", rules...)
	r.pod.IP("route add 169.254.1.1 dev eth0 scope link")
	r.pod.IP("route add default via 169.254.1.1 dev eth0")
	r.pod.IP("route add default via fe80::ecee:eeff:feee:eeee dev eth0")
	r.pod.Exec("sysctl", "-qw", "net.ipv4.ip_forward=0")
	return r
}

// addRules adds Felix's rules that do not depend on a pod: a source address whose route does not lead back to the pod
// is dropped, as is what no pod's chain accepts, and packets to outside get the node's address.
func (n calicoNode) addRules() {
	for program, pool := range map[string]string{"iptables": calico4, "ip6tables": calico6} {
		iptables(n.Namespace, program,
			"-t raw -A PREROUTING -i veth-+ -m rpfilter --validmark --invert -j DROP",
			"-N cali-from-wl-dispatch",
			"-A cali-from-wl-dispatch -j DROP",
			"-N cali-to-wl-dispatch",
			"-A cali-to-wl-dispatch -j DROP",
			"-A FORWARD -i veth-+ -j cali-from-wl-dispatch",
			"-A FORWARD -o veth-+ -j cali-to-wl-dispatch",
			"-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT",
			"-t nat -A POSTROUTING -s "+pool+" ! -d "+pool+" -j MASQUERADE --random-fully")
	}
}

// addVXLAN adds Felix's VXLAN link for each version of IP, with an address of the node's block, and routes by the other
// node's addresses there.
func (n calicoNode) addVXLAN(to calicoNode) {
	for _, v := range []struct {
		link, own, peer string
		mtu             int
		block, remote   netip.Prefix
	}{
		{"vxlan.calico", n.public4, to.public4, 1450, n.block4, to.block4},
		{"vxlan-v6.calico", n.public6, to.public6, 1430, n.block6, to.block6},
	} {
		gateway := v.remote.Addr().Next()
		n.IP(fmt.Sprintf("link add %s address %s mtu %d type vxlan id 4096 local %s dev ens3 dstport 4789 nolearning", v.link, vtepMAC(v.own), v.mtu, v.own))
		addAddresses(n.Namespace, v.link, netip.PrefixFrom(v.block.Addr().Next(), v.block.Addr().BitLen()).String())
		n.IP("link set " + v.link + " up")
		n.IP(fmt.Sprintf("neigh add %v lladdr %s dev %s nud permanent", gateway, vtepMAC(v.peer), v.link))
		n.Exec("bridge", "fdb", "add", vtepMAC(v.peer), "dev", v.link, "dst", v.peer, "self", "permanent")
		n.IP(fmt.Sprintf("route add %v via %v dev %s proto 80 onlink", v.remote, gateway, v.link))
	}
}

// addIPIP sets up the kernel's own IPIP link, and BIRD's routes. IPv6 is not encapsulated.
func (n calicoNode) addIPIP(to calicoNode) {
	addAddresses(n.Namespace, "tunl0", netip.PrefixFrom(n.block4.Addr().Next(), 32).String())
	n.IP("link set tunl0 mtu 1480 up")
	n.IP(fmt.Sprintf("route add %v via %s dev tunl0 proto bird onlink", to.block4, to.public4))
	n.IP(fmt.Sprintf("route add %v via %s dev ens3 proto bird", to.block6, to.public6))
}
