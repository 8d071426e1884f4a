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

func nodeStations(node *nstest.Namespace, peer *attachment) []Station {
	return []Station{
		newStation("gateway", node, "10.22.0.1", "fd00:22::1"),
		newStation("node", node, "10.23.0.1", "fd00:23::1"),
		peer.station("peer"),
	}
}

// flannelDir is where install.sh puts flannel's plugin.
var flannelDir = unpacked.Path("flannel")
