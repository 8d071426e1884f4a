package launchers

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSDK: firecracker-go-sdk sets the network of a machine up as before it starts Firecracker, with guestwire
// installed as tc-redirect-tap, which takes no configuration, and with guestwire's own filter and responder. It finds
// the tap, MAC, address and gateway of a network with both families, where tc-redirect-tap's two addresses are an
// error. Its clean-up gives back the namespace.
func TestSDK(t *testing.T) {
	n := newNode(t)
	for i, entry := range []string{
		`{"type": "tc-redirect-tap"}`,
		`{"type": "guestwire", "tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"redirect": {}}}}`,
		`{"type": "guestwire", "tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"masquerade": {}}}}`,
	} {
		t.Run(entry, func(t *testing.T) {
			ns := nstest.New(t, "vm")
			before := ns.Settled()
			ptp := fmt.Sprintf(`{"type": "ptp", "ipam": %s}`, dualStack(t, fmt.Sprintf("10.%d.0.0/24", 40+i), fmt.Sprintf("fd00:%d::/64", 40+i)))
			l := list(t, "1.0.0", fmt.Sprintf("fc%d", i), ptp+", "+entry)
			vm, err := firecracker.NewMachine(t.Context(), firecracker.Config{
				VMID: fmt.Sprintf("vm-%d", i), NetNS: ns.Path(), SocketPath: filepath.Join(t.TempDir(), "fc.sock"),
				NetworkInterfaces: firecracker.NetworkInterfaces{{CNIConfiguration: &firecracker.CNIConfiguration{
					NetworkConfig: l, IfName: "eth0", VMIfName: "eth0", BinPath: []string{n.plugins}, CacheDir: t.TempDir(),
					Args: [][2]string{{"IgnoreUnknown", "1"}},
				}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, handler := range []firecracker.Handler{firecracker.NetworkConfigValidationHandler, firecracker.SetupNetworkHandler, firecracker.SetupKernelArgsHandler} {
				if err := handler.Fn(t.Context(), vm); err != nil {
					t.Fatalf("%s: %v", handler.Name, err)
				}
			}
			got := vm.Cfg.NetworkInterfaces[0].StaticConfiguration
			mac := strings.TrimSpace(ns.Exec("cat", "/sys/class/net/eth0/address"))
			address, gateway := fmt.Sprintf("10.%d.0.2/24", 40+i), fmt.Sprintf("10.%d.0.1", 40+i)
			if strings.Contains(entry, "masquerade") {
				address, gateway = "10.0.2.2/24", "10.0.2.1"
				mac = got.MacAddress
			}
			if _, err := net.ParseMAC(mac); err != nil || got.HostDevName != "eth0-tap" || got.MacAddress != mac ||
				got.IPConfiguration.IPAddr.String() != address || got.IPConfiguration.Gateway.String() != gateway {
				t.Errorf("the SDK has %+v with %+v, want eth0-tap, %s, %s, %s", got, got.IPConfiguration, mac, address, gateway)
			}
			if !strings.Contains(vm.Cfg.KernelArgs, "ip="+strings.TrimSuffix(address, "/24")+"::"+gateway+":255.255.255.0") {
				t.Errorf("the kernel's arguments are %q", vm.Cfg.KernelArgs)
			}
			ns.Exec("ip", "link", "show", got.HostDevName)
			if err := n.cni.DelNetworkList(t.Context(), l, &libcni.RuntimeConf{
				ContainerID: vm.Cfg.VMID, NetNS: ns.Path(), IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}}}); err != nil {
				t.Fatal(err)
			}
			if err := nstest.Difference(before, ns.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
}
