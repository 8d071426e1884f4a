// Firecracker prints the configuration of a VM whose network is the one of a record, as Firecracker's --config-file
// reads it.
//
//	firecracker STATE KERNEL ROOTFS
//
// STATE is the directory with the record. For want of KVM, no guest was run.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/firecracker"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/phase2"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "firecracker STATE KERNEL ROOTFS")
		os.Exit(2)
	}
	vm, err := configure(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "firecracker:", err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(vm); err != nil {
		fmt.Fprintln(os.Stderr, "firecracker:", err)
		os.Exit(1)
	}
}

// object is one of JSON.
type object map[string]any

// configure reads the record, and returns Firecracker's configuration.
func configure(state, kernel, rootfs string) (object, error) {
	vm, err := phase2.Open(state)
	if err != nil {
		return nil, err
	}
	record := vm.Records()[0]
	nic, err := firecracker.NewNetworkInterface(&record)
	if err != nil {
		return nil, err
	}
	// The kernels that Firecracker offers have no DHCP client: the guest's address is an argument.
	ip, _, err := guestconfig.KernelIP(record, cache.DNS{}, "eth0")
	if err != nil {
		return nil, err
	}
	return object{
		"boot-source":        object{"kernel_image_path": kernel, "boot_args": "console=ttyS0 reboot=k panic=1 " + ip},
		"drives":             []object{{"drive_id": "rootfs", "path_on_host": rootfs, "is_root_device": true, "is_read_only": false}},
		"network-interfaces": []*firecracker.NetworkInterface{nic},
	}, nil
}
