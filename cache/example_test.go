package cache_test

import (
	"fmt"
	"log"
	"net/netip"
	"os"

	"github.com/guestwire/guestwire/cache"
)

// A launcher's test writes the record that Setup would write; the launcher reads it.
func ExampleRead() {
	path, err := os.MkdirTemp("", "guestwire")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(path)
	dir, err := os.OpenRoot(path)
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	gateway := netip.MustParseAddr("10.244.1.1")
	err = cache.Write(dir, cache.Record{
		Version: cache.Version,
		Name:    "eth0",
		Binding: cache.BindingBridge,
		Tap:     "eth0-tap",
		Queues:  1,
		MAC:     cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c},
		MTU:     1450,
		IPv4: &cache.IPv4{
			Address: netip.MustParsePrefix("10.244.1.7/24"),
			Server:  gateway,
			Routes:  []cache.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	record, err := cache.Read(dir, "eth0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: the guest's tap is %s, its MAC %v, its MTU %d\n", record.Name, record.Tap, record.MAC, record.MTU)
	fmt.Printf("IPv4 address %v, gateway %v\n", record.IPv4.Address, record.IPv4.Gateway())
	// Output:
	// eth0: the guest's tap is eth0-tap, its MAC 02:73:53:00:b0:0c, its MTU 1450
	// IPv4 address 10.244.1.7/24, gateway 10.244.1.1
}
