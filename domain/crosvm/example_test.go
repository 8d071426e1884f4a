package crosvm_test

import (
	"fmt"
	"log"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/crosvm"
)

func ExampleArgs() {
	args, err := crosvm.Args(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
	}, crosvm.Options{FD: 3}) // the first file in ExtraFiles
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(args[0], args[1])
	// Output:
	// --net tap-fd=3,mac=02:73:53:00:b0:0c
}
