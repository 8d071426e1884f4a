package phase2_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/phase2"
)

// The record is what Setup leaves.
func ExampleVM_Interfaces() {
	dir, err := os.MkdirTemp("", "guestwire")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()
	err = cache.Write(root, cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: "eth0-tap", Queues: 1,
		ResponderTap: "eth0-dhcp", ResponderMAC: cache.MAC{2, 0, 0, 0, 0, 8}, MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1450,
		IPv4: &cache.IPv4{Address: netip.MustParsePrefix("10.244.1.7/24"), Server: netip.MustParseAddr("10.244.1.1"),
			Routes: []cache.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.244.1.1")}}},
	})
	if err != nil {
		log.Fatal(err)
	}

	vm, err := phase2.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	elements, err := vm.Interfaces()
	if err != nil {
		log.Fatal(err)
	}
	for _, element := range elements {
		xml, err := element.Marshal()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(xml)
	}
	// Output:
	// <interface type="ethernet">
	//   <mac address="02:00:00:00:00:07"></mac>
	//   <target dev="eth0-tap" managed="no"></target>
	//   <model type="virtio-non-transitional"></model>
	//   <mtu size="1450"></mtu>
	//   <rom enabled="no"></rom>
	// </interface>
}

// A process that was started in the pod's namespace, as the owner of the taps (nsenter, setpriv, a
// container). In the namespace of one thread only, runtime.LockOSThread keeps Serve there.
func ExampleVM_Serve() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	vm.Log = slog.Default()
	vm.Notify = func(nic string, e dhcp.Event) {
		if e.Kind == dhcp.Leased4 || e.Kind == dhcp.Leased6 {
			fmt.Printf("%s of the guest is %v\n", nic, e.Address)
		}
	}
	if err := vm.Serve(ctx); err != nil {
		log.Fatal(err)
	}
	for nic, c := range vm.Counters() {
		fmt.Println(nic, c.Received, c.Sent, c.Events[dhcp.Leased4])
	}
}
