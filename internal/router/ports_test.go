package router

import (
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
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
	rules := func(families []firewall.Family, list []infra.Ports) (n int) {
		m := descriptionOf(false).masquerade
		m.Families, m.Ports = families, list
		for _, table := range m.Tables() {
			for _, c := range table.Chains {
				n += len(c.Rules)
			}
		}
		return n
	}
	for _, families := range [][]firewall.Family{nil, {firewall.IPTablesNFT, firewall.IP6TablesNFT}} {
		if most, have := rules(families, same), rules(families, others); have > most {
			t.Errorf("%v: %d rules, and %d if the ports stay the same", families, have, most)
		}
	}
}
