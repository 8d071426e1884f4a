package infra_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

func TestPortsText(t *testing.T) {
	for text, want := range map[string]infra.Ports{
		"80":                 {First: 80},
		"80/tcp":             {Protocol: "tcp", First: 80},
		"5000-5100/udp":      {Protocol: "udp", First: 5000, Last: 5100},
		"8080-8081:9090":     {First: 8080, Last: 8081, Guest: 9090},
		"65535:1/sctp":       {Protocol: "sctp", First: 65535, Guest: 1},
		"1-65535/everything": {Protocol: "everything", First: 1, Last: 65535}, // NewPlan refuses it
	} {
		var have infra.Ports
		if err := have.UnmarshalText([]byte(text)); err != nil || have != want {
			t.Errorf("%s: %+v, %v; want %+v", text, have, err, want)
		}
	}
	for _, text := range []string{"", "0", "65536", "-1", "80-", "80-0", "80-65536", "80:", "80:0", "http", "80 ", "80-90-100", "80:1:2", "[::1]:80", "+80"} {
		var have infra.Ports
		if err := have.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %+v, want an error", text, have)
		}
	}
}

// FuzzPorts: what was read is what is written.
func FuzzPorts(f *testing.F) {
	for _, s := range []string{"80", "80-90:8080/udp", "0", "65536", "80:80", "/tcp"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p, again infra.Ports
		if p.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(p.String())); err != nil || again.String() != p.String() {
			t.Errorf("%q became %v and then %v, %v", text, p, again, err)
		}
	})
}

// TestForwardingRefused: what cannot be forwarded, or be let through, is refused by its name.
func TestForwardingRefused(t *testing.T) {
	port := func(n uint16) infra.Ports { return infra.Ports{First: n} }
	list := func(p ...infra.Ports) []infra.Ports { return p }
	const binding = "binding.masquerade."
	for name, c := range map[string]struct {
		masquerade infra.Masquerade
		guard      infra.Guard
		field      string
	}{
		"port 0":              {infra.Masquerade{Ports: list(port(0))}, infra.Guard{}, binding + "ports[0]"},
		"backwards":           {infra.Masquerade{Ports: list(infra.Ports{First: 9, Last: 8})}, infra.Guard{}, binding + "ports[0]"},
		"twice":               {infra.Masquerade{Ports: list(port(80), port(81), port(80))}, infra.Guard{}, binding + "ports[2]"},
		"overlapping":         {infra.Masquerade{Ports: list(infra.Ports{First: 80, Last: 90}, infra.Ports{First: 90, Last: 99})}, infra.Guard{}, binding + "ports[1]"},
		"unknown protocol":    {infra.Masquerade{Ports: list(infra.Ports{Protocol: "icmp", First: 1})}, infra.Guard{}, binding + "ports[0]"},
		"beyond the last":     {infra.Masquerade{Ports: list(infra.Ports{First: 1, Last: 9, Guest: 65530})}, infra.Guard{}, binding + "ports[0]"},
		"too many redirected": {infra.Masquerade{Ports: list(infra.Ports{First: 1, Last: 999, Guest: 2000})}, infra.Guard{}, binding + "ports[0]"},
		"both":                {infra.Masquerade{Ports: list(port(80)), Excluded: list(infra.Ports{First: 79, Last: 81})}, infra.Guard{}, binding + "excluded[0]"},
		"excluded, twice":     {infra.Masquerade{Excluded: list(port(80), port(80))}, infra.Guard{}, binding + "excluded[1]"},
		"excluded elsewhere":  {infra.Masquerade{Excluded: list(infra.Ports{First: 80, Guest: 81})}, infra.Guard{}, binding + "excluded[0]"},
		"connections":         {infra.Masquerade{MaxConnections: -1}, infra.Guard{}, binding + "maxConnections"},
		"no loopback address": {infra.Masquerade{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, infra.Guard{}, binding + "sidecar.sources[0]"},
		"no address":          {infra.Masquerade{Sidecar: &infra.Sidecar{Sources: []netip.Addr{{}}}}, infra.Guard{}, binding + "sidecar.sources[0]"},
		"IPv6 without IPv6":   {infra.Masquerade{Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("::6")}}}, infra.Guard{}, binding + "sidecar.sources[0]"},
		"no station":          {infra.Masquerade{}, infra.Guard{MACs: []cache.MAC{{1}}}, "guard.macs[0]"},
		"host bits":           {infra.Masquerade{}, infra.Guard{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, "guard.prefixes[0]"},
		"nobody's prefix":     {infra.Masquerade{}, infra.Guard{Prefixes: []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4")}}, "guard.prefixes[0]"},
		"the NIC's MAC":       {infra.Masquerade{}, infra.Guard{MACs: []cache.MAC{podMAC}}, "guard.macs[0]"},
		"open, redirected":    {infra.Masquerade{}, infra.Guard{Open: list(infra.Ports{First: 1, Guest: 2})}, "guard.open[0]"},
		"open, port 0":        {infra.Masquerade{}, infra.Guard{Open: list(port(0))}, "guard.open[0]"},
		"off and loosened":    {infra.Masquerade{}, infra.Guard{Off: true, Open: list(port(1))}, "guard.off"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := infra.NewPlan(lan4(), withSpec(masquerade(), func(s *infra.Spec) { s.Binding, s.Guard = c.masquerade, c.guard }))
			var field *cache.FieldError
			if !errors.As(err, &field) || field.Field != c.field {
				t.Errorf("have %v, want a FieldError of %s", err, c.field)
			}
		})
	}
	_, err := infra.NewPlan(flannel(), withSpec(bridge(), func(s *infra.Spec) { s.Guard.Open = list(port(1)) }))
	var field *cache.FieldError
	if !errors.As(err, &field) || field.Field != "guard.open" {
		t.Errorf("have %v, want a FieldError of guard.open", err)
	}
}

// TestForwardingJSON: a list that is empty is not one that is missing.
func TestForwardingJSON(t *testing.T) {
	for text, want := range map[string]infra.Masquerade{
		`{"masquerade":{}}`:                             {},
		`{"masquerade":{"ports":[]}}`:                   {Ports: []infra.Ports{}},
		`{"masquerade":{"ports":["80","53/udp"]}}`:      {Ports: []infra.Ports{{First: 80}, {First: 53, Protocol: "udp"}}},
		`{"masquerade":{"sidecar":{},"loopback":true}}`: {Sidecar: &infra.Sidecar{}, Loopback: true},
	} {
		var spec infra.Spec
		if err := json.Unmarshal([]byte(`{"binding":`+text+`}`), &spec); err != nil || !reflect.DeepEqual(spec.Binding, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, spec.Binding, err, want)
		}
		first, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var again infra.Spec
		if err := json.Unmarshal(first, &again); err != nil {
			t.Error(err)
		}
		if second, err := json.Marshal(again); err != nil || string(second) != string(first) {
			t.Errorf("%s became %s and then %s, %v", text, first, second, err)
		}
	}
	var spec infra.Spec
	err := json.Unmarshal([]byte(`{"binding":{"masquerade":{"ports":["80","70000"]}}}`), &spec)
	var field *cache.FieldError
	if !errors.As(err, &field) || field.Field != "binding.masquerade.ports[1]" {
		t.Errorf("have %v, want a FieldError of binding.masquerade.ports[1]", err)
	}
}

// TestSameGuest: what is forwarded can change under a running guest, and who it is cannot.
func TestSameGuest(t *testing.T) {
	for _, c := range []struct {
		a, b infra.Binding
		same bool
	}{
		{infra.Bridge{}, infra.Bridge{}, true},
		{infra.Bridge{}, infra.Masquerade{}, false},
		{infra.Bridge{}, nil, false},
		{infra.Masquerade{}, infra.Masquerade{Ports: []infra.Ports{}, Loopback: true, MaxConnections: 9}, true},
		{infra.Masquerade{}, infra.Masquerade{IPv4: infra.DefaultIPv4, IPv6: infra.DefaultIPv6}, true},
		{infra.Masquerade{}, infra.Masquerade{IPv4: pfx("10.7.0.0/24")}, false},
		{infra.Masquerade{}, infra.Masquerade{MAC: mac(7)}, false},
		{infra.Masquerade{}, infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, false},
	} {
		if same := infra.SameGuest(c.a, c.b); same != c.same {
			t.Errorf("%+v and %+v: %t", c.a, c.b, same)
		}
	}
}
