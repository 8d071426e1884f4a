package infra_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

var guestMAC = cache.MAC{0x02, 0, 0, 0, 0, 0x77}

func TestSpecJSON(t *testing.T) {
	for text, want := range map[string]infra.Spec{
		`{}`: {},
		`{"binding":{"bridge":{}},"owner":{"uid":107}}`:            {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107}},
		`{"binding":{"masquerade":{}}}`:                            {Binding: infra.Masquerade{}},
		`{"binding":{"routed":{}}}`:                                {Binding: infra.Routed{}},
		`{"binding":{"redirect":{}}}`:                              {Binding: infra.Redirect{}},
		`{"binding":{"auto":{}}}`:                                  {Binding: infra.Auto{}},
		`{"binding":{"auto":{"order":["masquerade","redirect"]}}}`: {Binding: infra.Auto{Order: []string{"masquerade", "redirect"}}},
		`{"binding":{"auto":{"mac":"02:00:00:00:00:77"}}}`:         {Binding: infra.Auto{MAC: guestMAC}},
		`{"binding":{"bridge":{"mac":"02:00:00:00:00:77"}}}`:       {Binding: infra.Bridge{MAC: guestMAC}},
		`{"binding":{"redirect":{"mac":"02:00:00:00:00:77"}}}`:     {Binding: infra.Redirect{MAC: guestMAC}},
		`{"binding":{"masquerade":{"gatewayMAC":"02:00:00:00:00:77"}},"guest":"default/vm1"}`: {
			Binding: infra.Masquerade{GatewayMAC: guestMAC}, Guest: "default/vm1"},
		`{"binding":{"macvtap":{}}}`: {Binding: infra.Macvtap{}},
		`{"binding":{"sriov":{}}}`:   {Binding: infra.SRIOV{}},
		`{"binding":{"passt":{}}}`:   {Binding: infra.Passt{}},
		`{"binding":{"sriov":{"pci":"0000:03:10.1","mac":"02:00:00:00:00:77","vlan":42,"managed":true}}}`: {
			Binding: infra.SRIOV{PCI: "0000:03:10.1", MAC: guestMAC, VLAN: 42, Managed: true}},
		`{"binding":{"passt":{"mac":"02:00:00:00:00:77","ports":["80:8080/tcp","53/udp"]}}}`: {
			Binding: infra.Passt{MAC: guestMAC, Ports: []infra.Ports{{Protocol: "tcp", First: 80, Guest: 8080}, {Protocol: "udp", First: 53}}}},
		`{"binding":{"masquerade":{"ipv4":"10.7.0.0/24","ipv6":"fd77::/120","guest":["fd77::9","10.7.0.9"],"gateway":["10.7.0.2"],"mac":"02:00:00:00:00:77"}},"queues":2}`: {
			Binding: infra.Masquerade{IPv4: netip.MustParsePrefix("10.7.0.0/24"), IPv6: netip.MustParsePrefix("fd77::/120"), MAC: guestMAC,
				Guest: addresses("fd77::9", "10.7.0.9"), Gateway: addresses("10.7.0.2")}, Queues: 2},
		`{"owner":{"uid":107,"gid":36},"dns":{"search":["a.b"]},"options":{"hostname":"vm"},"device":{"model":"e1000"}}`: {
			Owner: infra.Owner{UID: 107, GID: 36}, DNS: &cache.DNS{Search: []string{"a.b"}},
			Options: cache.Options{Hostname: "vm"}, Device: cache.Device{Model: "e1000"}},
		`{"guard":{"etherTypes":["0x8863","0x8864"],"vlans":[0,5]}}`: {Guard: infra.Guard{EtherTypes: []infra.EtherType{0x8863, 0x8864}, VLANs: []uint16{0, 5}}},
	} {
		var spec infra.Spec
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if !reflect.DeepEqual(spec, want) {
			t.Errorf("%s: %+v, want %+v", text, spec, want)
		}
		if written, err := json.Marshal(spec); err != nil || string(written) != text {
			t.Errorf("%s is written as %s, %v", text, written, err)
		}
	}
}

func TestSpecJSONRefused(t *testing.T) {
	for text, word := range map[string]string{
		`{"nick":"eth0"}`:                                     "nick: no such field",
		`{"bindig":{"bridge":{}}}`:                            `bindig: no such field in this version: did you mean "binding"?`,
		`{"":{}}`:                                             "no such field",
		`{"owner":{"user":1}}`:                                "owner.user: no such field",
		`{"owner":{"uid":-1}}`:                                "owner.uid: want a number from 0 to 4294967295, not -1",
		`{"options":{"leases":1}}`:                            "options.leases: no such field",
		`{"options":{"dhcpv4":{"43":"0xzz"}}}`:                `options.dhcpv4.43: "0xzz"`,
		`{"options":{"dhcpv4":{"43":12}}}`:                    "options.dhcpv4.43: want a string, not a number",
		`{"options":{"dhcpv4":{"300":"x"}}}`:                  "options.dhcpv4.300: want a number",
		`{"device":{"rom":1}}`:                                "device.rom: want a string",
		`{"dns":{"servers":["here"]}}`:                        "dns.servers[0]: ",
		`{"queues":"2"}`:                                      "queues",
		`{"binding":"bridge"}`:                                "binding",
		`{"binding":{"slirp":{}}}`:                            `"slirp", want "bridge", "redirect"`,
		`{"binding":{"redirect":{"mac":1}}}`:                  "binding.redirect.mac: want a string, not a number",
		`{"binding":{"macvtap":{"mac":"02:00:00:00:00:77"}}}`: "binding.macvtap.mac: no such field",
		`{"guest":1}`:                                         "guest: want a string",
		`{"binding":{"auto":{"bridge":{}}}}`:                  "binding.auto.bridge: no such field",
		`{"binding":{"bridge":{},"masquerade":{}}}`:           `want an object with one member, such as {"bridge": {}}`,
		`{"binding":{"bridge":{"ipv4":"10.0.0.0/8"}}}`:        "binding.bridge.ipv4: no such field",
		`{"binding":{"masquerade":{"ipv5":1}}}`:               "binding.masquerade.ipv5: no such field",
		`{"binding":{"masquerade":{"ipv4":"10/8"}}}`:          "binding.masquerade.ipv4",
		`{"binding":{"macvtap":{"mode":"vepa"}}}`:             "binding.macvtap.mode: no such field",
		`{"binding":{"sriov":{"vlan":70000}}}`:                "binding.sriov.vlan: want a number from 0 to 65535",
		`{"binding":{"passt":{"ports":["0"]}}}`:               `binding.passt.ports[0]: ports "0"`,
		`{"binding":{"masquerade":{"mac":"02:00"}}}`:          "want the form aa:bb:cc:dd:ee:ff",
		`{"guard":{"etherTypes":["8863"]}}`:                   `guard.etherTypes[0]: "8863" is no EtherType`,
		`{"guard":{"etherTypes":[34915]}}`:                    "guard.etherTypes[0]: want a string, not a number",
		`{"guard":{"vlans":[70000]}}`:                         "guard.vlans[0]: want a number from 0 to 65535, not 70000",
		`{"state":null}`:                                      "state: want a value, not null",
		`{"state":"a","state":"b"}`:                           "given twice",
		`{"binding":{"bridge":{},"bridge":{}}}`:               `want an object with one member`,
		`{"binding":{"passt":{"mac":null}}}`:                  "binding.passt.mac: want a value, not null",
		`[]`:                                                  "want an object",
	} {
		spec := infra.Spec{State: "untouched"}
		err := json.Unmarshal([]byte(text), &spec)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want an error with %s", text, err, word)
		}
		if spec.State != "untouched" {
			t.Errorf("%s: refused, and yet it changed the value", text)
		}
	}
	_, err := infra.NewBinding("slirp")
	var field *cache.FieldError
	if !errors.As(err, &field) || field.Field != "binding" {
		t.Errorf("NewBinding of an unknown kind: %v, want a *cache.FieldError of binding", err)
	}
	for _, kind := range []string{
		cache.BindingBridge, cache.BindingRedirect, cache.BindingMasquerade, cache.BindingMacvtap, cache.BindingSRIOV, cache.BindingPasst, "auto",
	} {
		if b, err := infra.NewBinding(kind); err != nil || b.Kind() != kind {
			t.Errorf("NewBinding(%q): %v, %v", kind, b, err)
		}
	}
}

// filled returns a value of the type in which each field, at any depth, is not zero.
func filled(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *infra.Binding: // TestSpecJSONKeepsEachField goes through them
		return
	case *netip.Addr:
		*x = netip.MustParseAddr("192.0.2.1")
		return
	case *netip.Prefix:
		*x = netip.MustParsePrefix("192.0.2.0/24")
		return
	case *cache.MAC:
		*x = guestMAC
		return
	case *infra.Ports:
		*x = infra.Ports{Protocol: "udp", First: 5000, Last: 5010, Guest: 6000}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			filled(t, v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(t, v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		filled(t, key)
		filled(t, value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("word")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		t.Fatalf("a field of the type %v: say how it is filled", v.Type())
	}
}

// TestSpecJSONKeepsEachField: no field of a Spec, of a binding, or of what they hold is lost in JSON. A
// field that is new is tested without a word here.
func TestSpecJSONKeepsEachField(t *testing.T) {
	for _, kind := range []string{"bridge", "redirect", "masquerade", "routed", "macvtap", "sriov", "passt", "auto"} {
		var want infra.Spec
		filled(t, reflect.ValueOf(&want).Elem())
		b, err := infra.NewBinding(kind)
		if err != nil {
			t.Fatal(err)
		}
		binding := reflect.New(reflect.TypeOf(b)).Elem()
		filled(t, binding)
		want.Binding = binding.Interface().(infra.Binding)
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var have infra.Spec
		if err := json.Unmarshal(text, &have); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if !reflect.DeepEqual(have, want) {
			t.Errorf("%s became\n%+v, want\n%+v", text, have, want)
		}
	}
}

func addresses(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// TestSameGuest: under a running guest that can change which does not change who the guest is.
func TestSameGuest(t *testing.T) {
	mine := func(edit func(*infra.Spec)) infra.Spec {
		s := infra.Spec{Binding: infra.Bridge{}}
		edit(&s)
		return s
	}
	bound := func(b infra.Binding) infra.Spec { return mine(func(s *infra.Spec) { s.Binding = b }) }
	known := func(b infra.Binding, guest string) infra.Spec {
		return mine(func(s *infra.Spec) { s.Binding, s.Guest = b, guest })
	}
	ports := func(first ...uint16) infra.Passt {
		var p infra.Passt
		for _, n := range first {
			p.Ports = append(p.Ports, infra.Ports{First: n})
		}
		return p
	}
	for _, c := range []struct {
		a, b infra.Spec
		same bool
	}{
		{bound(infra.Bridge{}), bound(infra.Bridge{}), true},
		{bound(infra.Bridge{}), bound(infra.Redirect{}), false},
		{bound(infra.Bridge{}), bound(infra.Masquerade{}), false},
		{bound(infra.Bridge{}), bound(infra.Macvtap{}), false},
		{bound(infra.Redirect{}), bound(infra.Redirect{}), true},
		{bound(infra.Auto{}), bound(infra.Auto{}), true},
		{bound(infra.Auto{}), bound(infra.Auto{Order: []string{"bridge", "redirect", "routed", "masquerade"}}), true},
		{bound(infra.Auto{}), bound(infra.Auto{Order: []string{"redirect"}}), false},
		{bound(infra.Auto{}), bound(infra.Auto{MAC: guestMAC}), false},
		{bound(infra.Bridge{}), bound(infra.Bridge{MAC: guestMAC}), false},
		{bound(infra.Bridge{MAC: guestMAC}), bound(infra.Bridge{MAC: guestMAC}), true},
		{bound(infra.Redirect{}), bound(infra.Redirect{MAC: guestMAC}), false},
		{bound(infra.Redirect{MAC: guestMAC}), bound(infra.Redirect{MAC: guestMAC}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{GatewayMAC: infra.DefaultGatewayMAC}), false},
		{bound(infra.Macvtap{}), bound(infra.Macvtap{}), true},
		{known(infra.Masquerade{}, ""), known(infra.Masquerade{}, "vm1"), false},
		{known(infra.Masquerade{}, "vm2"), known(infra.Masquerade{}, "vm1"), false},
		{known(infra.Masquerade{}, "vm1"), known(infra.Masquerade{}, "vm1"), true},
		{known(infra.Masquerade{MAC: guestMAC}, ""), known(infra.Masquerade{MAC: guestMAC}, "vm1"), true},
		{known(infra.Passt{}, ""), known(infra.Passt{}, "vm1"), false},
		{known(infra.Passt{MAC: guestMAC}, ""), known(infra.Passt{MAC: guestMAC}, "vm1"), true},
		{known(infra.Auto{}, ""), known(infra.Auto{}, "vm1"), false},
		{known(infra.Auto{MAC: guestMAC}, ""), known(infra.Auto{MAC: guestMAC}, "vm1"), true},
		{known(infra.Auto{Order: []string{"redirect"}}, ""), known(infra.Auto{Order: []string{"redirect"}}, "vm1"), true},
		{known(infra.Bridge{}, ""), known(infra.Bridge{}, "vm1"), true},
		{known(infra.Redirect{}, ""), known(infra.Redirect{}, "vm1"), true},
		{known(infra.Macvtap{}, ""), known(infra.Macvtap{}, "vm1"), true},
		{known(infra.SRIOV{}, ""), known(infra.SRIOV{}, "vm1"), true},
		{bound(infra.SRIOV{}), bound(infra.SRIOV{}), true},
		{bound(infra.SRIOV{}), bound(infra.SRIOV{VLAN: 1}), false},
		{bound(infra.SRIOV{}), bound(infra.Passt{}), false},
		{bound(ports()), bound(ports()), true},
		{bound(ports(80)), bound(ports(80)), true},
		{bound(ports(80)), bound(ports(81)), false},
		{bound(ports(80)), bound(ports()), false},
		{bound(infra.Passt{}), bound(infra.Passt{MAC: guestMAC}), false},
		{bound(infra.Passt{Ports: []infra.Ports{{Protocol: "tcp", First: 80, Guest: 80}}}), bound(ports(80)), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Ports: []infra.Ports{}, Loopback: true, MaxConnections: 9}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv4: infra.DefaultIPv4, IPv6: infra.DefaultIPv6}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv4: netip.MustParsePrefix("10.7.0.0/24")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv6: netip.MustParsePrefix("fd77::/120")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Guest: addresses("10.0.2.2", "fd10:0:2::2"), Gateway: addresses("10.0.2.1")}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Guest: addresses("10.0.2.10")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Gateway: addresses("fd10:0:2::a")}), false},
		{bound(infra.Masquerade{Guest: addresses("10.0.2.1")}), bound(infra.Masquerade{Gateway: addresses("10.0.2.2")}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{MAC: guestMAC}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{NICMAC: true}), false},
		{known(infra.Masquerade{NICMAC: true}, ""), known(infra.Masquerade{NICMAC: true}, "vm1"), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Queues = 1 }), true},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Queues = 2 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.UID = 107 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.GID = 107 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.SELinux = "u:r:vmm_t" }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.Inside = true }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) {
			s.Guard.Off, s.DNS, s.Options.Hostname, s.Device.Model, s.MTU = true, &cache.DNS{}, "vm", "e1000", 1400
			s.Limits.FromGuest.BitsPerSecond = 8000
		}), true},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) {
			s.Guard.EtherTypes, s.Guard.VLANs = []infra.EtherType{0x8863}, []uint16{5}
		}), true},
	} {
		for _, pair := range [][2]infra.Spec{{c.a, c.b}, {c.b, c.a}} {
			err := infra.SameGuest(pair[0], pair[1])
			if (err == nil) != c.same || err != nil && !errors.Is(err, infra.ErrWired) {
				t.Errorf("%+v and then %+v: %v", pair[0], pair[1], err)
			}
		}
	}
}

// TestSameGuestSays: the error tells how the NIC is wired, so that its reader can ask for the same.
func TestSameGuestSays(t *testing.T) {
	wanted := infra.Spec{Binding: infra.Auto{}}
	for want, wired := range map[string]infra.Spec{
		`not for tap ""`:                       {Binding: infra.Bridge{}, Tap: "tap0", Queues: 2, Owner: infra.Owner{UID: 1}},
		"not for queues 2":                     {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1}},
		"not for user 1 (no group named)":      {Binding: infra.Bridge{}, Queues: 2},
		"not for the bridge binding, queues 2": {Binding: infra.Redirect{}, Owner: infra.Owner{UID: 1}},
	} {
		if err := infra.SameGuest(wired, infra.Spec{Binding: infra.Bridge{}, Queues: 2, Owner: infra.Owner{UID: 1}}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v does not end with %s", err, want)
		}
	}
	other := infra.SameGuest(infra.Spec{Binding: infra.Passt{}, Guest: "vm1"}, infra.Spec{Binding: infra.Passt{}, Guest: "vm2"})
	if other == nil || !strings.HasSuffix(other.Error(), `, guest "vm1", queues 1, for user 0 (no group named): Teardown first, or ask for the same, not for guest "vm2"`) {
		t.Errorf("%v does not name the guest that is wired, and the other one", other)
	}
	for want, wired := range map[string]infra.Spec{
		"already wired with the bridge binding, queues 1, for user 0 (no group named):": {Binding: infra.Bridge{}},
		"already wired with the bridge binding, queues 4, for user 1, group 2:":         {Binding: infra.Bridge{}, Queues: 4, Owner: infra.Owner{UID: 1, GID: 2}},
		"for user 1, group 2 inside: Teardown first":                                    {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1, GID: 2, Inside: true}},
		"for user 1, group 2, context u:r:vmm_t:s0: Teardown first":                     {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1, GID: 2, SELinux: "u:r:vmm_t:s0"}},
		`already wired with the masquerade binding (ipv4 left out, ipv6 fd77::/120, guest left out, gateway fd77::9 10.0.2.9, mac 02:00:00:00:00:77, gatewayMAC left out, firewall "nftables"), queues 1,`: {
			Binding: infra.Masquerade{IPv6: netip.MustParsePrefix("fd77::/120"), Gateway: addresses("fd77::9", "10.0.2.9"), MAC: guestMAC, Firewall: cache.FirewallNFTables}},
		"already wired with the bridge binding (mac 02:00:00:00:00:77), queues 1,": {Binding: infra.Bridge{MAC: guestMAC}, Guest: "unused"},
		"mac the NIC's, gatewayMAC left out,":                                      {Binding: infra.Masquerade{NICMAC: true}},
		`firewall ""), guest "vm1", queues 1, for user 0`:                          {Binding: infra.Masquerade{}, Guest: "vm1"},
		"already wired with the sriov binding {PCI:0000:03:10.1 ":                  {Binding: infra.SRIOV{PCI: "0000:03:10.1"}},
	} {
		if err := infra.SameGuest(wired, wanted); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

// TestCanBecome: which binding an Auto may have become, so that a later Setup with Auto keeps it.
func TestCanBecome(t *testing.T) {
	other := cache.MAC{2, 0, 0, 0, 0, 0x78}
	for _, c := range []struct {
		auto infra.Auto
		b    infra.Binding
		can  bool
	}{
		{infra.Auto{}, infra.Bridge{}, true},
		{infra.Auto{}, infra.Bridge{MAC: guestMAC}, true},
		{infra.Auto{}, infra.Routed{}, true},
		{infra.Auto{}, infra.Passt{}, false},
		{infra.Auto{}, infra.Auto{}, false},
		{infra.Auto{Order: []string{"redirect"}}, infra.Bridge{}, false},
		{infra.Auto{MAC: guestMAC}, infra.Redirect{MAC: guestMAC}, true},
		{infra.Auto{MAC: guestMAC}, infra.Masquerade{MAC: other}, false},
		{infra.Auto{MAC: guestMAC}, infra.Bridge{}, false},
		{infra.Auto{MAC: guestMAC}, infra.Routed{}, false},
	} {
		if have := c.auto.CanBecome(c.b); have != c.can {
			t.Errorf("%+v, %T%+[2]v: %v, want %v", c.auto, c.b, have, c.can)
		}
	}
}
