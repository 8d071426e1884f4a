package phase1_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

func TestConfigJSON(t *testing.T) {
	want := phase1.Config{Spec: infra.Spec{
		State: "/run/guestwire/vm1", NIC: "eth0", Binding: infra.Masquerade{IPv4: netip.MustParsePrefix("10.9.0.0/24")},
		Owner: infra.Owner{UID: 107, GID: 108}, Queues: 4, DNS: &cache.DNS{Search: []string{"example"}},
		Options: cache.Options{Hostname: "vm1"}, Device: cache.Device{Model: "e1000"},
	}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got phase1.Config
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s became %+v, %v; want %+v", text, got, err, want)
	}
	for text, complaint := range map[string]string{
		`{"nics": "eth0"}`:                       "nics",
		`{"state": 7}`:                           "state",
		`{"binding": "bridge"}`:                  `{"bridge": {}}`,
		`{"binding": {"router": {}}}`:            `want "bridge", "redirect"`,
		`{"binding": {"masquerade": {"ip": 4}}}`: "binding.masquerade",
		`{"options": {"ntp": ["x"]}}`:            "options.ntp[0]",
		`[]`:                                     "want an object",
	} {
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%s: %v, want a complaint about %s", text, err, complaint)
		}
	}
}
