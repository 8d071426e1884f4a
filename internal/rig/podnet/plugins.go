package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

var plugins = []Network{
	{Name: "bridge", Origin: RealProgram, Create: onNode(bridgePlugin)},
	{Name: "bridge, no gateway", Origin: RealProgram, Create: func(t testing.TB) *Instance {
		node, _, stations := lan(t)
		node.IP("link add cni0 type bridge")
		node.IP("link set cni0 up")
		node.IP("link set up0 master cni0")
		return newChain(t, node, `"type": "bridge", "bridge": "cni0"`).add(t, nstest.New(t, "pod"), "eth0").instance(stations...)
	}},
	{Name: "bridge, macspoofchk", Origin: RealProgram, Create: onNode(bridgePlugin + `, "macspoofchk": true`)},
	{Name: "bridge, vlan", Origin: RealProgram, Kind: "vlan", Create: onNode(bridgePlugin + `, "vlan": 100`)},
	{Name: "bridge, IPv6 alone", Origin: RealProgram, Create: static(`{"address": "fd00:22::7/64", "gateway": "fd00:22::1"}`, `{"dst": "::/0"}`)},
	{Name: "bridge, static, tuning", Origin: RealProgram, Create: static(
		`{"address": "10.22.0.7/24", "gateway": "10.22.0.1"}, {"address": "fd00:22::7/64", "gateway": "fd00:22::1"}`,
		`{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`,
		`"type": "tuning", "mac": "02:00:00:00:22:01", "mtu": 1300, "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}`)},
	{Name: "bridge, portmap", Origin: RealProgram, Create: mapped(bridgePlugin, portmapPlugin)},
	{Name: "bridge, bandwidth", Origin: RealProgram, Create: onNode(bridgePlugin, `"type": "bandwidth",
		"ingressRate": 100000000, "ingressBurst": 10000000, "egressRate": 100000000, "egressBurst": 10000000`)},
	{Name: "bridge, firewall", Origin: RealProgram, Create: firewalled},
	{Name: "bridge, firewall, firewalld", Origin: RealProgram, Create: firewallD},
	{Name: "ptp", Origin: RealProgram, Create: onNode(`"type": "ptp"`)},
	{Name: "macvlan", Origin: RealProgram, Create: func(t testing.TB) *Instance {
		return onLAN(t, `"type": "macvlan", "master": "up0", "mode": "bridge"`, true)
	}},
	{Name: "macvlan, passthru", Origin: RealProgram, Create: func(t testing.TB) *Instance {
		return onLAN(t, `"type": "macvlan", "master": "up0", "mode": "passthru"`, false)
	}},
	{Name: "ipvlan L2", Origin: RealProgram, Kind: "ipvlan", Create: func(t testing.TB) *Instance {
		return onLAN(t, `"type": "ipvlan", "master": "up0", "mode": "l2"`, true)
	}},
	{Name: "ipvlan L3", Origin: RealProgram, Kind: "ipvlan", Create: ipvlanL3},
	{Name: "vlan", Origin: RealProgram, Kind: "vlan", Create: func(t testing.TB) *Instance {
		node, router, stations := lan(t)
		peer := stations[1].Namespace
		router.IP("addr flush dev lan0")
		router.IP("link add link lan0 name lan0.100 type vlan id 100")
		router.IP("link set lan0.100 up")
		addAddresses(router, "lan0.100", "10.22.0.1/24", "fd00:22::1/64")
		peer.IP("addr flush dev eth0")
		peer.IP("-6 route del default")
		peer.IP("link add link eth0 name eth0.100 type vlan id 100")
		peer.IP("link set eth0.100 up")
		addAddresses(peer, "eth0.100", "10.22.0.50/24", "fd00:22::50/64")
		peer.IP("route add default via 10.22.0.1")
		peer.IP("route add default via fd00:22::1")
		return newChain(t, node, `"type": "vlan", "master": "up0", "vlanId": 100`).add(t, nstest.New(t, "pod"), "eth0").instance(stations...)
	}},
	{Name: "host-device", Origin: RealProgram, Create: func(t testing.TB) *Instance {
		return onLAN(t, `"type": "host-device", "device": "up0"`, false)
	}},
	// What the plugins do by other means than in Debian's version, and what is new.
	{Name: "bridge, macspoofchk, current", Origin: RealProgram, Create: onNode(bridgePlugin + `, "macspoofchk": true` + current)},
	{Name: "bridge, portIsolation, current", Origin: RealProgram, Create: onNode(bridgePlugin + `, "portIsolation": true` + current)},
	{Name: "bridge, portmap by nftables, current", Origin: RealProgram, Create: mapped(
		bridgePlugin+`, "ipMasq": true, "ipMasqBackend": "nftables"`+current, portmapPlugin+`, "backend": "nftables"`+current)},
	{Name: "ptp, current", Origin: RealProgram, Create: onNode(`"type": "ptp"` + current)},
	{Name: "macvlan, current", Origin: RealProgram, Create: func(t testing.TB) *Instance {
		return onLAN(t, `"type": "macvlan", "master": "up0", "mode": "bridge"`+current, true)
	}},
}

const portmapPlugin = `"type": "portmap", "snat": true,
	"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 8000, "protocol": "tcp"}]}`

// mapped creates a pod and a peer on a node, which maps a port to the pod.
func mapped(configs ...string) func(t testing.TB) *Instance {
	return func(t testing.TB) *Instance {
		l := createOnNode(t, nstest.New(t, "node"), configs...)
		l.Mapped = []netip.AddrPort{netip.MustParseAddrPort("10.23.0.1:8080"), netip.MustParseAddrPort("[fd00:23::1]:8080")}
		return l
	}
}

// onNode creates a pod and a peer on a node, which is their router.
func onNode(configs ...string) func(t testing.TB) *Instance {
	return func(t testing.TB) *Instance { return createOnNode(t, nstest.New(t, "node"), configs...) }
}

func createOnNode(t testing.TB, node *nstest.Namespace, configs ...string) *Instance {
	far := addBehindRouter(t, node)
	c := newChain(t, node, configs...)
	forPeer := c
	forPeer.configs = c.configs[:1]
	// The peer is added first: a bridge may change its MAC with a new port, and the pod's CHECK compares
	// the bridge's MAC with the result of ADD.
	peer := forPeer.add(t, nstest.New(t, "peer"), "eth0")
	return c.add(t, nstest.New(t, "pod"), "eth0").instance(append(nodeStations(node, peer), far...)...)
}

// firewalled creates a pod on a node whose rules forward nothing. The plugin firewall lets pass what a pod sends, and
// keeps the pods of other bridges apart.
func firewalled(t testing.TB) *Instance {
	node := nstest.New(t, "node")
	far := addBehindRouter(t, node)
	node.Exec("iptables", "-P", "FORWARD", "DROP")
	node.Exec("ip6tables", "-P", "FORWARD", "DROP")
	c := newChain(t, node, bridgePlugin, `"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"`)
	others := c
	others.configs = []string{`"type": "bridge", "bridge": "cni1", "isGateway": true, "ipam": ` +
		c.hostLocal("10.32.0.0/24", "fd00:32::/64", `{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`), c.configs[1]}
	other, peer := others.add(t, nstest.New(t, "other"), "eth0"), c.add(t, nstest.New(t, "peer"), "eth0")
	stations := append(nodeStations(node, peer), other.station("another bridge's pod"))
	return c.add(t, nstest.New(t, "pod"), "eth0").instance(append(stations, far...)...)
}

// static creates a pod with static addresses, and a peer with leased ones.
func static(addresses, routes string, chained ...string) func(t testing.TB) *Instance {
	return func(t testing.TB) *Instance {
		node := nstest.New(t, "node")
		far := addBehindRouter(t, node)
		peer := newChain(t, node, bridgePlugin).add(t, nstest.New(t, "peer"), "eth0")
		config := fmt.Sprintf(`%s, "ipam": {"type": "static", "addresses": [%s], "routes": [%s]}`, bridgePlugin, addresses, routes)
		return newChain(t, node, append([]string{config}, chained...)...).add(t, nstest.New(t, "pod"), "eth0").
			instance(append(nodeStations(node, peer), far...)...)
	}
}

// onLAN creates a pod on the node's LAN. If the node's link can have several children, another child is a station.
func onLAN(t testing.TB, config string, several bool) *Instance {
	node, _, stations := lan(t)
	c := newChain(t, node, config)
	a := c.add(t, nstest.New(t, "pod"), "eth0")
	if several {
		addAddresses(node, "up0", "10.22.0.2/24", "fd00:22::2/64")
		stations = append(stations, c.add(t, nstest.New(t, "child"), "eth0").station("another child"),
			newStation("node", node, "10.22.0.2", "fd00:22::2"))
	}
	return a.instance(stations...)
}

// ipvlanL3 creates a pod on an ipvlan of mode L3. The router has routes to the children's addresses by the node's
// link.
func ipvlanL3(t testing.TB) *Instance {
	node, router := nstest.New(t, "node"), nstest.New(t, "router")
	disableSolicitations(node)
	connectNamespaces(node, "up0", router, "node")
	addAddresses(node, "up0", "10.24.0.2/24", "fd00:24::2/64")
	addAddresses(router, "node", "10.24.0.1/24", "fd00:24::1/64")
	node.IP("route add default via 10.24.0.1")
	node.IP("route add default via fd00:24::1")
	router.IP("route add 10.22.0.0/24 via 10.24.0.2")
	router.IP("route add fd00:22::/64 via fd00:24::2")
	stations := append([]Station{newStation("router", router, "10.24.0.1", "fd00:24::1")}, addBehindRouter(t, router)...)
	c := newChain(t, node, `"type": "ipvlan", "master": "up0", "mode": "l3"`)
	a := c.add(t, nstest.New(t, "pod"), "eth0")
	return a.instance(append(stations, c.add(t, nstest.New(t, "child"), "eth0").station("another child"),
		newStation("node", node, "10.24.0.2", "fd00:24::2"))...)
}
