package firecracker_test

import (
	"encoding/json"
	"fmt"
	"log"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/firecracker"
)

func ExampleNewNetworkInterface() {
	n, err := firecracker.NewNetworkInterface(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	})
	if err != nil {
		log.Fatal(err)
	}
	object, err := json.Marshal(n)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("PUT %s\n%s\n", n.Path(), object)
	// Output:
	// PUT /network-interfaces/eth0
	// {"iface_id":"eth0","host_dev_name":"eth0-tap","guest_mac":"02:73:53:00:b0:0c","mtu":1450}
}
