package qemu_test

import (
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
)

func ExampleNewNIC() {
	nic, err := qemu.NewNIC(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 2,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	}, qemu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	args, err := nic.Args()
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range args { // append them to QEMU's others
		fmt.Println(a)
	}
	// Output:
	// -netdev
	// tap,id=eth0-netdev,downscript=no,ifname=eth0-tap,queues=2,script=no
	// -device
	// virtio-net-pci-non-transitional,id=eth0,host_mtu=1450,mac=02:73:53:00:b0:0c,mq=on,netdev=eth0-netdev,romfile=,vectors=6
}

// A launcher plugs a NIC into a running machine of type q35, which was started with
// -device pcie-root-port,id=rp1,chassis=1. It opens the tap by phase2.OpenTap, and passes each queue to QEMU by getfd
// with a name of its choice.
func ExampleNIC_Plug() {
	nic, err := qemu.NewNIC(&cache.Record{
		Version: cache.Version, Name: "eth1", Binding: cache.BindingBridge, Tap: "eth1-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0d}, MTU: 1450,
	}, qemu.Options{Bus: "rp1", FDs: []string{"eth1-0"}})
	if err != nil {
		log.Fatal(err)
	}
	err = nic.Plug(func(command string, arguments qemu.Object) error { // a launcher sends the line to QMP, and reads the answer
		line, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
		fmt.Println(string(line))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// {"arguments":{"fd":"eth1-0","id":"eth1-netdev","type":"tap"},"execute":"netdev_add"}
	// {"arguments":{"bus":"rp1","driver":"virtio-net-pci-non-transitional","host_mtu":1450,"id":"eth1","mac":"02:73:53:00:b0:0d","netdev":"eth1-netdev","romfile":""},"execute":"device_add"}
}

// A launcher unplugs the NIC before Phase1 takes the wiring down. It reads QEMU's events. This one has the form
// {"event": "DEVICE_DELETED", "data": {"device": "eth1", ...}}.
func ExampleNIC_Unplug() {
	nic, err := qemu.NewNIC(&cache.Record{
		Version: cache.Version, Name: "eth1", Binding: cache.BindingBridge, Tap: "eth1-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0d}, MTU: 1450,
	}, qemu.Options{}) // for Unplug the options need not be those of Plug, but for the ID
	if err != nil {
		log.Fatal(err)
	}
	events := make(chan string, 1) // the ids of deleted devices, from the loop that reads QMP
	deleted := func() (bool, error) {
		for {
			select {
			case id := <-events:
				if id == nic.Device["id"] {
					return true, nil
				}
			case <-time.After(5 * time.Second): // device_del is sent again
				return false, nil
			}
		}
	}
	err = nic.Unplug(func(command string, arguments qemu.Object) error {
		line, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
		fmt.Println(string(line))
		if command == "device_del" {
			events <- "eth1" // in the place of QEMU
		}
		return err
	}, deleted)
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// {"arguments":{"id":"eth1"},"execute":"device_del"}
	// {"arguments":{"id":"eth1-netdev"},"execute":"netdev_del"}
}
