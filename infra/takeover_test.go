package infra

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/cache"
)

// moving is the record of a guest behind a masquerade.
func moving() cache.Record {
	mac, gateway := cache.MAC{2, 0, 0, 0, 0, 7}, cache.MAC{2, 0, 0, 0, 0, 1}
	return cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingMasquerade, Firewall: cache.FirewallIPTablesLegacy, Tap: "eth0-tap", Queues: 4,
		ResponderTap: "eth0-dhcp", ResponderMAC: cache.MAC{2, 0, 0, 0, 0, 9}, MAC: mac, GatewayMAC: gateway, MTU: 1450,
		IPv4: &cache.IPv4{Address: netip.MustParsePrefix("10.9.0.1/24"), Server: netip.MustParseAddr("10.9.0.2")},
		IPv6: &cache.IPv6{Address: netip.MustParseAddr("fd09::7"), Gateway: netip.MustParseAddr("fd09::9"), OnLink: []netip.Prefix{netip.MustParsePrefix("fd09::/120")},
			Router: &cache.Router{Address: gateway.LinkLocal(), MAC: gateway, Default: true}},
		Limits:  cache.Limits{ToGuest: cache.Limit{BitsPerSecond: 1_000_000_000}},
		DNS:     &cache.DNS{Search: []string{"a.b"}},
		Options: cache.Options{Hostname: "vm1", LeaseSeconds: 60},
		Device:  cache.Device{Model: "virtio", PCIAddress: "0000:01:00.0", ACPIIndex: 7, Alias: "ua-eth0"},
	}
}

// TestTakeOver: what the Spec leaves zero is the record's, and what it has stays, unless a running guest would notice.
func TestTakeOver(t *testing.T) {
	owner := Owner{UID: 107}
	masquerade := Masquerade{IPv4: netip.MustParsePrefix("10.9.0.0/24"), IPv6: netip.MustParsePrefix("fd09::/120"), MAC: moving().MAC, GatewayMAC: moving().GatewayMAC,
		Guest:   []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::7")},
		Gateway: []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::9")}}
	whole := func(b Binding, edit func(*Spec)) Spec {
		from := moving()
		s := Spec{Owner: owner, Binding: b, Queues: 4, MTU: 1450, Limits: from.Limits, DNS: from.DNS, Options: from.Options, Device: from.Device}
		if edit != nil {
			edit(&s)
		}
		return s
	}
	of := func(binding string) func(*cache.Record) {
		return func(r *cache.Record) { r.Binding, r.Firewall, r.GatewayMAC = binding, "", cache.MAC{} }
	}
	direct := func(binding string, edit func(*cache.Record)) func(*cache.Record) {
		return func(r *cache.Record) {
			*r = cache.Record{Version: cache.Version, Name: "eth0", Binding: binding, Queues: 1, MAC: moving().MAC, MTU: 1450}
			edit(r)
		}
	}
	withPorts := masquerade
	withPorts.Ports = []Ports{{First: 80}}
	withPorts.IPv4 = netip.MustParsePrefix("10.8.0.0/24")
	withPorts.Guest, withPorts.Gateway = []netip.Addr{netip.MustParseAddr("fd09::8"), netip.MustParseAddr("10.8.0.8")}, masquerade.Gateway[1:]
	for name, c := range map[string]struct {
		spec Spec
		from func(*cache.Record)
		want Spec
	}{
		"nothing given": {Spec{Owner: owner}, nil, whole(masquerade, nil)},
		"NIC's MAC":     {Spec{Owner: owner, Binding: Masquerade{NICMAC: true}}, nil, whole(masquerade, nil)},
		"auto":          {Spec{Owner: owner, Binding: Auto{}}, nil, whole(masquerade, nil)},
		"auto, of a bridge": {Spec{Owner: owner, Binding: Auto{MAC: moving().MAC}}, of(cache.BindingBridge),
			whole(Bridge{MAC: moving().MAC}, nil)},
		"redirect":              {Spec{Owner: owner}, of(cache.BindingRedirect), whole(Redirect{MAC: moving().MAC}, nil)},
		"another kind":          {Spec{Owner: owner, Binding: Bridge{}}, nil, whole(Bridge{MAC: moving().MAC}, nil)},
		"masquerade, of bridge": {Spec{Owner: owner, Binding: Masquerade{}}, of(cache.BindingBridge), whole(Masquerade{MAC: moving().MAC}, nil)},
		"some given": {
			Spec{Owner: owner, Binding: Masquerade{Ports: withPorts.Ports, IPv4: withPorts.IPv4, Guest: withPorts.Guest}, MTU: 1500, Limits: cache.Limits{ToGuest: cache.Limit{PacketsPerSecond: 9}}, Queues: 4, DNS: &cache.DNS{}, Options: cache.Options{LeaseSeconds: 9}, Device: cache.Device{Driver: "vhost", Model: "virtio"}},
			nil,
			whole(withPorts, func(s *Spec) {
				s.MTU, s.DNS, s.Options.LeaseSeconds, s.Device.Driver = 1500, &cache.DNS{}, 9, "vhost"
				s.Limits = cache.Limits{ToGuest: cache.Limit{PacketsPerSecond: 9}}
			}),
		},
		"macvtap": {Spec{Owner: owner}, direct(cache.BindingMacvtap, func(r *cache.Record) { r.Tap = "eth0" }), Spec{Owner: owner, Binding: Macvtap{}, Queues: 1}},
		"passt":   {Spec{Owner: owner}, direct(cache.BindingPasst, func(r *cache.Record) { r.Passt = &cache.Passt{} }), Spec{Owner: owner, Binding: Passt{MAC: moving().MAC}, Queues: 1}},
		"sriov": {Spec{Owner: owner}, direct(cache.BindingSRIOV, func(r *cache.Record) { r.SRIOV = &cache.SRIOV{PCIAddress: "0000:03:10.1", VLAN: 42} }),
			Spec{Owner: owner, Binding: SRIOV{MAC: moving().MAC, VLAN: 42}, Queues: 1}},
	} {
		from := moving()
		if c.from != nil {
			c.from(&from)
		}
		have, err := TakeOver(c.spec, from)
		if err != nil || !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %v\nhave %+v\nwant %+v", name, err, have, c.want)
		}
		again, err := TakeOver(have, from)
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
		spec Spec
		from func(*cache.Record)
	}{
		"from.queues":                   {Spec{}, func(r *cache.Record) { r.Queues = 0 }},
		"binding.masquerade.mac":        {Spec{Binding: Masquerade{MAC: other}}, nil},
		"binding.masquerade.gatewayMAC": {Spec{Binding: Masquerade{GatewayMAC: other}}, nil},
		"binding.bridge.mac":            {Spec{Binding: Bridge{MAC: other}}, nil},
		"binding.redirect.mac":          {Spec{Binding: Redirect{MAC: other}}, nil},
		"binding.passt.mac":             {Spec{Binding: Passt{MAC: other}}, nil},
		"binding.auto.mac":              {Spec{Binding: Auto{MAC: other}}, nil},
		"binding.auto.order":            {Spec{Binding: Auto{Order: []string{"bridge"}}}, nil},
		"binding":                       {Spec{Binding: SRIOV{}}, nil},
		"queues":                        {Spec{Queues: 1}, nil},
		"mtu":                           {Spec{MTU: 1400}, nil},
		"device.model":                  {Spec{Device: cache.Device{Model: "e1000"}}, nil},
		"device.pciAddress":             {Spec{Device: cache.Device{PCIAddress: "0000:02:00.0"}}, nil},
		"device.acpiIndex":              {Spec{Device: cache.Device{ACPIIndex: 1}}, nil},
	} {
		from := moving()
		if c.from != nil {
			c.from(&from)
		}
		var bad *cache.FieldError
		if spec, err := TakeOver(c.spec, from); !errors.As(err, &bad) || bad.Field != field || !reflect.DeepEqual(spec, Spec{}) {
			t.Errorf("%s: %v, %+v", field, err, spec)
		}
	}
	if _, err := TakeOver(Spec{Binding: &Bridge{}}, moving()); err == nil {
		t.Error("a pointer to a binding is taken")
	}
}
