package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// A run ends in an error if the ways did not do the same.
func TestRun(t *testing.T) {
	nstest.Need(t, "gcc", "nsenter", "sysctl")
	var out bytes.Buffer
	if err := run(t.Context(), &out, 1, 1); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"bridge: Setup", "bridge: Teardown", "masquerade: Setup", "masquerade: Teardown", "Setup / floor", "script / Setup"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestRatioIsTheMedianOfTheRounds(t *testing.T) {
	a := []time.Duration{20, 400, 90}
	b := []time.Duration{10, 100, 30}
	if got := pairs(a, b); got != 3 {
		t.Errorf("%v, want 3: of 2, 4, 3", got)
	}
}
