package wiring_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/golden"
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
			again := newPlan(t, journal.Found, asked{journal.NIC, journal.Spec})
			if again.String() != plan.String() {
				t.Errorf("another plan:\n%s", golden.Diff(plan.String(), again.String()))
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
