package firewall

import (
	"net/netip"
	"testing"
)

// TestIPTables: one inet table becomes iptables chains for each IP version. The rules have the form that
// iptables -S prints.
func TestIPTables(t *testing.T) {
	prefix := netip.MustParsePrefix
	from, to := InInterface{Name: "eth0-br"}, OutInterface{Name: "eth0-br", Inverted: true}
	tcp := Protocol{Number: ProtocolTCP}
	table := Table{Family: Inet, Name: "guestwire-eth0", Chains: []Chain{
		{Name: "loopback", Type: "filter", Hook: Prerouting, Priority: Raw, Rules: []Rule{
			{Matches: []Match{from, IP{Version: 4}, Destination{prefix("127.0.0.0/8")}}, Verdict: Drop{}},
			{Matches: []Match{from, IP{Version: 6}, Source{prefix("::1/128")}}, Verdict: Drop{}},
		}},
		{Name: "from-network", Type: "nat", Hook: Prerouting, Priority: DstNAT, Rules: []Rule{
			{Matches: []Match{from, IP{Version: 4}, Destination{prefix("10.244.1.7/32")}}, Verdict: Jump{"to-guest-4"}},
			{Matches: []Match{from, IP{Version: 6}, Destination{prefix("fd00::7/128")}}, Verdict: Jump{"to-guest-6"}},
		}},
		{Name: "through", Type: "filter", Hook: Forward, Priority: Filter, Rules: []Rule{
			{Matches: []Match{from, State{New}}, Verdict: Jump{"cap"}},
			{Matches: []Match{from, State{Established | Related | New | Invalid | Untracked}}, Verdict: Accept{}},
			{Matches: []Match{tcp, Opening{}}, Verdict: ClampMSS{}},
			{Matches: []Match{to, Translated{}}, Verdict: Drop{}},
			{Matches: []Match{Protocol{Number: ProtocolICMP}, ICMP{Version: 4, Type: 8}}, Verdict: Accept{}},
			{Matches: []Match{Protocol{Number: ProtocolICMPv6}, ICMP{Version: 6, Type: 128}}, Verdict: Accept{}},
		}},
		{Name: "source", Type: "nat", Hook: Postrouting, Priority: SrcNAT, Rules: []Rule{
			{Matches: []Match{from, to}, Verdict: Masquerade{}},
			{Matches: []Match{to}, Verdict: SNAT{Address: netip.MustParseAddr("fd10:0:2::1")}},
		}},
		{Name: "to-guest-4", Rules: []Rule{
			{Matches: []Match{tcp, Opening{Inverted: true}}, Verdict: Accept{}},
			{Matches: []Match{tcp, DestinationPort{Protocol: ProtocolTCP, First: 80, Last: 90}}, Verdict: Accept{}},
			{Verdict: DNAT{Address: netip.MustParseAddr("10.0.2.2")}},
		}},
		{Name: "to-guest-6", Rules: []Rule{
			{Matches: []Match{Protocol{Number: ProtocolSCTP}, DestinationPort{Protocol: ProtocolSCTP, First: 80, Last: 80}}, Verdict: DNAT{netip.MustParseAddr("fd10:0:2::2"), 8080}},
		}},
		{Name: "to-namespace", Type: "filter", Hook: Input, Rules: []Rule{{Matches: []Match{from}, Verdict: Drop{}}}},
		{Name: "cap", Rules: []Rule{{Matches: []Match{Connections{3}}, Verdict: Drop{}}}},
	}}
	for _, c := range []struct {
		program Family
		want    string
	}{
		{IPTablesLegacy, `*raw
:gw-eth0-loopback - [0:0]
-A gw-eth0-loopback -d 127.0.0.0/8 -i eth0-br -j DROP
-I PREROUTING 1 -j gw-eth0-loopback
COMMIT
*filter
:gw-eth0-through - [0:0]
:gw-eth0-input - [0:0]
:gw-eth0-cap - [0:0]
-A gw-eth0-through -i eth0-br -m conntrack --ctstate NEW -j gw-eth0-cap
-A gw-eth0-through -i eth0-br -m conntrack --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED -j RETURN
-A gw-eth0-through -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-A gw-eth0-through ! -o eth0-br -m conntrack --ctstate DNAT -j DROP
-A gw-eth0-through -p icmp -m icmp --icmp-type 8 -j RETURN
-A gw-eth0-input -i eth0-br -j DROP
-A gw-eth0-cap -m connlimit --connlimit-above 3 --connlimit-mask 0 --connlimit-saddr -j DROP
-I FORWARD 1 -j gw-eth0-through
-I INPUT 1 -j gw-eth0-input
COMMIT
*nat
:gw-eth0-network - [0:0]
:gw-eth0-source - [0:0]
:gw-eth0-guest - [0:0]
-A gw-eth0-network -d 10.244.1.7/32 -i eth0-br -j gw-eth0-guest
-A gw-eth0-source -i eth0-br ! -o eth0-br -j MASQUERADE
-A gw-eth0-guest -p tcp -m tcp ! --tcp-flags SYN,RST SYN -j RETURN
-A gw-eth0-guest -p tcp -m tcp --dport 80:90 -j RETURN
-A gw-eth0-guest -j DNAT --to-destination 10.0.2.2
-I PREROUTING 1 -j gw-eth0-network
-I POSTROUTING 1 -j gw-eth0-source
COMMIT
`},
		{IP6TablesNFT, `*raw
:gw-eth0-loopback - [0:0]
-A gw-eth0-loopback -s ::1/128 -i eth0-br -j DROP
-I PREROUTING 1 -j gw-eth0-loopback
COMMIT
*filter
:gw-eth0-through - [0:0]
:gw-eth0-input - [0:0]
:gw-eth0-cap - [0:0]
-A gw-eth0-through -i eth0-br -m conntrack --ctstate NEW -j gw-eth0-cap
-A gw-eth0-through -i eth0-br -m conntrack --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED -j RETURN
-A gw-eth0-through -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
-A gw-eth0-through ! -o eth0-br -m conntrack --ctstate DNAT -j DROP
-A gw-eth0-through -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j RETURN
-A gw-eth0-input -i eth0-br -j DROP
-A gw-eth0-cap -m connlimit --connlimit-above 3 --connlimit-mask 0 --connlimit-saddr -j DROP
-I FORWARD 1 -j gw-eth0-through
-I INPUT 1 -j gw-eth0-input
COMMIT
*nat
:gw-eth0-network - [0:0]
:gw-eth0-source - [0:0]
:gw-eth0-guest - [0:0]
-A gw-eth0-network -d fd00::7/128 -i eth0-br -j gw-eth0-guest
-A gw-eth0-source -i eth0-br ! -o eth0-br -j MASQUERADE
-A gw-eth0-source ! -o eth0-br -j SNAT --to-source fd10:0:2::1
-A gw-eth0-guest -p sctp -m sctp --dport 80 -j DNAT --to-destination [fd10:0:2::2]:8080
-I PREROUTING 1 -j gw-eth0-network
-I POSTROUTING 1 -j gw-eth0-source
COMMIT
`},
	} {
		if have := table.IPTables(c.program, "gw-eth0").String(); have != c.want {
			t.Errorf("%s: have\n%s\nwant\n%s", c.program, have, c.want)
		}
	}
}

// TestChainNames: chain names are short enough for iptables even with the longest link name, and a chain of
// another link does not belong to the table.
func TestChainNames(t *testing.T) {
	const most = 28 // XT_EXTENSION_MAXNAMELEN - 1
	for _, chain := range []string{"loopback", "from-network", "from-namespace", "through", "source", "to-guest-4", "to-guest-6", "to-namespace", "cap"} {
		name := "gw-" + "eth0.1234567890"
		if full := name + "-" + shortName(chain); len(full) > most {
			t.Errorf("%s has %d characters, want at most %d", full, len(full), most)
		} else if !OfIPTables(full, name) {
			t.Errorf("%s does not belong to %s", full, name)
		}
	}
	for _, other := range []string{"gw-eth0-other-cap", "gw-eth01-cap", "gw-eth0", "PREROUTING", "my-gw-eth0-cap"} {
		if OfIPTables(other, "gw-eth0") {
			t.Errorf("%s belongs to gw-eth0", other)
		}
	}
}
