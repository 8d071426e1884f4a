package cloudhypervisor_test

import (
	"encoding/json"
	"fmt"
	"log"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/cloudhypervisor"
)

func ExampleNewNet() {
	n, err := cloudhypervisor.NewNet(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 2,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	}, cloudhypervisor.Options{VCPUs: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("--net", n.Arg())
	object, err := json.Marshal(n) // for /vm.add-net, or the list net of /vm.create
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", object)
	// Output:
	// --net tap=eth0-tap,mac=02:73:53:00:b0:0c,num_queues=4,id=net-eth0
	// {"tap":"eth0-tap","mac":"02:73:53:00:b0:0c","num_queues":4,"id":"net-eth0"}
}
