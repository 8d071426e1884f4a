// Package nfttest has tables of rules for tests: together they have most of what a table can have.
package nfttest

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Table has a chain of each kind, and rules whose expressions the kernel nests, masks and renames.
var Table = firewall.Table{Family: firewall.Inet, Name: "guestwire-eth0", Sets: []firewall.Set{
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
			Verdict: firewall.DNAT{Address: netip.MustParseAddr("10.0.0.1"), Port: 8080},
		},
		{Matches: []firewall.Match{firewall.Protocol{Number: 6}}, Verdict: firewall.DNATMap{Address: netip.MustParseAddr("10.0.0.1"), Protocol: 6, Map: "ports"}},
	}},
}}

// FlowTable has what not every kernel has.
var FlowTable = firewall.Table{Family: firewall.Inet, Name: "guestwire-eth0",
	Flows: []firewall.FlowTable{{Name: "flows", Devices: []string{"eth0-tap", "eth0"}, Priority: firewall.Last}}, Chains: []firewall.Chain{
		{Name: "plain", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.Assured{}, firewall.Lasting{Seconds: 120}}, Verdict: firewall.Offload{Table: "flows"}}}},
	}}

var DeviceTable = firewall.Table{Family: firewall.NetDev, Name: "guestwire-eth0", Chains: []firewall.Chain{
	{Name: "guest", Type: "filter", Hook: firewall.Ingress, Device: "eth0-tap", Priority: firewall.Filter, Rules: []firewall.Rule{
		{Matches: []firewall.Match{firewall.EtherType{Number: netstate.EthernetARP}}, Verdict: firewall.Fwd{Device: "eth0", Index: 7}},
	}},
}}
