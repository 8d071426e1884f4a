package wiring_test

import (
	"slices"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestDropsHaveReasons: whatever an nftables table of a plan drops, it drops for a reason: no way through a chain ends
// at a policy. Only the bridge's copies for the namespace are dropped without a word. And each reason is one that a
// plan can have.
func TestDropsHaveReasons(t *testing.T) {
	used := map[firewall.Reason]bool{}
	for _, c := range cases {
		for _, table := range newPlan(t, c.found, c.spec).Tables() {
			if table.Family.IPTables() == 0 {
				checkDrops(t, c.name, table, used)
			}
		}
	}
	for _, r := range firewall.Reasons {
		if !used[r.Reason] {
			t.Errorf("no plan drops for the reason %s", r.Reason)
		}
	}
}

func checkDrops(t *testing.T, plan string, table firewall.Table, used map[firewall.Reason]bool) {
	t.Helper()
	entered := map[string]bool{} // by goto, so the packet does not come back
	for _, c := range table.Chains {
		for _, r := range c.Rules {
			switch v := r.Verdict.(type) {
			case firewall.Goto:
				entered[v.Chain] = true
				if !slices.ContainsFunc(table.Chains, func(c firewall.Chain) bool { return c.Name == v.Chain }) {
					t.Errorf("%s, table %s: %s goes to %s, which is not there", plan, table.Family, c.Name, v.Chain)
				}
			case firewall.Drop:
				if _, reason := firewall.ReasonOf(c.Name); !(reason && counts(r)) && (table.Family != firewall.Bridge || c.Name != "input") {
					t.Errorf("%s, table %s: %s drops without a reason: %s", plan, table.Family, c.Name, r)
				}
			}
		}
	}
	for _, c := range table.Chains {
		reason, drops := firewall.ReasonOf(c.Name)
		if drops {
			used[reason] = true
			if !entered[c.Name] {
				t.Errorf("%s, table %s: nothing goes to %s", plan, table.Family, c.Name)
			}
		}
		if !entered[c.Name] && !c.Drops {
			continue
		}
		last := firewall.Rule{Matches: []firewall.Match{firewall.IP{}}}
		if len(c.Rules) > 0 {
			last = c.Rules[len(c.Rules)-1]
		}
		switch _, reports := last.Verdict.(firewall.Log); {
		case !drops && len(last.Matches) == 0 && !counts(last):
		case c.Name == firewall.Allowed && counts(last) && len(last.Matches) == 1 && last.Verdict == firewall.Return{}:
		case drops && !reports && len(last.Matches) == 1 && counts(last):
		case drops && reports && len(c.Rules) == 1 && counts(last) && dropsBehind(table, c.Name):
		default:
			t.Errorf("%s, table %s: %s ends with %v", plan, table.Family, c.Name, last)
		}
	}
}

// counts reports whether the rule counts all packets that reach it.
func counts(r firewall.Rule) bool {
	return len(r.Matches) > 0 && r.Matches[0] == firewall.Count{}
}

// dropsBehind reports whether the kernel drops a packet that reaches the end of the chain: each way there is by goto,
// from a base chain whose policy is drop.
func dropsBehind(table firewall.Table, chain string) bool {
	ways := 0
	for _, c := range table.Chains {
		if c.Name == chain && c.Hook != "" {
			return c.Drops
		}
		for _, r := range c.Rules {
			if r.Verdict == (firewall.Jump{Chain: chain}) {
				return false
			}
			if r.Verdict != (firewall.Goto{Chain: chain}) {
				continue
			}
			if ways++; !dropsBehind(table, c.Name) {
				return false
			}
		}
	}
	return ways > 0
}

// TestNoLog: where the kernel has no nflog groups, drops are counted and not reported.
func TestNoLog(t *testing.T) {
	for _, spec := range []struct {
		name  string
		noLog bool
	}{{"logs", false}, {"no log", true}} {
		found := flannelWith(func(s *netstate.Snapshot) { s.NoLog = spec.noLog })
		logs, counted := 0, 0
		for _, table := range newPlan(t, found, bridge()).Tables() {
			for _, c := range table.Chains {
				for _, r := range c.Rules {
					if _, is := r.Verdict.(firewall.Log); is {
						logs++
					}
					if counts(r) {
						counted++
					}
				}
			}
		}
		if counted < 15 || (logs == 0) != spec.noLog || logs != 0 && logs != counted {
			t.Errorf("%s: %d chains count, %d report", spec.name, counted, logs)
		}
	}
}
