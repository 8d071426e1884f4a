package names_test

import (
	"context"
	"log"
	"log/slog"
	"net/netip"
	"os"

	"github.com/guestwire/guestwire/phase2/names"
)

// The command that phase1/pins starts. The guest asks its gateway, where a divert leads port 53 to 15353. The pod's
// resolvers are asked.
func ExampleProxy() {
	proxy := names.Proxy{
		Pins:      os.NewFile(3, "pins"),
		Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.2.1:15353")},
		Guest:     []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")},
		Log:       slog.Default(),
	}
	if err := proxy.Serve(context.Background()); err != nil {
		log.Fatal(err)
	}
}
