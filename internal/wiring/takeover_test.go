package wiring_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/wiring"
)

// moving is the record of a guest behind a masquerade.
func moving() cache.Record {
	mac, gateway := cache.MAC{2, 0, 0, 0, 0, 7}, cache.MAC{2, 0, 0, 0, 0, 1}
	return cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingMasquerade, Firewall: cache.FirewallIPTablesLegacy, Tap: "eth0-tap", Queues: 4,
		ResponderTap: "eth0-dhcp", ResponderMAC: cache.MAC{2, 0, 0, 0, 0, 9}, MAC: mac, GatewayMAC: gateway, MTU: 1450,
		IPv4: &cache.IPv4{Address: netip.MustParsePrefix("10.9.0.1/24"), Server: netip.MustParseAddr("10.9.0.2")},
		IPv6: &cache.IPv6{Address: netip.MustParseAddr("fd09::7"), Gateway: netip.MustParseAddr("fd09::9"), OnLink: []netip.Prefix{netip.MustParsePrefix("fd09::/120")},
			Router: &cache.Router{Address: eui64.LinkLocal(gateway), MAC: gateway, Default: true}},
		Limits:  cache.Limits{ToGuest: cache.Shape{BitsPerSecond: 1_000_000_000}},
		DNS:     &cache.DNS{Search: []string{"a.b"}},
		Options: cache.Options{Hostname: "vm1", LeaseSeconds: 60},
		Device:  cache.Device{Model: "virtio", PCIAddress: "0000:01:00.0", ACPIIndex: 7, Alias: "ua-eth0"},
	}
}

// TestTakeOver: what the infra.Spec leaves zero is the record's, and what it has stays, unless a running guest would
// notice.
func TestTakeOver(t *testing.T) {
	owner := infra.Owner{UID: 107}
	masquerade := infra.Masquerade{IPv4: netip.MustParsePrefix("10.9.0.0/24"), IPv6: netip.MustParsePrefix("fd09::/120"), MAC: moving().MAC, GatewayMAC: moving().GatewayMAC,
		Guest:   []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::7")},
		Gateway: []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::9")}}
	complete := func(b infra.Binding, edit func(*infra.Spec)) infra.Spec {
		from := moving()
		s := infra.Spec{Owner: owner, Binding: b, Queues: 4, MTU: 1450, Limits: from.Limits, DNS: from.DNS, Options: from.Options, Device: from.Device}
		if edit != nil {
			edit(&s)
		}
		return s
	}
	of := func(binding cache.Kind) func(*cache.Record) {
		return func(r *cache.Record) { r.Binding, r.Firewall, r.GatewayMAC = binding, "", cache.MAC{} }
	}
	direct := func(binding cache.Kind, edit func(*cache.Record)) func(*cache.Record) {
		return func(r *cache.Record) {
			*r = cache.Record{Version: cache.Version, Name: "eth0", Binding: binding, Queues: 1, MAC: moving().MAC, MTU: 1450}
			edit(r)
		}
	}
	withPorts := masquerade
	withPorts.Ports = []infra.Ports{{First: 80}}
	withPorts.IPv4 = netip.MustParsePrefix("10.8.0.0/24")
	withPorts.Guest, withPorts.Gateway = []netip.Addr{netip.MustParseAddr("fd09::8"), netip.MustParseAddr("10.8.0.8")}, masquerade.Gateway[1:]
	for name, c := range map[string]struct {
		spec infra.Spec
		from func(*cache.Record)
		want infra.Spec
	}{
		"nothing given": {infra.Spec{Owner: owner}, nil, complete(masquerade, nil)},
		"NIC's MAC":     {infra.Spec{Owner: owner, Binding: infra.Masquerade{NICMAC: true}}, nil, complete(masquerade, nil)},
		"auto":          {infra.Spec{Owner: owner, Binding: infra.Auto{}}, nil, complete(masquerade, nil)},
		"auto, of a bridge": {infra.Spec{Owner: owner, Binding: infra.Auto{MAC: moving().MAC}}, of(cache.BindingBridge),
			complete(infra.Bridge{MAC: moving().MAC}, nil)},
		"redirect":  {infra.Spec{Owner: owner}, of(cache.BindingRedirect), complete(infra.Redirect{MAC: moving().MAC}, nil)},
		"named tap": {infra.Spec{Owner: owner}, func(r *cache.Record) { r.Tap = "vmtap0" }, complete(masquerade, func(s *infra.Spec) { s.Tap = "vmtap0" })},
		"another named tap": {infra.Spec{Owner: owner, Tap: "tap0"}, func(r *cache.Record) { r.Tap = "vmtap0" },
			complete(masquerade, func(s *infra.Spec) { s.Tap = "tap0" })},
		"another kind":          {infra.Spec{Owner: owner, Binding: infra.Bridge{}}, nil, complete(infra.Bridge{MAC: moving().MAC}, nil)},
		"masquerade, of bridge": {infra.Spec{Owner: owner, Binding: infra.Masquerade{}}, of(cache.BindingBridge), complete(infra.Masquerade{MAC: moving().MAC}, nil)},
		"some given": {
			infra.Spec{Owner: owner, Binding: infra.Masquerade{Ports: withPorts.Ports, IPv4: withPorts.IPv4, Guest: withPorts.Guest}, MTU: 1500, Limits: cache.Limits{ToGuest: cache.Shape{BitsPerSecond: 9000}}, Queues: 4, DNS: &cache.DNS{}, Options: cache.Options{LeaseSeconds: 9}, Device: cache.Device{Driver: "vhost", Model: "virtio"}},
			nil,
			complete(withPorts, func(s *infra.Spec) {
				s.MTU, s.DNS, s.Options.LeaseSeconds, s.Device.Driver = 1500, &cache.DNS{}, 9, "vhost"
				s.Limits = cache.Limits{ToGuest: cache.Shape{BitsPerSecond: 9000}}
			}),
		},
		"macvtap": {infra.Spec{Owner: owner}, direct(cache.BindingMacvtap, func(r *cache.Record) { r.Tap = "eth0" }), infra.Spec{Owner: owner, Binding: infra.Macvtap{}, Queues: 1}},
		"bridge, of macvtap": {infra.Spec{Owner: owner, Binding: infra.Bridge{}}, direct(cache.BindingMacvtap, func(r *cache.Record) { r.Tap = "eth0" }),
			infra.Spec{Owner: owner, Binding: infra.Bridge{MAC: moving().MAC}, Queues: 1, MTU: 1450}},
		"slirp": {infra.Spec{Owner: owner}, direct(cache.BindingSlirp, func(r *cache.Record) { r.Slirp = &cache.Slirp{IPv4: pfx("10.0.2.0/24")} }), infra.Spec{Owner: owner, Binding: infra.Slirp{MAC: moving().MAC}, Queues: 1}},
		"passt": {infra.Spec{Owner: owner}, direct(cache.BindingPasst, func(r *cache.Record) { r.Passt = &cache.Passt{} }), infra.Spec{Owner: owner, Binding: infra.Passt{MAC: moving().MAC}, Queues: 1}},
		"sriov": {infra.Spec{Owner: owner}, direct(cache.BindingSRIOV, func(r *cache.Record) { r.SRIOV = &cache.SRIOV{PCIAddress: "0000:03:10.1", VLAN: 42} }),
			infra.Spec{Owner: owner, Binding: infra.SRIOV{MAC: moving().MAC, VLAN: 42}, Queues: 1}},
	} {
		from := moving()
		if c.from != nil {
			c.from(&from)
		}
		have, err := wiring.TakeOver(c.spec, from)
		if err != nil || !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %v\nhave %+v\nwant %+v", name, err, have, c.want)
		}
		again, err := wiring.TakeOver(have, from)
		if err != nil || !reflect.DeepEqual(again, have) {
			t.Errorf("%s, again: %v\nhave %+v\nwant %+v", name, err, again, have)
		}
		if err := have.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTakeOverRefused: each contradiction names its field.
func TestTakeOverRefused(t *testing.T) {
	other := cache.MAC{2, 0, 0, 0, 0, 8}
	for field, c := range map[string]struct {
		spec infra.Spec
		from func(*cache.Record)
	}{
		"from.queues":                   {infra.Spec{}, func(r *cache.Record) { r.Queues = 0 }},
		"binding.masquerade.mac":        {infra.Spec{Binding: infra.Masquerade{MAC: other}}, nil},
		"binding.masquerade.gatewayMAC": {infra.Spec{Binding: infra.Masquerade{GatewayMAC: other}}, nil},
		"binding.bridge.mac":            {infra.Spec{Binding: infra.Bridge{MAC: other}}, nil},
		"binding.redirect.mac":          {infra.Spec{Binding: infra.Redirect{MAC: other}}, nil},
		"binding.slirp.mac":             {infra.Spec{Binding: infra.Slirp{MAC: other}}, nil},
		"binding.passt.mac":             {infra.Spec{Binding: infra.Passt{MAC: other}}, nil},
		"binding.auto.mac":              {infra.Spec{Binding: infra.Auto{MAC: other}}, nil},
		"binding.auto.order":            {infra.Spec{Binding: infra.Auto{Order: []cache.Kind{"bridge"}}}, nil},
		"binding":                       {infra.Spec{Binding: infra.SRIOV{}}, nil},
		"queues":                        {infra.Spec{Queues: 1}, nil},
		"mtu":                           {infra.Spec{MTU: 1400}, nil},
		"device.model":                  {infra.Spec{Device: cache.Device{Model: "e1000"}}, nil},
		"device.pciAddress":             {infra.Spec{Device: cache.Device{PCIAddress: "0000:02:00.0"}}, nil},
		"device.acpiIndex":              {infra.Spec{Device: cache.Device{ACPIIndex: 1}}, nil},
	} {
		from := moving()
		if c.from != nil {
			c.from(&from)
		}
		var bad *cache.FieldError
		if spec, err := wiring.TakeOver(c.spec, from); !errors.As(err, &bad) || bad.Field != field || !reflect.DeepEqual(spec, infra.Spec{}) {
			t.Errorf("%s: %v, %+v", field, err, spec)
		}
	}
	if spec, err := wiring.TakeOver(infra.Spec{Binding: &infra.Bridge{}}, moving()); err != nil || spec.Validate() == nil {
		t.Errorf("a pointer to a binding is taken: %v", err)
	}
}

// TestTakeOverCollides: a guest with the addresses that it would get anyway is refused where it moves into a network
// that the namespace reaches, until the caller names the guest's address.
func TestTakeOverCollides(t *testing.T) {
	from := moving()
	from.IPv4 = &cache.IPv4{Address: netip.MustParsePrefix("10.244.64.2/18"), Server: netip.MustParseAddr("10.244.64.1")}
	for want, b := range map[error]infra.Binding{infra.ErrCollision: nil, nil: infra.Masquerade{Guest: addresses("10.244.64.2")}} {
		spec, err := wiring.TakeOver(infra.Spec{Owner: infra.Owner{UID: 107}, Binding: b}, from)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tryPlan(flannel(), asked{"eth0", spec}); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", b, err, want)
		}
	}
}
