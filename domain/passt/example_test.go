package passt_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/passt"
)

// A launcher starts passt, then QEMU, which connects to the socket.
func ExampleArgs() {
	args, err := passt.Args(&cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingPasst, Queues: 1,
		MAC: cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}, MTU: 1450,
		Passt: &cache.Passt{Forwards: []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 8080}}},
	}, "/run/user/107/passt.sock")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("passt", strings.Join(args, " "))
	// Output:
	// passt --foreground --one-off --socket /run/user/107/passt.sock --interface eth0 --mtu 1450 --tcp-ports 80:8080
}
