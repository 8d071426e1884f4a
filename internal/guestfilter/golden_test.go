package guestfilter

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
)

var (
	addrs    = golden.Values[netip.Addr]
	prefixes = golden.Values[netip.Prefix]
)

// The guests from which the others differ, one for each way in which frames get to the network. The second has limits,
// a DHCPv6 client beside it and a bound of its frames' length. The third answers ARP at the NIC.
var (
	bridged   = guestWith(func(g *Guest) { g.Bridged = true })
	forwarded = guestWith(func(g *Guest) {
		g.Longest, g.Renewed, g.Launcher = 1500, true, 107
		g.Limit = cache.Limit{BitsPerSecond: 100_000_000, PacketsPerSecond: 5000, BurstBytes: 1 << 20, BurstPackets: 100}
	})
	routed = guestWith(func(g *Guest) { g.Routed, g.Announced, g.Hop = true, addrs("10.244.1.7"), addrs("169.254.75.1")[0] })
)

func guestWith(edit func(*Guest)) Guest {
	g := Guest{Names: netstate.NamesFor("eth0", ""), NIC: 2, MAC: cache.MAC{0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x07}, Addresses: addrs("10.244.1.7", "fd00:244:1::7"), Served: true}
	edit(&g)
	return g
}

// changes are other guests: what differs from one of the three.
var changes = []struct {
	from string
	edit func(*Guest)
}{
	{"bridged", func(g *Guest) { *g = forwarded }},
	{"bridged", func(g *Guest) { *g = routed }},
	{"forwarded", func(g *Guest) { g.Names.NIC = "net1" }},
	{"bridged", func(g *Guest) { g.Names.Moved = "net1-nic" }},
	{"bridged", func(g *Guest) { g.Names.Bridge = "net1-br" }},
	{"bridged", func(g *Guest) { g.Names.Tap = "vm1" }},
	{"forwarded", func(g *Guest) { g.Names.Tap = "vm1" }},
	{"routed", func(g *Guest) { g.Names.Tap = "vm1" }},
	{"forwarded", func(g *Guest) { g.Names.Responder = "net1-dhcp" }},
	{"bridged", func(g *Guest) { g.Names.Table = "guestwire-net1" }},
	{"bridged", func(g *Guest) { g.NIC = 7 }},
	{"bridged", func(g *Guest) { g.MAC = cache.MAC{2, 0, 0, 0, 0, 0x77} }},
	{"bridged", func(g *Guest) { g.Addresses = nil }},
	{"bridged", func(g *Guest) { g.Addresses = addrs("10.244.1.7") }},
	{"routed", func(g *Guest) { g.Addresses = addrs("fd00:244:1::7") }},
	{"forwarded", func(g *Guest) { g.Addresses = addrs("10.244.1.7", "10.244.1.8", "fe80::7", "fd00:244:1::7") }},
	{"bridged", func(g *Guest) { g.Served = false }},
	{"bridged", func(g *Guest) {
		g.Served, g.Addresses, g.Guard.Prefixes = false, addrs("10.244.1.7"), prefixes("fe80::/64")
	}},
	{"forwarded", func(g *Guest) { g.Served = false }},
	{"routed", func(g *Guest) { g.Served = false }},
	{"bridged", func(g *Guest) { g.Guard.Off = true }},
	{"bridged", func(g *Guest) { g.Guard.Off, g.MTU = true, 1400 }},
	{"forwarded", func(g *Guest) { g.Guard.Off = true }},
	{"forwarded", func(g *Guest) { g.Guard.Off, g.Served = true, false }},
	{"routed", func(g *Guest) { g.Guard.Off = true }},
	{"routed", func(g *Guest) { g.Guard.Off, g.Announced = true, nil }},
	{"forwarded", func(g *Guest) { g.Guard.MACs = []cache.MAC{{2, 0, 0, 0, 0, 9}} }},
	{"bridged", func(g *Guest) { g.Guard.Prefixes = prefixes("10.9.0.0/20", "fd99::/64") }},
	{"bridged", func(g *Guest) { g.Guard.Prefixes = prefixes("fe80::/64") }},
	{"routed", func(g *Guest) { g.Guard.Prefixes = prefixes("10.9.0.0/28", "10.10.0.0/20", "fe80::/64") }},
	{"bridged", func(g *Guest) { g.Guard.EtherTypes = []infra.EtherType{0x8863} }},
	{"forwarded", func(g *Guest) { g.Guard.EtherTypes = []infra.EtherType{0x8863} }},
	{"bridged", func(g *Guest) { g.Guard.VLANs = []uint16{100, 101, 200} }},
	{"bridged", func(g *Guest) { g.Guard.VLANs = []uint16{0} }},
	{"bridged", func(g *Guest) {
		g.Guard.VLANs, g.Asked = []uint16{0}, []netstate.Filter{{Protocol: netstate.EthernetARP, Keys: []netstate.Key{{Offset: 4, Mask: 0xffff, Value: 1}, {Offset: 24, Mask: 0xffffffff, Value: 0x0af40101}}}}
	}},
	{"forwarded", func(g *Guest) { g.Guard.VLANs, g.Guard.EtherTypes = []uint16{0, 100}, []infra.EtherType{0x8863} }},
	{"forwarded", func(g *Guest) { g.Guard.VLANs, g.Served = []uint16{0, 100}, false }},
	{"forwarded", func(g *Guest) { g.Limit = cache.Limit{} }},
	{"forwarded", func(g *Guest) { g.Limit.BitsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limit.PacketsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limit.BurstBytes = 0 }},
	{"forwarded", func(g *Guest) { g.Limit.BurstPackets = 0 }},
	{"bridged", func(g *Guest) { g.MTU = 1400 }},
	{"forwarded", func(g *Guest) { g.MTU, g.Longest = 1400, 0 }},
	{"routed", func(g *Guest) { g.MTU = 1400 }},
	{"forwarded", func(g *Guest) { g.Longest = 0 }},
	{"bridged", func(g *Guest) { g.Gateways = addrs("fe80::1", "fd00:244:1::1") }},
	{"routed", func(g *Guest) { g.Announced = addrs("10.244.1.7", "10.244.1.8") }},
	{"routed", func(g *Guest) { g.Announced = nil }},
	{"routed", func(g *Guest) { g.Hop = addrs("169.254.75.9")[0] }},
	{"forwarded", func(g *Guest) { g.Renewed = false }},
	{"forwarded", func(g *Guest) { g.Launcher = 0 }},
}

// inputs are the fields of Guest, one by one.
var inputs = golden.Inputs{Groups: []reflect.Type{reflect.TypeFor[Guest](), reflect.TypeFor[netstate.Names](), reflect.TypeFor[infra.Guard](),
	reflect.TypeFor[cache.Limit]()}}

// TestGolden compares with testdata the tables of a guest, and what others change in them. Each field of Guest changes
// alone in one of the others at least, and changes something.
func TestGolden(t *testing.T) {
	golden.Compare(t, "bridged.txt", tablesText(bridged))
	golden.Only(t, ".txt", "bridged.txt")
	guests := map[string]Guest{"bridged": bridged, "forwarded": forwarded, "routed": routed}
	text := golden.Changes{Names: [][]string{
		{`"eth0"`, `"net1"`}, {`"eth0-nic"`, `"net1-nic"`}, {`"eth0-br"`, `"net1-br"`}, {`"eth0-tap"`, `"vm1"`}, {`"eth0-dhcp"`, `"net1-dhcp"`},
		{"guestwire-eth0", "guestwire-net1"},
		{"0a:58:0a:f4:01:07", "02:00:00:00:00:77", "0a580af40107", "020000000077", "fe80::858:aff:fef4:107", "fe80::ff:fe00:77", "08580afffef40107", "000000fffe000077"},
	}}
	shown := map[string]bool{"Bridged": true, "Routed": true, "Asked": true} // by the first two, and with VLAN 0
	for _, c := range changes {
		from, g := guests[c.from], guests[c.from]
		c.edit(&g)
		names, values := inputs.Changed(from, g)
		if len(names) == 1 {
			shown[names[0]] = true
		}
		title := c.from + ", " + strings.Join(values, ", ")
		for name, other := range guests {
			if reflect.DeepEqual(g, other) {
				title = name + ": " + title
			}
		}
		if !text.Add(title, tablesText(from), tablesText(g)) {
			t.Errorf("%s: %v changes nothing", c.from, values)
		}
	}
	golden.Compare(t, "changes", changesHead+text.String())

	for _, field := range inputs.Names(reflect.TypeFor[Guest]()) {
		if !shown[field] && !slices.Contains(ofRouter, field) {
			t.Errorf("no guest of changes has another %s alone", field)
		}
	}
}

// ofRouter are the fields for the router's tables.
var ofRouter = []string{"Guard.Open", "Guard.MaxNeighbours"}

// TestFieldsOfRouter: they change nothing here.
func TestFieldsOfRouter(t *testing.T) {
	for _, g := range []Guest{bridged, forwarded, routed} {
		before := tablesText(g)
		g.Guard.Open, g.Guard.MaxNeighbours = []infra.Ports{{Protocol: "udp", First: 53}}, 7
		if diff := golden.DiffTables(before, tablesText(g)); diff != "" {
			t.Errorf("changes:\n%s", diff)
		}
	}
}

// tablesText is what nft would load, with the reasons of drops and without their chains. A chain that belongs to a link
// by its index has that after its hook.
func tablesText(g Guest) string {
	var b strings.Builder
	for _, t := range g.Tables() {
		counted := t.Counted(g.Names.NIC, true)
		counted.Chains = counted.Chains[:len(t.Chains)]
		text := counted.String()
		for _, c := range t.Chains {
			if c.Link != 0 {
				text = strings.Replace(text, "\t\t"+c.Head(), fmt.Sprintf("\t\t%s # link %d", c.Head(), c.Link), 1)
			}
		}
		b.WriteString(text)
	}
	return b.String()
}

const changesHead = `# What other guests change in the tables of bridged.txt. The guests called forwarded and routed are the first two. "-2":
# rule 2 of a chain goes. "+2": this becomes rule 2. A base chain's rule 0 is its hook, a table's line 0 its name.
`
