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

func addrs(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// The guests from which the others differ, one for each way in which frames get to the network. The second has limits,
// a DHCPv6 client beside it and a bound of its frames' length. The third answers ARP at the NIC.
var (
	bridged   = guestWith(func(g *Guest) { g.Bridged = true })
	forwarded = guestWith(func(g *Guest) {
		g.Longest, g.Renewed, g.Launcher = 1500, true, 107
		g.Limits = cache.Limits{
			FromGuest: cache.Limit{BitsPerSecond: 100_000_000, PacketsPerSecond: 5000, BurstBytes: 1 << 20, BurstPackets: 100},
			ToGuest:   cache.Limit{BitsPerSecond: 1_000_000_000, PacketsPerSecond: 20000, BurstBytes: 1 << 21, BurstPackets: 200},
		}
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
	{"forwarded", func(g *Guest) { g.Guard.VLANs, g.Guard.EtherTypes = []uint16{0, 100}, []infra.EtherType{0x8863} }},
	{"forwarded", func(g *Guest) { g.Guard.VLANs, g.Served = []uint16{0, 100}, false }},
	{"forwarded", func(g *Guest) { g.Limits = cache.Limits{} }},
	{"forwarded", func(g *Guest) { g.Limits.FromGuest.BitsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.FromGuest.PacketsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.FromGuest.BurstBytes = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.FromGuest.BurstPackets = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.ToGuest.BitsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.ToGuest.PacketsPerSecond = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.ToGuest.BurstBytes = 0 }},
	{"forwarded", func(g *Guest) { g.Limits.ToGuest.BurstPackets = 0 }},
	{"bridged", func(g *Guest) { g.Limits.ToGuest.PacketsPerSecond = 100 }},
	{"routed", func(g *Guest) { g.Limits.ToGuest.PacketsPerSecond = 100 }},
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

// TestGolden compares with testdata the tables of a guest, and what others change in them. Each field of Guest changes
// alone in one of the others at least, and changes something.
func TestGolden(t *testing.T) {
	golden.Compare(t, "bridged.txt", tablesText(bridged))
	golden.Only(t, ".txt", "bridged.txt")
	guests := map[string]Guest{"bridged": bridged, "forwarded": forwarded, "routed": routed}
	var text strings.Builder
	text.WriteString(changesHead)
	shown := map[string]bool{"Bridged": true, "Routed": true} // by the first two
	for _, c := range changes {
		from, g := guests[c.from], guests[c.from]
		c.edit(&g)
		names, values := changed(reflect.ValueOf(from), reflect.ValueOf(g), "")
		diff := diffText(tablesText(from), tablesText(g))
		if diff == "" {
			t.Errorf("%s: %v changes nothing", c.from, values)
		}
		if len(names) == 1 {
			shown[names[0]] = true
		}
		title := c.from + ", " + strings.Join(values, ", ")
		for name, other := range guests {
			if reflect.DeepEqual(g, other) {
				title = name + ": " + title
			}
		}
		text.WriteString("\n== " + title + "\n" + diff)
	}
	golden.Compare(t, "changes", text.String())

	for _, field := range fields(reflect.TypeFor[Guest](), "") {
		if !shown[field] && field != "Guard.Open" {
			t.Errorf("no guest of changes has another %s alone", field)
		}
	}
}

// TestOpenChangesNothing: Guard.Open is for the router's tables.
func TestOpenChangesNothing(t *testing.T) {
	for _, g := range []Guest{bridged, forwarded, routed} {
		before := tablesText(g)
		g.Guard.Open = []infra.Ports{{Protocol: "udp", First: 53}}
		if diff := diffText(before, tablesText(g)); diff != "" {
			t.Errorf("changes:\n%s", diff)
		}
	}
}

// tablesText is what nft would load, with the reasons of drops and without their chains. A chain that belongs to a link
// by its index has that after its hook.
func tablesText(g Guest) string {
	var b strings.Builder
	for _, t := range Tables(g) {
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

// isGroup reports whether the fields of a struct are inputs of their own.
func isGroup(t reflect.Type) bool {
	return slices.Contains([]reflect.Type{reflect.TypeFor[Guest](), reflect.TypeFor[netstate.Names](), reflect.TypeFor[infra.Guard](),
		reflect.TypeFor[cache.Limits](), reflect.TypeFor[cache.Limit]()}, t)
}

// fields are the names of the inputs.
func fields(t reflect.Type, name string) (all []string) {
	if !isGroup(t) {
		return []string{name[1:]}
	}
	for i := range t.NumField() {
		all = append(all, fields(t.Field(i).Type, name+"."+t.Field(i).Name)...)
	}
	return all
}

// changed are the inputs that differ, and their values.
func changed(was, is reflect.Value, name string) (names, values []string) {
	if !isGroup(was.Type()) {
		if reflect.DeepEqual(was.Interface(), is.Interface()) {
			return nil, nil
		}
		return []string{name[1:]}, []string{fmt.Sprintf("%s %v", name[1:], is.Interface())}
	}
	for i := range was.NumField() {
		n, v := changed(was.Field(i), is.Field(i), name+"."+was.Type().Field(i).Name)
		names, values = append(names, n...), append(values, v...)
	}
	return names, values
}

const changesHead = `# What other guests change in the tables of bridged.txt. The guests called forwarded and routed are the first two. "-2":
# rule 2 of a chain goes. "+2": this becomes rule 2. A base chain's rule 0 is its hook, a table's line 0 its name.
`

// block is a table's head with its sets, or a chain.
type block struct {
	name  string // "netdev", "netdev guest"
	lines []string
	first int // the number of the first line
}

// blocks finds them in the text of tables.
func blocks(text string) (all []block) {
	family := ""
	for l := range strings.Lines(text) {
		words := strings.Fields(l)
		switch {
		case words[0] == "table":
			family = words[1]
			all = append(all, block{name: family, lines: []string{strings.TrimSuffix(l, " {\n")}})
		case words[0] == "chain":
			all = append(all, block{name: family + " " + words[1], first: 1})
		case words[0] == "}":
		default:
			last := &all[len(all)-1]
			if words[0] == "type" {
				last.first = 0
			}
			last.lines = append(last.lines, strings.TrimSpace(l))
		}
	}
	return all
}

// diffText is what differs, a line each, below the chain's name.
func diffText(was, is string) string {
	var text strings.Builder
	before, after := blocks(was), blocks(is)
	find := func(in []block, name string) block {
		if at := slices.IndexFunc(in, func(b block) bool { return b.name == name }); at >= 0 {
			return in[at]
		}
		return block{name: name}
	}
	var gone []string
	for _, b := range before {
		if now := find(after, b.name); now.lines != nil {
			text.WriteString(diffLines(b, now))
		} else {
			gone = append(gone, b.name)
		}
	}
	for _, b := range after {
		if find(before, b.name).lines == nil {
			text.WriteString(diffLines(block{name: b.name}, b))
		}
	}
	if gone != nil {
		text.WriteString("gone: " + strings.Join(gone, ", ") + "\n")
	}
	return text.String()
}

func diffLines(was, is block) string {
	a, b := was.lines, is.lines
	best := make([][]int, len(a)+1) // lines that stay, of those from there
	for x := range best {
		best[x] = make([]int, len(b)+1)
	}
	for x := len(a) - 1; x >= 0; x-- {
		for y := len(b) - 1; y >= 0; y-- {
			if best[x][y] = max(best[x+1][y], best[x][y+1]); a[x] == b[y] {
				best[x][y] = best[x+1][y+1] + 1
			}
		}
	}
	var text strings.Builder
	for x, y := 0, 0; x < len(a) || y < len(b); {
		switch {
		case x < len(a) && y < len(b) && a[x] == b[y]:
			x, y = x+1, y+1
		case y == len(b) || x < len(a) && best[x+1][y] >= best[x][y+1]:
			fmt.Fprintf(&text, "-%d\t%s\n", was.first+x, a[x])
			x++
		default:
			fmt.Fprintf(&text, "+%d\t%s\n", is.first+y, b[y])
			y++
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return is.name + "\n" + text.String()
}
