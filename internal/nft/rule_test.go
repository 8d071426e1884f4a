package nft

import (
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
)

// TestKnown: a rule is known by its expressions, and a rule with other expressions is not known.
func TestKnown(t *testing.T) {
	drop := firewall.Rule{Matches: []firewall.Match{firewall.InInterface{Name: "eth0"}}, Verdict: firewall.Drop{}}
	other := firewall.Rule{Matches: []firewall.Match{firewall.InInterface{Name: "eth1"}}, Verdict: firewall.Drop{}}
	table := func(rules ...firewall.Rule) []firewall.Table {
		return []firewall.Table{{Family: firewall.Inet, Chains: []firewall.Chain{{Rules: rules}}}}
	}
	both, err := knowRules(table(drop, other))
	if err != nil || len(both) != 2 {
		t.Fatalf("have %v, %v; want two rules", both, err)
	}
	one, err := knowRules(table(drop))
	if err != nil {
		t.Fatal(err)
	}
	for text, rule := range both {
		if _, ok := one[text]; ok != (rule == drop.String()) {
			t.Errorf("%s is known: %t", rule, ok)
		}
	}
}
