package router

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	addrs    = golden.Values[netip.Addr]
	prefixes = golden.Values[netip.Prefix]
)

// sets are those of a policy, without boxes: the rules are the same whatever these are.
func sets(name string) []firewall.Destinations {
	return slices.Concat(firewall.DestinationsOf(name+"-4", 4, nil), firewall.DestinationsOf(name+"-6", 6, nil))
}

// diverts are to a loopback address, and to ports of both gateways.
func diverts() []firewall.Divert {
	to := func(n int, v ip.Version, target string, protocols ...uint8) firewall.Divert {
		return firewall.Divert{Target: netip.MustParseAddrPort(target), Set: firewall.Destinations{Name: firewall.DivertSet(n)(v), Version: v}, Protocols: protocols}
	}
	return []firewall.Divert{to(1, 4, "127.0.0.1:8080", firewall.ProtocolTCP, firewall.ProtocolUDP), to(2, 4, "10.0.2.1:15443", firewall.ProtocolTCP), to(1, 6, "[fd10:0:2::1]:15443", firewall.ProtocolTCP)}
}

// description is a Masquerade or a Routed.
type description struct {
	masquerade Masquerade
	routed     Routed
	isRouted   bool
}

func (d *description) router() *Router {
	if d.isRouted {
		return &d.routed.Router
	}
	return &d.masquerade.Router
}

// text is what nft and iptables-restore would load, with the reasons of drops and without their chains.
func (d description) text() string {
	tables := d.masquerade.Tables
	if d.isRouted {
		tables = d.routed.Tables
	}
	var b strings.Builder
	for _, t := range tables() {
		if own := len(t.Chains); t.Family.IPTables() == 0 {
			t = t.Counted(d.router().Names.NIC, true)
			t.Chains = t.Chains[:own]
		}
		b.WriteString(t.String())
	}
	return b.String()
}

func (d description) values() any {
	if d.isRouted {
		return d.routed
	}
	return d.masquerade
}

// descriptionOf is the one from which the others of its binding differ.
func descriptionOf(isRouted bool) description {
	r := Router{
		Names: netstate.NamesFor("eth0", ""), MAC: cache.MAC{0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x07}, Unforwarded: []ip.Version{4, 6}, Checksums: []ip.Version{4, 6}, LocalSources: true,
	}
	if isRouted {
		r.Ends = Ends{{addr("10.244.1.7"), addr("169.254.75.1")}, {addr("fd00:244:1::7"), addr("fd00:a9fe:4b01::1")}}
		return description{isRouted: true, routed: Routed{
			Router: r, Own: addrs("10.244.1.7", "fd00:244:1::7"),
			Sources: map[ip.Version][]fib.Choice{4: {{Address: addr("10.244.1.7")}}, 6: {{Address: addr("fd00:244:1::7")}}},
		}}
	}
	r.Ends = Ends{{addr("10.0.2.2"), addr("10.0.2.1")}, {addr("fd10:0:2::2"), addr("fd10:0:2::1")}}
	return description{masquerade: Masquerade{
		Router: r, Addresses: addrs("10.244.1.7", "fd00:244:1::7"), SourcePorts: ChoosePorts(infra.Masquerade{}, nil, InUse{}),
	}}
}

// ofBoth are changes of a description, whatever its binding is: what is said of it, and how it is made.
var ofBoth = []struct {
	what string
	edit func(*Router)
}{
	{"another NIC", func(r *Router) { r.Names.NIC = "net1" }},
	{"another tap", func(r *Router) { r.Names.Tap = "vm1" }},
	{"another responder", func(r *Router) { r.Names.Responder = "net1-dhcp" }},
	{"another table", func(r *Router) { r.Names.Table = "guestwire-net1" }},
	{"IPv4 alone", func(r *Router) { r.Ends = r.Ends[:1] }},
	{"IPv6 alone", func(r *Router) { r.Ends = r.Ends[1:] }},
	{"a further address", func(r *Router) { r.Further = addrs("10.244.1.8") }},
	{"another MAC", func(r *Router) { r.MAC = cache.MAC{2, 0, 0, 0, 0, 0x77} }},
	{"guard.off", func(r *Router) { r.Guard.Off = true }},
	{"guard.prefixes", func(r *Router) { r.Guard.Prefixes = prefixes("10.9.0.0/20", "fe80::/64") }},
	{"guard.maxNeighbours", func(r *Router) { r.Guard.MaxNeighbours = 150 }},
	{"guard.open", func(r *Router) { r.Guard.Open = []infra.Ports{{Protocol: "udp", First: 53}} }},
	{"the most connections", func(r *Router) { r.Most = 7 }},
	{"a NIC that forwarded IPv4", func(r *Router) { r.Unforwarded = []ip.Version{6} }},
	{"guard.prefixes, a NIC without ARP", func(r *Router) { r.NoARP, r.Guard.Prefixes = true, prefixes("fe80::/64") }},
	{"a NIC without ARP", func(r *Router) { r.NoARP = true }},
	{"a policy", func(r *Router) { r.Allowed = sets("egress") }},
	{"a policy with pins", func(r *Router) { r.Allowed, r.Pinnable = sets("egress"), sets("pinnable") }},
	{"a policy, checksums of IPv4 alone", func(r *Router) { r.Allowed, r.Checksums = sets("egress"), []ip.Version{4} }},
	{"a policy, addresses that the kernel does not know as its own", func(r *Router) { r.Allowed, r.LocalSources = sets("egress"), false }},
	{"diverts", func(r *Router) { r.Diverts = diverts() }},
	{"a policy with diverts", func(r *Router) { r.Allowed, r.Diverts = sets("egress"), diverts() }},
	{"a resolver's divert", func(r *Router) {
		r.Diverts = diverts()[:1]
		r.Diverts[0].Resolver, r.Diverts[0].Set.Name = true, "divert-resolver-udp"
	}},
	{"diverts, guard.off", func(r *Router) { r.Guard.Off, r.Diverts = true, diverts() }},
	{"diverts, a target in guard.open", func(r *Router) { r.Guard.Open, r.Diverts = []infra.Ports{{First: 15000, Last: 16000}}, diverts() }},
	{"a divert to itself", func(r *Router) {
		r.Diverts = diverts()[1:2]
		r.Diverts[0].Set.Boxes = []firewall.Box{{
			First: addr("10.0.2.1"), Last: addr("10.0.2.1"), FirstProtocol: firewall.ProtocolTCP, LastProtocol: firewall.ProtocolTCP, FirstPort: 15443, LastPort: 15443,
		}}
	}},
	{"another link forwards", func(r *Router) { r.OtherLinks = map[ip.Version][]string{4: {"net1"}, 6: {"net1", "net2"}} }},
	{"the whole namespace forwards IPv6", func(r *Router) { r.All6 = true }},
}

// ports are of each protocol, one and several, with the same number in the guest and with another one.
var ports = []infra.Ports{{First: 80}, {Protocol: "udp", First: 5000, Last: 5100}, {Protocol: "sctp", First: 7}, {First: 8080, Last: 8081, Guest: 90}}

// ofMasquerade and ofRouted are changes of one binding.
var ofMasquerade = []struct {
	what string
	edit func(*Masquerade)
}{
	{"another address", func(m *Masquerade) { m.Addresses = addrs("10.244.1.7", "10.244.1.8") }},
	{"routes with a source", func(m *Masquerade) {
		m.Hidden, m.Linked = addrs("10.244.1.7", "fd00:244:1::7"), prefixes("10.9.0.0/16", "fd00:9::/64")
	}},
	{"ports", func(m *Masquerade) { m.Ports = ports }},
	{"no ports", func(m *Masquerade) { m.Ports = []infra.Ports{} }},
	{"excluded ports", func(m *Masquerade) { m.Excluded = []infra.Ports{{First: 22}, {First: 15000, Last: 15100}} }},
	{"loopback", func(m *Masquerade) { m.Loopback = true }},
	{"a sidecar", func(m *Masquerade) { m.Sidecar = &infra.Sidecar{Sources: addrs("127.0.0.6", "::6")} }},
	{"source ports for a guest to whom port 80 is forwarded", func(m *Masquerade) {
		m.SourcePorts = ChoosePorts(infra.Masquerade{Ports: []infra.Ports{{First: 80}}}, nil, InUse{})
	}},
	{"a flow table", func(m *Masquerade) { m.Flows = true }},
	{"a flow table that counts", func(m *Masquerade) { m.Flows, m.Counts = true, true }},
}

var ofRouted = []struct {
	what string
	edit func(*Routed)
}{
	{"a sidecar", func(r *Routed) { r.Sidecar = &infra.Sidecar{Sources: addrs("127.0.0.6", "::6")} }},
	{"excluded ports", func(r *Routed) { r.Excluded = []infra.Ports{{First: 22}, {First: 15000, Last: 15100}} }},
	{"excluded ports, two IPv4 addresses", func(r *Routed) {
		r.Excluded, r.Own = []infra.Ports{{First: 22}}, addrs("10.244.1.7", "10.244.1.8", "fd00:244:1::7")
	}},
	{"two IPv6 addresses", func(r *Routed) { r.Own = addrs("10.244.1.7", "fd00:244:1::7", "fd00:244:1::8") }},
	{"excluded ports, another address of the namespace", func(r *Routed) { r.Excluded, r.Ends[0].Gateway = []infra.Ports{{First: 22}}, addr("169.254.75.9") }},
	{"another IPv6 address of the namespace", func(r *Routed) { r.Ends[1].Gateway = addr("fd00:a9fe:4b01::9") }},
	{"a source by destination", func(r *Routed) {
		r.Sources = map[ip.Version][]fib.Choice{4: {{To: prefixes("10.9.0.0/16")[0], Address: addr("10.244.1.8")}, {Address: addr("10.244.1.7")}}}
	}},
}

// inputs are the fields of the descriptions, one by one.
var inputs = golden.Inputs{Groups: []reflect.Type{reflect.TypeFor[Masquerade](), reflect.TypeFor[Routed](), reflect.TypeFor[Router](),
	reflect.TypeFor[netstate.Names](), reflect.TypeFor[infra.Guard](), reflect.TypeFor[infra.Masquerade]()}}

// elsewhere are fields by which no rule here differs: names and fields for guestfilter, and a binding's fields from
// which wiring computes others.
var elsewhere = []string{
	"Router.Names.Moved", "Router.Names.Bridge", "Router.Guard.MACs", "Router.Guard.EtherTypes", "Router.Guard.VLANs",
	"Masquerade.IPv4", "Masquerade.IPv6", "Masquerade.Guest", "Masquerade.Gateway", "Masquerade.MAC", "Masquerade.NICMAC", "Masquerade.GatewayMAC",
	"Masquerade.MaxConnections", "Masquerade.Firewall", "Families", "NoNFTables", "NoIPv6AtTap", // the last three: TestIPTables
}

// TestGolden compares with testdata the tables of both bindings, and what each change makes of them. Each field changes
// in one of the changes at least.
func TestGolden(t *testing.T) {
	var names []string
	text := golden.Changes{Names: [][]string{
		{`"eth0"`, `"net1"`}, {`"eth0-tap"`, `"vm1"`}, {"guestwire-eth0", "guestwire-net1"}, {"fe80::858:aff:fef4:107", "fe80::ff:fe00:77"},
	}}
	for _, kind := range []string{"masquerade", "routed"} {
		isRouted := kind == "routed"
		t.Run(kind, func(t *testing.T) {
			changed := map[string]bool{}
			was := descriptionOf(isRouted)
			change := func(what string, edit func(*description)) {
				is := descriptionOf(isRouted)
				edit(&is)
				is.routed.Own = slices.DeleteFunc(is.routed.Own, func(a netip.Addr) bool { return !is.routed.Ends.Has(ip.Of(a)) })
				fields, _ := inputs.Changed(was.values(), is.values())
				for _, f := range fields {
					changed[f] = true
				}
				if !text.Add(kind+": "+what, was.text(), is.text()) {
					t.Errorf("%s changes nothing", what)
				}
			}
			for _, c := range ofBoth {
				change(c.what, func(d *description) { c.edit(d.router()) })
			}
			for _, c := range ofMasquerade {
				if !isRouted {
					change(c.what, func(d *description) { c.edit(&d.masquerade) })
				}
			}
			for _, c := range ofRouted {
				if isRouted {
					change(c.what, func(d *description) { c.edit(&d.routed) })
				}
			}
			golden.Compare(t, kind+".txt", was.text())
			for _, field := range inputs.Names(reflect.TypeOf(was.values())) {
				if !changed[field] && !slices.Contains(elsewhere, field) {
					t.Errorf("no change is about %s", field)
				}
			}
		})
		names = append(names, kind+".txt")
	}
	golden.Compare(t, "changes", `# What each change makes of masquerade.txt and routed.txt. "-2": rule 2 of a chain goes. "+2": this becomes rule 2.`+"\n"+text.String())
	golden.Only(t, ".txt", append(names, "iptables.txt", "iptables-alone.txt", "iptables-everything.txt")...)
}

// TestIPTables: iptables translate, with a table of nftables beside them for what they cannot express, or alone. The
// other files show what differs from iptables.txt. A guest without IPv6 needs a rule of ip6tables that drops its IPv6,
// if the tap has IPv6 and nftables does not drop it.
func TestIPTables(t *testing.T) {
	d := descriptionOf(false)
	d.masquerade.Families = []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT}
	all := d.text()
	golden.Compare(t, "iptables.txt", all)
	d.masquerade.Masquerade = infra.Masquerade{Ports: ports, Loopback: true, Excluded: []infra.Ports{{First: 22}, {First: 15000, Last: 15100}}}
	d.masquerade.SourcePorts = ChoosePorts(d.masquerade.Masquerade, nil, InUse{})
	d.masquerade.Most, d.masquerade.Guard.Open = 100, []infra.Ports{{Protocol: "udp", First: 53}}
	d.masquerade.Allowed = sets("egress")
	golden.Compare(t, "iptables-everything.txt", golden.Variant(all, d.text()))
	d = descriptionOf(false)
	d.masquerade.Families = []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT}
	d.masquerade.Ends = d.masquerade.Ends[:1]
	families := func() (list []firewall.Family) {
		for _, t := range d.masquerade.Tables() {
			list = append(list, t.Family)
		}
		return list
	}
	if have := families(); !slices.Equal(have, []firewall.Family{firewall.Inet, firewall.IPTablesNFT}) {
		t.Errorf("IPv4 alone: %v", have)
	}
	d.masquerade.NoNFTables = true
	golden.Compare(t, "iptables-alone.txt", golden.Variant(all, d.text()))
	if have := families(); !slices.Equal(have, d.masquerade.Families) {
		t.Errorf("IPv4 and iptables alone: %v", have)
	}
	d.masquerade.NoIPv6AtTap = true
	if have := families(); !slices.Equal(have, d.masquerade.Families[:1]) {
		t.Errorf("no IPv6 at the tap: %v", have)
	}
}
