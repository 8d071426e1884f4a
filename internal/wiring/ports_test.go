package wiring_test

import (
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// TestRedirectedPorts: as many ports as can become others take no more rules than ports that stay the same, as each new
// connection passes them all.
func TestRedirectedPorts(t *testing.T) {
	var same, others []infra.Ports
	for i := range uint16(16) {
		p := infra.Ports{First: 1000 * (i + 1), Last: 1000*(i+1) + 255}
		same = append(same, p)
		p.Guest = 30000 + 256*i
		others = append(others, p)
	}
	rules := func(firewall cache.Firewall, list []infra.Ports) (n int) {
		plan := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{Ports: list, Firewall: firewall} }))
		for _, table := range plan.Tables() {
			for _, c := range table.Chains {
				n += len(c.Rules)
			}
		}
		return n
	}
	for _, firewall := range []cache.Firewall{cache.FirewallNFTables, cache.FirewallIPTablesNFT} {
		if most, have := rules(firewall, same), rules(firewall, others); have > most {
			t.Errorf("%s: %d rules, and %d if the ports stay the same", firewall, have, most)
		}
	}
}
