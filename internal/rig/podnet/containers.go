package podnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

var containers = []Network{
	{Name: "Docker's bridge", Origin: Rules, Create: docker},
	{Name: "Podman's bridge", Origin: Rules, Create: podman},
	{Name: "two NICs, the first", Origin: RealProgram, Create: func(t testing.TB) *Instance { return twoNICs(t, "eth0") }},
	{Name: "two NICs, the second", Origin: RealProgram, Create: func(t testing.TB) *Instance { return twoNICs(t, "net1") }},
	{Name: "two NICs, the second with sbr", Origin: RealProgram, Create: func(t testing.TB) *Instance { return twoNICs(t, "net1", `"type": "sbr"`) }},
}

// docker creates a network of Docker's bridge driver, without IPv6: SNAT for the containers, one published port,
// and no other way in.
func docker(t testing.TB) *Instance {
	node := nstest.New(t, "node")
	far := addBehindRouter(t, node)
	node.IP("link add docker0 type bridge")
	node.IP("link set docker0 up")
	addAddresses(node, "docker0", "172.17.0.1/16")
	create := func(name, mac, address string) *nstest.Namespace {
		n := nstest.New(t, name)
		node.IP("link add " + name + " type veth peer name eth0 address " + mac + " netns " + n.Name)
		node.IP("link set " + name + " master docker0 up")
		n.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1")
		n.IP("addr add " + address + "/16 broadcast 172.17.255.255 dev eth0")
		n.IP("link set eth0 up")
		n.IP("route add default via 172.17.0.1")
		return n
	}
	pod, peer := create("pod", "02:42:ac:11:00:02", "172.17.0.2"), create("peer", "02:42:ac:11:00:03", "172.17.0.3")
	iptables(node, "iptables",
		"-t nat -N DOCKER",
		"-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
		"-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
		"-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
		"-t nat -A DOCKER -i docker0 -j RETURN",
		"-t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:8000",
		"-t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP",
		"-P FORWARD DROP",
		"-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-A FORWARD -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 8000 -j ACCEPT",
		"-A FORWARD -i docker0 -j ACCEPT")
	stations := []Station{
		{Name: "gateway", Namespace: node, IPv4: addr("172.17.0.1")},
		{Name: "node", Namespace: node, IPv4: addr("10.23.0.1")},
		{Name: "peer", Namespace: peer, IPv4: addr("172.17.0.3")},
	}
	for _, s := range far {
		s.IPv6 = netip.Addr{}
		stations = append(stations, s)
	}
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("172.17.0.2"), Stations: stations, Mapped: []netip.AddrPort{netip.MustParseAddrPort("10.23.0.1:8080")}}
}

// iptables runs the lines as iptables(8) or ip6tables(8) would, by one iptables-restore(8), as each start takes a tenth
// of a second under emulation.
func iptables(n *nstest.Namespace, program string, lines ...string) {
	tables := map[string]string{}
	for _, line := range lines {
		table, rule := "filter", line
		if rest, ok := strings.CutPrefix(line, "-t "); ok {
			table, rule, _ = strings.Cut(rest, " ")
		}
		tables[table] += rule + "\n"
	}
	var text strings.Builder
	for table, rules := range tables {
		fmt.Fprintf(&text, "*%s\n%sCOMMIT\n", table, rules)
	}
	n.Exec("sh", "-c", `printf %s "$1" | `+program+"-restore --noflush", "sh", text.String())
}

// podman creates a network of Podman's netavark with both families: SNAT for the containers and one published
// port.
func podman(t testing.TB) *Instance {
	node := nstest.New(t, "node")
	far := addBehindRouter(t, node)
	node.IP("link add podman0 type bridge")
	node.IP("link set podman0 up")
	addAddresses(node, "podman0", "10.88.0.1/16", "fd00:88::1/64")
	create := func(name, v4, v6 string) *nstest.Namespace {
		n := nstest.New(t, name)
		node.IP("link add " + name + " type veth peer name eth0 netns " + n.Name)
		node.IP("link set " + name + " master podman0 up")
		n.IP("link set eth0 up")
		n.IP("addr add " + v4 + "/16 broadcast 10.88.255.255 dev eth0")
		addAddresses(n, "eth0", v6+"/64")
		n.IP("route add default via 10.88.0.1 metric 100")
		n.IP("route add default via fd00:88::1 metric 100")
		n.Settle("eth0")
		return n
	}
	pod, peer := create("pod", "10.88.0.2", "fd00:88::2"), create("peer", "10.88.0.3", "fd00:88::3")
	for program, network := range map[string]struct{ subnet, all, to string }{
		"iptables":  {"10.88.0.0/16", "224.0.0.0/4", "10.88.0.2:8000"},
		"ip6tables": {"fd00:88::/64", "ff00::/8", "[fd00:88::2]:8000"},
	} {
		iptables(node, program,
			"-t nat -N NETAVARK",
			"-t nat -A NETAVARK -d "+network.subnet+" -j ACCEPT",
			"-t nat -A NETAVARK ! -d "+network.all+" -j MASQUERADE",
			"-t nat -A POSTROUTING -s "+network.subnet+" -j NETAVARK",
			"-t nat -A PREROUTING -p tcp --dport 8080 -m addrtype --dst-type LOCAL -j DNAT --to-destination "+network.to,
			"-t nat -A OUTPUT -p tcp --dport 8080 -m addrtype --dst-type LOCAL -j DNAT --to-destination "+network.to)
	}
	return &Instance{Pod: pod, NIC: "eth0", IPv4: addr("10.88.0.2"), IPv6: addr("fd00:88::2"),
		Stations: append(far,
			newStation("gateway", node, "10.88.0.1", "fd00:88::1"), newStation("node", node, "10.23.0.1", "fd00:23::1"),
			newStation("peer", peer, "10.88.0.3", "fd00:88::3")),
		Mapped: []netip.AddrPort{netip.MustParseAddrPort("10.23.0.1:8080"), netip.MustParseAddrPort("[fd00:23::1]:8080")}}
}

// twoNICs creates two NICs in one namespace. The second NIC has a network of its own and no default route.
func twoNICs(t testing.TB, nic string, chained ...string) *Instance {
	node := nstest.New(t, "node")
	far := addBehindRouter(t, node)
	pod, peer := nstest.New(t, "pod"), nstest.New(t, "peer")
	first := newChain(t, node, bridgePlugin)
	leases := chain{leases: t.TempDir()}
	bridge := `"type": "bridge", "bridge": "cni1", "isGateway": true, "ipam": ` +
		leases.hostLocal("10.26.0.0/24", "fd00:26::/64", `{"dst": "10.27.0.0/16", "gw": "10.26.0.1"}, {"dst": "fd00:27::/32", "gw": "fd00:26::1"}`)
	second := newChain(t, node, append([]string{bridge}, chained...)...)
	a, b := first.add(t, pod, "eth0"), second.add(t, pod, "net1")
	if nic == "eth0" {
		return a.instance(append(nodeStations(node, first.add(t, peer, "eth0")), far...)...)
	}
	addAddresses(node, "lo", "10.27.0.9/32", "fd00:27::9/128")
	l := b.instance(newStation("gateway", node, "10.26.0.1", "fd00:26::1"), newChain(t, node, bridge).add(t, peer, "net1").station("peer"),
		newStation("other subnet", node, "10.27.0.9", "fd00:27::9"))
	if chained != nil {
		l.Check = nil // sbr removes the routes that the bridge plugin's CHECK looks for
	}
	return l
}
