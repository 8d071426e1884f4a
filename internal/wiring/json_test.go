package wiring_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
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
			var journal wiring.Journal
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

// TestGateways: only a global next hop of IPv6, and an IPv4 gateway outside of the guest's network, whose MAC is not known
// is to be resolved.
func TestGateways(t *testing.T) {
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		want  string
	}{
		{"link-local", lan6("fe80::1"), ""},
		{"global", lan6("2001:db8:1::1"), "2001:db8:1::1"},
		{"global, known", lan6("2001:db8:1::1", learned("2001:db8:1::1", mac(1))), ""},
		{"none", lan4(), ""},
		{"IPv4, outside of the network", calico4("169.254.1.1"), "169.254.1.1"},
		{"IPv4, known", calico4("169.254.1.1", learned("169.254.1.1", mac(9))), ""},
		{"IPv4, beside the guest", calico4("10.244.1.6"), ""},
	} {
		have := ""
		for _, g := range wiring.Gateways(c.found, veth()) {
			have += g.String()
		}
		if have != c.want {
			t.Errorf("%s: %q, want %q", c.name, have, c.want)
		}
	}
}
