package wiring_test

import (
	"slices"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestDefaultRouteElsewhere: the record warns of a default route through a NIC that no guest has.
func TestDefaultRouteElsewhere(t *testing.T) {
	const warning = "the default route through net1 is not this interface's"
	for alias, want := range map[string]bool{"": true, netstate.Mark("net1"): false, netstate.Mark("net2"): true} {
		found := flannelWith(func(s *netstate.Snapshot) {
			s.Links = append(s.Links,
				netstate.Link{Index: 3, Name: "net1", Kind: "veth", MAC: mac(3), MTU: 1500, Up: true, Ethernet: true},
				netstate.Link{Index: 4, Name: "net1-tap", Kind: "tun", MAC: mac(4), MTU: 1500, Up: true, Ethernet: true, Alias: alias},
			)
			s.Routes = append(s.Routes,
				netstate.Route{Link: 3, Table: netstate.TableMain, Destination: pfx("0.0.0.0/0"), Gateway: ip("10.50.0.1"), Type: netstate.RouteUnicast, Protocol: 3, Metric: 100},
			)
		})
		plan, err := wiring.NewPlan(found, bridge())
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(plan.Record.Warnings, warning); got != want {
			t.Errorf("with a link of alias %q: warnings %q, want this one: %t", alias, plan.Record.Warnings, want)
		}
	}
}
