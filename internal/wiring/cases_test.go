package wiring_test

import (
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

type testCase struct {
	name  string
	found netstate.Snapshot
	spec  asked
}

// cases are namespaces as plugins leave them, and what is wanted of them. Those that are not unshown have a golden plan
// in testdata.
var cases = []testCase{
	{"bridge", flannel(), bridge()},
	{"bridge-without-dummy", flannelWith(func(s *netstate.Snapshot) { s.Dummy = false }), bridge()},
	{"bridge-4", lan4(), bridge()},
	{"bridge-leased", flannelWith(leasedAddresses), bridge()},
	{"redirect-leased", flannelWith(leasedAddresses), redirect()},
	{"redirect", flannel(), redirect()},
	{"bridge-mac", flannel(), withSpec(bridge(), func(s *asked) { s.Binding = infra.Bridge{MAC: mac(0x77)} })},
	{"redirect-mac", flannelWith(func(s *netstate.Snapshot) {
		s.Neighbours = append(s.Neighbours, permanent("10.244.1.9", mac(9)), permanent("fd00:244:1::9", mac(9)))
	}), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(0x77)} })},
	{"redirect-mac-without-link-local", lan4With(func(s *netstate.Snapshot) {
		s.Addresses = s.Addresses[:1]
		s.Routes = s.Routes[:2]
	}), withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(0x77)} })},
	{"auto-mac", ipvlanWith(unchanged), withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{MAC: mac(0x77)} })},
	{"masquerade-guest", flannel(), withSpec(masquerade(), func(s *asked) { s.Guest = "default/vm1" })},
	{"masquerade-gateway-mac", flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{GatewayMAC: mac(0x77)} })},
	{"redirect-guard-off", flannel(), withSpec(redirect(), func(s *asked) { s.Guard.Off = true })},
	{"redirect-blackhole", flannelWith(func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: 6, Destination: pfx("10.244.7.0/24")})
	}), redirect()},
	{"redirect-route-mtu", flannelWith(func(s *netstate.Snapshot) {
		s.Routes[1].MTU, s.Routes[1].Other = 1400, []netstate.Attribute{{Type: 8, Data: []byte{8, 0, 2, 0, 0x78, 5, 0, 0}}}
	}), redirect()},
	{"bridge-mtu-given", flannel(), withSpec(bridge(), func(s *asked) { s.MTU = 1400 })},
	{"bridge-mtu-given-guard-off", lan4(), withSpec(bridge(), func(s *asked) { s.MTU, s.Guard.Off = 1200, true })},
	{"redirect-mtu-given", flannel(), withSpec(redirect(), func(s *asked) { s.MTU = 1400 })},
	{"redirect-mtu-given-guard-off", flannel(), withSpec(redirect(), func(s *asked) { s.MTU, s.Guard.Off = 1400, true })},
	{"masquerade-mtu-given", flannel(), withSpec(masquerade(), func(s *asked) { s.MTU = 1400 })},
	{"bridge-limits", flannel(), withSpec(bridge(), limited)},
	{"bridge-limits-guard-off", flannel(), withSpec(bridge(), func(s *asked) { limited(s); s.Guard.Off = true })},
	{"redirect-limits", flannel(), withSpec(redirect(), limited)},
	{"redirect-limits-mtu-guard-off", flannel(), withSpec(redirect(), func(s *asked) { limited(s); s.MTU, s.Guard.Off = 1400, true })},
	{"masquerade-limits", flannel(), withSpec(masquerade(), limited)},
	{"masquerade-limits-to-guest", flannel(), withSpec(masquerade(), func(s *asked) { s.Limits.ToGuest.BitsPerSecond = 8000 })},
	{"bridge-guard-frames", flannel(), withSpec(bridge(), framesPass)},
	{"redirect-guard-frames", flannel(), withSpec(redirect(), framesPass)},
	{"redirect-not-served-guard-frames", flannel(), withSpec(redirect(), func(s *asked) {
		s.Options.NoResponder = true
		framesPass(s)
	})},
	{"redirect-not-served", flannel(), withSpec(redirect(), func(s *asked) { s.Options.NoResponder = true })},
	{"redirect-ipvlan", ipvlanWith(unchanged), auto()},
	{"redirect-ipvlan-l3", ipvlanWith(func(s *netstate.Snapshot) {
		s.Links[1].NoARP = true
		s.Routes = []netstate.Route{onLink("0.0.0.0/0"), via("10.96.0.0/12", "10.244.1.1"), connected("10.244.1.7/24"), connected6("fd00:244:1::/64"), connected6("fe80::/64"),
			withRoute(connected6("::/0"), func(r *netstate.Route) { r.Protocol = netstate.ProtocolStatic })}
	}), auto()},
	{"auto-macvlan-without-nftables", flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Kind, s.Links[1].Mode, s.NoNFTables = "macvlan", "bridge", true
	}), withSpec(auto(), func(s *asked) { s.Guard.Off = true })},
	{"auto-flannel", flannel(), auto()},
	{"auto-order", flannel(), withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{Order: []cache.Kind{"redirect", "masquerade"}} })},
	{"auto-sysctls-read-only", sysctlsReadOnly(nil), withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{Order: []cache.Kind{"bridge", "redirect"}} })},
	{"masquerade-sysctls-read-only", sysctlsReadOnly(func(s *netstate.Snapshot) { // and set when the container started
		for _, path := range netstate.BridgeCalls() {
			s.Sysctls[path] = "0"
		}
		s.Sysctls[forwarding6] = "1"
	}), masquerade()},
	{"masquerade", flannel(), masquerade()},
	{"masquerade-4", lan4(), masquerade()},
	{"masquerade-flow-table", lan4With(func(s *netstate.Snapshot) { s.FlowTables = true }), masquerade()},
	{"masquerade-no-default-route", flannel(), withSpec(masquerade(), noDefaultRoute)},
	{"masquerade-6", lan6("fe80::1"), masquerade()},
	{"masquerade-own-networks", flannel(), withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{IPv4: pfx("192.168.77.0/30"), IPv6: pfx("fd77::/126"), MAC: mac(0x77)}
	})},
	{"masquerade-baked", flannel(), withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{IPv4: pfx("169.254.0.20/30"), Guest: []netip.Addr{ip("169.254.0.21"), ip("fd10:0:2::a")}, Gateway: []netip.Addr{ip("169.254.0.22")}, NICMAC: true}
	})},
	{"masquerade-within", flannelWith(delays), masqueradeWithin("10.244.1.0/24", "10.244.1.3")},
	{"masquerade-within-16", flannelWith(func(s *netstate.Snapshot) {
		delays(s)
		s.ReadOnly = []string{netstate.ProxyDelay("eth0")}
	}), masqueradeWithin("10.244.0.0/16", "10.244.7.3", "10.244.7.1")},
	{"masquerade-within-local", lan4With(func(s *netstate.Snapshot) { // and no route leads to the gateway
		s.Addresses = append(s.Addresses, address("169.254.1.5/32"))
	}), masqueradeWithin("169.254.0.0/16", "169.254.0.21", "169.254.0.22")},
	{"masquerade-everything", flannelWith(served), masqueradeWithAll("")},
	{"masquerade-iptables", flannelWith(served), masqueradeWithAll(cache.FirewallIPTablesNFT)},
	{"masquerade-without-nftables", flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), withSpec(masquerade(), func(s *asked) { s.Guard.Off = true })},
	{"masquerade-4-without-nftables", lan4With(func(s *netstate.Snapshot) { s.NoNFTables = true }), withSpec(masquerade(), func(s *asked) { s.Guard.Off, s.Guard.MACs = true, []cache.MAC{mac(9)} })},
	{"masquerade-sidecar", flannel(), withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{
			Excluded: []infra.Ports{{First: 15000, Last: 15001}, {First: 15006}, {First: 15020, Last: 15021}, {First: 15053}, {First: 15090}},
			Sidecar:  &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}},
		}
	})},
	{"masquerade-sidecar-loopback", flannel(), withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{Loopback: true, Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}}}
	})},
	{"masquerade-nothing-forwarded", flannel(), withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{Ports: []infra.Ports{}} })},
	{"masquerade-guard-off", lan4(), withSpec(masquerade(), func(s *asked) { s.Guard.Off = true })},
	{"bridge-guard-off", flannel(), withSpec(bridge(), func(s *asked) { s.Guard.Off = true })},
	{"masquerade-one-family-missing", lan4(), withSpec(masquerade(), func(s *asked) {
		s.Binding = infra.Masquerade{IPv6: pfx("fd77::/126")}
	})},
	{"masquerade-several-addresses", lan4With(func(s *netstate.Snapshot) {
		s.Addresses = []netstate.Address{address("10.244.1.7/24"), address("10.244.1.8/24"), linkLocal()}
	}), masquerade()},
	{"masquerade-forwarding-already", flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Forwarding4 = true
		s.Sysctls[forwarding6] = "1"
	}), masquerade()},
	{"masquerade-ra", advertised(unchanged), masquerade()},
	{"masquerade-ra-daemon", netstate.Snapshot{ // the kernel does not listen, a program does and adds the route
		Links:     []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{address("2001:db8:5::7/128"), linkLocal()},
		Routes: []netstate.Route{
			connected6("2001:db8:5::7/128"), connected6("fe80::/64"),
			withRoute(via("::/0", "fe80::1"), func(r *netstate.Route) { r.Protocol = netstate.ProtocolRA }),
		},
		Sysctls: map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "0"},
	}, masquerade()},
	{"bridge-ra", advertised(func(s *netstate.Snapshot) {
		s.Dummy, s.Neighbours, s.Sysctls = true, []netstate.Neighbour{learned("fe80::1", mac(1))}, nil
	}), bridge()},
	{"bridge-calico", netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{address("192.168.18.7/32"), address("fd00:18::7/128"), linkLocal()},
		Routes: []netstate.Route{
			via("0.0.0.0/0", "169.254.1.1"), onLink("169.254.1.1/32"),
			connected6("fd00:18::7/128"), connected6("fe80::/64"), via("::/0", "fe80::ecee:eeff:feee:eeee"),
		},
	}, bridge()},
	{"bridge-terway", netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{address("172.16.3.7/32"), address("2408:4005::7/128"), linkLocal()},
		Routes: []netstate.Route{
			withRoute(via("0.0.0.0/0", "169.254.1.1"), func(r *netstate.Route) { r.OnLink = true }),
			connected6("2408:4005::7/128"), connected6("fe80::/64"),
			withRoute(via("::/0", "fe80::1"), func(r *netstate.Route) { r.OnLink = true }),
		},
		Neighbours: []netstate.Neighbour{permanent("169.254.1.1", mac(0xee)), permanent("fe80::1", mac(0xee))},
	}, bridge()},
	{"bridge-ptp", lan4With(func(s *netstate.Snapshot) {
		s.Routes = []netstate.Route{
			via("0.0.0.0/0", "10.244.1.1"), withRoute(via("10.244.1.0/24", "10.244.1.1"), func(r *netstate.Route) { r.PrefSrc = ip("10.244.1.7") }),
			withRoute(onLink("10.244.1.1/32"), func(r *netstate.Route) { r.PrefSrc = ip("10.244.1.7") }), connected6("fe80::/64"),
		}
	}), bridge()},
	{"bridge-cilium", cilium(), bridge()},
	{"masquerade-cilium", cilium(), masquerade()},
	{"bridge-gateway-outside", lan4With(func(s *netstate.Snapshot) {
		s.Routes = []netstate.Route{via("0.0.0.0/0", "10.9.9.1"), onLink("10.9.9.1/32"), connected("10.244.1.7/24"), connected6("fe80::/64")}
	}), bridge()},
	{"bridge-gateway-without-a-way", lan4With(func(s *netstate.Snapshot) { // the on-link route went after the default route had come
		s.Routes = []netstate.Route{via("0.0.0.0/0", "10.9.9.1"), connected("10.244.1.7/24"), connected6("fe80::/64")}
	}), bridge()},
	{"bridge-no-default", lan4With(func(s *netstate.Snapshot) {
		s.Routes = []netstate.Route{via("10.96.0.0/12", "10.244.1.1"), connected("10.244.1.7/24"), connected6("fe80::/64")}
	}), bridge()},
	{"bridge-default-on-link", lan4With(func(s *netstate.Snapshot) {
		s.Routes = []netstate.Route{onLink("0.0.0.0/0"), connected("10.244.1.7/24"), connected6("fe80::/64")}
	}), bridge()},
	{"bridge-no-address", netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), with(veth(), func(l *netstate.Link) { l.MTU = 1400 })},
		Addresses: []netstate.Address{linkLocal()},
		Routes:    []netstate.Route{connected6("fe80::/64")},
	}, bridge()},
	{"bridge-several-addresses", netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), veth()},
		Addresses: several(),
		Routes: []netstate.Route{
			via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24"), connected("10.99.0.7/16"),
			connected6("2001:db8:1::/64"), connected6("fe80::/64"),
		},
	}, bridge()},
	{"bridge-peer", lan4With(func(s *netstate.Snapshot) {
		s.Addresses = []netstate.Address{withAddress(address("10.244.1.7/32"), func(a *netstate.Address) { a.Peer = pfx("10.244.0.1/32") }), linkLocal()}
		s.Routes = []netstate.Route{
			via("0.0.0.0/0", "10.244.0.1"), connected6("fe80::/64"),
			withRoute(connected("10.244.1.7/32"), func(r *netstate.Route) { r.Destination = pfx("10.244.0.1/32") }),
		}
	}), bridge()},
	{"bridge-noprefixroute", lan4With(func(s *netstate.Snapshot) {
		s.Addresses = []netstate.Address{
			withAddress(address("10.244.1.7/24"), func(a *netstate.Address) { a.Flags = netstate.AddrNoPrefixRoute }),
			withAddress(address("2001:db8:1::7/64"), func(a *netstate.Address) { a.Flags = netstate.AddrNoPrefixRoute | netstate.AddrNoDAD }),
			linkLocal(),
		}
		s.Routes = []netstate.Route{
			withRoute(via("0.0.0.0/0", "10.244.1.1"), func(r *netstate.Route) { r.Metric = 100 }),
			withRoute(connected("10.244.1.7/24"), func(r *netstate.Route) { r.Metric = 100 }),
			withRoute(connected6("2001:db8:1::/64"), func(r *netstate.Route) { r.Metric = 100 }), connected6("fe80::/64"),
		}
	}), bridge()},
	{"bridge-metric", lan4With(func(s *netstate.Snapshot) {
		s.Addresses[0].Metric = 50
		s.Routes = []netstate.Route{
			withRoute(via("0.0.0.0/0", "10.244.1.9"), func(r *netstate.Route) { r.Metric = 200 }),
			withRoute(via("0.0.0.0/0", "10.244.1.1"), func(r *netstate.Route) { r.Metric = 100 }),
			withRoute(connected("10.244.1.7/24"), func(r *netstate.Route) { r.Metric = 50 }), connected6("fe80::/64"),
		}
	}), bridge()},
	{"bridge-multipath", lan4With(func(s *netstate.Snapshot) {
		s.Routes = []netstate.Route{multipath("0.0.0.0/0", "10.244.1.1", "10.244.1.2"), connected("10.244.1.7/24"), connected6("fe80::/64")}
	}), bridge()},
	{"bridge-blackhole", flannelWith(func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes,
			netstate.Route{Table: netstate.TableMain, Destination: pfx("10.66.0.0/16"), Type: 6, Protocol: 3},
			netstate.Route{Link: 1, Table: netstate.TableMain, Destination: pfx("fd66::/64"), Type: 6, Protocol: 3, Metric: 1024, Other: medium},
		)
	}), bridge()},
	{"bridge-tables-and-rules", flannelWith(func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes,
			withRoute(via("0.0.0.0/0", "10.244.1.1"), func(r *netstate.Route) { r.Table = 100 }),
			withRoute(onLink("10.244.1.0/24"), func(r *netstate.Route) { r.Table, r.PrefSrc = 100, ip("10.244.1.7") }),
		)
		s.Rules = []netstate.Rule{{Priority: 512, Table: 100}}
	}), bridge()},
	{"bridge-source-routing", sourceRouted(), bridge()},
	{"bridge-source-routing-throw", flannelWith(func(s *netstate.Snapshot) { // what is thrown is looked up in main
		s.Rules = []netstate.Rule{{Priority: 1000, Table: 100, Source: pfx("10.244.1.7/32")}}
		s.Routes = append(s.Routes, withRoute(via("0.0.0.0/0", "10.244.1.254"), func(r *netstate.Route) { r.Table = 100 }),
			netstate.Route{Table: 100, Type: 9, Destination: pfx("10.244.0.0/16")}, netstate.Route{Table: 100, Type: 6, Destination: pfx("192.0.2.0/24")})
	}), bridge()},
	{"bridge-without-main", flannelWith(func(s *netstate.Snapshot) { s.NoMain = versions{4} }), bridge()},
	{"redirect-noarp-permanent-gateway", flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].NoARP = true
		s.Neighbours = append(s.Neighbours, permanent("10.244.1.1", mac(0xee)))
	}), auto()},
	{"redirect-guard-macs", flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Mode = "macvlan", "private" }), withSpec(redirect(), func(s *asked) {
		s.Guard.MACs = []cache.MAC{mac(9)}
	})},
	{"bridge-two-nics", flannelWith(func(s *netstate.Snapshot) {
		addNet1(s)
		s.Routes = append(s.Routes,
			netstate.Route{Link: 3, Table: netstate.TableMain, Destination: pfx("0.0.0.0/0"), Gateway: ip("10.50.0.1"), Type: netstate.RouteUnicast, Protocol: 3, Metric: 100},
			netstate.Route{Link: 3, Table: netstate.TableMain, Destination: pfx("::/0"), Gateway: ip("fe80::50"), Type: netstate.RouteUnicast, Protocol: 3, Metric: 2048},
		)
	}), bridge()},
	{"bridge-source-elsewhere", flannelWith(func(s *netstate.Snapshot) { // a route of another link goes and comes with eth0's address, which it has as its source
		addNet1(s)
		s.Routes = append(s.Routes,
			netstate.Route{Link: 3, Table: netstate.TableMain, Destination: pfx("10.60.0.0/24"), PrefSrc: ip("10.244.1.7"), Type: netstate.RouteUnicast, Scope: netstate.ScopeLink, Protocol: 3},
			netstate.Route{Link: 3, Table: netstate.TableMain, Destination: pfx("10.70.0.0/24"), PrefSrc: ip("10.50.0.7"), Type: netstate.RouteUnicast, Scope: netstate.ScopeLink, Protocol: 3},
		)
	}), bridge()},
	{"routed", flannel(), routed()},
	{"routed-4", lan4(), routed()},
	{"routed-6", lan6("fe80::1"), routed()},
	{"routed-sidecar", flannelWith(func(s *netstate.Snapshot) { s.Sysctls["net/ipv6/conf/eth0/force_forwarding"] = "0" }), withSpec(routed(), func(s *asked) {
		s.Binding = infra.Routed{Sidecar: &infra.Sidecar{Sources: []netip.Addr{ip("127.0.0.6"), ip("::6")}}, MaxConnections: 100,
			Excluded: []infra.Ports{{First: 15008}, {First: 15020, Last: 15021}}}
		s.Guard = infra.Guard{MACs: []cache.MAC{mac(9)}, Prefixes: []netip.Prefix{pfx("10.9.0.0/20"), pfx("fd99::/64")}, Open: []infra.Ports{{Protocol: "udp", First: 53}}}
	})},
	{"routed-guard-off", flannel(), withSpec(routed(), func(s *asked) { s.Guard.Off = true })},
	{"routed-egress", flannel(), withSpec(routed(), func(s *asked) {
		s.Egress = egressOf("refuse metadata", "allow 198.51.100.0/24 443", "allow nic-networks", "refuse all")
	})},
	{"routed-egress-incomplete", flannelWith(func(s *netstate.Snapshot) { s.Checksums, s.LocalSources = versions{4}, false }), withSpec(routed(), func(s *asked) { s.EgressWithin = egressOf("refuse all") })},
	{"routed-egress-early", flannelWith(func(s *netstate.Snapshot) { s.EarlyChecksums, s.ClearsChecksums = true, true }), withSpec(routed(), func(s *asked) {
		s.Egress = egressOf("refuse metadata", "allow 198.51.100.0/24 443", "allow nic-networks", "refuse all")
	})},
	{"masquerade-divert", flannel(), withSpec(masquerade(), func(s *asked) {
		s.Egress = egressOf("divert 169.254.169.254 80 127.0.0.1:8080", "divert gateway 53/udp 127.0.0.11:53", "allow 198.51.100.0/24 443", "divert all 443 :15443", "refuse all")
	})},
	{"masquerade-resolver", flannelWith(func(s *netstate.Snapshot) {
		s.LoopbackDNS = ip("127.0.0.11")
		s.Listeners = []netstate.Listener{{Protocol: "udp", Address: ip("127.0.0.11"), Port: 41327}, {Protocol: "tcp", Address: ip("127.0.0.11"), Port: 37581}}
	}), withSpec(masquerade(), func(s *asked) { s.DNS = nil })},
	{"routed-divert", flannel(), withSpec(routed(), func(s *asked) {
		s.Egress, s.EgressWithin = egressOf("divert 192.0.2.0/24 :8080", "allow all"), egressOf("allow gateway 8080", "allow gateway 8080/udp", "allow gateway 8080/sctp", "divert all 25 10.244.1.9:25", "allow all")
	})},
	{"masquerade-flows", flannelWith(func(s *netstate.Snapshot) { // one is set already; the flow table counts
		s.Sysctls[netstate.CountFlows], s.Sysctls[netstate.ReportFlows], s.Sysctls[netstate.TimeFlows] = "0", "2", "1"
		s.FlowTables = true
	}), withSpec(masquerade(), func(s *asked) { s.Flows = true })},
	{"masquerade-egress", lan4(), withSpec(masquerade(), func(s *asked) { s.Egress = egressOf("refuse private", "refuse all 25", "allow all") })},
	{"masquerade-egress-iptables", lan4(), withSpec(masquerade(), func(s *asked) {
		s.Binding, s.Egress = infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, egressOf("refuse all")
	})},
	{"routed-limits-mtu", flannel(), withSpec(routed(), func(s *asked) { limited(s); s.MTU = 1400 })},
	{"routed-several-addresses", netstate.Snapshot{
		Links:     []netstate.Link{lo(), veth()},
		Addresses: several(),
		Routes: []netstate.Route{
			via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24"), connected("10.99.0.7/16"),
			withRoute(via("10.7.0.0/16", "10.244.1.1"), func(r *netstate.Route) { r.PrefSrc = ip("10.244.1.8") }),
			connected6("2001:db8:1::/64"), connected6("fe80::/64"),
		},
		Sysctls: map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"},
	}, routed()},
	{"routed-ra", advertised(unchanged), routed()},
	{"routed-tun", flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Kind, s.Links[1].Ethernet, s.Links[1].NoARP, s.Links[1].MAC = "tun", false, true, cache.MAC{}
		s.Addresses = s.Addresses[:2]
		s.Routes = []netstate.Route{onLink("0.0.0.0/0"), connected("10.244.1.7/24"), connected6("fd00:244:1::/64"), onLink("::/0")}
	}), routed()},
	{"routed-source-routing", sourceRouted(), routed()},
	{"bridge-long-name", flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Name = "enp0s31f6-pods"
		for i := range s.Addresses {
			if s.Addresses[i].Label != "" {
				s.Addresses[i].Label = "enp0s31f6-pods"
			}
		}
	}), withSpec(bridge(), func(s *asked) { s.NIC = "enp0s31f6-pods" })},
	{"bridge-mtu-65535", flannelWith(func(s *netstate.Snapshot) { s.Links[1].MTU = 65535 }), bridge()},
	{"masquerade-mtu-65535", flannelWith(func(s *netstate.Snapshot) { s.Links[1].MTU = 65535 }), masquerade()},
	{"bridge-mtu-1200", netstate.Snapshot{ // too small for IPv6
		Dummy:     true,
		Links:     []netstate.Link{lo(), with(veth(), func(l *netstate.Link) { l.MTU, l.AddrGen = 1200, netstate.AddrGenNoIPv6 })},
		Addresses: []netstate.Address{address("10.244.1.7/24")},
		Routes:    []netstate.Route{via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24")},
	}, bridge()},
	{"masquerade-kernel-without-ipv6", netstate.Snapshot{
		Links:     []netstate.Link{lo(), with(veth(), func(l *netstate.Link) { l.AddrGen = netstate.AddrGenNoIPv6 })},
		Addresses: []netstate.Address{address("10.244.1.7/24")},
		Routes:    []netstate.Route{via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24")},
	}, masquerade()},
	{"bridge-forwarding", flannelWith(func(s *netstate.Snapshot) { s.Links[1].Forwarding4 = true }), bridge()},
	{"bridge-nic-down", netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), with(veth(), func(l *netstate.Link) { l.Up = false })},
		Addresses: []netstate.Address{address("10.244.1.7/24")},
	}, bridge()},
	{"bridge-addrgen-none", lan4With(func(s *netstate.Snapshot) {
		s.Links[1].AddrGen = netstate.AddrGenNone
		s.Addresses = s.Addresses[:1]
		s.Routes = s.Routes[:2]
	}), bridge()},
	{"bridge-link-local-removed", lan4With(func(s *netstate.Snapshot) {
		s.Addresses = s.Addresses[:1]
		s.Routes = s.Routes[:2]
	}), bridge()},
	{"bridge-no-responder", flannel(), withSpec(bridge(), func(s *asked) { s.Options.NoResponder = true })},
	{"bridge-everything", flannel(), eth0(infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107, GID: 36, SELinux: "system_u:system_r:svirt_t:s0:c1,c2"}, Queues: 4,
		DNS: &cache.DNS{Servers: []netip.Addr{ip("10.96.0.10")}, Search: []string{"default.svc.cluster.local"}},
		Options: cache.Options{
			Hostname: "vm1", LeaseSeconds: 3600, NTP: []netip.Addr{ip("10.96.0.11")}, TFTPServer: "10.96.0.12",
			BootFile: "pxelinux.0", BootFileURL: "http://boot/ipxe", DHCPv4: map[uint8]cache.Data{224: "a", 225: "b"},
		},
		Device: cache.Device{
			Model: "virtio", Driver: "vhost", BootOrder: 1, ROM: "off", PCIAddress: "0000:01:00.0",
			ACPIIndex: 7, Alias: "ua-eth0", LinkState: "up",
		},
	})},
	{"masquerade-multi-queue", lan4(), withSpec(masquerade(), func(s *asked) { s.Queues = 2 })},
	{"bridge-macvlan-passthru", lan4With(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Mode = "macvlan", "passthru" }), bridge()},
	{"masquerade-macvlan", lan4With(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Mode = "macvlan", "bridge" }), masquerade()},
	{"bridge-6-gateway-link-local", lan6("fe80::1"), bridge()},
	{"bridge-6-gateway-link-local-known", lan6("fe80::1", learned("fe80::1", mac(1))), bridge()},
	{"bridge-6-gateway-global", lan6("2001:db8:1::1"), bridge()},
	{"bridge-6-gateway-global-known", lan6("2001:db8:1::1", learned("2001:db8:1::1", mac(1))), bridge()},
}

// bases are cases that others are shown by, beside those that are called as their binding.
var bases = []string{"bridge-4", "bridge-guard-off", "redirect-guard-off", "masquerade-guard-off", "masquerade-4", "masquerade-without-nftables",
	"masquerade-iptables"}

// unshown are cases that other tests run, and whose plans show nothing that no other case shows. A value of the Spec
// that no other case sets, such as a MAC, has to be shown: TestGolden takes values for the same.
var unshown = []string{
	"bridge-calico", "redirect-mac-without-link-local", "redirect-limits-mtu-guard-off",
	"redirect-not-served-guard-frames", "redirect-limits", "masquerade-limits", "masquerade-everything", "routed-egress",
	"auto-flannel", "auto-mac", "auto-macvlan-without-nftables", "auto-order", "auto-sysctls-read-only",
	"bridge-6-gateway-global-known", "bridge-6-gateway-link-local-known", "bridge-addrgen-none",
	"bridge-default-on-link", "bridge-forwarding", "bridge-gateway-outside", "bridge-gateway-without-a-way",
	"bridge-limits-guard-off", "bridge-link-local-removed", "bridge-macvlan-passthru", "bridge-mtu-given",
	"bridge-no-default", "masquerade-limits-to-guest",
	"masquerade-macvlan", "masquerade-mtu-65535", "masquerade-mtu-given",
	"masquerade-ra-daemon", "masquerade-several-addresses", "masquerade-sidecar-loopback",
	"masquerade-within-16", "masquerade-within-local", "passt-high-ports",
	"passt-other-groups", "redirect-blackhole", "redirect-ipvlan-l3", "redirect-mtu-given-guard-off",
	"redirect-mtu-given", "redirect-noarp-permanent-gateway", "redirect-route-mtu", "routed-limits-mtu", "routed-ra",
}

// sourceRouted is what the CNI plugin sbr leaves of a network: the routes are in a table that a rule gives
// to what comes from the address. The other rule belongs to another program.
func sourceRouted() netstate.Snapshot {
	return flannelWith(func(s *netstate.Snapshot) {
		for i := range s.Routes {
			s.Routes[i].Table = 100
		}
		s.Rules = []netstate.Rule{
			{Priority: 1000, Table: 100, Source: pfx("10.244.1.7/32")},
			{Priority: 1000, Table: 100, Source: pfx("fd00:244:1::7/128"), IPv6: true},
			{Priority: 1001, Table: 200, Source: pfx("10.244.1.99/32")},
		}
	})
}

// framesPass lets PPPoE, priority tags and some VLANs pass.
func framesPass(s *asked) {
	s.Guard.EtherTypes, s.Guard.VLANs = []infra.EtherType{0x8863, 0x8864}, []uint16{0, 4, 5, 6, 7, 100}
}
