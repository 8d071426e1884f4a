package wiring_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
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

// TestDelegated: which of Guard.Prefixes DHCPv6 delegates, as the comment of infra.Guard says. Under masquerade and
// routed each of them has a route through the guest.
func TestDelegated(t *testing.T) {
	noGateway := flannelWith(func(s *netstate.Snapshot) { s.Routes = append(s.Routes[:5:5], onLink("::/0")) })
	only4 := flannelWith(func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses[:1:1], s.Addresses[2]) })
	further := flannelWith(func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes, via("2001:db8:7::/64", "fd00:244:1::1"), via("2001:d00::/24", "fd00:244:1::1"))
	})
	all := []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}}
	beside := all[:2] // those under which the network has to know the way
	for _, c := range []struct {
		name     string
		found    netstate.Snapshot
		bindings []infra.Binding
		prefixes string
		want     string
	}{
		{"none", flannel(), all, "", ""},
		{"one of each family", flannel(), all, "10.9.0.0/24 2001:db8:9::/56", "2001:db8:9::/56"},
		{"the widest first", flannel(), all, "fd09::/64 fd08::/64 2001:db8:9::/56", "2001:db8:9::/56 fd09::/64 fd08::/64"},
		{"twice, and one inside another", flannel(), all, "2001:db8:9:1::/64 2001:db8:9::/56 2001:db8:9::/56", "2001:db8:9::/56"},
		{"a single address", flannel(), all, "2001:db8:9::1/128", ""},
		{"two addresses", flannel(), all, "2001:db8:9::/127", "2001:db8:9::/127"},
		{"link-local", flannel(), all, "fe80::/64", ""},
		{"link-local in it", flannel(), beside, "fe00::/8", ""},
		{"any source", flannel(), all, "::/0 2001:db8:9::/56", "2001:db8:9::/56"},
		{"the network on the link, and parts of it", flannel(), beside, "fd00:244:1::/64 fd00:244:1::/80 fd00:244::/32", ""},
		{"all is on the link", noGateway, beside, "2001:db8:9::/56", "2001:db8:9::/56"},
		{"a route of the namespace leads into it, or to it", further, beside, "2001:db8::/32 2001:db8:7::/64", ""},
		{"a route of the namespace leads to a wider network", further, beside, "2001:db8:9::/56", "2001:db8:9::/56"},
		{"no IPv6 address", only4, beside, "2001:db8:9::/56", ""},
		{"part of the masquerade's network", flannel(), all[3:], "fd10:0:2::/124", ""},
	} {
		for _, b := range c.bindings {
			spec := infra.Spec{Binding: b, Owner: launcher}
			for _, p := range strings.Fields(c.prefixes) {
				spec.Guard.Prefixes = append(spec.Guard.Prefixes, pfx(p))
			}
			plan := newPlan(t, c.found, eth0(spec))
			var have []netip.Prefix
			if v6 := plan.Record.IPv6; v6 != nil {
				have = v6.Delegated
			}
			if text := strings.Trim(fmt.Sprint(have), "[]"); text != c.want {
				t.Errorf("%s, %s: %s; want %s", c.name, b.Kind(), text, c.want)
			}
			if via := map[cache.Kind]string{cache.BindingRouted: eui64.LinkLocal(podMAC).String(), cache.BindingMasquerade: "fd10:0:2::2"}[b.Kind()]; via != "" {
				steps := fmt.Sprint(mustSteps(t, plan, boot(c.found)))
				for _, p := range have {
					if route := fmt.Sprintf("route add %v via %s dev eth0-tap ", p, via); !strings.Contains(steps, route) {
						t.Errorf("%s, %s: no step is %q", c.name, b.Kind(), route)
					}
				}
			}
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
