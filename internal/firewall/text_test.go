package firewall

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/ip"
)

// samples returns a rule for each type of Match and Verdict.
func samples() []Rule {
	drop := func(m ...Match) Rule { return Rule{Matches: m, Verdict: Drop{}} }
	tcp := Protocol{Number: ProtocolTCP}
	return []Rule{
		drop(InInterface{Name: "eth0"}),
		drop(OutInterface{Name: "eth0"}),
		drop(OutGroup{Group: 0x67760000, Mask: 0xfffe0000}),
		drop(EtherType{Number: 0x0806}),
		drop(Multicast{}),
		drop(IP{Version: 4}),
		drop(Carries{Version: 4}),
		drop(tcp),
		drop(Source{netip.MustParsePrefix("10.0.0.0/8")}),
		drop(Destination{netip.MustParsePrefix("fd00::/8")}),
		drop(tcp, SourcePort{Protocol: ProtocolTCP, First: 80, Last: 90}),
		drop(tcp, DestinationPort{Protocol: ProtocolTCP, First: 80, Last: 90}),
		drop(Protocol{Number: ProtocolICMP}, ICMP{Version: 4, Type: 3, Code: 4}),
		drop(Bytes{Header: Network, Offset: 8, Value: []byte{10, 0}, Mask: []byte{0xff, 0xf0}}),
		drop(Bytes{Header: Network, Value: []byte{11}, Last: []byte{14}}),
		drop(SocketUser{UID: 107}),
		drop(Fragment{}),
		drop(RoutingHeader{}),
		drop(Longer{Octets: 1500}),
		drop(State{Established | Related}),
		drop(Translated{}),
		drop(IP{Version: 4}, Origin{Prefix: netip.MustParsePrefix("10.0.2.2/32")}),
		drop(IP{Version: 6}, Origin{Prefix: netip.MustParsePrefix("fd00::/20"), Reply: true}),
		drop(LocalSource{}),
		drop(Original{}),
		drop(Unconfirmed{}),
		drop(Unanswered{}),
		drop(Assured{}),
		drop(Lasting{Seconds: 120}),
		drop(Connections{Over: 5}),
		drop(tcp, Opening{}),
		drop(Rate{Packets: 20, Burst: 5}),
		drop(Rate{Packets: 20, PerMinute: true, Burst: 5, Over: true}),
		drop(Faster{Octets: 12_500_000, Burst: 65536}),
		drop(Carries{Version: 6}, InSet{Part: SourceAddress6, Set: "local"}),
		drop(Carries{Version: 6}, AddToSet{Part: SourceAddress6, Set: "local"}),
		drop(IP{Version: 4}, InDestinations{Version: 4, Set: "egress-4"}),
		drop(IP{Version: 4}, InDestinations{Version: 4, Set: "egress-4-all", AllPorts: true}),
		drop(IP{Version: 4}, Protocol{Number: ProtocolTCP}, FirstInDestinations{Version: 4, Set: "egress-4"}),
		{Verdict: Refuse{}},
		{Matches: []Match{tcp}, Verdict: Refuse{Reset: true}},
		{Verdict: Return{}},
		{Verdict: Accept{}},
		{Verdict: Drop{}},
		drop(Count{}),
		drop(Count{}, Rate{Packets: 20, Burst: 5}),
		{Verdict: Up{Reason: NetworkDHCP}},
		{Matches: []Match{Count{}}, Verdict: Up{Port: true}},
		{Verdict: Log{Prefix: "guestwire eth0 mac-spoof", Group: 7}},
		{Verdict: Continue{}},
		{Verdict: Offload{Table: "flows"}},
		{Verdict: Goto{Chain: "other"}},
		{Verdict: Jump{Chain: "other"}},
		{Verdict: DNAT{Address: netip.MustParseAddr("10.0.2.2"), Port: 80}},
		{Matches: []Match{tcp}, Verdict: DNATMap{Address: netip.MustParseAddr("10.0.2.2"), Protocol: ProtocolTCP, Map: "ports"}},
		{Matches: []Match{tcp}, Verdict: DNATRange{Address: netip.MustParseAddr("10.0.2.2"), First: 9000, Last: 9009, Base: 8000}},
		{Verdict: SNAT{Address: netip.MustParseAddr("10.0.2.1")}},
		{Matches: []Match{tcp}, Verdict: SNAT{Address: netip.MustParseAddr("10.0.2.1"), First: 1024, Last: 2047}},
		{Matches: []Match{tcp}, Verdict: SNAT{Address: netip.MustParseAddr("fd10:0:2::1"), First: 1024, Last: 1024}},
		{Verdict: Masquerade{}},
		{Matches: []Match{tcp}, Verdict: Masquerade{First: 1024, Last: 2048}},
		{Verdict: Fwd{Device: "eth0-tap", Index: 7}},
		{Matches: []Match{tcp}, Verdict: ClampMSS{}},
		{Matches: []Match{tcp}, Verdict: LowerMSS{To: 1360}},
		{Matches: []Match{IP{Version: 4}}, Verdict: SetSource{Address: netip.MustParseAddr("10.0.2.1")}},
		{Verdict: SetDestination{Address: netip.MustParseAddr("fd00::1")}},
		{Verdict: CompleteChecksum{}},
	}
}

// nftablesOnly holds for a rule that iptables cannot express.
func nftablesOnly(r Rule) bool {
	switch r.Verdict.(type) {
	case Continue, DNATMap, Refuse, Offload, Fwd, Up, Log, LowerMSS, SetSource, SetDestination, CompleteChecksum:
		return true
	}
	return slices.ContainsFunc(r.Matches, func(m Match) bool {
		switch m.(type) {
		case OutGroup, EtherType, Multicast, Carries, Bytes, SocketUser, Fragment, RoutingHeader, Longer, LocalSource, Original, Unanswered, Assured, Lasting, Count, Rate, Faster, InSet, AddToSet, InDestinations, FirstInDestinations:
			return true
		}
		return false
	})
}

// TestSamples: there is a sample for each type of Match and Verdict in this package.
func TestSamples(t *testing.T) {
	have := map[string]bool{}
	for _, r := range samples() {
		have[reflect.TypeOf(r.Verdict).Name()] = true
		for _, m := range r.Matches {
			have[reflect.TypeOf(m).Name()] = true
		}
	}
	for _, file := range []string{"match.go", "set.go", "flow.go", "portmap.go", "destinations.go", "verdict.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		methods := 0
		for _, d := range f.Decls {
			if fn, is := d.(*ast.FuncDecl); is && fn.Recv != nil && (fn.Name.Name == "match" || fn.Name.Name == "verdict") {
				methods++
				if name := fn.Recv.List[0].Type.(*ast.Ident).Name; !have[name] {
					t.Errorf("no sample of %s", name)
				}
			}
		}
		if methods == 0 {
			t.Errorf("%s has no type with a method match or verdict", file)
		}
	}
}

// TestEveryFieldInText: a change of any field of a match or verdict changes the text. Rules in the kernel are
// compared by their texts, so a difference in a field that the text lacks would never be repaired.
func TestEveryFieldInText(t *testing.T) {
	for _, r := range samples() {
		changed := func(name string, other Rule) {
			if other.String() == r.String() {
				t.Errorf("%s: another value has the same nftables text: %s", name, r)
			}
			if nftablesOnly(r) {
				return
			}
			if other.IPTables() == r.IPTables() && other.ipVersion() == r.ipVersion() {
				t.Errorf("%s: another value has the same iptables text: %s", name, r.IPTables())
			}
		}
		if last := len(r.Matches) - 1; last >= 0 {
			for name, v := range withOtherFields(t, r.Matches[last]) {
				matches := slices.Clone(r.Matches)
				matches[last] = v.(Match)
				changed(name, Rule{Matches: matches, Verdict: r.Verdict})
			}
		}
		for name, v := range withOtherFields(t, r.Verdict) {
			if name != "Fwd.Index" && name != "Drop.Reason" && name != "Refuse.Reason" && name != "Up.Reason" { // resolved when the table is applied, and by Counted
				changed(name, Rule{Matches: r.Matches, Verdict: v.(Verdict)})
			}
		}
	}
}

// withOtherFields returns a copy of v for each field, with another value in that field, by "Type.Field".
func withOtherFields(t *testing.T, v any) map[string]any {
	t.Helper()
	all := map[string]any{}
	for i := range reflect.TypeOf(v).NumField() {
		c := reflect.New(reflect.TypeOf(v)).Elem()
		c.Set(reflect.ValueOf(v))
		name := c.Type().Name() + "." + c.Type().Field(i).Name
		var other any
		switch field := c.Field(i).Interface().(type) {
		case string:
			other = field + "1"
		case Reason:
			other = MACSpoof
		case Part:
			other = SourceAddress4
		case Header:
			other = Transport
		case bool:
			other = !field
		case uint8:
			other = uint8(ProtocolUDP)
		case uint16:
			other = field + 1
		case uint64:
			other = uint64(99)
		case uint32:
			other = field + 1
		case States:
			other = field | Invalid
		case int:
			other = field + 1
		case ip.Version:
			other = ip.V6
		case []byte:
			other = []byte{1, 2}
		case netip.Addr:
			other = field.Next()
		case netip.Prefix:
			other = netip.PrefixFrom(field.Addr(), field.Bits()+1)
		default:
			t.Fatalf("%s: no other value of type %T", name, field)
		}
		c.Field(i).Set(reflect.ValueOf(other))
		all[name] = c.Interface()
	}
	return all
}

// FuzzTable makes an inet table of the samples that both firewalls can express. For each IP version, the
// iptables form must be complete: each chain belongs to the table, and each jump leads to a chain in the same
// iptables table. An image must equal itself, and differ from that of any other table.
func FuzzTable(f *testing.F) {
	for _, seed := range []string{"", "\x00\x01\x02", "abcdefghijklmnop", "\x10\x11\x12\x13\x14\xff\xfe"} {
		f.Add([]byte(seed))
	}
	var rules []Rule
	for _, r := range samples() {
		_, jumps := r.Verdict.(Jump)
		_, goes := r.Verdict.(Goto)
		if !jumps && !goes && !nftablesOnly(r) {
			rules = append(rules, r)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		table := Table{Family: Inet, Name: "guestwire-eth0", Chains: []Chain{
			{Name: "through", Type: "filter", Hook: Forward, Rules: []Rule{{Verdict: Jump{Chain: "cap"}}}},
			{Name: "loopback", Type: "filter", Hook: Prerouting, Priority: Raw},
			{Name: "source", Type: "nat", Hook: Postrouting, Priority: SrcNAT},
			{Name: "cap"},
		}}
		for _, b := range data[:min(len(data), 64)] {
			c := &table.Chains[int(b)%len(table.Chains)]
			c.Rules = append(c.Rules, rules[int(b)/len(table.Chains)%len(rules)])
		}
		tables := []Table{table}
		for _, program := range []Family{IPTablesNFT, IP6TablesLegacy} {
			out := table.IPTables(program, "gw-eth0")
			tables = append(tables, out)
			in := map[string]string{} // iptables table by chain
			for _, c := range out.Chains {
				if !OfIPTables(c.Name, out.Name) || !slices.Contains(IPTablesTables, c.Type) {
					t.Errorf("chain %q of %q does not belong to %s", c.Name, c.Type, out.Name)
				}
				in[c.Name] = c.Type
			}
			for _, c := range out.Chains {
				for _, r := range c.Rules {
					if j, is := r.Verdict.(Jump); is && in[j.Chain] != c.Type {
						t.Errorf("chain %s of %s jumps to %s of %q", c.Name, c.Type, j.Chain, in[j.Chain])
					}
				}
			}
		}
		for _, table := range tables {
			image := table.Image()
			if d := image.Differences(table.Image()); len(d) != 0 {
				t.Errorf("%s: an image differs from itself: %q", table.Family, d)
			}
			if lines := len(slices.Collect(strings.Lines(table.String()))); lines < len(table.Chains) {
				t.Errorf("%s: %d chains in %d lines", table.Family, len(table.Chains), lines)
			}
			for i, c := range table.Chains {
				changed := table
				changed.Chains = slices.Clone(table.Chains)
				changed.Chains[i].Rules = append(slices.Clone(c.Rules), Rule{Matches: []Match{InInterface{Name: "eth9"}}, Verdict: Drop{}})
				if d := changed.Image().Differences(image); len(d) != 1 || !strings.Contains(fmt.Sprint(d), "extra rule") {
					t.Errorf("%s: an extra rule in %s is reported as %q", table.Family, c.Name, d)
				}
				if d := image.Differences(changed.Image()); len(d) != 1 || !strings.Contains(fmt.Sprint(d), "lacks the rule") {
					t.Errorf("%s: a missing rule in %s is reported as %q", table.Family, c.Name, d)
				}
			}
		}
	})
}
