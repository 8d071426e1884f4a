package wiring_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestRedirectMACOnStandby: when the NIC takes the guest's MAC depends on the NIC's kind, not on whether it is up, as
// the comment of infra.Redirect says.
func TestRedirectMACOnStandby(t *testing.T) {
	other := cache.MAC{0x02, 0, 0, 0, 0, 0x42}
	for kind, waits := range map[string]bool{"veth": true, "dummy": true, "vlan": true, "": false, "macsec": false} {
		for _, up := range []bool{true, false} {
			found := flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Up = kind, up })
			plan := newPlan(t, found, eth0(infra.Spec{Binding: infra.Redirect{MAC: other}, Owner: launcher}))
			setStandby(t, plan, true)
			takes := slices.ContainsFunc(mustSteps(t, plan, boot(found)), func(op netstate.Op) bool { return announces(op, plan) })
			if takes == waits {
				t.Errorf("a NIC of kind %q, up %v: Setup on standby gives it the guest's MAC: %v", kind, up, takes)
			}
		}
	}
}

// TestPrefixesWithoutRoute: the record warns of a prefix that gets no route under masquerade and routed alone, as the
// comment of infra.Guard says.
func TestPrefixesWithoutRoute(t *testing.T) {
	for _, c := range []struct {
		binding infra.Binding
		prefix  string
		warns   bool
	}{
		{infra.Masquerade{}, "10.9.0.0/24", false},
		{infra.Masquerade{}, "fe80::/64", false}, // on the link
		{infra.Masquerade{}, "10.0.0.0/7", true},
		{infra.Routed{}, "10.0.0.0/7", true},
		{infra.Bridge{}, "10.0.0.0/7", false},
		{infra.Redirect{}, "10.9.0.0/24", false},
	} {
		prefix := netip.MustParsePrefix(c.prefix).Masked()
		plan := newPlan(t, flannel(), eth0(infra.Spec{Binding: c.binding, Owner: launcher, Guard: infra.Guard{Prefixes: []netip.Prefix{prefix}}}))
		warns := slices.ContainsFunc(plan.Record.Warnings, func(w string) bool { return strings.Contains(w, "no route leads to guard.prefixes[0]") })
		if warns != c.warns {
			t.Errorf("%s with %v: the record has the warnings %q", c.binding.Kind(), prefix, plan.Record.Warnings)
		}
	}
}

// TestResponderMAC: the responder's MAC is computed from the guest's, or under masquerade from the gateway's, as the
// comment of cache.Record says.
func TestResponderMAC(t *testing.T) {
	one, other := cache.MAC{0x02, 0, 0, 0, 0, 1}, cache.MAC{0x02, 0, 0, 0, 0, 2}
	of := func(found netstate.Snapshot, b infra.Binding) cache.MAC {
		return newPlan(t, found, eth0(infra.Spec{Binding: b, Owner: launcher})).Record.ResponderMAC
	}
	if of(flannel(), infra.Bridge{MAC: one}) != of(flannelElsewhere(), infra.Bridge{MAC: one}) {
		t.Error("bridge: it changes where the guest keeps its MAC")
	}
	if of(flannel(), infra.Bridge{MAC: one}) == of(flannel(), infra.Bridge{MAC: other}) {
		t.Error("bridge: it does not change with the guest's MAC")
	}
	if of(flannel(), infra.Masquerade{MAC: one}) != of(flannelElsewhere(), infra.Masquerade{MAC: other}) {
		t.Error("masquerade: it changes where the gateway keeps its MAC")
	}
	if of(flannel(), infra.Masquerade{MAC: one}) == of(flannel(), infra.Masquerade{MAC: one, GatewayMAC: other}) {
		t.Error("masquerade: it does not change with the gateway's MAC")
	}
	if of(flannel(), infra.Routed{}) == of(flannelElsewhere(), infra.Routed{}) {
		t.Error("routed: it does not change with the guest's MAC, which is the NIC's")
	}
}
