package podnet

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// flannel are the networks of flannel's own CNI plugin, with the links, routes and rules that flanneld makes on the
// nodes. Three of its backends know IPv4 alone.
var flannel = []Network{
	{Name: "flannel, VXLAN", Origin: RealPlugin, Create: func(t testing.TB) *Instance { return createFlannel(t, 1450, true, bothWays(addVXLAN)) }},
	{Name: "flannel, host-gw", Origin: RealPlugin, Create: func(t testing.TB) *Instance { return createFlannel(t, 1500, true, bothWays(addHostGateway)) }},
	{Name: "flannel, WireGuard", Origin: RealPlugin, Kind: "wireguard", Create: func(t testing.TB) *Instance { return createFlannel(t, 1420, true, joinFlannel) }},
	{Name: "flannel, UDP", Origin: RealPlugin, Create: func(t testing.TB) *Instance { return createFlannel(t, 1472, false, joinUDP) }},
	{Name: "flannel, IPIP", Origin: RealPlugin, Kind: "ipip", Create: func(t testing.TB) *Instance { return createFlannel(t, 1480, false, bothWays(addFlannelIPIP)) }},
	{Name: "flannel, alloc", Origin: RealPlugin, Create: func(t testing.TB) *Instance { return createFlannel(t, 1500, false, routeInCloud) }},
}

// Networks of all pods of flannel's cluster.
const flannel4, flannel6 = "10.244.0.0/16", "fd00:244::/32"

// flannelNode is a node of flannel's cluster with its underlay addresses, and the networks of its pods.
type flannelNode struct {
	*nstest.Namespace
	public4, public6 string
	subnet4, subnet6 netip.Prefix // zero: the backend does not know IPv6
}

// bothWays connects two nodes by what leads from one to the other.
func bothWays(connect func(from, to flannelNode)) func(testing.TB, flannelNode, flannelNode) {
	return func(_ testing.TB, a, b flannelNode) {
		connect(a, b)
		connect(b, a)
	}
}

// createFlannel creates two nodes with pods, in IPv4 alone or in both families. connect makes the ways between the
// nodes' pods.
func createFlannel(t testing.TB, mtu int, both bool, connect func(t testing.TB, a, b flannelNode)) *Instance {
	node, other := nstest.New(t, "node"), nstest.New(t, "node")
	far := addBehindRouter(t, node)
	a := flannelNode{node, "10.25.0.1", "fd00:25::1", netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")}
	b := flannelNode{other, "10.25.0.2", "fd00:25::2", netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:244:0:2::/64")}
	if !both {
		a.subnet6, b.subnet6 = netip.Prefix{}, netip.Prefix{}
	}
	connectNamespaces(node, "ens3", other, "ens3")
	for _, n := range []flannelNode{a, b} {
		addAddresses(n.Namespace, "ens3", n.public4+"/24", n.public6+"/64")
		enableForwarding(n.Namespace)
		n.addRules()
	}
	connect(t, a, b)
	c := a.chain(t, mtu)
	peer := c.add(t, nstest.New(t, "peer"), "eth0")
	remote := b.chain(t, mtu).add(t, nstest.New(t, "remote"), "eth0")
	c.configs = append(c.configs, `"type": "portmap", "snat": true,
		"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 8000, "protocol": "tcp"}]}`)
	gateway := newStation("gateway", node, "10.244.1.1", "fd00:244:0:1::1")
	if !both {
		gateway.IPv6 = netip.Addr{}
	}
	l := c.add(t, nstest.New(t, "pod"), "eth0").instance(append(far,
		gateway, newStation("node", node, a.public4, a.public6),
		peer.station("peer"), newStation("another node", other, b.public4, b.public6), remote.station("another node's pod"))...)
	l.Mapped = []netip.AddrPort{netip.MustParseAddrPort("10.25.0.1:8080")}
	if both {
		l.Mapped = append(l.Mapped, netip.MustParseAddrPort("[fd00:25::1]:8080"))
	}
	return l
}

// chain returns the plugins of flannel's manifest for Kubernetes, with the file that flanneld writes.
func (n flannelNode) chain(t testing.TB, mtu int) chain {
	t.Helper()
	if _, err := os.Stat(filepath.Join(flannelDir, "flannel")); err != nil {
		nstest.Skip(t, "no flannel in "+flannelDir+": make install")
	}
	leases, file := t.TempDir(), filepath.Join(t.TempDir(), "subnet.env")
	env := fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%v/24\nFLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n", flannel4, n.subnet4.Addr().Next(), mtu)
	if n.subnet6.IsValid() {
		env += fmt.Sprintf("FLANNEL_IPV6_NETWORK=%s\nFLANNEL_IPV6_SUBNET=%v/64\n", flannel6, n.subnet6.Addr().Next())
	}
	if err := os.WriteFile(file, []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newChain(t, n.Namespace, fmt.Sprintf(`"type": "flannel", "subnetFile": %q, "ipam": {"dataDir": %q}, "delegate": {"bridge": "cni0", "hairpinMode": true, "isDefaultGateway": true}`, file, leases))
	c.leases, c.version = leases, "0.4.0" // the plugin's library knows no later one
	return c
}

// addRules adds the rules of flanneld -ip-masq (pkg/trafficmngr/iptables): a packet to outside gets the node's address.
func (n flannelNode) addRules() {
	type network struct{ all, subnet, multicast string }
	networks := map[string]network{"iptables": {flannel4, n.subnet4.String(), "224.0.0.0/4"}}
	if n.subnet6.IsValid() {
		networks["ip6tables"] = network{flannel6, n.subnet6.String(), "ff00::/8"}
	}
	for program, network := range networks {
		iptables(n.Namespace, program,
			"-t nat -N FLANNEL-POSTRTG",
			"-t nat -A POSTROUTING -j FLANNEL-POSTRTG",
			"-t nat -A FLANNEL-POSTRTG -s "+network.subnet+" -d "+network.all+" -j RETURN",
			"-t nat -A FLANNEL-POSTRTG -s "+network.all+" -d "+network.subnet+" -j RETURN",
			"-t nat -A FLANNEL-POSTRTG ! -s "+network.all+" -d "+network.subnet+" -j RETURN",
			"-t nat -A FLANNEL-POSTRTG -s "+network.all+" ! -d "+network.multicast+" -j MASQUERADE --random-fully",
			"-t nat -A FLANNEL-POSTRTG ! -s "+network.all+" -d "+network.all+" -j MASQUERADE --random-fully",
			"-N FLANNEL-FWD",
			"-A FORWARD -j FLANNEL-FWD",
			"-A FLANNEL-FWD -s "+network.all+" -j ACCEPT",
			"-A FLANNEL-FWD -d "+network.all+" -j ACCEPT")
	}
}

// addHostGateway adds routes to the other node's pods by the other node.
func addHostGateway(from, to flannelNode) {
	from.IP(fmt.Sprintf("route add %v via %s dev ens3", to.subnet4, to.public4))
	from.IP(fmt.Sprintf("route add %v via %s dev ens3", to.subnet6, to.public6))
}

// addVXLAN adds a VXLAN link for each version of IP. The link learns nothing: neighbours, the forwarding table and the
// routes, whose gateways are the other node's VXLAN addresses, are permanent.
//
// The pods' MTU of 1450 leaves 50 octets for VXLAN over IPv4. Over IPv6 VXLAN takes 70, so the nodes' link has 1520:
// with 1500 each sender of IPv6 has to learn the path's MTU, and long datagrams of the embedded guest did not arrive.
//
// github.com/flannel-io/flannel: pkg/backend/vxlan
func addVXLAN(from, to flannelNode) {
	from.IP("link set ens3 mtu 1520")
	for _, v := range []struct {
		link, own, peer string
		subnet, remote  netip.Prefix
	}{
		{"flannel.1", from.public4, to.public4, from.subnet4, to.subnet4},
		{"flannel-v6.1", from.public6, to.public6, from.subnet6, to.subnet6},
	} {
		from.IP(fmt.Sprintf("link add %s address %s mtu 1450 type vxlan id 1 local %s dev ens3 dstport 8472 nolearning", v.link, vtepMAC(v.own), v.own))
		addAddresses(from.Namespace, v.link, netip.PrefixFrom(v.subnet.Addr(), v.subnet.Addr().BitLen()).String())
		from.IP("link set " + v.link + " up")
		from.IP(fmt.Sprintf("neigh add %v lladdr %s dev %s nud permanent", v.remote.Addr(), vtepMAC(v.peer), v.link))
		from.Exec("bridge", "fdb", "add", vtepMAC(v.peer), "dev", v.link, "dst", v.peer, "self", "permanent")
		from.IP(fmt.Sprintf("route add %v via %v dev %s onlink", v.remote, v.remote.Addr(), v.link))
	}
}

// joinUDP makes the tun device of each node, and carries its packets to the other node in datagrams, as flanneld does
// by itself.
//
// github.com/flannel-io/flannel: pkg/backend/udp
func joinUDP(t testing.TB, a, b flannelNode) {
	nstest.NeedTaps(t)
	ends := [2][2]io.ReadWriteCloser{}
	for i, n := range [][2]flannelNode{{a, b}, {b, a}} {
		own, peer := n[0], n[1]
		ends[i][0] = openTun(t, own.Namespace, "flannel0")
		own.IP("link set flannel0 mtu 1472 up")
		own.IP(fmt.Sprintf("addr add %v/16 dev flannel0", own.subnet4.Addr()))
		err := netns.Do(own.File, func() (err error) {
			at := func(public string) *net.UDPAddr {
				return net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(public), 8285))
			}
			ends[i][1], err = net.DialUDP("udp", at(own.public4), at(peer.public4))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range ends {
		joinTuns(t, e[0], e[1])
	}
}

// addFlannelIPIP adds flannel's IPIP link and the routes by it.
//
// github.com/flannel-io/flannel: pkg/backend/ipip
func addFlannelIPIP(from, to flannelNode) {
	from.IP("link add flannel.ipip mtu 1480 type ipip local " + from.public4 + " nopmtudisc")
	addAddresses(from.Namespace, "flannel.ipip", from.subnet4.Addr().String()+"/32")
	from.IP("link set flannel.ipip up")
	from.IP(fmt.Sprintf("route add %v via %s dev flannel.ipip onlink", to.subnet4, to.public4))
}

// routeInCloud puts a cloud's router, which has a route to each node's pods, between the nodes. The backend alloc makes
// nothing on the nodes.
func routeInCloud(t testing.TB, a, b flannelNode) {
	router := nstest.New(t, "cloud")
	enableForwarding(router)
	router.IP("link add vpc0 type bridge")
	router.IP("link set vpc0 up")
	addAddresses(router, "vpc0", "10.25.0.254/24")
	a.IP("link del ens3")
	for i, n := range []flannelNode{a, b} {
		port := fmt.Sprintf("node%d", i)
		connectNamespaces(n.Namespace, "ens3", router, port)
		router.IP("link set " + port + " master vpc0")
		addAddresses(n.Namespace, "ens3", n.public4+"/24", n.public6+"/64")
		n.IP("route add " + flannel4 + " via 10.25.0.254")
		router.IP(fmt.Sprintf("route add %v via %s", n.subnet4, n.public4))
	}
}

// vtepMAC returns the MAC of a node's VXLAN link.
func vtepMAC(public string) string {
	b := addr(public).As16()
	return fmt.Sprintf("0e:00:00:%02x:%02x:%02x", b[3], b[12], b[15])
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
