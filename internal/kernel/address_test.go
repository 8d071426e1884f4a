package kernel

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

var testAddresses = []netstate.Address{
	{
		Link: 7, Prefix: netip.MustParsePrefix("10.0.0.2/24"), Broadcast: netip.MustParseAddr("10.0.0.255"), Label: "eth0:1",
		Scope: netstate.ScopeLink, Flags: netstate.AddrNoPrefixRoute, Metric: 100, Protocol: 3,
		ValidSeconds: 3600, PreferredSeconds: 1800,
	},
	{
		Link: 7, Prefix: netip.MustParsePrefix("10.0.0.2/32"), Peer: netip.MustParsePrefix("10.0.1.0/24"),
		ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever,
	},
	{
		Link: 7, Prefix: netip.MustParsePrefix("2001:db8::2/64"), Flags: netstate.AddrNoDAD,
		ValidSeconds: netstate.Forever, PreferredSeconds: 0,
	},
}

func TestAddressRoundTrip(t *testing.T) {
	for _, want := range testAddresses {
		for _, op := range []netstate.Op{netstate.AddressAdd{Address: want}, netstate.AddressDel{Address: want}} {
			if have, _, err := parseAddress(body(t, op)); err != nil || have != want {
				t.Errorf("%v:\nhave %+v, %v\nwant %+v", op, have, err, want)
			}
		}
	}
}
