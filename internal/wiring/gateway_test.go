package wiring_test

import (
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestGateway: the gateway is asked again if the record has its MAC, and not otherwise.
func TestGateway(t *testing.T) {
	const global = "2001:db8:1::1"
	second := learned(global, mac(8)) // of another NIC
	second.Link = 3
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
		want  wiring.Gateway // zero: none
	}{
		{"known", lan6(global, second, learned(global, mac(9))), bridge(), wiring.Gateway{Link: nic, Address: ip(global), MAC: mac(9)}},
		{"redirect", lan6(global, learned(global, mac(9))), redirect(), wiring.Gateway{Link: nic, Address: ip(global), MAC: mac(9)}},
		{"group", lan6(global, learned(global, cache.MAC{0x33, 0x33, 0, 0, 0, 1})), bridge(), wiring.Gateway{Link: nic, Address: ip(global)}},
		{"permanent group", lan6(global, permanent(global, cache.MAC{1, 0, 0x5e, 0, 0, 1})), bridge(), wiring.Gateway{Link: nic, Address: ip(global)}},
		{"silent", lan6(global), bridge(), wiring.Gateway{Link: nic, Address: ip(global)}},
		{"ipvlan", ipvlanWith(func(*netstate.Snapshot) {}), redirect(), wiring.Gateway{Link: nic, Address: ip("fe80::1"), MAC: mac(1)}},
		{"link-local", lan6("fe80::1", learned("fe80::1", mac(9))), bridge(), wiring.Gateway{}},
		{"permanent", lan6(global, permanent(global, mac(9))), bridge(), wiring.Gateway{}},
		{"masquerade", lan6(global, learned(global, mac(9))), masquerade(), wiring.Gateway{}},
		{"no responder", lan6(global, learned(global, mac(9))), withSpec(bridge(), func(s *asked) { s.Options.NoResponder = true }), wiring.Gateway{}},
		{"group, no responder", lan4With(func(s *netstate.Snapshot) {
			s.Neighbours = append(s.Neighbours, permanent("10.244.1.9", cache.MAC{1, 0, 0x5e, 0, 0, 1}))
		}), withSpec(bridge(), func(s *asked) { s.Options.NoResponder = true }), wiring.Gateway{}},
		{"no IPv6", lan4(), bridge(), wiring.Gateway{}},
		{"IPv4", calico4("169.254.1.1", learned("169.254.1.1", mac(9))), bridge(), wiring.Gateway{Link: nic, Address: ip("169.254.1.1"), MAC: mac(9)}},
		{"IPv4, broadcast", calico4("169.254.1.1", permanent("169.254.1.1", cache.MAC{255, 255, 255, 255, 255, 255})), bridge(), wiring.Gateway{Link: nic, Address: ip("169.254.1.1")}},
		{"IPv4, silent", calico4("169.254.1.1"), redirect(), wiring.Gateway{Link: nic, Address: ip("169.254.1.1")}},
		{"IPv4, beside the guest", calico4("10.244.1.6"), bridge(), wiring.Gateway{}},
		{"IPv4, permanent", calico4("169.254.1.1", permanent("169.254.1.1", mac(9))), bridge(), wiring.Gateway{}},
		{"IPv4 by way of IPv6", lan4With(func(s *netstate.Snapshot) {
			s.Routes[0].Gateway, s.Neighbours = ip("fe80::1"), []netstate.Neighbour{learned("fe80::1", mac(9))}
		}), bridge(), wiring.Gateway{Link: nic, Address: ip("fe80::1"), MAC: mac(9)}},
		{"IPv4 by way of IPv6, silent", lan4With(func(s *netstate.Snapshot) { s.Routes[0].Gateway = ip("fe80::1") }), redirect(), wiring.Gateway{Link: nic, Address: ip("fe80::1")}},
		{"IPv4, no default route", calico4("169.254.1.1"), withSpec(bridge(), func(s *asked) { s.Options.NoDefaultRoute = true }), wiring.Gateway{}},
	} {
		var want []wiring.Gateway
		if c.want != (wiring.Gateway{}) {
			want = append(want, c.want)
		}
		if have := newPlan(t, c.found, c.spec).Gateways(); !reflect.DeepEqual(have, want) {
			t.Errorf("%s: have %+v; want %+v", c.name, have, want)
		}
		// A first plan asks for those that the snapshot does not have.
		unknown := c.want.Address.IsValid() && c.want.MAC.IsZero()
		if have := wiring.Gateways(c.found, c.found.Links[1]); !c.spec.Options.NoDefaultRoute && (len(have) > 0) != unknown {
			t.Errorf("%s: %v are not known, want one: %t", c.name, have, unknown)
		}
	}
}

// TestWithGateway: with another MAC of the gateway the record has another router, Setup has steps, and Undo leads
// to the same namespace.
func TestWithGateway(t *testing.T) {
	const global = "2001:db8:1::1"
	for _, spec := range []asked{bridge(), redirect()} {
		for name, found := range map[string]netstate.Snapshot{"known": lan6(global, learned(global, mac(9))), "silent": lan6(global)} {
			plan := newPlan(t, found, spec)
			before := plan.Record
			k := wire(t, plan, found)
			gateway := plan.Gateways()[0]
			gateway.MAC = mac(10)
			repaired, err := plan.WithGateway(gateway)
			if err != nil {
				t.Fatal(err)
			}
			if r := repaired.Record.IPv6.Router; r == nil || r.MAC != mac(10) || r.Address != eui64.LinkLocal(mac(10)) || !r.Default {
				t.Errorf("%s: router %+v", name, r)
			}
			if want := (cache.Neighbour{Address: eui64.LinkLocal(mac(10)), MAC: mac(10), Station: ip(global)}); !reflect.DeepEqual(repaired.Record.Neighbours, []cache.Neighbour{want}) {
				t.Errorf("%s: neighbours %+v, want %+v", name, repaired.Record.Neighbours, want)
			}
			if !reflect.DeepEqual(plan.Record, before) {
				t.Errorf("%s: the plan has changed", name)
			}
			if len(mustSteps(t, repaired, k)) == 0 {
				t.Errorf("%s: no steps, although the responder has to answer for another router", name)
			}
			again, err := repaired.Journal().Plan()
			if err != nil || !reflect.DeepEqual(again.Record, repaired.Record) {
				t.Errorf("%s: the journal makes the record %+v, %v; want %+v", name, again.Record, err, repaired.Record)
			}
			have, _ := undoOf(repaired, k.snapshot())
			want, _ := undoOf(plan, k.snapshot())
			if netstate.Text(have) != netstate.Text(want) {
				t.Errorf("%s: Undo is\n%s\nand was\n%s", name, netstate.Text(have), netstate.Text(want))
			}
		}
	}
}

// TestWithGateway4: with another MAC of the gateway the stand-in has another MAC, too.
func TestWithGateway4(t *testing.T) {
	const address = "169.254.1.1"
	for name, found := range map[string]netstate.Snapshot{"known": calico4(address, learned(address, mac(9))), "silent": calico4(address)} {
		plan := newPlan(t, found, bridge())
		k := wire(t, plan, found)
		gateway := plan.Gateways()[0]
		gateway.MAC = mac(10)
		repaired, err := plan.WithGateway(gateway)
		if err != nil {
			t.Fatal(err)
		}
		want := cache.Neighbour{Address: ip("10.244.1.6"), MAC: mac(10), Station: ip(address)}
		if r := repaired.Record; r.IPv4.StandIn != want.Address || !reflect.DeepEqual(r.Neighbours, []cache.Neighbour{want}) {
			t.Errorf("%s: stand-in %v, neighbours %+v, want %+v", name, r.IPv4.StandIn, r.Neighbours, want)
		}
		if steps := mustSteps(t, repaired, k); (len(steps) == 0) != (name == "known") {
			t.Errorf("%s: steps %v", name, steps)
		}
	}
}
