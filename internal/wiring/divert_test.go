package wiring_test

import (
	"strings"
	"testing"
)

// TestDivertWarnings: what of a divert the guest does not have is a warning with a way out, and no warning is untrue.
func TestDivertWarnings(t *testing.T) {
	for _, c := range []struct {
		spec asked
		list []string
		want string // in the warnings; empty: there is none
	}{
		{masquerade(), []string{"divert all 443 :15443", "divert gateway 53/udp :15353", "refuse private", "refuse all"}, ""},
		{routed(), []string{"divert gateway 53/udp :15353", "refuse link-local", "refuse all"}, ""},
		{masquerade(), []string{"divert 192.0.2.7 443 10.0.2.1:15443", "refuse all"}, ""},
		{masquerade(), []string{"divert 192.0.2.7 443 10.244.1.7:15443", "refuse all"}, ""},
		{masquerade(), []string{"divert 192.0.2.7 443 10.9.9.9:15443", "refuse all"}, "refuses if 10.9.9.9 is no address of the namespace, as it was at the first Setup: add the address, or want :15443"},
		{masquerade(), []string{"divert all 443 127.0.0.1:15443", "refuse all"}, "refuses what the guest opens by IPv6, as the target is an address of IPv4: want :15443"},
		{masquerade(), []string{"divert 192.0.2.7 443 127.0.0.1:15443", "refuse all"}, ""},
		{masquerade(), []string{"refuse private", "divert gateway 53/udp 127.0.0.1:15353", "refuse all"}, "does not decide of the gateway, 10.0.2.1, as an earlier entry does, or egressWithin: move it in front of that"},
		{routed(), []string{"refuse link-local", "divert gateway 53/udp 127.0.0.1:15353", "refuse all"}, "does not decide of the gateway, 169.254.75.1"},
	} {
		plan := newPlan(t, flannel(), withSpec(c.spec, func(s *asked) { s.Egress = egressOf(c.list...) }))
		var have []string
		for _, w := range plan.Record.Warnings {
			if strings.HasPrefix(w, "egress[") {
				have = append(have, w)
			}
		}
		if said := strings.Join(have, "\n"); c.want == "" && said != "" || !strings.Contains(said, c.want) {
			t.Errorf("%s, %q: %q, want %q", c.spec.Binding.Kind(), c.list, have, c.want)
		}
	}
}
