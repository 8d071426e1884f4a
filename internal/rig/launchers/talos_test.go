package launchers

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/utils"
	"github.com/firecracker-microvm/firecracker-go-sdk/cni/vmconf"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestTalos makes the calls of libcni that Talos makes for `talosctl cluster create qemu` (withNetworkContext in
// pkg/provision/providers/qemu/launch_linux.go of siderolabs/talos at ad88231), in its order and with lists of the same
// plugins. It is not Talos' code, whose packages are internal. firecracker-go-sdk's vmconf looks for the tap and
// the VM in the first result, as Talos' VMTapPair is from there. The VM gets a NIC with both families, and one without
// addresses; it is a process that reaches the bridge of each by the tap and the MAC of the result.
func TestTalos(t *testing.T) {
	n, ns := newNode(t), nstest.New(t, "vm")
	nstest.Need(t, "iptables")
	const id = "6d3a1f0e-5f0e-4c57-9a2e-6d1f0a3b7c11"
	before := ns.Settled()
	management := list(t, "0.4.0", "talos-default", `{"type": "bridge", "bridge": "talos0", "ipMasq": true, "isGateway": true, "isDefaultGateway": true,
		"ipam": {"type": "static"}, "mtu": 1500}, {"type": "firewall"}, {"type": "tc-redirect-tap"}`)
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: ns.Path(), IfName: "veth0",
		Args: [][2]string{{"IP", "10.5.0.2/24,fd00:5::2/64"}, {"GATEWAY", "10.5.0.1,fd00:5::1"}, {"IgnoreUnknown", "1"}}}
	uplink := list(t, "0.4.0", "fabric0", `{"type": "bridge", "bridge": "fabric0", "ipMasq": false, "isGateway": false, "mtu": 1500, "ipam": {}}, {"type": "tc-redirect-tap"}`)
	uplinkRuntime := &libcni.RuntimeConf{ContainerID: id, NetNS: ns.Path(), IfName: "vethf0", Args: [][2]string{{"IgnoreUnknown", "1"}}}

	attach := func(l *libcni.NetworkConfigList, rt *libcni.RuntimeConf) *types100.Result {
		t.Helper()
		if err := n.cni.DelNetworkList(t.Context(), l, rt); err != nil { // of an earlier run
			t.Fatal(err)
		}
		result, err := n.cni.AddNetworkList(t.Context(), l, rt)
		if err != nil {
			t.Fatal(err)
		}
		current, err := types100.NewResultFromResult(result)
		if err != nil {
			t.Fatal(err)
		}
		return current
	}
	reaches := func(nic, tap, mac string, address netip.Prefix, peer string) {
		t.Helper()
		record := nstest.Record(t, "/run/guestwire/"+id, nic)
		if record.Tap != tap || record.MAC.String() != mac {
			t.Fatalf("the result has %s and %s, the record %s and %s", tap, mac, record.Tap, record.MAC)
		}
		g := nstest.Boot(t, ns.File, record, "guest-"+nic)
		if err := g.AddAddress(address); err != nil {
			t.Fatal(err)
		}
		n.Listen("node", peer)
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(peer))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		g.Close()
	}

	result := attach(management, rt)
	found, err := vmconf.StaticNetworkConfFrom(result, id)
	if err != nil {
		t.Fatal(err)
	}
	// Talos adds rules to the chain that the bridge plugin has made for this ID.
	n.Exec("iptables", "-t", "nat", "-I", utils.FormatChainName(management.Name, id), "1", "--destination", "255.255.255.255/32", "-j", "ACCEPT")
	reaches("veth0", found.TapName, found.VMMacAddr, netip.MustParsePrefix("10.5.0.2/24"), "10.5.0.1:8000")

	fabric := attach(uplink, uplinkRuntime)
	tap, vm := fabric.Interfaces[len(fabric.Interfaces)-2], fabric.Interfaces[len(fabric.Interfaces)-1]
	if tap.Name != vm.Name || tap.Name == found.TapName || tap.Sandbox != ns.Path() || vm.Sandbox != id || len(fabric.IPs) != 0 {
		t.Fatalf("the NIC without addresses has %+v and %+v of %+v", tap, vm, fabric)
	}
	n.Exec("ip", "addr", "add", "192.0.2.1/24", "dev", "fabric0")
	reaches("vethf0", tap.Name, vm.Mac, netip.MustParsePrefix("192.0.2.2/24"), "192.0.2.1:8000")

	ctx := context.WithoutCancel(t.Context())
	if err := n.cni.DelNetworkList(ctx, uplink, uplinkRuntime); err != nil {
		t.Error(err)
	}
	if err := n.cni.DelNetworkList(ctx, management, rt); err != nil {
		t.Error(err)
	}
	if err := nstest.Difference(before, ns.Settled()); err != nil {
		t.Error(err)
	}
	if rules := n.Exec("iptables", "-t", "nat", "-S"); strings.Contains(rules, id) {
		t.Error(fmt.Errorf("rules are left:\n%s", rules))
	}
}
