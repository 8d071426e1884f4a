package podnet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// cniDir is Debian's directory of the reference plugins.
const cniDir = "/usr/lib/cni"

// currentDir is the directory of the same plugins in the version of install.sh.
var currentDir = unpacked.Path("cni-plugins")

// current is a member of a plugin's configuration. The plugin ignores it, and call takes the plugin of currentDir.
const current = `, "guestwire": "current"`

// chain is a list of CNI plugins on a node, as a container runtime calls them.
type chain struct {
	node    *nstest.Namespace
	leases  string   // directory
	version string   // of the CNI specification; empty: 1.0.0
	configs []string // members of an object in JSON, without the braces
	bus     string   // the address of the node's D-Bus; empty: the plugins need none
}

// newChain returns a chain whose first plugin gets addresses of 10.22.0.0/24 and fd00:22::/64 from host-local,
// unless the plugin has an ipam of its own.
func newChain(t testing.TB, node *nstest.Namespace, configs ...string) chain {
	t.Helper()
	if _, err := os.Stat(cniDir); err != nil {
		nstest.Skip(t, "no CNI plugins in "+cniDir+": install containernetworking-plugins")
	}
	if _, err := os.Stat(currentDir); err != nil && strings.Contains(configs[0], current) {
		nstest.Skip(t, "no CNI plugins in "+currentDir+": make install")
	}
	c := chain{node: node, leases: t.TempDir(), configs: slices.Clone(configs)}
	if !strings.Contains(c.configs[0], `"ipam"`) {
		c.configs[0] += `, "ipam": ` + c.hostLocal("10.22.0.0/24", "fd00:22::/64", `{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`)
	}
	return c
}

// hostLocal returns an ipam of host-local that does not lease the first addresses of the networks.
func (c chain) hostLocal(v4, v6, routes string) string {
	first := func(network string, n string) string {
		return fmt.Sprintf(`[{"subnet": %q, "rangeStart": %q}]`, network, strings.TrimRight(netip.MustParsePrefix(network).Addr().String(), "0")+n)
	}
	return fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [%s, %s], "routes": [%s]}`, c.leases, first(v4, "10"), first(v6, "10"), routes)
}

// attachment is a pod's NIC after CNI ADD.
type attachment struct {
	chain
	pod        *nstest.Namespace
	nic        string
	result     string
	IPv4, IPv6 netip.Addr
	further    netip.Prefix // a second IPv4 address; zero: none
}

// add runs CNI ADD of the chain.
func (c chain) add(t testing.TB, pod *nstest.Namespace, nic string) *attachment {
	t.Helper()
	a := &attachment{chain: c, pod: pod, nic: nic}
	for i := range c.configs {
		a.result = a.call(t, "ADD", i)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(a.result), &result); err != nil {
		t.Fatalf("CNI's result %s: %v", a.result, err)
	}
	for _, ip := range result.IPs {
		switch own := ip.Address.Addr(); {
		case own.Is4() && a.IPv4.IsValid():
			a.further = ip.Address
		case own.Is4():
			a.IPv4 = own
		default:
			a.IPv6 = own
		}
	}
	pod.Settle(nic)
	if slices.ContainsFunc(c.configs, func(config string) bool { return strings.Contains(config, `"mac":`) }) {
		renewLinkLocal(t, pod, nic)
	}
	return a
}

// renewLinkLocal has the kernel make the link-local address of the MAC that the NIC has now. Where a plugin
// has changed the MAC, it depends on the machine's load whether the kernel had made the address before.
func renewLinkLocal(t testing.TB, pod *nstest.Namespace, nic string) {
	t.Helper()
	mac, err := cache.ParseMAC(strings.TrimSpace(pod.Exec("cat", "/sys/class/net/"+nic+"/address")))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(pod.IP("-6 addr show scope link dev "+nic), " "+eui64.LinkLocal(mac).String()+"/") {
		return
	}
	pod.IP("-6 addr flush scope link dev " + nic)
	mode := "net.ipv6.conf." + nic + ".addr_gen_mode"
	was := strings.TrimSpace(pod.Exec("sysctl", "-n", mode))
	pod.Exec("sysctl", "-qw", mode+"=1")
	pod.Exec("sysctl", "-qw", mode+"="+was)
	pod.Settle(nic)
}

// check runs CNI CHECK. It leaves out Debian's portmap: version 1.1 looks for the IPv4 address in its IPv6 rules, and
// for IPv6 rules in a pod without IPv6.
func (a *attachment) check(t testing.TB) {
	t.Helper()
	for i, config := range a.configs {
		if !strings.Contains(config, `"portmap"`) || strings.Contains(config, current) {
			a.call(t, "CHECK", i)
		}
	}
}

// delete runs CNI DEL, and checks that neither NIC nor lease is left.
func (a *attachment) delete(t testing.TB) {
	t.Helper()
	for i := range slices.Backward(a.configs) {
		a.call(t, "DEL", i)
	}
	if links := a.pod.IP("-br link"); regexp.MustCompile(`(?m)^` + a.nic + `\b`).MatchString(links) {
		t.Errorf("after CNI DEL there is still\n%s", links)
	}
	left, err := filepath.Glob(filepath.Join(a.leases, "podnet", "*[.:]*[.:]*"))
	for _, lease := range left {
		if text, _ := os.ReadFile(lease); strings.HasPrefix(string(text), a.pod.Name) {
			t.Errorf("after CNI DEL there is still the lease %s", lease)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// call runs a plugin and ends the test if it fails.
func (a *attachment) call(t testing.TB, command string, plugin int) string {
	t.Helper()
	config := fmt.Sprintf(`{"cniVersion": %q, "name": "podnet", "dataDir": %q, %s`, cmp.Or(a.version, "1.0.0"), a.leases, a.configs[plugin])
	if a.result != "" {
		config += `, "prevResult": ` + a.result
	}
	config += "}"
	var head struct{ Type string }
	if err := json.Unmarshal([]byte(config), &head); err != nil {
		t.Fatalf("CNI configuration %s: %v", config, err)
	}
	dir, path := cniDir, cniDir
	switch {
	case head.Type == "flannel":
		dir = flannelDir
	case strings.Contains(config, current):
		dir, path = currentDir, currentDir
	}
	cmd := exec.Command("ip", "netns", "exec", a.node.Name, filepath.Join(dir, head.Type))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+a.pod.Name, "CNI_NETNS="+a.pod.Path(),
		"CNI_IFNAME="+a.nic, "CNI_PATH="+path)
	if a.bus != "" {
		cmd.Env = append(cmd.Env, "DBUS_SYSTEM_BUS_ADDRESS="+a.bus)
	}
	cmd.Stdin = strings.NewReader(config)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("CNI %s of %s: %v\n%s%s", command, head.Type, err, out, &complaints)
	}
	return string(out)
}

// instance returns the attachment's pod with the stations around it.
func (a *attachment) instance(stations ...Station) *Instance {
	return &Instance{Pod: a.pod, NIC: a.nic, IPv4: a.IPv4, IPv6: a.IPv6, Stations: stations, Check: a.check, Delete: a.delete}
}

// station returns the pod as a station.
func (a *attachment) station(name string) Station {
	return Station{name, a.pod, a.IPv4, a.IPv6}
}

const bridgePlugin = `"type": "bridge", "bridge": "cni0", "isGateway": true`

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

func nodeStations(node *nstest.Namespace, peer *attachment) []Station {
	return []Station{
		newStation("gateway", node, "10.22.0.1", "fd00:22::1"),
		newStation("node", node, "10.23.0.1", "fd00:23::1"),
		peer.station("peer"),
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
