package privatenet

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/ip"
)

func TestEnds(t *testing.T) {
	addr := netip.MustParseAddr
	for _, test := range []struct {
		name           string
		network        Network
		version        ip.Version
		guest, gateway string
	}{
		{"IPv4 by default", Network{}, 4, "10.0.2.2/24", "10.0.2.1"},
		{"IPv6 by default", Network{}, 6, "fd10:0:2::2/120", "fd10:0:2::1"},
		{"another network", Network{IPv4: netip.MustParsePrefix("169.254.0.20/30")}, 4, "169.254.0.22/30", "169.254.0.21"},
		{"a guest with the first address", Network{Guest: []netip.Addr{addr("10.0.2.1")}}, 4, "10.0.2.1/24", "10.0.2.2"},
		{"a gateway with the second address", Network{Gateway: []netip.Addr{addr("10.0.2.2")}}, 4, "10.0.2.1/24", "10.0.2.2"},
		{"both, of the other family", Network{Guest: []netip.Addr{addr("10.0.2.9")}, Gateway: []netip.Addr{addr("10.0.2.8")}}, 6, "fd10:0:2::2/120", "fd10:0:2::1"},
	} {
		if guest, gateway := test.network.Ends(test.version); guest.String() != test.guest || gateway.String() != test.gateway {
			t.Errorf("%s: %v, %v, want %s, %s", test.name, guest, gateway, test.guest, test.gateway)
		}
	}
}
