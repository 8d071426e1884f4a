package kernel

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// testTable has a chain of each kind, and rules whose expressions the kernel nests, masks and renames.
var testTable = firewall.Table{Family: firewall.Inet, Name: "guestwire-eth0", Sets: []firewall.Set{
	{Name: "hops", Of: firewall.NextHop4, Size: 64, Milliseconds: 60000},
	{Name: "known", Of: firewall.DiscoveryTarget, Size: 2, Elements: []firewall.Element{{Key: make([]byte, 16)}, {Key: slices.Repeat([]byte{7}, 16)}}},
	{Name: "pins-4", Of: firewall.Destination4, Size: 2, Milliseconds: 60_000},
	{Name: "pins-6", Of: firewall.Destination6, Size: 2, Milliseconds: 60_000},
}, Maps: []firewall.PortMap{
	{Name: "ports", Ranges: []firewall.PortRange{{First: 8000, Last: 12999, To: 9000}, {First: 80, Last: 81, To: 9090}, {First: 65535, Last: 65535, To: 1}}},
}, Destinations: []firewall.Destinations{
	{Name: "egress-4", Version: 4, Boxes: []firewall.Box{
		{First: netip.MustParseAddr("10.0.0.0"), Last: netip.MustParseAddr("10.0.0.255"), FirstProtocol: 6, LastProtocol: 6, FirstPort: 80, LastPort: 81},
		{First: netip.MustParseAddr("10.0.1.7"), Last: netip.MustParseAddr("255.255.255.255"), LastProtocol: 255, LastPort: 65535},
	}},
	{Name: "egress-4-all", Version: 4, AllPorts: true, Boxes: []firewall.Box{
		{First: netip.MustParseAddr("0.0.0.0"), Last: netip.MustParseAddr("9.255.255.255"), LastProtocol: 255, LastPort: 65535},
		{First: netip.MustParseAddr("10.0.1.7"), Last: netip.MustParseAddr("10.0.1.7"), LastProtocol: 255, LastPort: 65535},
		{First: netip.MustParseAddr("255.255.255.255"), Last: netip.MustParseAddr("255.255.255.255"), LastProtocol: 255, LastPort: 65535},
	}},
	{Name: "egress-6", Version: 6, Boxes: []firewall.Box{{First: netip.MustParseAddr("fd00::"), Last: netip.MustParseAddr("fd00::1"), FirstProtocol: 58, LastProtocol: 58, LastPort: 65535}}},
	{Name: "empty", Version: 6},
}, Chains: []firewall.Chain{
	{Name: "forward", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Drops: true, Rules: []firewall.Rule{
		{Matches: []firewall.Match{firewall.InInterface{Name: "eth0", Inverted: true}, firewall.State{States: firewall.Established}}, Verdict: firewall.Accept{}},
		{Matches: []firewall.Match{firewall.Fragment{}}, Verdict: firewall.Goto{Chain: "plain"}},
		{Matches: []firewall.Match{firewall.Opening{}}, Verdict: firewall.ClampMSS{}},
		{Matches: []firewall.Match{firewall.Opening{}}, Verdict: firewall.LowerMSS{To: 1360}},
	}},
	{Name: "plain", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.Connections{Over: 5}}, Verdict: firewall.Drop{}}}},
	{Name: "sets", Rules: []firewall.Rule{
		{Matches: []firewall.Match{firewall.AddToSet{Part: firewall.NextHop4, Set: "hops", Renew: true}, firewall.InSet{Part: firewall.DiscoveryTarget, Set: "known", Inverted: true}}, Verdict: firewall.Drop{}},
	}},
	{Name: "to-guest", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: []firewall.Rule{
		{
			Matches: []firewall.Match{firewall.Destination{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, firewall.DestinationPort{Protocol: 6, First: 80, Last: 81}},
			Verdict: firewall.DNAT{Address: gateway4, Port: 8080},
		},
		{Matches: []firewall.Match{firewall.Protocol{Number: 6}}, Verdict: firewall.DNATMap{Address: gateway4, Protocol: 6, Map: "ports"}},
	}},
}}

// testFlowTable has what not every kernel has.
var testFlowTable = firewall.Table{Family: firewall.Inet, Name: "guestwire-eth0",
	Flows: []firewall.FlowTable{{Name: "flows", Devices: []string{"eth0-tap", "eth0"}, Priority: firewall.Last}}, Chains: []firewall.Chain{
		{Name: "plain", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.Assured{}, firewall.Lasting{Seconds: 120}}, Verdict: firewall.Offload{Table: "flows"}}}},
	}}

var testDeviceTable = firewall.Table{Family: firewall.NetDev, Name: "guestwire-eth0", Chains: []firewall.Chain{
	{Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: "eth0-tap", Priority: firewall.Filter, Rules: []firewall.Rule{
		{Matches: []firewall.Match{firewall.EtherType{Number: netstate.EthernetARP}}, Verdict: firewall.Fwd{Device: "eth0", Index: 7}},
	}},
}}

// tableReport are the messages of a table without struct nlmsghdr, by type (NFT_MSG_NEWTABLE, ...).
func tableReport(t testing.TB, table firewall.Table) map[byte][][]byte {
	t.Helper()
	messages, err := encodeTables([]netstate.Op{netstate.TableSet{Table: table}})
	if err != nil {
		t.Fatal(err)
	}
	reported := map[byte][][]byte{}
	for _, m := range messages[1 : len(messages)-1] { // without the messages that begin and end the transaction
		reported[m[4]] = append(reported[m[4]], m[unix.NLMSG_HDRLEN:])
	}
	return reported
}

// TestTableRoundTrip: the messages of a table are parsed to the table's image.
func TestTableRoundTrip(t *testing.T) {
	for _, table := range []firewall.Table{testTable, testFlowTable, testDeviceTable} {
		rules, err := knowRules([]firewall.Table{table})
		if err != nil {
			t.Fatal(err)
		}
		reported := tableReport(t, table)
		image, err := parseTable(reported[unix.NFT_MSG_NEWTABLE][0])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reported[unix.NFT_MSG_NEWSET] {
			set, of, err := parseSet(m)
			if err != nil || of != table.Name {
				t.Fatalf("a set of %q: %v", of, err)
			}
			image.Sets = append(image.Sets, set)
		}
		for _, m := range reported[unix.NFT_MSG_NEWFLOWTABLE] {
			flows, of, err := parseFlowTable(m)
			if err != nil || of != table.Name {
				t.Fatalf("a flow table of %q: %v", of, err)
			}
			image.Flows = append(image.Flows, flows)
		}
		for _, m := range reported[unix.NFT_MSG_NEWCHAIN] {
			chain, of, err := parseChain(m)
			if err != nil || of != table.Name {
				t.Fatalf("a chain of %q: %v", of, err)
			}
			image.Chains = append(image.Chains, chain)
		}
		for _, m := range reported[unix.NFT_MSG_NEWRULE] {
			rule, err := parseChainRule(m)
			if err != nil || string(rule.table) != table.Name {
				t.Fatalf("a rule of %q: %v", rule.table, err)
			}
			at := slices.IndexFunc(image.Chains, func(c firewall.ChainImage) bool { return c.Name == string(rule.chain) })
			text, err := rules.text(rule.expressions)
			if err != nil {
				t.Fatal(err)
			}
			image.Chains[at].Rules = append(image.Chains[at].Rules, text)
		}
		for _, d := range table.Destinations {
			have := firewall.Destinations{Version: d.Version, AllPorts: d.AllPorts}
			for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
				if err := appendBoxes(&have, new(bool), m); err != nil {
					t.Fatal(err)
				}
			}
			if d.Name == "empty" {
				have.Boxes = nil // the parser does not read the set's name
			}
			at := slices.IndexFunc(image.Sets, func(s firewall.Declaration) bool { return s.Name == d.Name })
			image.Sets[at].Head += joined(have).Held()
		}
		for i, set := range image.Sets {
			if isMap := slices.ContainsFunc(table.Maps, func(m firewall.PortMap) bool { return m.Name == set.Name }); !isMap {
				continue
			}
			var ranges []firewall.PortRange
			for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
				if err := appendPorts(&ranges, new(bool), m); err != nil {
					t.Fatal(err)
				}
			}
			image.Sets[i].Head += firewall.PortMap{Ranges: ranges}.Held()
		}
		var kept []firewall.Element
		for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
			keys, err := parseElements(m)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, keys...)
		}
		for _, s := range table.Sets {
			for _, e := range s.Elements {
				if !slices.ContainsFunc(kept, func(k firewall.Element) bool { return slices.Equal(k.Key, e.Key) }) {
					t.Errorf("set %s lacks %x", s.Name, e.Key)
				}
			}
		}
		slices.SortFunc(image.Sets, func(a, b firewall.Declaration) int { return strings.Compare(a.Name, b.Name) })
		if want := table.Image(); !reflect.DeepEqual(image, want) {
			t.Errorf("have %+v\nwant %+v", image, want)
		}
	}
}
