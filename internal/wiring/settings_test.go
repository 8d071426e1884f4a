package wiring_test

import (
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestBridgeSettings: every setting by which a bridge, or its port, would drop, answer or send a frame elsewhere
// is set back when another program has changed it. The values are those that the guest needs.
func TestBridgeSettings(t *testing.T) {
	ofBridge := netstate.Settings{
		"stp_state": 0, "vlan_filtering": 0, "group_fwd_mask": 0, "mcast_snooping": 0, "mcast_querier": 0, "mcast_router": 1,
		"nf_call_iptables": 0, "nf_call_ip6tables": 0, "nf_call_arptables": 0,
	}
	ofPort := netstate.Settings{
		"state": 3, "hairpin": 0, "guard": 0, "root_block": 0, "fastleave": 0, "learning": 0, "flood": 1, "proxy_arp": 0, "proxy_arp_wifi": 0,
		"mcast_router": 1, "mcast_flood": 1, "mcast_to_unicast": 0, "vlan_tunnel": 0, "bcast_flood": 1, "group_fwd_mask": 0,
		"neigh_suppress": 0, "isolated": 0, "locked": 0, "mab": 0,
	}
	plan := newPlan(t, flannel(), bridge())
	check := func(link, name string, value uint32, op func(index int, settings netstate.Settings) netstate.Op) {
		k := wire(t, plan, flannel())
		index := 0
		for i, l := range k.s.Links {
			if l.Name == link {
				index = l.Index
				settings := &k.s.Links[i].BridgePort
				if l.Kind == "bridge" {
					settings = &k.s.Links[i].Bridge
				}
				*settings = settings.With(netstate.Settings{name: value + 1})
			}
		}
		want := []netstate.Op{op(index, netstate.Settings{name: value})}
		if ops := mustSteps(t, plan, k); !reflect.DeepEqual(ops, want) {
			t.Errorf("%s of %s is %d: have\n%swant\n%s", name, link, value+1, netstate.Text(ops), netstate.Text(want))
		}
	}
	for name, value := range ofBridge {
		check("eth0-br", name, value, func(index int, s netstate.Settings) netstate.Op {
			return netstate.BridgeSet{Index: index, Link: "eth0-br", Settings: s}
		})
	}
	for name, value := range ofPort {
		check("eth0-tap", name, value, func(index int, s netstate.Settings) netstate.Op {
			return netstate.BridgePortSet{Index: index, Link: "eth0-tap", Settings: s}
		})
	}
}
