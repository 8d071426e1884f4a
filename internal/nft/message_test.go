package nft

import (
	"bytes"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
)

var router4, router6 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1")

// everyMatch has each type of match, with the values on which its expressions depend.
var everyMatch = []firewall.Match{
	firewall.InInterface{Name: "eth0"}, firewall.InInterface{Name: "a-name-of-15-oc", Inverted: true}, firewall.OutInterface{Name: "eth0"}, firewall.OutInterface{Name: "eth0", Inverted: true},
	firewall.OutGroup{Group: 0x67760000, Mask: 0xfffe0000},
	firewall.EtherType{Number: 0x0806}, firewall.Multicast{}, firewall.Multicast{Inverted: true}, firewall.IP{Version: 4}, firewall.IP{Version: 6}, firewall.Carries{Version: 4}, firewall.Carries{Version: 6},
	firewall.Protocol{Number: 6}, firewall.Protocol{Number: 0, Inverted: true},
	firewall.Source{Prefix: netip.MustParsePrefix("10.1.2.3/8")}, firewall.Source{Prefix: netip.MustParsePrefix("10.1.2.3/32")}, firewall.Source{Prefix: netip.MustParsePrefix("fd00::1/128")},
	firewall.Destination{Prefix: netip.MustParsePrefix("fe80::1/10")}, firewall.Destination{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, firewall.Destination{Prefix: netip.MustParsePrefix("10.0.0.1/31")},
	firewall.SourcePort{Protocol: 6, First: 80, Last: 80}, firewall.SourcePort{First: 80, Last: 90, Inverted: true},
	firewall.DestinationPort{First: 0, Last: 65535}, firewall.DestinationPort{First: 53, Last: 53, Inverted: true},
	firewall.ICMP{Version: 4, Type: 8}, firewall.ICMP{Version: 6, Type: 3, Code: 1},
	firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: []byte{2, 0, 0, 0, 0, 1}, Inverted: true},
	firewall.Bytes{Header: firewall.Network, Offset: 9, Value: []byte{1}, Mask: []byte{0x0f}},
	firewall.Bytes{Header: firewall.Transport, Offset: 2, Value: make([]byte, 16), Mask: bytes.Repeat([]byte{0xf0}, 16), Inverted: true},
	firewall.Bytes{Header: firewall.Transport, Value: []byte{128}, Last: []byte{129}}, firewall.Bytes{Header: firewall.Network, Offset: 8, Mask: []byte{0xff, 0x0f}, Value: []byte{1, 2}, Last: []byte{3, 4}, Inverted: true},
	firewall.SocketUser{UID: 107}, firewall.SocketUser{UID: 107, Inverted: true}, firewall.Fragment{}, firewall.RoutingHeader{}, firewall.Longer{Octets: 1500},
	firewall.State{States: firewall.Established | firewall.Related}, firewall.Translated{}, firewall.LocalSource{}, firewall.Original{}, firewall.Unconfirmed{}, firewall.Unanswered{}, firewall.Assured{}, firewall.Lasting{Seconds: 120},
	firewall.Origin{Prefix: netip.MustParsePrefix("10.0.2.2/32")}, firewall.Origin{Prefix: netip.MustParsePrefix("10.0.2.2/24"), Reply: true},
	firewall.Origin{Prefix: netip.MustParsePrefix("10.0.2.2/31")}, firewall.Origin{Prefix: netip.MustParsePrefix("::/0"), Reply: true}, firewall.Origin{Prefix: netip.MustParsePrefix("fd00::1/64")},
	firewall.Connections{Over: 4000}, firewall.Opening{}, firewall.Opening{Inverted: true},
	firewall.Count{}, firewall.Rate{Packets: 20, Burst: 5}, firewall.Rate{Packets: 20, PerMinute: true, Burst: 5, Over: true}, firewall.Faster{Octets: 1 << 40, Burst: 1 << 20},
	firewall.InSet{Part: firewall.SourceAddress4, Set: "a"}, firewall.InSet{Part: firewall.SourceAddress6, Set: "abc", Inverted: true}, firewall.InSet{Part: firewall.NextHop4, Set: "abcd"},
	firewall.AddToSet{Part: firewall.NextHop6, Set: "a"}, firewall.AddToSet{Part: firewall.ARPSender, Set: "abc", Renew: true},
	firewall.InDestinations{Version: 4, Set: "a"}, firewall.InDestinations{Version: 6, Set: "abcd"},
	firewall.FirstInDestinations{Version: 4, Set: "a"}, firewall.FirstInDestinations{Version: 6, Set: "abcd"},
	firewall.InDestinations{Version: 4, Set: "a-all", AllPorts: true}, firewall.InDestinations{Version: 6, Set: "abcd-all", AllPorts: true},
	firewall.AddToSet{Part: firewall.RawSource6, Set: "abcd"}, firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: "abcde"},
}

// everyVerdict has each type of verdict, with the values on which its expressions depend.
var everyVerdict = []firewall.Verdict{
	firewall.Accept{}, firewall.Drop{}, firewall.Refuse{}, firewall.Refuse{Reset: true}, firewall.Up{}, firewall.Up{Port: true},
	firewall.Log{Prefix: "guestwire eth0 mac-spoof", Group: firewall.LogGroup}, firewall.Continue{}, firewall.Offload{Table: "flows"}, firewall.Goto{Chain: "abc"}, firewall.Jump{Chain: "abcd"}, firewall.Return{},
	firewall.DNAT{Address: router4}, firewall.DNAT{Address: router4, Port: 80}, firewall.DNAT{Address: router6, Port: 80}, firewall.DNATMap{Address: router4, Protocol: 6, Map: "ports"}, firewall.DNATMap{Address: router6, Protocol: 17, Map: "ports"}, firewall.SNAT{Address: router4}, firewall.SNAT{Address: router6}, firewall.SNAT{Address: router4, First: 1024, Last: 65535}, firewall.SNAT{Address: router6, First: 1024, Last: 1024},
	firewall.Masquerade{}, firewall.Masquerade{First: 1024, Last: 2048}, firewall.Masquerade{First: 1024, Last: 1024}, firewall.Fwd{Device: "eth0", Index: 7},
	firewall.ClampMSS{}, firewall.LowerMSS{To: 1360}, firewall.SetSource{Address: router4}, firewall.SetSource{Address: router6}, firewall.SetDestination{Address: router4}, firewall.SetDestination{Address: router6}, firewall.CompleteChecksum{},
}

// everyRule has a rule with each match, a rule with each verdict, and a rule without a match.
func everyRule() []firewall.Rule {
	rules := []firewall.Rule{{Verdict: firewall.Drop{}}, {Matches: everyMatch[:3], Verdict: firewall.Accept{}}}
	for _, m := range everyMatch {
		rules = append(rules, firewall.Rule{Matches: []firewall.Match{m}, Verdict: firewall.Drop{}})
	}
	for _, v := range everyVerdict {
		rules = append(rules, firewall.Rule{Matches: []firewall.Match{firewall.IP{Version: 4}}, Verdict: v})
	}
	return rules
}

// TestEveryRule: everyMatch and everyVerdict have each type of package firewall.
func TestEveryRule(t *testing.T) {
	have := map[string]bool{}
	for _, m := range everyMatch {
		have["match "+reflect.TypeOf(m).Name()] = true
	}
	for _, v := range everyVerdict {
		have["verdict "+reflect.TypeOf(v).Name()] = true
	}
	found := map[string]bool{}
	paths, err := filepath.Glob("../firewall/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := goparser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			method, is := d.(*ast.FuncDecl)
			if is && method.Recv != nil && (method.Name.Name == "match" || method.Name.Name == "verdict") {
				found[method.Name.Name+" "+method.Recv.List[0].Type.(*ast.Ident).Name] = true
			}
		}
	}
	delete(found, "verdict DNATRange") // iptables has it alone
	if !reflect.DeepEqual(have, found) {
		t.Errorf("the lists have %v\nthe package has %v", have, found)
	}
}
