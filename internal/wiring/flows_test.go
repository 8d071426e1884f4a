package wiring_test

import (
	"net/netip"
	"testing"
)

// TestFlowsHas: what the network opens to the guest is no flow that the guest opened, though Guard.Prefixes have the
// network's address, as those of a guest that routes may have all.
func TestFlowsHas(t *testing.T) {
	flows := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Guard.Prefixes = []netip.Prefix{pfx("0.0.0.0/0"), pfx("10.9.0.0/24")} })).Flows()
	for _, c := range []struct {
		first, answers string
		has, opened    bool
	}{
		{"10.0.2.2", "198.51.100.8", true, true},
		{"10.0.2.2", "10.0.2.2", true, true}, // to itself, by the pod's address
		{"10.9.0.1", "198.51.100.8", true, true},
		{"203.0.113.7", "198.51.100.8", true, true}, // of guard.prefixes
		{"198.51.100.8", "10.0.2.2", true, false},
		{"198.51.100.8", "10.9.0.1", true, false},
		{"10.0.2.1", "10.0.2.2", true, false},
		{"10.244.1.7", "198.51.100.8", false, false},
	} {
		if has, opened := flows.Has(ip(c.first), ip(c.answers)); has != c.has || opened != c.opened {
			t.Errorf("from %s, answers from %s: %t, %t, want %t, %t", c.first, c.answers, has, opened, c.has, c.opened)
		}
	}
}
