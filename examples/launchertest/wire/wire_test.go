package wire

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

var _ NIC = phase1.NIC{}

// TestRun: the NIC is given back however Run ends, and only if Run has wired it.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup error // of the first Setup
		vm    error
		want  error
		on    cache.Kind
		calls []string
	}{
		{"bridge", nil, nil, nil, cache.BindingBridge, []string{"Setup", "Teardown"}},
		{"the VM fails", nil, context.Canceled, context.Canceled, cache.BindingBridge, []string{"Setup", "Teardown"}},
		{"no bridge", &infra.RefusedError{Reason: "a macvlan"}, nil, nil, cache.BindingMasquerade, []string{"Setup", "Setup", "Teardown"}},
		{"wired", infra.ErrWired, nil, infra.ErrWired, "", []string{"Setup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nic := &guestwiretest.FakeNIC{}
			nic.Fail("Setup", c.setup)
			spec := infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107, GID: 107}}
			var on cache.Kind
			err := Run(t.Context(), nic, spec, func(r cache.Record) error { on = r.Binding; return c.vm })
			if !errors.Is(err, c.want) || on != c.on {
				t.Errorf("%v on %q, want %v on %q", err, on, c.want, c.on)
			}
			var calls []string
			for _, call := range nic.Calls() {
				calls = append(calls, call.Method)
			}
			if !slices.Equal(calls, c.calls) {
				t.Errorf("the calls are %q, want %q", calls, c.calls)
			}
		})
	}
}
