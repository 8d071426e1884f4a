// Package podnet lays the networks that CNI plugins, clouds and container engines lay in a pod's
// namespace, with everybody around. Its tests hand them to a guest, and docs/networks.md is what they
// measured.
package podnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

// Network is one way to lay a network into a namespace.
type Network struct {
	// Name is as in docs/networks.md.
	Name string
	// Kind is a link kind that the kernel must have, as ip(8) calls it; empty: none.
	Kind string
	// Lay makes the namespaces and lays the network. They last as long as the test.
	Lay func(t testing.TB) *Laid
}

// Laid is a pod with its network, and everybody around.
type Laid struct {
	Pod *nstest.Namespace
	NIC string
	// IPv4 and IPv6 are the pod's; zero: none.
	IPv4, IPv6 netip.Addr
	// Wire says that the namespace does not have them: somebody on the network tells a guest.
	Wire     bool
	Stations []Station
	// Mapped are what others forward to the pod's Port.
	Mapped []netip.AddrPort
	// Check and Delete are CNI's CHECK and DEL, which have to succeed; nil: nobody laid it that has
	// them.
	Check, Delete func(t testing.TB)
}

// Port is the one of the pod at which it is asked.
const Port = 8000

// Station is somebody on the network: gateway, node, peer, other subnet, outside.
type Station struct {
	Name      string
	Namespace *nstest.Namespace
	// IPv4 and IPv6 are those that it is asked at, and asks from; zero: none.
	IPv4, IPv6 netip.Addr
}

// Networks are all of them, in the order of docs/networks.md.
var Networks = slices.Concat(plugins, clouds, containers, switches, ovn)

var addr = netip.MustParseAddr

// forwards lets a namespace be a router.
func forwards(n *nstest.Namespace) {
	n.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
}

// silent keeps a namespace's new links from soliciting routers: a parent link would do it with the MAC of the
// pod's link, and look like the guest.
func silent(n *nstest.Namespace) {
	n.Exec("sysctl", "-qw", "net.ipv6.conf.default.router_solicitations=0")
}

// host is a station with an address of each family.
func host(name string, n *nstest.Namespace, v4, v6 string) Station {
	return Station{name, n, addr(v4), addr(v6)}
}

// link joins two namespaces by a veth.
func link(a *nstest.Namespace, aName string, b *nstest.Namespace, bName string) {
	a.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", aName, bName, b.Name))
	a.IP("link set " + aName + " up")
	b.IP("link set " + bName + " up")
}

// give puts addresses with their prefix lengths on a link.
func give(n *nstest.Namespace, link string, addresses ...string) {
	for _, a := range addresses {
		line := "addr add " + a + " dev " + link
		if netip.MustParsePrefix(a).Addr().Is6() {
			line += " nodad"
		}
		n.IP(line)
	}
}

// behind lays what is behind a router: another subnet, whose host is on the Internet too. The router
// itself has an address there, and forwards.
func behind(t testing.TB, router *nstest.Namespace) []Station {
	far := nstest.New(t, "far")
	link(router, "far", far, "eth0")
	give(router, "far", "10.23.0.1/24", "fd00:23::1/64")
	give(far, "eth0", "10.23.0.9/24", "fd00:23::9/64")
	give(far, "lo", nstest.Beyond4.String()+"/32", nstest.Beyond6.String()+"/128")
	far.IP("route add default via 10.23.0.1")
	far.IP("route add default via fd00:23::1")
	router.IP("route add default via 10.23.0.9")
	router.IP("route add default via fd00:23::9")
	forwards(router)
	return []Station{
		host("other subnet", far, "10.23.0.9", "fd00:23::9"),
		{"outside", far, nstest.Beyond4, nstest.Beyond6},
	}
}

// lan is a switch, 10.22.0.0/24 and fd00:22::/64, with a router, a host and a node, whose link up0 has
// no address.
func lan(t testing.TB) (node, router *nstest.Namespace, stations []Station) {
	node, router = nstest.New(t, "node"), nstest.New(t, "router")
	peer := nstest.New(t, "peer")
	silent(node)
	router.IP("link add lan0 type bridge")
	router.IP("link set lan0 up")
	link(node, "up0", router, "node")
	link(peer, "eth0", router, "peer")
	router.IP("link set node master lan0")
	router.IP("link set peer master lan0")
	give(router, "lan0", "10.22.0.1/24", "fd00:22::1/64")
	give(peer, "eth0", "10.22.0.50/24", "fd00:22::50/64")
	peer.IP("route add default via 10.22.0.1")
	peer.IP("route add default via fd00:22::1")
	return node, router, append([]Station{
		host("gateway", router, "10.22.0.1", "fd00:22::1"),
		host("peer", peer, "10.22.0.50", "fd00:22::50"),
	}, behind(t, router)...)
}
