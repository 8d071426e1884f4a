package firewall

import (
	"net/netip"
	"reflect"
	"slices"
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
			{Matches: []Match{InInterface{Name: "eth0-br"}, OutInterface{Name: "eth0-br", Inverted: true}}, Verdict: Masquerade{}},
			{Matches: []Match{OutInterface{Name: "eth0"}}, Verdict: Masquerade{}},
		}},
		{Name: "void", Type: "filter", Hook: Input, Priority: Filter},
	}}
}

// sampleText is sampleTable as nft(8) reads it.
const sampleText = `table inet guestwire-eth0 {
	chain in {
		type nat hook prerouting priority -100; policy accept;
		iifname "eth0" ip daddr 10.244.1.7 dnat ip to 10.0.2.2
		iifname "eth0" ip6 daddr fd00::7 dnat ip6 to [fd10:0:2::2]:80
	}
	chain input {
		type filter hook input priority 0; policy accept;
		drop
	}
	chain out {
		type nat hook postrouting priority 100; policy accept;
		iifname "eth0-br" oifname != "eth0-br" masquerade
		oifname "eth0" masquerade
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
		switch rule := strings.TrimSpace(line); words[0] {
		case "table", "}":
		case "chain":
			want.Chains = append(want.Chains, ChainImage{Name: words[1]})
		case "type":
			want.Chains[last].Head = rule
		default:
			want.Chains[last].Rules = append(want.Chains[last].Rules, rule)
		}
	}
	if have := sampleTable().Image(); !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
}

// TestIs: an image without texts is that of its table, of a copy, and of a table with the same texts. It is not that of
// a table that differs in anything that an image has.
func TestIs(t *testing.T) {
	table := Table{Family: Inet, Name: "guestwire-eth0", Sets: []Set{{Name: "known", Of: SourceAddress4, Size: 2}}, Maps: []PortMap{{Name: "ports", Ranges: []PortRange{{80, 89, 8080}}}}, Flows: []FlowTable{{Name: "flows", Devices: []string{"eth0"}}}, Chains: []Chain{
		{Name: "forward", Type: "filter", Hook: Forward, Rules: samples()}, {Name: "other"},
	}}
	again := Table{Family: Inet, Name: "guestwire-eth0", Sets: []Set{{Name: "known", Of: SourceAddress4, Size: 2}}, Maps: []PortMap{{Name: "ports", Ranges: []PortRange{{80, 89, 8080}}}}, Flows: []FlowTable{{Name: "flows", Devices: []string{"eth0"}}}, Chains: []Chain{
		{Name: "forward", Type: "filter", Hook: Forward, Rules: samples()}, {Name: "other"},
	}}
	resolved := table.Resolve(func(string) int { return 9 })
	if !table.equal(again) {
		t.Error("a table with equal rules is not the same: each comparison writes all texts")
	}
	for _, held := range []Image{table.Held(), resolved.Held(), table.Image()} {
		for _, same := range []Table{table, resolved, again} {
			if !held.Equals(same) {
				t.Errorf("%+v is not that of the table", held)
			}
		}
		if !reflect.DeepEqual(held.WithTexts(), table.Image()) {
			t.Errorf("the whole image is %+v", held.WithTexts())
		}
	}
	for what, change := range map[string]func(*Table){
		"family":          func(t *Table) { t.Family = Bridge },
		"name":            func(t *Table) { t.Name = "guestwire-eth1" },
		"size of a set":   func(t *Table) { t.Sets[0].Size = 3 },
		"set":             func(t *Table) { t.Sets = nil },
		"port of a map":   func(t *Table) { t.Maps = []PortMap{{Name: "ports", Ranges: []PortRange{{80, 89, 8081}}}} },
		"map":             func(t *Table) { t.Maps = nil },
		"destinations":    func(t *Table) { t.Destinations = []Destinations{{Name: "egress-4", Version: 4}} },
		"flow table":      func(t *Table) { t.Flows = nil },
		"links of a flow": func(t *Table) { t.Flows = []FlowTable{{Name: "flows", Devices: []string{"eth1"}}} },
		"chain":           func(t *Table) { t.Chains = t.Chains[:1] },
		"name of a chain": func(t *Table) { t.Chains[1].Name = "another" },
		"policy":          func(t *Table) { t.Chains[0].Drops = true },
		"priority":        func(t *Table) { t.Chains[0].Priority = 1 },
		"device":          func(t *Table) { t.Chains[0].Device = "eth0" },
		"hook":            func(t *Table) { t.Chains[0].Hook = Input },
		"type":            func(t *Table) { t.Chains[0].Type = "nat" },
		"rule less":       func(t *Table) { t.Chains[0].Rules = t.Chains[0].Rules[1:] },
		"match":           func(t *Table) { t.Chains[0].Rules[0].Matches = []Match{InInterface{Name: "eth1"}} },
		"verdict":         func(t *Table) { t.Chains[0].Rules[0].Verdict = Accept{} },
		"order":           func(t *Table) { slices.Reverse(t.Chains[0].Rules) },
	} {
		other := table
		other.Sets, other.Chains = slices.Clone(table.Sets), slices.Clone(table.Chains)
		other.Chains[0].Rules = slices.Clone(table.Chains[0].Rules)
		change(&other)
		if table.Held().Equals(other) || other.Held().Equals(table) {
			t.Errorf("another %s makes no difference", what)
		}
	}
	for i, r := range table.Chains[0].Rules {
		if to, is := r.Verdict.(Fwd); is {
			to.Device = "eth9"
			other := resolved
			other.Chains = slices.Clone(resolved.Chains)
			other.Chains[0].Rules = slices.Clone(resolved.Chains[0].Rules)
			other.Chains[0].Rules[i].Verdict = to
			if table.Held().Equals(other) {
				t.Error("another device of fwd makes no difference")
			}
		}
	}
}
