package guestconfig_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
)

// A unikernel's command line has no routes.
func ExampleFlatIPv4() {
	record := leased() // as phase1.Setup returns it, or VM.Records of package phase2
	resolvConf := cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	f, err := guestconfig.FlatIPv4(record, resolvConf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("netdev.ip=%v netdev.mask=%d netdev.gw=%v mtu=%d dns=%v\n", f.Address.Addr(), f.Address.Bits(), f.Gateway, f.MTU, f.DNS.Servers[0])
	// Output:
	// netdev.ip=10.0.2.2 netdev.mask=24 netdev.gw=10.0.2.1 mtu=1500 dns=10.96.0.10
}
