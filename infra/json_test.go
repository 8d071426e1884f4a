package infra_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// TestJournal: what lies on disk makes the same plan.
func TestJournal(t *testing.T) {
	for _, c := range slices.Concat(cases, directCases) {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			first, err := json.Marshal(plan.Journal())
			if err != nil {
				t.Fatal(err)
			}
			var journal infra.Journal
			if err := json.Unmarshal(first, &journal); err != nil {
				t.Fatal(err)
			}
			again := newPlan(t, journal.Found, journal.Spec)
			if again.String() != plan.String() {
				t.Errorf("another plan:\n%s", diff(plan.String(), again.String()))
			}
			if !reflect.DeepEqual(again.Record, plan.Record) {
				t.Errorf("another record: %+v, want %+v", again.Record, plan.Record)
			}
			second, err := json.Marshal(again.Journal())
			if err != nil {
				t.Fatal(err)
			}
			if string(first) != string(second) {
				t.Errorf("another journal:\n%s\n%s", first, second)
			}
			_, auto := c.spec.Binding.(infra.Auto)
			if !auto && reflect.TypeOf(again.Binding()) != reflect.TypeOf(c.spec.Binding) {
				t.Errorf("the binding became a %T", again.Binding())
			}
		})
	}
}

func TestSpecJSON(t *testing.T) {
	for text, want := range map[string]infra.Spec{
		`{}`: {},
		`{"nic":"eth0","binding":{"bridge":{}},"owner":{"uid":107}}`: {NIC: "eth0", Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107}},
		`{"binding":{"masquerade":{}}}`:                              {Binding: infra.Masquerade{}},
		`{"binding":{"redirect":{}}}`:                                {Binding: infra.Redirect{}},
		`{"binding":{"auto":{}}}`:                                    {Binding: infra.Auto{}},
		`{"binding":{"macvtap":{}}}`:                                 {Binding: infra.Macvtap{}},
		`{"binding":{"sriov":{}}}`:                                   {Binding: infra.SRIOV{}},
		`{"binding":{"passt":{}}}`:                                   {Binding: infra.Passt{}},
		`{"binding":{"sriov":{"pci":"0000:03:10.1","mac":"02:00:00:00:00:77","vlan":42,"managed":true}}}`: {
			Binding: infra.SRIOV{PCI: "0000:03:10.1", MAC: mac(0x77), VLAN: 42, Managed: true}},
		`{"binding":{"passt":{"mac":"02:00:00:00:00:77","ports":["80:8080/tcp","53/udp"]}}}`: {
			Binding: infra.Passt{MAC: mac(0x77), Ports: []infra.Ports{{Protocol: "tcp", First: 80, Guest: 8080}, {Protocol: "udp", First: 53}}}},
		`{"binding":{"masquerade":{"ipv4":"10.7.0.0/24","ipv6":"fd77::/120","mac":"02:00:00:00:00:77"}},"queues":2}`: {
			Binding: infra.Masquerade{IPv4: pfx("10.7.0.0/24"), IPv6: pfx("fd77::/120"), MAC: mac(0x77)}, Queues: 2},
		`{"owner":{"uid":107,"gid":36},"dns":{"search":["a.b"]},"options":{"hostname":"vm"},"device":{"model":"e1000"}}`: {
			Owner: infra.Owner{UID: 107, GID: 36}, DNS: &cache.DNS{Search: []string{"a.b"}},
			Options: cache.Options{Hostname: "vm"}, Device: cache.Device{Model: "e1000"}},
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
		`{"nick":"eth0"}`:                              "nick: no such field",
		`{"owner":{"user":1}}`:                         "owner.user: no such field",
		`{"owner":{"uid":-1}}`:                         "owner.uid: want uint32",
		`{"options":{"leases":1}}`:                     "options.leases: no such field",
		`{"options":{"dhcpv4":{"43":"0xzz"}}}`:         `options.dhcpv4.43: "0xzz"`,
		`{"options":{"dhcpv4":{"43":12}}}`:             "options.dhcpv4.43: want a string, not a number",
		`{"options":{"dhcpv4":{"300":"x"}}}`:           "options.dhcpv4.300: want a number",
		`{"device":{"rom":1}}`:                         "device.rom: want string",
		`{"dns":{"servers":["here"]}}`:                 "dns.servers[0]: ",
		`{"nic":"eth0","nic":"eth1"}`:                  "given twice",
		`{"queues":"2"}`:                               "queues",
		`{"binding":"bridge"}`:                         "binding",
		`{"binding":{"slirp":{}}}`:                     `"slirp", want "bridge", "redirect"`,
		`{"binding":{"redirect":{"mac":1}}}`:           "binding.redirect.mac: no such field",
		`{"binding":{"auto":{"bridge":{}}}}`:           "binding.auto.bridge: no such field",
		`{"binding":{"bridge":{},"masquerade":{}}}`:    `want an object with one member, such as {"bridge": {}}`,
		`{"binding":{"bridge":{"ipv4":"10.0.0.0/8"}}}`: "binding.bridge.ipv4: no such field",
		`{"binding":{"masquerade":{"ipv5":1}}}`:        "binding.masquerade.ipv5: no such field",
		`{"binding":{"masquerade":{"ipv4":"10/8"}}}`:   "binding.masquerade.ipv4",
		`{"binding":{"macvtap":{"mode":"vepa"}}}`:      "binding.macvtap.mode: no such field",
		`{"binding":{"sriov":{"vlan":70000}}}`:         "binding.sriov.vlan: want uint16",
		`{"binding":{"passt":{"ports":["0"]}}}`:        `binding.passt.ports[0]: ports "0"`,
		`{"binding":{"masquerade":{"mac":"02:00"}}}`:   "want the form aa:bb:cc:dd:ee:ff",
		`[]`: "want an object",
	} {
		spec := infra.Spec{NIC: "untouched"}
		err := json.Unmarshal([]byte(text), &spec)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want an error with %s", text, err, word)
		}
		if spec.NIC != "untouched" {
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

// TestNames: they fit, are names, and differ, whatever the NIC is called.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, nic := range []string{"e", "eth0", "eth1", "tencharact", "elevenchara", "fifteencharacte", "fifteencharactf"} {
		n := infra.NamesFor(nic)
		if n.NIC != nic {
			t.Errorf("NamesFor(%q).NIC is %q", nic, n.NIC)
		}
		for _, name := range []string{n.Moved, n.Bridge, n.Tap, n.Port} {
			if err := cache.CheckName("name", name); err != nil {
				t.Error(err)
			}
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s both have a link %s", other, nic, name)
			}
			seen[name] = nic
		}
	}
}

// TestGateways6: only a global next hop of IPv6 whose MAC is not known is to be resolved.
func TestGateways6(t *testing.T) {
	for _, c := range []struct {
		name  string
		found infra.Snapshot
		want  string
	}{
		{"link-local", lan6("fe80::1"), ""},
		{"global", lan6("2001:db8:1::1"), "2001:db8:1::1"},
		{"global, known", lan6("2001:db8:1::1", learned("2001:db8:1::1", mac(1))), ""},
		{"none", lan4(), ""},
	} {
		have := ""
		for _, g := range infra.Gateways6(c.found, veth()) {
			have += g.String()
		}
		if have != c.want {
			t.Errorf("%s: %q, want %q", c.name, have, c.want)
		}
	}
}
