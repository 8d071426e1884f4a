package firewall_test

import (
	"net/netip"

	"github.com/guestwire/guestwire/internal/firewall"
)

type rules = []firewall.Rule

func rule(v firewall.Verdict, m ...firewall.Match) firewall.Rule {
	return firewall.Rule{Matches: m, Verdict: v}
}

// inetTable has all matches and verdicts of an inet table.
func inetTable() firewall.Table {
	address, prefix := netip.MustParseAddr, netip.MustParsePrefix
	accept, drop := firewall.Accept{}, firewall.Drop{}
	ip4, ip6 := firewall.IP{Version: 4}, firewall.IP{Version: 6}
	from, to := firewall.InInterface{Name: "eth0"}, firewall.OutInterface{Name: "eth0"}
	notFrom, notTo := firewall.InInterface{Name: "eth0", Inverted: true}, firewall.OutInterface{Name: "eth0", Inverted: true}
	tcp, udp, sctp := firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Protocol{Number: firewall.ProtocolUDP}, firewall.Protocol{Number: firewall.ProtocolSCTP}
	port := func(protocol uint8, first, last uint16, not bool) firewall.DestinationPort {
		return firewall.DestinationPort{Protocol: protocol, First: first, Last: last, Inverted: not}
	}
	return firewall.Table{Family: firewall.Inet, Name: tableName, Sets: []firewall.Set{
		{Name: "next-hops-4", Of: firewall.NextHop4, Size: 64, Milliseconds: 60000},
		{Name: "next-hops-6", Of: firewall.NextHop6, Size: 64, Milliseconds: 60000},
		{Name: "pins-4", Of: firewall.Destination4, Size: 8, Milliseconds: 60000},
		{Name: "pins-6", Of: firewall.Destination6, Size: 8, Milliseconds: 60000},
	}, Maps: []firewall.PortMap{
		{Name: "tcp-ports", Ranges: []firewall.PortRange{{First: 8000, Last: 8002, To: 9000}, {First: 80, Last: 80, To: 8080}}},
		{Name: "sctp-ports", Ranges: []firewall.PortRange{{First: 80, Last: 80, To: 8080}}},
	}, Destinations: []firewall.Destinations{
		{Name: "egress-4", Version: 4, Boxes: []firewall.Box{
			{First: address("0.0.0.0"), Last: address("9.255.255.255"), LastProtocol: 255, LastPort: 65535},
			{First: address("10.0.0.0"), Last: address("10.0.0.255"), FirstProtocol: 6, LastProtocol: 6, FirstPort: 80, LastPort: 80},
			{First: address("10.0.0.0"), Last: address("10.0.0.255"), FirstProtocol: 17, LastProtocol: 17, FirstPort: 50, LastPort: 60},
			{First: address("10.0.1.7"), Last: address("10.0.1.7"), FirstProtocol: 1, LastProtocol: 1, LastPort: 65535},
			{First: address("11.0.0.0"), Last: address("255.255.255.255"), FirstProtocol: 7, LastProtocol: 255, LastPort: 65535},
		}},
		{Name: "egress-6", Version: 6, Boxes: []firewall.Box{
			{First: address("::"), Last: address("fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), LastProtocol: 5, LastPort: 65535},
			{First: address("fd00::"), Last: address("fd00::ffff"), FirstProtocol: 58, LastProtocol: 58, LastPort: 65535},
		}},
		{Name: "all-4", Version: 4, Boxes: []firewall.Box{{First: address("0.0.0.0"), Last: address("255.255.255.255"), LastProtocol: 255, LastPort: 65535}}},
		{Name: "all-6", Version: 6, Boxes: []firewall.Box{{First: address("::"), Last: address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), LastProtocol: 255, LastPort: 65535}}},
		{Name: "none", Version: 6},
		{Name: "egress-4-all", Version: 4, AllPorts: true, Boxes: []firewall.Box{
			{First: address("1.0.0.0"), Last: address("1.255.255.255"), LastProtocol: 255, LastPort: 65535},
			{First: address("2.0.0.1"), Last: address("2.0.0.7"), LastProtocol: 255, LastPort: 65535},
			{First: address("255.255.255.255"), Last: address("255.255.255.255"), LastProtocol: 255, LastPort: 65535},
		}},
		{Name: "egress-6-all", Version: 6, AllPorts: true, Boxes: []firewall.Box{
			{First: address("::"), Last: address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), LastProtocol: 255, LastPort: 65535},
		}},
		{Name: "none-all", Version: 6, AllPorts: true},
	}, Chains: []firewall.Chain{
		{Name: "loopback", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: rules{
			rule(drop, from, ip4, firewall.Destination{Prefix: prefix("127.0.0.0/8")}),
			rule(drop, from, ip6, firewall.Source{Prefix: prefix("::1/128")}),
			rule(drop, ip6, firewall.Destination{Prefix: prefix("fd00:1::/33")}),
			rule(drop, ip4, firewall.Source{Prefix: prefix("10.0.0.0/9")}),
		}},
		{Name: "from-network", Type: "nat", Hook: firewall.Prerouting, Priority: firewall.DstNAT, Rules: rules{
			rule(firewall.Jump{Chain: "to-guest-4"}, from, ip4, firewall.Destination{Prefix: prefix("10.244.1.7/32")}),
			rule(firewall.Jump{Chain: "to-guest-6"}, from, ip6, firewall.Destination{Prefix: prefix("fd00::7/128")}),
		}},
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: rules{
			rule(firewall.Jump{Chain: "cap"}, from, firewall.State{States: firewall.New}),
			rule(accept, firewall.State{States: firewall.Established | firewall.Related}),
			rule(drop, firewall.State{States: firewall.New | firewall.Invalid | firewall.Untracked}),
			rule(firewall.ClampMSS{}, to, tcp, firewall.Opening{}),
			rule(drop, notTo, firewall.Translated{}),
			rule(accept, ip4, firewall.Origin{Prefix: prefix("10.0.2.2/32")}),
			rule(accept, ip4, firewall.Origin{Prefix: prefix("10.9.0.0/20"), Reply: true}),
			rule(accept, ip6, firewall.Origin{Prefix: prefix("fd00::2/128"), Reply: true}),
			rule(accept, ip6, firewall.Origin{Prefix: prefix("fd00::/33")}),
			rule(firewall.Jump{Chain: "cap"}, firewall.Unconfirmed{}),
			rule(drop, ip4, firewall.Protocol{Number: firewall.ProtocolICMP}, firewall.ICMP{Version: 4, Type: 3, Code: 4}),
			rule(drop, notFrom, firewall.Protocol{Number: firewall.ProtocolUDP, Inverted: true}),
		}},
		{Name: "to-namespace", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: rules{
			rule(accept, from, ip4, firewall.Protocol{Number: firewall.ProtocolICMP}, firewall.ICMP{Version: 4, Type: 8}),
			rule(accept, from, ip6, firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: 128}),
			rule(accept, tcp, firewall.Opening{Inverted: true}),
			rule(accept, tcp, port(firewall.ProtocolTCP, 80, 80, false)),
			rule(accept, udp, port(firewall.ProtocolUDP, 5000, 5100, false)),
			rule(drop, udp, port(firewall.ProtocolUDP, 53, 53, true)),
			rule(drop, sctp, port(firewall.ProtocolSCTP, 7, 9, true)),
		}},
		{Name: "source", Type: "nat", Hook: firewall.Postrouting, Priority: firewall.SrcNAT, Rules: rules{
			rule(firewall.SNAT{Address: address("10.0.2.1")}, to, ip4, firewall.Source{Prefix: prefix("127.0.0.1/32")}),
			rule(firewall.SNAT{Address: address("fd10:0:2::1")}, to, ip6, firewall.Source{Prefix: prefix("::1/128")}),
			rule(firewall.SNAT{Address: address("10.0.2.1"), First: 1, Last: 32767}, ip4, from, notTo, tcp),
			rule(firewall.SNAT{Address: address("fd10:0:2::1"), First: 53, Last: 53}, ip6, from, notTo, udp),
			rule(firewall.Masquerade{First: 1, Last: 32767}, from, notTo, tcp, firewall.SourcePort{Protocol: firewall.ProtocolTCP, First: 1, Last: 32767}),
			rule(firewall.Masquerade{First: 53, Last: 53}, from, notTo, udp, firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: 53, Last: 53}),
			rule(firewall.Masquerade{First: 61000, Last: 65535}, from, notTo, sctp),
			rule(firewall.Masquerade{}, from, notTo),
		}},
		{Name: "rewritten", Rules: rules{
			rule(firewall.SetSource{Address: address("10.244.1.7")}, to, ip4, firewall.Source{Prefix: prefix("169.254.75.1/32")}),
			rule(firewall.SetDestination{Address: address("10.244.1.8")}, ip4),
			rule(firewall.SetSource{Address: address("fd00::7")}, to, ip6, firewall.Source{Prefix: prefix("fd00::1/128")}),
			rule(firewall.SetDestination{Address: address("fe80::7")}, from, ip6, firewall.Protocol{Number: firewall.ProtocolICMPv6}, firewall.ICMP{Version: 6, Type: 135}),
		}},
		{Name: "to-guest-4", Rules: rules{
			rule(firewall.DNAT{Address: address("10.0.2.2"), Port: 8080}, tcp, port(firewall.ProtocolTCP, 80, 80, false)),
			rule(firewall.DNATMap{Address: address("10.0.2.2"), Protocol: firewall.ProtocolTCP, Map: "tcp-ports"}, tcp),
			rule(firewall.DNAT{Address: address("10.0.2.2")}),
		}},
		{Name: "to-guest-6", Rules: rules{
			rule(firewall.DNAT{Address: address("fd10:0:2::2"), Port: 8080}, sctp, port(firewall.ProtocolSCTP, 80, 80, false)),
			rule(firewall.DNATMap{Address: address("fd10:0:2::2"), Protocol: firewall.ProtocolTCP, Map: "tcp-ports"}, tcp),
			rule(firewall.DNATMap{Address: address("fd10:0:2::2"), Protocol: firewall.ProtocolSCTP, Map: "sctp-ports"}, sctp),
			rule(firewall.DNAT{Address: address("fd10:0:2::2")}),
		}},
		{Name: "cap", Rules: rules{
			rule(firewall.Return{}, udp),
			rule(drop, firewall.Connections{Over: 5}),
			rule(firewall.Goto{Chain: "end"}, tcp),
		}},
		{Name: "end", Rules: rules{rule(accept, to), rule(drop)}},
		{Name: "hops", Rules: rules{
			rule(accept, firewall.SocketUser{UID: 107}),
			rule(drop, firewall.SocketUser{UID: 0, Inverted: true}),
			rule(drop, firewall.OutGroup{Group: 0x67760000, Mask: 0xfffe0000}),
			rule(accept, ip4, firewall.AddToSet{Part: firewall.NextHop4, Set: "next-hops-4", Renew: true}),
			rule(accept, ip6, firewall.AddToSet{Part: firewall.NextHop6, Set: "next-hops-6", Renew: true}),
			rule(accept, ip4, firewall.AddToSet{Part: firewall.SourceAddress4, Set: "next-hops-4"}),
			rule(drop, ip6, firewall.InSet{Part: firewall.SourceAddress6, Set: "next-hops-6"}),
			rule(accept, ip4, firewall.InDestinations{Version: 4, Set: "egress-4"}),
			rule(accept, ip6, firewall.InDestinations{Version: 6, Set: "egress-6"}),
			rule(accept, ip4, firewall.InDestinations{Version: 4, Set: "egress-4-all", AllPorts: true}),
			rule(accept, ip6, firewall.InDestinations{Version: 6, Set: "egress-6-all", AllPorts: true}),
			rule(accept, ip4, tcp, firewall.FirstInDestinations{Version: 4, Set: "egress-4"}),
			rule(accept, ip6, tcp, firewall.FirstInDestinations{Version: 6, Set: "egress-6"}),
			rule(accept, ip4, firewall.InDestinations{Version: 4, Set: "pins-4"}),
			rule(accept, ip6, firewall.InDestinations{Version: 6, Set: "pins-6"}),
			rule(accept, tcp, firewall.Assured{}, firewall.Lasting{Seconds: 120}),
			rule(accept, firewall.LocalSource{}),
			rule(accept, firewall.Unconfirmed{}, firewall.Original{}),
			rule(accept, udp, firewall.Unanswered{}),
			rule(drop, firewall.Rate{Packets: 20, PerMinute: true, Burst: 5, Over: true}),
			rule(firewall.Refuse{Reset: true}, tcp),
			rule(firewall.Refuse{}),
		}},
	}}
}

// ingressTable has the matches and verdicts that only a netdev table has.
func ingressTable() firewall.Table {
	accept, drop := firewall.Accept{}, firewall.Drop{}
	carries4, carries6 := firewall.Carries{Version: 4}, firewall.Carries{Version: 6}
	udp := firewall.Protocol{Number: firewall.ProtocolUDP}
	return firewall.Table{Family: firewall.NetDev, Name: tableName, Sets: []firewall.Set{
		{Name: "known", Of: firewall.DiscoveryTarget, Size: 2},
		{Name: "senders", Of: firewall.ARPSender, Size: 2},
		{Name: "fresh", Of: firewall.DiscoveryTarget, Size: 2, Milliseconds: 900},
	}, Chains: []firewall.Chain{
		{Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: "eth0", Priority: firewall.Filter, Drops: true, Rules: rules{
			rule(firewall.Goto{Chain: "neighbours"}, firewall.Bytes{Header: firewall.Ethernet, Offset: 12, Value: []byte{0x86, 0xdd}}),
			rule(drop, firewall.Bytes{Header: firewall.Ethernet, Offset: 6, Value: []byte{2, 0, 0, 0, 0, 9}, Inverted: true}),
			rule(drop, firewall.Bytes{Header: firewall.Network, Offset: 14, Value: []byte{10, 9, 0, 0}, Mask: []byte{255, 255, 240, 0}}),
			rule(drop, firewall.Bytes{Header: firewall.Network, Offset: 14, Value: []byte{10, 9, 0, 0}, Mask: []byte{255, 255, 240, 0}, Inverted: true}),
			rule(drop, firewall.Bytes{Header: firewall.Network, Offset: 4, Value: []byte{0, 0}, Last: []byte{0, 23}}),
			rule(drop, firewall.Bytes{Header: firewall.Transport, Value: []byte{11}, Last: []byte{14}, Inverted: true}),
			rule(accept, carries4, udp, firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: 68, Last: 68}),
			rule(drop, carries4, udp, firewall.SourcePort{Protocol: firewall.ProtocolUDP, First: 68, Last: 70, Inverted: true}),
			rule(drop, firewall.Multicast{}),
			rule(firewall.Fwd{Device: "eth1"}, firewall.Multicast{Inverted: true}),
			rule(firewall.Fwd{Device: "eth1"}),
			rule(firewall.Drop{Reason: firewall.MACSpoof}),
			rule(firewall.Drop{Reason: firewall.IPSpoof}, udp),
			rule(firewall.Up{}, carries4, udp),
			rule(firewall.Up{}, carries6, udp, firewall.Count{}),
			rule(firewall.Up{Port: true}, carries4, udp),
			rule(firewall.Up{Port: true}, carries6, udp, firewall.Count{}),
		}},
		{Name: "neighbours", Rules: rules{
			rule(drop, carries6, firewall.Protocol{Number: 0}),
			rule(drop, firewall.Longer{Octets: 1500}),
			rule(firewall.Log{Prefix: "guestwire eth0 mac-spoof", Group: firewall.LogGroup}),
			rule(drop, firewall.Faster{Octets: 12_500_000_000, Burst: 1<<32 - 1}),
			rule(drop, firewall.Faster{Octets: 1000, Burst: 65536}),
			rule(drop, firewall.Rate{Packets: 10_000_000, Burst: 10_000_000, Over: true}),
			rule(firewall.LowerMSS{To: 1360}, carries6, firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Opening{}),
			rule(drop, firewall.AddToSet{Part: firewall.ARPSender, Set: "senders"}),
			rule(firewall.Continue{}, carries6, udp, firewall.AddToSet{Part: firewall.RawSource6, Set: "known", Renew: true}),
			rule(drop, carries6, firewall.Fragment{}),
			rule(drop, carries6, firewall.RoutingHeader{}),
			rule(drop, carries6, udp, firewall.Bytes{Header: firewall.Transport, Offset: 8, Value: []byte{1}}),
			rule(accept, carries6, udp, firewall.InSet{Part: firewall.RawSource6, Set: "known"}, firewall.InSet{Part: firewall.RawSource6, Set: "fresh", Inverted: true}),
			rule(accept, carries6, udp, firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: "known"}, firewall.AddToSet{Part: firewall.DiscoveryTarget, Set: "fresh"}),
			rule(accept),
		}},
	}}
}

// bridgeTable has the rules that a bridge's own chain needs.
func bridgeTable() firewall.Table {
	return firewall.Table{Family: firewall.Bridge, Name: tableName, Chains: []firewall.Chain{
		{Name: "input", Type: "filter", Hook: firewall.Input, Priority: firewall.Filter, Rules: rules{
			rule(firewall.Drop{}, firewall.InInterface{Name: "eth0"}, firewall.Carries{Version: 6}),
			rule(firewall.Drop{}, firewall.InInterface{Name: "eth0"}, firewall.EtherType{Number: 0x0806}),
			rule(firewall.Drop{}, firewall.InInterface{Name: "eth0"}, firewall.EtherType{Number: 0x8100}),
			rule(firewall.Drop{}, firewall.InInterface{Name: "eth0"}),
			rule(firewall.Drop{Reason: firewall.NoIPv6}),
		}},
	}}
}

// flowTable has what an inet table has where the kernel has flow tables.
func flowTable() firewall.Table {
	tcp, add := firewall.Protocol{Number: firewall.ProtocolTCP}, firewall.Offload{Table: "established"}
	return firewall.Table{Family: firewall.Inet, Name: tableName,
		Flows: []firewall.FlowTable{{Name: "established", Devices: []string{"eth1", "eth0"}, Priority: firewall.Last}},
		Chains: []firewall.Chain{{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: rules{
			rule(add, tcp, firewall.Assured{}, firewall.Lasting{Seconds: 120}),
			rule(add, firewall.Assured{}),
		}}}}
}
