package infra_test

import (
	"encoding/json"
	"errors"
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
		"1-65535/everything": {Protocol: "everything", First: 1, Last: 65535}, // Validate refuses it
	} {
		var have infra.Ports
		if err := have.UnmarshalText([]byte(text)); err != nil || have != want {
			t.Errorf("%s: %+v, %v; want %+v", text, have, err, want)
		}
	}
	for _, text := range []string{"", "0", "65536", "-1", "80-", "80-0", "80-65536", "80:", "80:0", "http", "80 ", "80-90-100", "80:1:2", "[::1]:80", "+80", "443,80", "443/tcp,53/udp"} {
		var have infra.Ports
		if err := have.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %+v, want an error", text, have)
		}
	}
}

// TestPortsString: the shortest text that says the same, and always the protocol.
func TestPortsString(t *testing.T) {
	for want, ports := range map[string]infra.Ports{
		"80/tcp":            {First: 80},
		"81/tcp":            {First: 81, Last: 81},
		"82-83/udp":         {Protocol: "udp", First: 82, Last: 83},
		"84/tcp":            {First: 84, Guest: 84},
		"85-86:8085/sctp":   {Protocol: "sctp", First: 85, Last: 86, Guest: 8085},
		"65534-65535:1/tcp": {Protocol: "tcp", First: 65534, Last: 65535, Guest: 1},
	} {
		if have := ports.String(); have != want {
			t.Errorf("%+v: %s, want %s", ports, have, want)
		}
	}
}

// FuzzPorts: an entry that is read and written stays the same.
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
