package firewall

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestDifferences: whatever another program changes in a table is found and named. A difference that is not
// seen is a hole in the guest's filter that Check does not report and Setup does not repair.
func TestDifferences(t *testing.T) {
	wanted := func() Image {
		return Image{Family: Inet, Name: "guestwire-eth0", Sets: []Declaration{{Name: "hops", Head: "ipv4_addr; size 2;"}}, Flows: []Declaration{{Name: "flows", Head: "hook ingress priority 1;"}}, Chains: []ChainImage{
			{Name: "in", Head: "type filter hook input priority 0; policy drop;", Rules: []string{"a accept", "b accept", "drop"}},
			{Name: "out", Rules: []string{"drop"}},
		}}
	}
	for name, c := range map[string]struct {
		change func(*Image)
		want   []string
	}{
		"nothing":              {func(*Image) {}, nil},
		"dormant":              {func(i *Image) { i.Flags = 1 }, []string{"the table is dormant"}},
		"another flag":         {func(i *Image) { i.Flags = 2 }, []string{"the table has the flags 0x2"}},
		"dormant, and another": {func(i *Image) { i.Flags = 3 }, []string{"the table is dormant", "the table has the flags 0x2"}},
		"an object":            {func(i *Image) { i.Others = 1 }, []string{"the table has 1 objects of another program"}},
		"a set less":           {func(i *Image) { i.Sets = nil }, []string{"set hops is gone"}},
		"a set more":           {func(i *Image) { i.Sets = append(i.Sets, Declaration{Name: "theirs"}) }, []string{"set theirs belongs to another program"}},
		"another size":         {func(i *Image) { i.Sets[0].Head = "ipv4_addr; size 3;" }, []string{`set hops is "ipv4_addr; size 3;", not "ipv4_addr; size 2;"`}},
		"a flow table less":    {func(i *Image) { i.Flows = nil }, []string{"flow table flows is gone"}},
		"a flow table more":    {func(i *Image) { i.Flows = append(i.Flows, Declaration{Name: "theirs"}) }, []string{"flow table theirs belongs to another program"}},
		"another priority":     {func(i *Image) { i.Flows[0].Head = "hook ingress priority 2;" }, []string{`flow table flows is "hook ingress priority 2;", not "hook ingress priority 1;"`}},
		"a chain less":         {func(i *Image) { i.Chains = i.Chains[:1] }, []string{"chain out is gone"}},
		"no chain":             {func(i *Image) { i.Chains = nil }, []string{"chain in is gone", "chain out is gone"}},
		"a chain more":         {func(i *Image) { i.Chains = append(i.Chains, ChainImage{Name: "theirs"}) }, []string{"chain theirs belongs to another program"}},
		"another policy": {func(i *Image) { i.Chains[0].Head = "type filter hook input priority 0; policy accept;" },
			[]string{`chain in is "type filter hook input priority 0; policy accept;", not "type filter hook input priority 0; policy drop;"`}},
		"no hook":     {func(i *Image) { i.Chains[0].Head = "" }, []string{`chain in is "", not "type filter hook input priority 0; policy drop;"`}},
		"a rule less": {func(i *Image) { i.Chains[0].Rules = []string{"a accept", "drop"} }, []string{"chain in lacks the rule: b accept"}},
		"a rule more": {func(i *Image) { i.Chains[1].Rules = []string{"x accept", "drop"} }, []string{"chain out has an extra rule: x accept"}},
		"a long rule more": {func(i *Image) { i.Chains[1].Rules = []string{strings.Repeat("[cmp]", 100), "drop"} },
			[]string{"chain out has an extra rule: " + strings.Repeat("[cmp]", 24) + "..."}},
		"another rule":      {func(i *Image) { i.Chains[1].Rules = []string{"accept"} }, []string{"chain out lacks the rule: drop", "chain out has an extra rule: accept"}},
		"two rules less":    {func(i *Image) { i.Chains[0].Rules = []string{"drop"} }, []string{"chain in lacks the rule: a accept (and 1 more)"}},
		"a rule twice":      {func(i *Image) { i.Chains[1].Rules = []string{"drop", "drop"} }, []string{"chain out has its rules in another order, or twice"}},
		"rules turned":      {func(i *Image) { i.Chains[0].Rules = []string{"drop", "a accept", "b accept"} }, []string{"chain in has its rules in another order, or twice"}},
		"changed in both":   {func(i *Image) { i.Chains[0].Rules, i.Chains[1].Rules = i.Chains[0].Rules[:2], nil }, []string{"chain in lacks the rule: drop", "chain out lacks the rule: drop"}},
		"chains of a table": {func(i *Image) { i.Chains[0], i.Chains[1] = i.Chains[1], i.Chains[0] }, nil}, // their order means nothing
	} {
		have := wanted()
		c.change(&have)
		if d := have.Differences(wanted()); !reflect.DeepEqual(d, c.want) {
			t.Errorf("%s: %q, want %q", name, d, c.want)
		}
	}
}

// TestResolve: the index of a link is written into a copy. The table itself goes on naming links.
func TestResolve(t *testing.T) {
	table := Table{Family: NetDev, Chains: []Chain{
		{Name: "in", Rules: []Rule{{Verdict: Drop{}}, {Verdict: Fwd{Device: "eth0-tap"}}}},
		{Name: "out", Rules: []Rule{{Verdict: Fwd{Device: "eth0"}}}},
	}}
	resolved := table.Resolve(func(link string) int { return map[string]int{"eth0": 2, "eth0-tap": 7}[link] })
	want := Table{Family: NetDev, Chains: []Chain{
		{Name: "in", Rules: []Rule{{Verdict: Drop{}}, {Verdict: Fwd{Device: "eth0-tap", Index: 7}}}},
		{Name: "out", Rules: []Rule{{Verdict: Fwd{Device: "eth0", Index: 2}}}},
	}}
	if !reflect.DeepEqual(resolved, want) {
		t.Errorf("have %+v, want %+v", resolved, want)
	}
	if (table.Chains[0].Rules[1].Verdict != Fwd{Device: "eth0-tap"}) {
		t.Errorf("the table has changed: %+v", table)
	}
}

// TestImageOrder: an image has its chains in the order of their names, as those that are read from the kernel, so that
// two can be compared.
func TestImageOrder(t *testing.T) {
	image := Table{Chains: []Chain{{Name: "b"}, {Name: "c"}, {Name: "a"}}}.Image()
	var names []string
	for _, c := range image.Chains {
		names = append(names, c.Name)
	}
	if strings.Join(names, " ") != "a b c" {
		t.Errorf("have %q", names)
	}
}

// TestImageOfIPTables: a chain's head names its table and from where it is jumped to, its rules are those that
// iptables -S prints, and a chain of the other version of IP is not there.
func TestImageOfIPTables(t *testing.T) {
	table := Table{Family: Inet, Chains: []Chain{
		{Name: "from-network", Type: "nat", Hook: Prerouting, Priority: DstNAT, Rules: []Rule{
			{Matches: []Match{IP{Version: 4}}, Verdict: Jump{"to-guest-4"}},
			{Matches: []Match{IP{Version: 6}}, Verdict: Jump{"to-guest-6"}},
		}},
		{Name: "to-guest-6", Rules: []Rule{{Verdict: DNAT{Address: netip.MustParseAddr("fd10:0:2::2")}}}},
		{Name: "to-guest-4", Rules: []Rule{{Verdict: DNAT{Address: netip.MustParseAddr("10.0.2.2")}}}},
		{Name: "through", Type: "filter", Hook: Forward, Rules: []Rule{{Matches: []Match{InInterface{Name: "eth0-br"}}, Verdict: Accept{}}}},
	}}.IPTables(IPTablesLegacy, "gw-eth0")
	want := Image{Family: IPTablesLegacy, Name: "gw-eth0", Chains: []ChainImage{
		{Name: "gw-eth0-guest", Head: "nat", Rules: []string{"-j DNAT --to-destination 10.0.2.2"}},
		{Name: "gw-eth0-network", Head: "nat PREROUTING", Rules: []string{"-j gw-eth0-guest"}},
		{Name: "gw-eth0-through", Head: "filter FORWARD", Rules: []string{"-i eth0-br -j RETURN"}},
	}}
	if have := table.Image(); !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

// TestDifferingSet: of a long set only what differs is named, and not all of that.
func TestDifferingSet(t *testing.T) {
	var want, have Destinations
	for i := range 20 {
		a := netip.AddrFrom4([4]byte{198, 51, 100, byte(2 * i)})
		want.Boxes = append(want.Boxes, Box{First: a, Last: a, LastProtocol: 255, LastPort: 65535})
	}
	want.Name, want.Version, want.AllPorts = "egress-4-all", 4, true
	have = want
	other := want.Boxes[0]
	other.First, other.Last = netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("10.9.9.9")
	for _, c := range []struct {
		boxes []Box
		says  string
	}{
		{want.Boxes[1:], "set egress-4-all lacks 198.51.100.0"},
		{append([]Box{other}, want.Boxes...), "set egress-4-all has 10.9.9.9, which is not guestwire's"},
		{[]Box{other}, "set egress-4-all lacks 198.51.100.0; 198.51.100.2; 198.51.100.4; 198.51.100.6; 198.51.100.8; and 15 more, and has 10.9.9.9, which is not guestwire's"},
	} {
		have.Boxes = c.boxes
		image := Table{Destinations: []Destinations{have}}.Image()
		if d := image.Differences(Table{Destinations: []Destinations{want}}.Image()); len(d) != 1 || d[0] != c.says {
			t.Errorf("%q, want %q", d, c.says)
		}
	}
}
