package wiring_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	ipversion "github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestCompleteChecksums: beside a policy, checksums are complete before the rules look, in each family of the guest. A
// kernel that cannot do it is in the record's warnings.
func TestCompleteChecksums(t *testing.T) {
	refused := func(spec asked) asked {
		return withSpec(spec, func(s *asked) { s.Egress = egressOf("refuse all") })
	}
	by := func(f cache.Firewall) asked {
		return refused(withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{Firewall: f} }))
	}
	without := func(completed ...ipversion.Version) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) { s.Checksums = completed })
	}
	for name, c := range map[string]struct {
		found  netstate.Snapshot
		spec   asked
		want   string // families
		warned string // versions of IP
	}{
		"routed":                {flannel(), refused(routed()), "ip mangle, ip6 mangle", ""},
		"masquerade":            {flannel(), refused(masquerade()), "ip mangle, ip6 mangle", ""},
		"iptables-nft":          {flannel(), by(cache.FirewallIPTablesNFT), "ip mangle, ip6 mangle", ""},
		"iptables-legacy":       {flannel(), by(cache.FirewallIPTablesLegacy), "ip mangle, ip6 mangle", ""},
		"a list within":         {flannel(), withSpec(routed(), func(s *asked) { s.EgressWithin = egressOf("refuse all") }), "ip mangle, ip6 mangle", ""},
		"a guest of IPv4":       {lan4(), refused(masquerade()), "ip mangle", ""},
		"no policy":             {flannel(), routed(), "", ""},
		"no policy, masquerade": {without(), masquerade(), "", ""},
		"not in the kernel":     {without(), refused(routed()), "", "4, 6"},
		"of IPv4 alone":         {without(4), refused(masquerade()), "ip mangle", "6"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			var families, warned []string
			for _, table := range plan.Tables() {
				if !table.Family.Shared() {
					continue
				}
				families = append(families, string(table.Family))
				chain := table.Chains[0]
				if len(table.Chains) != 1 || table.Name != "guestwire-eth0" || chain.Name != table.Name || chain.Priority >= -400 || len(chain.Rules) != 1 ||
					chain.Rules[0].String() != `iifname "eth0-tap" xt target CHECKSUM` {
					t.Errorf("%v", table)
				}
			}
			for _, v := range []int{4, 6} {
				if slices.ContainsFunc(plan.Record.Warnings, func(w string) bool {
					return strings.Contains(w, fmt.Sprintf("root for IPv%d, as this kernel cannot complete checksums", v))
				}) {
					warned = append(warned, fmt.Sprint(v))
				}
			}
			if have := strings.Join(families, ", "); have != c.want || strings.Join(warned, ", ") != c.warned {
				t.Errorf("tables %q, want %q; warned of %q, want %q", have, c.want, warned, c.warned)
			}
			if q := wiring.Ask("eth0", c.spec.Spec); q.Checksums != (c.want+c.warned != "") {
				t.Errorf("asks for checksums: %t", q.Checksums)
			}
		})
	}
	if firewall.Mangle4.TableOf("guestwire-eth0") != "mangle" {
		t.Error("the target works in the table mangle alone")
	}
}

// TestEarlyChecksums: on a kernel for which the rule is not enough, filters clear the checksums beside a policy, and go
// with it. A kernel that cannot do it is in the record's warnings.
func TestEarlyChecksums(t *testing.T) {
	refused := func(spec asked) asked {
		return withSpec(spec, func(s *asked) { s.Egress = egressOf("refuse all") })
	}
	alone := func(spec asked) asked {
		return withSpec(spec, func(s *asked) { s.Options.NoResponder = true })
	}
	for name, c := range map[string]struct {
		spec         asked
		takes, clear bool
		want         int // filters
		warned       bool
	}{
		"routed":               {refused(routed()), true, true, 2, false},
		"masquerade":           {refused(masquerade()), true, true, 2, false},
		"without a responder":  {alone(refused(routed())), true, true, 2, false},
		"without modules":      {refused(routed()), true, false, 0, true},
		"the kernel refuses":   {refused(routed()), false, false, 0, false},
		"no policy":            {routed(), true, true, 0, false},
		"no policy, no module": {routed(), true, false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			found := flannelWith(func(s *netstate.Snapshot) { s.EarlyChecksums, s.ClearsChecksums = c.takes, c.clear })
			clearing := func(ops []netstate.Op) (added, deleted int) {
				for _, op := range ops {
					switch o := op.(type) {
					case netstate.FilterAdd:
						if o.Filter.Clears && o.Link == "eth0-tap" {
							added++
						}
					case netstate.FilterDel:
						if o.Filter.Clears {
							deleted++
						}
					}
				}
				return added, deleted
			}
			plan := newPlan(t, found, c.spec)
			if have, _ := clearing(mustSteps(t, plan, boot(found))); have != c.want {
				t.Errorf("%d filters, want %d", have, c.want)
			}
			if have := slices.ContainsFunc(plan.Record.Warnings, func(w string) bool {
				return strings.Contains(w, "does not hold against the guest's root: this kernel takes frames whose checksum begins before the packet")
			}); have != c.warned {
				t.Errorf("warned: %t", have)
			}
			wired := wire(t, plan, found)
			without := withSpec(c.spec, func(s *asked) { s.Egress = nil })
			if _, have := clearing(mustSteps(t, newPlan(t, found, without), wired)); have != c.want {
				t.Errorf("without the policy, %d filters are deleted, want %d", have, c.want)
			}
		})
	}
}
