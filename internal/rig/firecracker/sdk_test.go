package firecracker

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestSDK: firecracker-go-sdk sets the network of a machine up as before it starts Firecracker, with guestwire
// installed as tc-redirect-tap, which takes no configuration, and with guestwire's own filter and responder. It finds
// the tap, MAC, address and gateway of a network with both families, where tc-redirect-tap's two addresses are an
// error. Its clean-up gives back the namespace.
func TestSDK(t *testing.T) {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "CNI plugins are root's")
	// The SDK calls plugins where it runs itself, and they forward there: these scripts call them on a node.
	node, real, plugins := nstest.New(t, "node"), t.TempDir(), t.TempDir()
	for name, program := range map[string]string{
		"tc-redirect-tap": nstest.Program(t, "examples/cni"), "guestwire": nstest.Program(t, "examples/cni"),
		"ptp": "/usr/lib/cni/ptp", "host-local": "/usr/lib/cni/host-local", // Debian's
	} {
		if err := os.Symlink(program, filepath.Join(real, name)); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s %s\n", node.Path(), filepath.Join(real, name))
		if err := os.WriteFile(filepath.Join(plugins, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, entry := range []string{
		`{"type": "tc-redirect-tap"}`,
		`{"type": "guestwire", "tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"redirect": {}}}}`,
		`{"type": "guestwire", "tapResult": true, "spec": {"owner": {"uid": 107}, "binding": {"masquerade": {}}}}`,
	} {
		t.Run(entry, func(t *testing.T) {
			ns := nstest.New(t, "vm")
			before := ns.Settled()
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "fc%d", "plugins": [
				{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "resolvConf": "/etc/resolv.conf", "ranges": [[{"subnet": "10.%d.0.0/24"}], [{"subnet": "fd00:%[3]d::/64"}]],
				"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}, %s]}`, i, t.TempDir(), 40+i, entry))
			if err != nil {
				t.Fatal(err)
			}
			vm, err := firecracker.NewMachine(t.Context(), firecracker.Config{
				VMID: fmt.Sprintf("vm-%d", i), NetNS: ns.Path(), SocketPath: filepath.Join(t.TempDir(), "fc.sock"),
				NetworkInterfaces: firecracker.NetworkInterfaces{{CNIConfiguration: &firecracker.CNIConfiguration{
					NetworkConfig: list, IfName: "eth0", VMIfName: "eth0", BinPath: []string{plugins}, CacheDir: t.TempDir(),
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
			if err := libcni.NewCNIConfig([]string{plugins}, nil).DelNetworkList(t.Context(), list, &libcni.RuntimeConf{
				ContainerID: vm.Cfg.VMID, NetNS: ns.Path(), IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}}}); err != nil {
				t.Fatal(err)
			}
			if err := nstest.Difference(before, ns.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
}
