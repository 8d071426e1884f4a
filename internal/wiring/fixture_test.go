package wiring_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	ipversion "github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/wiring"
)

// The NIC of the cases is eth0 with index 2 and this MAC, unless they say otherwise.
const nic = 2

var podMAC = cache.MAC{0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x07}

// limited has limits of all kinds.
func limited(s *asked) {
	s.Limits = cache.Limits{
		FromGuest: cache.Limit{BitsPerSecond: 100_000_000, PacketsPerSecond: 5000, BurstBytes: 1 << 20, BurstPackets: 100},
		ToGuest:   cache.Shape{BitsPerSecond: 1_000_000_000},
	}
}

// versions are those of IP. The name of their package is ip.
type versions = []ipversion.Version

func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// addresses and egressOf are lists of texts.
var (
	addresses = golden.Values[netip.Addr]
	egressOf  = golden.Values[infra.Egress]
)

func mac(last byte) cache.MAC { return cache.MAC{0x02, 0, 0, 0, 0, last} }

func lo() netstate.Link {
	return netstate.Link{Index: 1, Name: "lo", MTU: 65536, Up: true, Loopback: true}
}

func veth() netstate.Link {
	return netstate.Link{Index: nic, Name: "eth0", Kind: "veth", MAC: podMAC, MTU: 1500, Up: true, Ethernet: true}
}

func with(l netstate.Link, edit func(*netstate.Link)) netstate.Link {
	edit(&l)
	return l
}

func address(cidr string) netstate.Address {
	a := netstate.Address{Link: nic, Prefix: pfx(cidr), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
	if a.Prefix.Addr().Is4() {
		a.Label = "eth0"
	}
	return a
}

func withAddress(a netstate.Address, edit func(*netstate.Address)) netstate.Address {
	edit(&a)
	return a
}

// linkLocal is the one that the kernel made.
func linkLocal() netstate.Address {
	return netstate.Address{Link: nic, Prefix: netip.PrefixFrom(eui64.LinkLocal(podMAC), 64), Scope: netstate.ScopeLink, Protocol: kernelLL,
		ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
}

// connected is the route that the kernel made of an IPv4 address, connected6 of an IPv6 one.
func connected(src string) netstate.Route {
	return netstate.Route{Link: nic, Table: netstate.TableMain, Destination: pfx(src).Masked(), PrefSrc: pfx(src).Addr(),
		Type: netstate.RouteUnicast, Scope: netstate.ScopeLink, Protocol: netstate.ProtocolKernel}
}

func connected6(prefix string) netstate.Route {
	return netstate.Route{Link: nic, Table: netstate.TableMain, Destination: pfx(prefix),
		Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel, Metric: 256, Other: medium}
}

// via is a route through a gateway, onLink one without, as ip(8) adds them.
func via(destination, gateway string) netstate.Route {
	r := onLink(destination)
	r.Gateway = ip(gateway)
	r.Scope = netstate.ScopeUniverse
	return r
}

func onLink(destination string) netstate.Route {
	r := netstate.Route{Link: nic, Table: netstate.TableMain, Destination: pfx(destination), Type: netstate.RouteUnicast, Protocol: 3}
	if r.Destination.Addr().Is4() {
		r.Scope = netstate.ScopeLink
	} else {
		r.Metric = 1024
		r.Other = medium
	}
	return r
}

func withRoute(r netstate.Route, edit func(*netstate.Route)) netstate.Route {
	edit(&r)
	return r
}

func multipath(destination string, gateways ...string) netstate.Route {
	r := netstate.Route{Table: netstate.TableMain, Destination: pfx(destination), Type: netstate.RouteUnicast, Protocol: 3}
	for _, g := range gateways {
		r.Hops = append(r.Hops, netstate.Hop{Link: nic, Gateway: ip(g)})
	}
	return r
}

func permanent(addr string, m cache.MAC) netstate.Neighbour {
	return netstate.Neighbour{Link: nic, Address: ip(addr), MAC: m, Permanent: true}
}

func learned(addr string, m cache.MAC) netstate.Neighbour {
	return netstate.Neighbour{Link: nic, Address: ip(addr), MAC: m}
}

// flannel is a NIC of the CNI bridge plugin: a prefix of each family, a cluster route, an MTU.
func flannel() netstate.Snapshot {
	return netstate.Snapshot{
		Dummy:     true,
		Checksums: versions{4, 6}, LocalSources: true,
		Links: []netstate.Link{lo(), with(veth(), func(l *netstate.Link) { l.MTU = 1450 })},
		Addresses: []netstate.Address{
			withAddress(address("10.244.1.7/24"), func(a *netstate.Address) { a.Broadcast = ip("10.244.1.255") }),
			address("fd00:244:1::7/64"), linkLocal(),
		},
		Routes: []netstate.Route{
			via("0.0.0.0/0", "10.244.1.1"), via("10.244.0.0/16", "10.244.1.1"), connected("10.244.1.7/24"),
			connected6("fd00:244:1::/64"), connected6("fe80::/64"), via("::/0", "fd00:244:1::1"),
		},
		Neighbours: []netstate.Neighbour{learned("10.244.1.1", mac(1)), learned("fd00:244:1::1", mac(1))},
		Sysctls:    map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"},
	}
}

// leasedAddresses are those of a DHCP client in the namespace.
func leasedAddresses(s *netstate.Snapshot) {
	s.Addresses[0].ValidSeconds, s.Addresses[0].PreferredSeconds = 3600, 3600
	s.Addresses[1] = withAddress(address("fd00:244:1::7/128"), func(a *netstate.Address) { a.ValidSeconds, a.PreferredSeconds = 3600, 1800 })
}

func flannelWith(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := flannel()
	edit(&s)
	return s
}

// sysctlsReadOnly is flannel in a container: the kernel has br_netfilter and force_forwarding, and no sysctl can be
// written.
func sysctlsReadOnly(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := flannel()
	for _, path := range netstate.BridgeCalls() {
		s.Sysctls[path] = "1"
	}
	s.Sysctls[netstate.ForceForwarding("eth0")] = "0"
	s.Sysctls[netstate.NoIPv6] = "0"
	if edit != nil {
		edit(&s)
	}
	return readOnly(s)
}

// readOnly takes all sysctls of the snapshot for read-only, and those of bridges.
func readOnly(s netstate.Snapshot) netstate.Snapshot {
	if s.Sysctls == nil {
		s.Sysctls = map[string]string{}
	}
	for _, path := range netstate.BridgeCalls() {
		if _, there := s.Sysctls[path]; !there {
			s.Sysctls[path] = "1"
		}
	}
	s.ReadOnly = slices.Sorted(maps.Keys(s.Sysctls))
	return s
}

// net1 is a second NIC, and addNet1 adds it with an address and the route that the kernel makes of that.
func net1() netstate.Link {
	return netstate.Link{Index: 3, Name: "net1", Kind: "veth", MAC: mac(3), MTU: 1500, Up: true, Ethernet: true}
}

func addNet1(s *netstate.Snapshot) {
	a, r := address("10.50.0.7/24"), connected("10.50.0.7/24")
	a.Link, a.Label, r.Link = 3, "net1", 3
	s.Links, s.Addresses, s.Routes = append(s.Links, net1()), append(s.Addresses, a), append(s.Routes, r)
}

// advertised is a NIC whose address and default route come from router advertisements.
func advertised(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := netstate.Snapshot{
		Links: []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{
			withAddress(address("2001:db8:5:0:858:aff:fef4:107/64"), func(a *netstate.Address) {
				a.Flags, a.Protocol, a.ValidSeconds, a.PreferredSeconds = 0x100, 2, 86400, 14400
			}),
			linkLocal(),
		},
		Routes: []netstate.Route{
			connected6("2001:db8:5::/64"), connected6("fe80::/64"),
			withRoute(via("::/0", "fe80::1"), func(r *netstate.Route) { r.Protocol = netstate.ProtocolRA }),
		},
		Sysctls: map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"},
	}
	edit(&s)
	return s
}

// several are addresses as the kernel lists them: secondary ones after primary ones, the newest IPv6 one first.
func several() []netstate.Address {
	return []netstate.Address{
		address("10.244.1.7/24"), address("10.99.0.7/16"),
		withAddress(address("10.244.1.8/24"), func(a *netstate.Address) { a.Label = "eth0:1" }),
		address("2001:db8:1::8/64"), address("2001:db8:1::7/64"), linkLocal(),
	}
}

// served is a namespace that serves ports, whose kernel has the sysctls that not every kernel has.
func served(s *netstate.Snapshot) {
	for _, path := range []string{"net/ipv6/conf/eth0/force_forwarding", "net/bridge/bridge-nf-call-iptables"} {
		s.Sysctls[path] = "0"
	}
	s.Listeners = []netstate.Listener{
		{Protocol: "tcp", Address: netip.IPv4Unspecified(), Port: 80}, {Protocol: "tcp", Address: netip.IPv6Unspecified(), Port: 15001},
		{Protocol: "udp", Address: netip.MustParseAddr("127.0.0.1"), Port: 5001}, {Protocol: "tcp", Address: netip.MustParseAddr("192.0.2.1"), Port: 80},
	}
}

// masqueradeWithAll has all that the binding and the guard can say.
func masqueradeWithAll(firewall cache.Firewall) asked {
	return eth0(infra.Spec{Owner: launcher,
		Binding: infra.Masquerade{
			Ports:    []infra.Ports{{First: 80}, {Protocol: "udp", First: 5000, Last: 5100}, {First: 8080, Last: 8081, Guest: 9090}, {Protocol: "sctp", First: 7}},
			Excluded: []infra.Ports{{First: 15000, Last: 15100}},
			Loopback: true, MaxConnections: 100, Firewall: firewall,
		},
		Guard: infra.Guard{MACs: []cache.MAC{mac(9)}, Prefixes: []netip.Prefix{pfx("10.9.0.0/20"), pfx("fe80::/64")}, Open: []infra.Ports{{Protocol: "udp", First: 53}}},
	})
}

// lan4 and lan6 are the least of their families; the gateway's address is given.
func lan4() netstate.Snapshot {
	return netstate.Snapshot{
		Dummy:     true,
		Checksums: versions{4, 6}, LocalSources: true,
		Links:     []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{address("10.244.1.7/24"), linkLocal()},
		Routes:    []netstate.Route{via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24"), connected6("fe80::/64")},
		Sysctls:   map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"},
	}
}

func lan4With(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := lan4()
	edit(&s)
	return s
}

func lan6(gateway string, neighbours ...netstate.Neighbour) netstate.Snapshot {
	return netstate.Snapshot{
		Dummy:      true,
		Links:      []netstate.Link{lo(), veth()},
		Addresses:  []netstate.Address{address("2001:db8:1::7/64"), linkLocal()},
		Routes:     []netstate.Route{connected6("2001:db8:1::/64"), connected6("fe80::/64"), via("::/0", gateway)},
		Neighbours: neighbours,
		Sysctls:    map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"},
	}
}

var launcher = infra.Owner{UID: 107}

// asked is what is wanted of a NIC.
type asked struct {
	NIC string
	infra.Spec
}

func eth0(s infra.Spec) asked {
	s.Owner.Root = s.Owner.UID == 0
	return asked{"eth0", s}
}

// tryPlan returns the first plan, which Try has to make as well where no other binding is asked for.
func tryPlan(found netstate.Snapshot, a asked) (*wiring.Plan, error) {
	plan, err := wiring.Journal{NIC: a.NIC, Found: found, Spec: a.Spec}.First()
	try, tryErr := wiring.Journal{NIC: a.NIC, Found: found, Spec: wiring.FirstTry(a.Spec)}.Try()
	_, needed := wiring.AskOthers(a.NIC, a.Spec, try, tryErr)
	if same := fmt.Sprint(err) == fmt.Sprint(tryErr) && (err != nil || reflect.DeepEqual(plan.Record, try.Record)); !needed && !same {
		return nil, fmt.Errorf("first plan %v, %v, first try %v, %v", plan, err, try, tryErr)
	}
	return plan, err
}

func bridge() asked {
	return eth0(infra.Spec{Binding: infra.Bridge{}, Owner: launcher})
}

func redirect() asked {
	return eth0(infra.Spec{Binding: infra.Redirect{}, Owner: launcher})
}

// cilium is a NIC whose default route has an MTU of its own.
func cilium() netstate.Snapshot {
	return netstate.Snapshot{
		Dummy:     true,
		Links:     []netstate.Link{lo(), veth()},
		Addresses: []netstate.Address{address("10.0.1.7/32"), linkLocal()},
		Routes: []netstate.Route{
			withRoute(via("0.0.0.0/0", "10.0.1.252"), func(r *netstate.Route) {
				r.MTU, r.Other = 1450, []netstate.Attribute{{Type: 8, Data: []byte{8, 0, 2, 0, 0xaa, 5, 0, 0}}}
			}),
			onLink("10.0.1.252/32"), connected6("fe80::/64"),
		},
	}
}

// ipvlanWith is a link of mode L2 whose IPv6 gateway is known by its link-local address.
func ipvlanWith(edit func(*netstate.Snapshot)) netstate.Snapshot {
	return flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Kind = "ipvlan"
		s.Routes = []netstate.Route{via("0.0.0.0/0", "10.244.1.1"), connected("10.244.1.7/24"), connected6("fd00:244:1::/64"), connected6("fe80::/64"), via("::/0", "fe80::1")}
		s.Neighbours = []netstate.Neighbour{learned("fe80::1", mac(1))}
		edit(s)
	})
}

func auto() asked {
	return eth0(infra.Spec{Binding: infra.Auto{}, Owner: launcher})
}

// delays gives the namespace the sysctl of proxied ARP.
func delays(s *netstate.Snapshot) { s.Sysctls[netstate.ProxyDelay("eth0")] = "80" }

// masqueradeWithin has a guest in a network, and perhaps its gateway.
func masqueradeWithin(network, guest string, gateway ...string) asked {
	return withSpec(masquerade(), func(s *asked) {
		b := infra.Masquerade{IPv4: pfx(network), Guest: []netip.Addr{ip(guest)}}
		for _, g := range gateway {
			b.Gateway = append(b.Gateway, ip(g))
		}
		s.Binding = b
	})
}

func masquerade() asked {
	return eth0(infra.Spec{Binding: infra.Masquerade{}, Owner: launcher})
}

func withSpec(s asked, edit func(*asked)) asked {
	edit(&s)
	return s
}

func routed() asked {
	return eth0(infra.Spec{Binding: infra.Routed{}, Owner: launcher})
}
