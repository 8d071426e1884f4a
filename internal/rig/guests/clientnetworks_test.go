package guests_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// network is a pod's network, and what the guest must get from it.
type network struct {
	name    string
	binding infra.Binding
	create  func(t *testing.T) nstest.Network

	address4, address6 string
	others6            []string // further addresses of the NIC, which the guest gets as well
	// Lines of ip route, without links, protocols and metrics.
	routes4, routes6 []string
	// What a program gets instead that does not know option 121; empty: the same without further routes.
	simple4       string
	simpleRoutes4 []string
	search        []string
	subdomain     string // makes a further search domain, which comes first
	// Further hosts that must answer, in addition to nstest's Beyond4 and Beyond6.
	beyond []string
	// long: the routes are more than a message of 576 octets has room for.
	long bool
	// full: the routes fit into such a message, and the names do not.
	full bool
	// deprecated is a further IPv6 address of the guest, from which it must not send.
	deprecated string
	// second: the guest has a second NIC, eth1, without a gateway.
	second bool
	// lost is what the launcher's log says of routes or search domains that are too long; empty: nothing.
	lost string
	// once: the clients start there and do not renew their leases, which are infinite.
	once bool
}

const router = "ROUTER" // stands in routes6 for the link-local address of the guest's router

var networks = []network{
	{
		name: "bridge", binding: infra.Bridge{}, create: createWithRoutes,
		address4: "10.244.1.7/24", address6: "fd00:244:1::7/128", others6: []string{"fd00:244:1::17", "fd00:244:1::27", floating6},
		routes4: []string{"10.244.1.0/24", "203.0.113.0/24 via 10.244.1.254", "default via 10.244.1.1"},
		routes6: []string{"fd00:244:1::/64", "2001:db8:7::/64 via " + router, "default via " + router},
		search:  longSearch,
		lost:    "lost: option DHCPv4 option 119 (search domains): its 283 octets do not fit into the answer to dhclient, udhcpc, Windows",
		beyond:  []string{"203.0.113.9", "2001:db8:7::9"},
	},
	{
		name: "bridge-on-link", binding: infra.Bridge{}, create: createOnLink,
		address4: "10.244.1.7/32", address6: "fd00:244:1::7/128",
		routes4: []string{"169.254.1.1", "default via 169.254.1.1"},
		simple4: "10.244.1.7/31", simpleRoutes4: []string{"10.244.1.6/31", "default via 10.244.1.6"},
		routes6: []string{"default via " + router},
		search:  []string{"ns.svc.cluster.example", "svc.cluster.example", "cluster.example"},
	},
	{
		name: "bridge-next-hops", binding: infra.Bridge{}, create: createNextHops,
		address4: "10.244.1.7/32", address6: "fd00:244:1::7/128",
		routes4: []string{"169.254.75.2", "default via 169.254.75.2"},
		simple4: "10.244.1.7/31", simpleRoutes4: []string{"10.244.1.6/31", "default via 10.244.1.6"},
		routes6: []string{"default"},
		search:  []string{"pod.example"},
	},
	{
		name: "masquerade", binding: infra.Masquerade{}, create: func(t *testing.T) nstest.Network { return nstest.NewNetwork(t) },
		address4: "10.0.2.2/24", address6: "fd10:0:2::2/128",
		routes4: []string{"10.0.2.0/24", "default via 10.0.2.1"},
		routes6: []string{"fd10:0:2::/120", "default via " + router},
		search:  []string{"pod.example"}, subdomain: "vms",
	},
}

// longSearch is longer than one DHCPv4 option, and than one option of a router advertisement.
var longSearch = []string{
	strings.Repeat("a", 60) + ".example", strings.Repeat("b", 60) + ".example", strings.Repeat("c", 60) + ".example",
	strings.Repeat("d", 60) + ".example", "pod.example",
}

// floating6 is an address that a station has for others, and does not send from, as keepalived adds it.
const floating6 = "fd00:244:2::aaaa"

// createWithRoutes returns a network with an IPv4 route through a second gateway, an IPv6 route in addition to the
// default route, three IPv6 addresses, and one that is deprecated.
func createWithRoutes(t *testing.T) nstest.Network {
	n := nstest.NewNetwork(t)
	n.World.IP("addr add 203.0.113.9/32 dev lo")
	n.World.IP("addr add 2001:db8:7::9/128 dev lo nodad")
	n.World.IP("addr add 10.244.1.254/24 dev pod")
	n.Pod.IP("route add 203.0.113.0/24 via 10.244.1.254")
	n.Pod.IP("route add 2001:db8:7::/64 via fd00:244:1::1")
	n.Pod.IP("addr add fd00:244:1::17/64 dev eth0 nodad")
	n.Pod.IP("addr add fd00:244:1::27/64 dev eth0 nodad")
	n.Pod.IP("addr add " + floating6 + "/128 dev eth0 nodad preferred_lft 0")
	n.World.IP("route add " + floating6 + " dev pod")
	return n
}

// createOnLink returns a network like Calico's: /32 and /128 addresses, an IPv4 gateway that a route puts on
// the link, and a link-local IPv6 gateway.
func createOnLink(t *testing.T) nstest.Network {
	n := nstest.NewWorld(t)
	n.World.IP("link add pod type veth peer name eth0 netns " + n.Pod.Name)
	n.World.IP("link set pod mtu 1450 up")
	n.World.IP("addr add 169.254.1.1/32 dev pod")
	n.World.IP("route add 10.244.1.7/32 dev pod")
	n.World.IP("route add fd00:244:1::7/128 dev pod")
	n.Pod.IP("link set eth0 mtu 1450 up")
	n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
	n.Pod.IP("addr add fd00:244:1::7/128 dev eth0")
	n.Pod.IP("route add 169.254.1.1 dev eth0 scope link")
	n.Pod.IP("route add default via 169.254.1.1")
	n.Pod.Settle("eth0")
	n.World.Settle("pod")
	n.Pod.IP("route add default dev eth0 via " + linkLocal(n.World, "pod"))
	return n
}

// createNextHops returns a network whose IPv4 gateway is an IPv6 address (RFC 8950), and whose IPv6 default route is on
// the link: the world answers neighbour solicitations for all that it knows.
func createNextHops(t *testing.T) nstest.Network {
	n := nstest.NewWorld(t)
	n.World.IP("link add pod type veth peer name eth0 netns " + n.Pod.Name)
	n.World.IP("link set pod mtu 1450 up")
	n.World.IP("route add 10.244.1.7/32 dev pod")
	n.World.IP("route add fd00:244:1::7/128 dev pod")
	n.World.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.pod.proxy_ndp=1")
	n.World.IP("neigh add proxy " + nstest.Beyond6.String() + " dev pod")
	n.Pod.IP("link set eth0 mtu 1450 up")
	n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
	n.Pod.IP("addr add fd00:244:1::7/128 dev eth0")
	n.Pod.Settle("eth0")
	n.World.Settle("pod")
	n.Pod.IP("-4 route add default via inet6 " + linkLocal(n.World, "pod") + " dev eth0")
	n.Pod.IP("-6 route add default dev eth0")
	return n
}

func linkLocal(n *nstest.Namespace, link string) string {
	// NAME UP fe80::1/64
	words := strings.Fields(n.IP("-br -6 addr show scope link dev " + link))
	return strings.TrimSuffix(words[len(words)-1], "/64")
}
