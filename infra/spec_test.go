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
		`{"binding":{"auto":{"order":["masquerade","redirect"]}}}`: {Binding: infra.Auto{Order: []cache.Kind{"masquerade", "redirect"}}},
		`{"binding":{"auto":{"mac":"02:00:00:00:00:77"}}}`:         {Binding: infra.Auto{MAC: guestMAC}},
		`{"binding":{"bridge":{"mac":"02:00:00:00:00:77"}}}`:       {Binding: infra.Bridge{MAC: guestMAC}},
		`{"binding":{"redirect":{"mac":"02:00:00:00:00:77"}}}`:     {Binding: infra.Redirect{MAC: guestMAC}},
		`{"binding":{"masquerade":{"gatewayMAC":"02:00:00:00:00:77"}},"guest":"default/vm1"}`: {
			Binding: infra.Masquerade{GatewayMAC: guestMAC}, Guest: "default/vm1"},
		`{"binding":{"macvtap":{}}}`: {Binding: infra.Macvtap{}},
		`{"binding":{"sriov":{}}}`:   {Binding: infra.SRIOV{}},
		`{"binding":{"passt":{}}}`:   {Binding: infra.Passt{}},
		`{"binding":{"slirp":{}}}`:   {Binding: infra.Slirp{}},
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
		`{"binding":{"auto":{"order":["passt","vde"]}}}`:      `binding.auto.order[1]: "vde", want one of ["bridge" "redirect"`,
		`{"binding":{"masquerade":{"firewall":"ufw"}}}`:       `binding.masquerade.firewall: "ufw", want one of ["nftables" "iptables-nft" "iptables-legacy"]`,
		`{"binding":{"vde":{}}}`:                              `"vde", want "bridge", "redirect"`,
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
	_, err := infra.NewBinding("vde")
	var field *cache.FieldError
	if !errors.As(err, &field) || field.Field != "binding" {
		t.Errorf("NewBinding of an unknown kind: %v, want a *cache.FieldError of binding", err)
	}
	for _, kind := range []cache.Kind{
		cache.BindingBridge, cache.BindingRedirect, cache.BindingMasquerade, cache.BindingMacvtap, cache.BindingSRIOV, cache.BindingPasst, cache.BindingSlirp, "auto",
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
	case *cache.Kind:
		*x = cache.BindingRedirect
		return
	case *cache.Firewall:
		*x = cache.FirewallIPTablesNFT
		return
	case *infra.Name: // which has ports or addresses
		*x = infra.Name{Name: "*.word", Ports: []infra.Ports{{Protocol: "udp", First: 5000, Last: 5010}}, Private: true}
		return
	case *infra.Egress: // which refuses or diverts
		*x = infra.Egress{To: "word", Ports: infra.Ports{Protocol: "udp", First: 5000, Last: 5010, Guest: 6000}, Divert: netip.MustParseAddrPort("127.0.0.1:8080")}
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
	for _, kind := range []cache.Kind{"bridge", "redirect", "masquerade", "routed", "macvtap", "sriov", "passt", "slirp", "auto"} {
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
