// Package podnet creates the networks of CNI plugins, clouds and container engines in a pod's namespace, with the
// stations around it. Its tests give these networks to a guest and write the results to docs/results/networks.md.
package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// Network is one kind of pod network.
type Network struct {
	// Name is the name in docs/results/networks.md.
	Name string
	// Origin is what makes the network in the tests.
	Origin Origin
	// Kind is the link kind that the kernel must have, by its name in ip(8), or kindCards; empty: none.
	Kind string
	// Create creates the namespaces and the network. They last as long as the test.
	Create func(t testing.TB) *Instance
}

// Origin is what makes a network's links, addresses and rules in the tests, in the words of docs/reference/networks.md.
type Origin string

const (
	// RealProgram is the network's own program, here CNI's plugins.
	RealProgram Origin = "real program"
	// RealLink is a link of this kind in the kernel. No program belongs to the network.
	RealLink Origin = "real link"
	// RealPlugin is the network's own CNI plugin. The rules of its daemon on the nodes are recreated.
	RealPlugin Origin = "real plugin, its daemon's rules"
	// RealSwitch is Open vSwitch or OVN, with the flows, switches and policies of the network recreated.
	RealSwitch Origin = "real switch, its controller's rules"
	// Rules are recreated, by ip(8), nft(8), iptables(8) and ebtables(8), from the program's source. The program does
	// not run.
	Rules Origin = "its rules"
)

// Instance is a pod with its network, and the stations around it.
type Instance struct {
	Pod *nstest.Namespace
	NIC string
	// IPv4 and IPv6 are the pod's addresses; zero: none.
	IPv4, IPv6 netip.Addr
	// Wire: the namespace does not have these addresses. A station on the network gives them to the guest.
	Wire bool
	// Unrouted: the station outside is the pod's gateway itself, so no router lies before Narrow4 and Narrow6.
	Unrouted bool
	Stations []Station
	// Mapped are addresses and ports that a station forwards to the pod's Port.
	Mapped []netip.AddrPort
	// Services are addresses and ports by which the pod reaches a station's port, with the station's name.
	Services map[netip.AddrPort]string
	// Check and Delete run CNI's CHECK and DEL, and fail the test if these fail; nil: not a CNI network.
	Check, Delete func(t testing.TB)
}

// Port is the port of TCP, UDP and SCTP at which the pod answers.
const Port = 8000

// Station is a host on the network: gateway, node, peer, a host of another subnet, or outside.
type Station struct {
	Name      string
	Namespace *nstest.Namespace
	// IPv4 and IPv6 are the addresses at which the station answers and from which it connects; zero: none.
	IPv4, IPv6 netip.Addr
}

var addr = netip.MustParseAddr

// enableForwarding makes a namespace a router.
func enableForwarding(n *nstest.Namespace) {
	n.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
}

// disableSolicitations keeps a namespace's new links from soliciting routers. A parent link has the MAC of the
// pod's link, so its solicitations would look like the guest's.
func disableSolicitations(n *nstest.Namespace) {
	n.Exec("sysctl", "-qw", "net.ipv6.conf.default.router_solicitations=0")
}

// newStation returns a station with an address of each family.
func newStation(name string, n *nstest.Namespace, v4, v6 string) Station {
	return Station{name, n, addr(v4), addr(v6)}
}

// connectNamespaces connects two namespaces by a veth.
func connectNamespaces(a *nstest.Namespace, aName string, b *nstest.Namespace, bName string) {
	a.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", aName, bName, b.Name))
	a.IP("link set " + aName + " up")
	b.IP("link set " + bName + " up")
}

// addAddresses adds addresses with their prefix lengths to a link.
func addAddresses(n *nstest.Namespace, link string, addresses ...string) {
	for _, a := range addresses {
		line := "addr add " + a + " dev " + link
		if netip.MustParsePrefix(a).Addr().Is6() {
			line += " nodad"
		}
		n.IP(line)
	}
}

// Narrow4 and Narrow6 are further addresses of the host that has nstest.Beyond4 and nstest.Beyond6. The router before
// this host sends packets of at most NarrowMTU octets to them. To larger ones that it may not fragment it answers by
// ICMP.
var Narrow4, Narrow6 = addr("198.18.5.9"), addr("2001:db8:5::9")

// NarrowMTU is IPv6's smallest MTU.
const NarrowMTU = 1280

// addNarrow gives the host its further addresses.
func addNarrow(host *nstest.Namespace) {
	addAddresses(host, "lo", Narrow4.String()+"/32", Narrow6.String()+"/128")
}

// routeNarrow gives the router the routes to the further addresses, by the host's other ones.
func routeNarrow(router *nstest.Namespace, via4, via6 string) {
	router.IP(fmt.Sprintf("route add %v via %s mtu %d", Narrow4, via4, NarrowMTU))
	router.IP(fmt.Sprintf("route add %v via %s mtu %d", Narrow6, via6, NarrowMTU))
}

// addBehindRouter creates another subnet behind a router, with a host that also has an Internet address. The
// router has an address in the subnet, and forwards.
func addBehindRouter(t testing.TB, router *nstest.Namespace) []Station {
	far := nstest.New(t, "far")
	connectNamespaces(router, "far", far, "eth0")
	addAddresses(router, "far", "10.23.0.1/24", "fd00:23::1/64")
	addAddresses(far, "eth0", "10.23.0.9/24", "fd00:23::9/64")
	addAddresses(far, "lo", nstest.Beyond4.String()+"/32", nstest.Beyond6.String()+"/128")
	far.IP("route add default via 10.23.0.1")
	far.IP("route add default via fd00:23::1")
	router.IP("route add default via 10.23.0.9")
	router.IP("route add default via fd00:23::9")
	addNarrow(far)
	routeNarrow(router, "10.23.0.9", "fd00:23::9")
	enableForwarding(router)
	return []Station{
		newStation("other subnet", far, "10.23.0.9", "fd00:23::9"),
		{"outside", far, nstest.Beyond4, nstest.Beyond6},
	}
}

// lan creates a switched network, 10.22.0.0/24 and fd00:22::/64, with a router, a host and a node, whose link up0
// has no address.
func lan(t testing.TB) (node, router *nstest.Namespace, stations []Station) {
	node, router = nstest.New(t, "node"), nstest.New(t, "router")
	peer := nstest.New(t, "peer")
	disableSolicitations(node)
	router.IP("link add lan0 type bridge")
	router.IP("link set lan0 up")
	connectNamespaces(node, "up0", router, "node")
	connectNamespaces(peer, "eth0", router, "peer")
	router.IP("link set node master lan0")
	router.IP("link set peer master lan0")
	addAddresses(router, "lan0", "10.22.0.1/24", "fd00:22::1/64")
	addAddresses(peer, "eth0", "10.22.0.50/24", "fd00:22::50/64")
	peer.IP("route add default via 10.22.0.1")
	peer.IP("route add default via fd00:22::1")
	return node, router, append([]Station{
		newStation("gateway", router, "10.22.0.1", "fd00:22::1"),
		newStation("peer", peer, "10.22.0.50", "fd00:22::50"),
	}, addBehindRouter(t, router)...)
}
