package firewall

import (
	"slices"
	"strings"
	"testing"
)

// TestReasons: each reason is there once, with a meaning, and fits a log prefix of the kernel with the longest
// link name.
func TestReasons(t *testing.T) {
	const most = 127 // NF_LOG_PREFIXLEN - 1, net/netfilter/nf_log.h
	seen := map[Reason]bool{}
	for _, r := range Reasons {
		if r.Reason == "" || r.Meaning == "" || seen[r.Reason] || strings.ContainsAny(string(r.Reason), " \"") {
			t.Errorf("%q: %q, seen before: %t", r.Reason, r.Meaning, seen[r.Reason])
		}
		seen[r.Reason] = true
		prefix := LogPrefix("eth0.1234567890", r.Reason)
		if len(prefix) > most {
			t.Errorf("%q has %d characters, want at most %d", prefix, len(prefix), most)
		}
		if nic, have, ok := ParseLogPrefix(prefix); !ok || nic != "eth0.1234567890" || have != r.Reason {
			t.Errorf("%q is read as %q, %q, %t", prefix, nic, have, ok)
		}
	}
	for _, other := range []string{"", "guestwire", "guestwire eth0", "guestwire eth0 mac-spoof more", "theirs eth0 mac-spoof", "guestwire eth0 \x1b[31m"} {
		if nic, r, ok := ParseLogPrefix(other); ok {
			t.Errorf("%q is read as %q, %q", other, nic, r)
		}
	}
}

// TestCounted: a drop for a reason, and what goes up for one, becomes a chain that counts, once a reason, in the order
// of Reasons. The table itself, and verdicts without a reason, stay.
func TestCounted(t *testing.T) {
	table := Table{Family: NetDev, Name: "guestwire-eth0", Chains: []Chain{
		{Name: "guest", Rules: []Rule{
			{Matches: []Match{Carries{4}}, Verdict: Drop{Reason: IPSpoof}},
			{Matches: []Match{Carries{6}}, Verdict: Drop{Reason: IPSpoof}},
			{Matches: []Match{IP{4}}, Verdict: Drop{}},
			{Matches: []Match{Carries{4}}, Verdict: Up{Reason: NetworkDHCP}},
			{Matches: []Match{Carries{6}}, Verdict: Up{}},
			{Matches: []Match{Carries{4}}, Verdict: Refuse{Reason: NoEgress}},
			{Verdict: Drop{Reason: MACSpoof}},
		}},
	}}
	before := table.String()
	const plain = `table netdev guestwire-eth0 {
	chain guest {
		meta protocol ip goto drop-ip-spoof
		meta protocol ip6 goto drop-ip-spoof
		meta nfproto ipv4 drop
		meta protocol ip goto up-network-dhcp
		meta protocol ip6 accept
		meta protocol ip goto drop-egress
		goto drop-mac-spoof
	}
	chain drop-mac-spoof {
		counter drop
	}
	chain drop-ip-spoof {
		counter drop
	}
	chain drop-egress {
		meta l4proto tcp counter reject with tcp reset
		counter reject with icmpx admin-prohibited
	}
	chain up-network-dhcp {
		counter accept
	}
}
`
	const report = `		limit rate 20/second burst 20 packets log prefix "guestwire eth0 REASON" group 26487
`
	logs := plain
	for _, chain := range []string{"drop-mac-spoof", "drop-ip-spoof", "drop-egress", "up-network-dhcp"} {
		head, reason := "chain "+chain+" {\n", chain[strings.Index(chain, "-")+1:]
		logs = strings.Replace(logs, head, head+strings.Replace(report, "REASON", reason, 1), 1)
	}
	for _, c := range []struct {
		logs bool
		want string
	}{{false, plain}, {true, logs}} {
		if have := table.Counted("eth0", c.logs).String(); have != c.want {
			t.Errorf("logs %t: have\n%s\nwant\n%s", c.logs, have, c.want)
		}
	}
	// After the end of such a chain the base chain drops, unless a jump leads there, or a base chain that accepts.
	table.Chains[0].Hook, table.Chains[0].Drops = Ingress, true
	merged := strings.NewReplacer(
		strings.Replace(report, "REASON", "mac-spoof", 1)+"\t\tcounter drop\n", "\t\tcounter "+strings.TrimSpace(strings.Replace(report, "REASON", "mac-spoof", 1))+"\n",
		strings.Replace(report, "REASON", "ip-spoof", 1)+"\t\tcounter drop\n", "\t\tcounter "+strings.TrimSpace(strings.Replace(report, "REASON", "ip-spoof", 1))+"\n",
	).Replace(logs)
	for what, c := range map[string]struct {
		more []Chain
		want string
	}{
		"goto":             {nil, merged},
		"a jump":           {[]Chain{{Name: "later", Rules: []Rule{{Verdict: Jump{Chain: "also"}}}}, {Name: "also", Rules: []Rule{{Verdict: Drop{Reason: MACSpoof}}, {Verdict: Drop{Reason: IPSpoof}}}}}, logs},
		"after a jump":     {[]Chain{{Name: "later", Rules: []Rule{{Verdict: Jump{Chain: "also"}}}}, {Name: "also", Rules: []Rule{{Verdict: Goto{Chain: "last"}}}}, {Name: "last", Rules: []Rule{{Verdict: Drop{Reason: MACSpoof}}, {Verdict: Drop{Reason: IPSpoof}}}}}, logs},
		"an accepting one": {[]Chain{{Name: "other", Hook: Ingress, Rules: []Rule{{Verdict: Drop{Reason: MACSpoof}}, {Verdict: Drop{Reason: IPSpoof}}}}}, logs},
		"an unknown one":   {[]Chain{{Name: "other", Rules: []Rule{{Verdict: Drop{Reason: MACSpoof}}, {Verdict: Drop{Reason: IPSpoof}}}}}, logs},
	} {
		also := table
		also.Chains = append(slices.Clone(table.Chains), c.more...)
		ends := func(text string) string { return text[strings.Index(text, "\tchain drop-mac-spoof {"):] }
		if have := ends(also.Counted("eth0", true).String()); have != ends(c.want) {
			t.Errorf("%s: have\n%s\nwant\n%s", what, have, ends(c.want))
		}
	}
	table.Chains[0].Hook, table.Chains[0].Drops = "", false
	if table.String() != before {
		t.Errorf("the table has changed:\n%s", table)
	}
	if r, ok := ReasonOf("drop-mac-spoof"); !ok || r != MACSpoof {
		t.Errorf("drop-mac-spoof is for %q, %t", r, ok)
	}
	if r, ok := ReasonOf("up-network-dhcp"); !ok || r != NetworkDHCP {
		t.Errorf("up-network-dhcp is for %q, %t", r, ok)
	}
	for _, chain := range []string{"from-arp", "drop-", "drop-r1", "drop-mac-spoof-1", "up-any-word"} {
		if r, ok := ReasonOf(chain); ok {
			t.Errorf("%s is for %q", chain, r)
		}
	}
}
