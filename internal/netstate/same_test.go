package netstate_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

var prefix = netip.MustParsePrefix

// TestAddressSame: what is left of a lifetime does not distinguish two addresses, but whether it ends does, and
// so does everything else.
func TestAddressSame(t *testing.T) {
	leased := netstate.Address{Link: 2, Prefix: prefix("10.0.0.7/24"), ValidSeconds: 3600, PreferredSeconds: 1800}
	for name, c := range map[string]struct {
		change func(*netstate.Address)
		same   bool
	}{
		"nothing":          {func(*netstate.Address) {}, true},
		"less valid":       {func(a *netstate.Address) { a.ValidSeconds = 3599 }, true},
		"less preferred":   {func(a *netstate.Address) { a.PreferredSeconds = 0 }, true},
		"valid forever":    {func(a *netstate.Address) { a.ValidSeconds = netstate.Forever }, false},
		"preferred always": {func(a *netstate.Address) { a.PreferredSeconds = netstate.Forever }, false},
		"another link":     {func(a *netstate.Address) { a.Link = 3 }, false},
		"another prefix":   {func(a *netstate.Address) { a.Prefix = prefix("10.0.0.7/25") }, false},
		"another peer":     {func(a *netstate.Address) { a.Peer = prefix("10.0.0.8/32") }, false},
		"another flag":     {func(a *netstate.Address) { a.Flags = netstate.AddrNoPrefixRoute }, false},
		"another scope":    {func(a *netstate.Address) { a.Scope = netstate.ScopeLink }, false},
	} {
		other := leased
		c.change(&other)
		if leased.Same(other) != c.same || other.Same(leased) != c.same {
			t.Errorf("%s: want the same %t", name, c.same)
		}
	}
}

// TestRouteSame: a route that the kernel made of an address is known by what the address says. Of another
// one all counts but what is left of its lifetime.
func TestRouteSame(t *testing.T) {
	added := netstate.Route{Link: 2, Table: netstate.TableMain, Destination: prefix("2001:db8::/32"), Gateway: netip.MustParseAddr("fe80::1"),
		Type: netstate.RouteUnicast, Protocol: netstate.ProtocolRA, Metric: 1024, ExpiresSeconds: 1800}
	kernels := netstate.Route{Link: 2, Table: netstate.TableMain, Destination: prefix("10.0.0.0/24"), PrefSrc: netip.MustParseAddr("10.0.0.7"),
		Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel, Scope: netstate.ScopeLink}
	for name, c := range map[string]struct {
		change         func(*netstate.Route)
		added, kernels bool // the same after the change
	}{
		"nothing":             {func(*netstate.Route) {}, true, true},
		"another destination": {func(r *netstate.Route) { r.Destination = prefix("192.0.2.0/24") }, false, false},
		"another table":       {func(r *netstate.Route) { r.Table = 7 }, false, false},
		"another link":        {func(r *netstate.Route) { r.Link = 3 }, false, false},
		"another metric":      {func(r *netstate.Route) { r.Metric = 7 }, false, false},
		"another source":      {func(r *netstate.Route) { r.PrefSrc = netip.MustParseAddr("10.0.0.8") }, false, false},
		"another gateway":     {func(r *netstate.Route) { r.Gateway = netip.MustParseAddr("fe80::2") }, false, true},
		"another type":        {func(r *netstate.Route) { r.Type = netstate.RouteThrow }, false, true},
		"another MTU":         {func(r *netstate.Route) { r.Other = []netstate.Attribute{{Type: 8}} }, false, true},
		"another protocol":    {func(r *netstate.Route) { r.Protocol = netstate.ProtocolStatic }, false, false},
		"another next hop":    {func(r *netstate.Route) { r.Hops = []netstate.Hop{{Link: 3}} }, false, true},
	} {
		for _, r := range []struct {
			route netstate.Route
			same  bool
		}{{added, c.added}, {kernels, c.kernels}} {
			other := r.route
			c.change(&other)
			if r.route.Same(other) != r.same || other.Same(r.route) != r.same {
				t.Errorf("%s of %+v: want the same %t", name, r.route, r.same)
			}
		}
	}
	for protocol, endless := range map[uint8]bool{netstate.ProtocolStatic: false, netstate.ProtocolRA: true} {
		for left, same := range map[uint32]bool{1: true, 1799: true, 0: endless} {
			one, other := added, added
			one.Protocol, other.Protocol, other.ExpiresSeconds = protocol, protocol, left
			if one.Same(other) != same || other.Same(one) != same {
				t.Errorf("protocol %d, %d seconds left of %d: want the same %t", protocol, left, one.ExpiresSeconds, same)
			}
		}
	}
}

// TestConnected: the routes that Linux makes of an address, as ip-address(8) and ip-route(8) show them.
func TestConnected(t *testing.T) {
	up := netstate.Link{Index: 2, Up: true}
	v4 := func(cidr string) netstate.Address { return netstate.Address{Link: 2, Prefix: prefix(cidr)} }
	peer := func(own, other string) netstate.Address {
		return netstate.Address{Link: 2, Prefix: prefix(own), Peer: prefix(other)}
	}
	route4 := func(network, source string) netstate.Route {
		return netstate.Route{Link: 2, Table: netstate.TableMain, Destination: prefix(network), PrefSrc: netip.MustParseAddr(source),
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel, Scope: netstate.ScopeLink}
	}
	route6 := func(network string, metric uint32) netstate.Route {
		return netstate.Route{Link: 2, Table: netstate.TableMain, Destination: prefix(network), Metric: metric,
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel}
	}
	with := func(a netstate.Address, metric, flags uint32) netstate.Address {
		a.Metric, a.Flags = metric, flags
		return a
	}
	other := v4("10.0.0.8/24")
	other.Link = 3
	for name, c := range map[string]struct {
		address netstate.Address
		link    netstate.Link
		earlier []netstate.Address
		want    []netstate.Route
	}{
		"IPv4":                       {v4("10.0.0.7/24"), up, nil, []netstate.Route{route4("10.0.0.0/24", "10.0.0.7")}},
		"link down":                  {v4("10.0.0.7/24"), netstate.Link{Index: 2}, nil, nil},
		"noprefixroute":              {with(v4("10.0.0.7/24"), 0, netstate.AddrNoPrefixRoute), up, nil, nil},
		"second of a network":        {v4("10.0.0.7/24"), up, []netstate.Address{v4("10.0.0.8/24")}, nil},
		"beside another network":     {v4("10.0.0.7/24"), up, []netstate.Address{v4("10.0.0.8/25")}, []netstate.Route{route4("10.0.0.0/24", "10.0.0.7")}},
		"beside another link's":      {v4("10.0.0.7/24"), up, []netstate.Address{other}, []netstate.Route{route4("10.0.0.0/24", "10.0.0.7")}},
		"IPv4 alone":                 {v4("10.0.0.7/32"), up, nil, nil},
		"IPv4 with a peer":           {peer("10.0.0.7/32", "10.0.0.1/32"), up, nil, []netstate.Route{route4("10.0.0.1/32", "10.0.0.7")}},
		"IPv4 first of its network":  {v4("10.0.0.0/24"), up, nil, []netstate.Route{route4("10.0.0.0/24", "10.0.0.0")}},
		"IPv6":                       {v4("fd00::7/64"), up, nil, []netstate.Route{route6("fd00::/64", 256)}},
		"IPv6 with a metric":         {with(v4("fd00::7/64"), 7, 0), up, nil, []netstate.Route{route6("fd00::/64", 7)}},
		"second of an IPv6 network":  {v4("fd00::7/64"), up, []netstate.Address{v4("fd00::8/64")}, []netstate.Route{route6("fd00::/64", 256)}},
		"IPv6 with a peer":           {peer("fd00::7/128", "fd00::1/128"), up, nil, []netstate.Route{route6("fd00::7/128", 256), route6("fd00::1/128", 256)}},
		"IPv6 with a peer's network": {peer("fd00::7/64", "fd01::1/64"), up, nil, []netstate.Route{route6("fd00::/64", 256), route6("fd01::1/128", 256)}},
	} {
		if have := connected(c.address, c.link, c.earlier); !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: have %+v, want %+v", name, have, c.want)
		}
	}
}

// TestFilterBeside: the kernel deletes all filters of a link that have the preference and the protocol.
func TestFilterBeside(t *testing.T) {
	f := netstate.Filter{Link: 7, Priority: 1, Protocol: netstate.EthernetIPv4}
	for _, c := range []struct {
		other netstate.Filter
		want  bool
	}{
		{netstate.Filter{Link: 7, Priority: 1, Protocol: netstate.EthernetIPv4, Target: 8}, true},
		{netstate.Filter{Link: 8, Priority: 1, Protocol: netstate.EthernetIPv4}, false},
		{netstate.Filter{Link: 7, Priority: 2, Protocol: netstate.EthernetIPv4}, false},
		{netstate.Filter{Link: 7, Priority: 1, Protocol: netstate.EthernetIPv6}, false},
	} {
		if (f.Place() == c.other.Place()) != c.want {
			t.Errorf("%+v beside %+v: want %t", c.other, f, c.want)
		}
	}
}

// TestSettingsDiffering: a setting that the kernel does not report cannot be changed, and is left alone.
func TestSettingsDiffering(t *testing.T) {
	have := netstate.Settings{"learning": 1, "flood": 1, "isolated": 1}
	want := netstate.Settings{"learning": 0, "flood": 1, "isolated": 0, "mab": 0}
	if d := have.Differing(want); !reflect.DeepEqual(d, netstate.Settings{"learning": 0, "isolated": 0}) {
		t.Errorf("have %v", d)
	}
	if d := have.Differing(have); d != nil {
		t.Errorf("of the same settings: %v, want nil", d)
	}
}

// connected are the routes that the kernel makes of the address after those before it.
func connected(a netstate.Address, l netstate.Link, before []netstate.Address) []netstate.Route {
	earlier := netstate.Earlier{}
	for _, b := range before {
		earlier.Add(b)
	}
	return earlier.Connected(a, l)
}
