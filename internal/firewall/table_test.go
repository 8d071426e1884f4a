package firewall

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// sampleTable returns an inet table with several chains and kinds of rules.
func sampleTable() Table {
	return Table{Family: Inet, Name: "guestwire-eth0", Chains: []Chain{
		{Name: "in", Type: "nat", Hook: Prerouting, Priority: DstNAT, Rules: []Rule{
			{Matches: []Match{InInterface{Name: "eth0"}, Destination{netip.MustParsePrefix("10.244.1.7/32")}}, Verdict: DNAT{Address: netip.MustParseAddr("10.0.2.2")}},
			{Matches: []Match{InInterface{Name: "eth0"}, Destination{netip.MustParsePrefix("fd00::7/128")}}, Verdict: DNAT{Address: netip.MustParseAddr("fd10:0:2::2"), Port: 80}},
		}},
		{Name: "input", Type: "filter", Hook: Input, Priority: Filter, Rules: []Rule{{Verdict: Drop{}}}},
		{Name: "out", Type: "nat", Hook: Postrouting, Priority: SrcNAT, Rules: []Rule{
			{Matches: []Match{InInterface{Name: "eth0-br"}, OutInterface{Name: "eth0-br", Not: true}}, Verdict: Masquerade{}},
			{Matches: []Match{OutInterface{Name: "eth0"}}, Verdict: Masquerade{}},
		}},
		{Name: "void", Type: "filter", Hook: Input, Priority: Filter},
	}}
}

// sampleText is sampleTable as nft(8) reads it.
const sampleText = `table inet guestwire-eth0 {
	chain in {
		type nat hook prerouting priority -100; policy accept;
		iifname "eth0" ip daddr 10.244.1.7 dnat ip to 10.0.2.2 comment "guestwire 0a5caf865f22"
		iifname "eth0" ip6 daddr fd00::7 dnat ip6 to [fd10:0:2::2]:80 comment "guestwire f2a149322714"
	}
	chain input {
		type filter hook input priority 0; policy accept;
		drop comment "guestwire d90ee9ccf6be"
	}
	chain out {
		type nat hook postrouting priority 100; policy accept;
		iifname "eth0-br" oifname != "eth0-br" masquerade comment "guestwire 7c2a4eeb29e8"
		oifname "eth0" masquerade comment "guestwire bea7e5133ed6"
	}
	chain void {
		type filter hook input priority 0; policy accept;
	}
}
`

func TestTableText(t *testing.T) {
	if have := sampleTable().String(); have != sampleText {
		t.Errorf("have\n%s\nwant\n%s", have, sampleText)
	}
}

// TestImage: the image has the chains, heads and rules of the text.
func TestImage(t *testing.T) {
	want := Image{Family: Inet, Name: "guestwire-eth0"}
	for line := range strings.Lines(sampleText) {
		words := strings.Fields(line)
		last := len(want.Chains) - 1
		switch rule, _, ok := strings.Cut(strings.TrimSpace(line), " comment "); {
		case words[0] == "chain":
			want.Chains = append(want.Chains, ChainImage{Name: words[1]})
		case words[0] == "type":
			want.Chains[last].Head = strings.TrimSpace(line)
		case ok:
			want.Chains[last].Rules = append(want.Chains[last].Rules, rule)
		}
	}
	if have := sampleTable().Image(); !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
}

// TestComment: a change of any part of a rule changes its comment.
func TestComment(t *testing.T) {
	a, b := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32")
	seen := map[string]string{}
	for _, r := range []Rule{
		{Verdict: Drop{}},
		{Verdict: Masquerade{}},
		{Verdict: DNAT{Address: a.Addr()}},
		{Verdict: DNAT{Address: b.Addr()}},
		{Matches: []Match{Destination{a}}, Verdict: Drop{}},
		{Matches: []Match{Destination{b}}, Verdict: Drop{}},
		{Matches: []Match{InInterface{Name: "eth0"}}, Verdict: Drop{}},
		{Matches: []Match{InInterface{Name: "eth1"}}, Verdict: Drop{}},
		{Matches: []Match{OutInterface{Name: "eth0"}}, Verdict: Drop{}},
		{Matches: []Match{OutInterface{Name: "eth0", Not: true}}, Verdict: Drop{}},
		{Matches: []Match{InInterface{Name: "eth0"}, Destination{a}}, Verdict: Drop{}},
		{Matches: []Match{Destination{a}, InInterface{Name: "eth0"}}, Verdict: Drop{}},
	} {
		comment := r.Comment()
		if other, taken := seen[comment]; taken {
			t.Errorf("%q and %q both have the comment %q", other, r, comment)
		}
		seen[comment] = fmt.Sprint(r)
		if len(comment) > 100 || !strings.HasPrefix(comment, "guestwire ") {
			t.Errorf("comment %q: want at most 100 octets with our name", comment)
		}
	}
}
