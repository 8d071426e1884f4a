package wiring_test

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// A plan prints as the commands that an administrator would type.
func ExampleNewPlan() {
	found := netstate.Snapshot{
		Links: []netstate.Link{{
			Index: 2, Name: "eth0", Kind: "veth", MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1500, Up: true, Ethernet: true,
		}},
		Addresses: []netstate.Address{{
			Link: 2, Prefix: netip.MustParsePrefix("10.244.1.7/24"),
			ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever,
		}},
	}
	plan, err := wiring.NewPlan(found, infra.Spec{NIC: "eth0", Binding: infra.Masquerade{}, Owner: infra.Owner{UID: 107}})
	if err != nil {
		fmt.Println(err)
		return
	}
	steps, err := plan.Steps(found)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range steps {
		if tap, ok := step.(netstate.TapAdd); ok {
			fmt.Println(tap)
		}
	}
	fmt.Println("the guest has", plan.Record.IPv4.Address)
	// Output:
	// ip tuntap add eth0-dhcp mode tap user 107
	// ip tuntap add eth0-tap mode tap user 107 vnet_hdr
	// the guest has 10.0.2.2/24
}
