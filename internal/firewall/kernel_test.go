package firewall_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

const tableName = "guestwire-eth0"

// withLinks returns a namespace with the links that the tables name.
func withLinks(t *testing.T, name string) *nstest.Namespace {
	t.Helper()
	ns := nstest.New(t, name)
	ns.IP("tuntap add eth0 mode tap")
	ns.IP("tuntap add eth1 mode tap")
	return ns
}

// apply applies the table, or the change to it, and returns the images that are read back.
func apply(t *testing.T, ns *nstest.Namespace, table firewall.Table, changes ...firewall.Change) (images []firewall.Image) {
	t.Helper()
	err := netns.Do(ns.File, func() error {
		k, err := kernel.Open()
		if err != nil {
			return err
		}
		defer k.Close()
		names := netstate.Names{Table: tableName}
		now, err := k.Snapshot(names, nil, nil)
		if err != nil {
			return err
		}
		table = table.Resolve(func(name string) int {
			for _, l := range now.Links {
				if l.Name == name {
					return l.Index
				}
			}
			return 0
		})
		op := netstate.Op(netstate.TableSet{Table: table})
		for _, c := range changes {
			op = netstate.TableChange{Table: table, Change: c}
		}
		if err := k.Apply(t.Context(), []netstate.Op{op}); err != nil {
			return err
		}
		now, err = k.Snapshot(names, nil, func() []firewall.Table { return []firewall.Table{table} })
		for _, i := range now.Tables {
			images = append(images, i.WithTexts())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// TestNFTables applies tables with every match and verdict. What is read back is the table's Image, and nft
// makes the same rules of the table's text.
func TestNFTables(t *testing.T) {
	nstest.Need(t, "nft")
	for _, table := range []firewall.Table{inetTable(), flowTable(), ingressTable(), bridgeTable()} {
		t.Run(string(table.Family), func(t *testing.T) {
			if len(table.Flows) > 0 {
				nstest.KernelDecides(t, "not every kernel has flow tables")
			}
			if len(table.Flows) > 0 && !nstest.HasFlowTables() {
				nstest.LeaveOut(t, "this kernel has no flow tables")
			}
			applied := withLinks(t, "applied")
			if have, want := apply(t, applied, table), []firewall.Image{table.Image()}; !reflect.DeepEqual(have, want) {
				t.Errorf("read back\n%+v\nwant\n%+v", have, want)
			}
			loaded := withLinks(t, "loaded")
			path := filepath.Join(t.TempDir(), "table")
			if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			loaded.Exec("nft", "-f", path)
			list := []string{"nft", "list", "table", string(table.Family), table.Name}
			if err := nstest.Difference(nstest.SetTypes(loaded.Exec(list...)), applied.Exec(list...)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestChangedBoxes: a change of few boxes and of many leaves the set as a new table has it, and so does nft with the
// change's text, with ports and without. Few boxes change while the others, and the rules, stay.
func TestChangedBoxes(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t, "nft")
	table := func(allPorts bool, boxes ...firewall.Box) firewall.Table {
		set := firewall.Destinations{Name: "egress-4", Version: 4, AllPorts: allPorts}
		for _, b := range boxes {
			if allPorts {
				b.FirstProtocol, b.LastProtocol, b.FirstPort, b.LastPort = 0, 255, 0, 65535
			}
			set.Boxes = append(set.Boxes, b)
		}
		return firewall.Table{Family: firewall.Inet, Name: tableName, Destinations: []firewall.Destinations{set}, Chains: []firewall.Chain{
			{Name: "opening", Type: "filter", Hook: firewall.Forward, Rules: rules{rule(firewall.Jump{Chain: "egress"})}},
			{Name: "egress", Rules: rules{rule(firewall.Return{}, firewall.IP{Version: 4}, set.Lookup()), rule(firewall.Drop{})}},
			{Name: "other", Rules: rules{rule(firewall.Accept{}, firewall.Count{})}},
		}}
	}
	var many []firewall.Box
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 0})
		many = append(many, firewall.Box{First: a, Last: a.Next(), FirstProtocol: 6, LastProtocol: 6, FirstPort: uint16(i), LastPort: uint16(2 * i)})
	}
	all := firewall.Box{First: netip.MustParseAddr("0.0.0.0"), Last: netip.MustParseAddr("255.255.255.255"), LastProtocol: 255, LastPort: 65535}
	other := many[500]
	other.Last = other.Last.Next() // overlaps what it replaces
	for name, c := range map[string]struct {
		from, to []firewall.Box
		whole    bool // the set is replaced
	}{
		"one more":    {many[1:], many, false},
		"one less":    {many, many[1:], false},
		"another one": {many, slices.Concat(many[:500], []firewall.Box{other}, many[501:]), false},
		"half":        {many, many[500:], true},
		"all others":  {many, []firewall.Box{all}, true},
		"none":        {many, nil, true},
		"from none":   {nil, many, true},
	} {
		test := func(t *testing.T, allPorts bool) {
			from, to := table(allPorts, c.from...), table(allPorts, c.to...)
			words := func(ns *nstest.Namespace) string {
				fields := strings.FieldsFunc(ns.Exec("nft", "list", "table", "inet", tableName), func(r rune) bool { return strings.ContainsRune(" ,\t\n", r) })
				return strings.Join(slices.Sorted(slices.Values(fields)), "\n")
			}
			fresh := nstest.New(t, "fresh")
			apply(t, fresh, to)
			for _, have := range []firewall.Image{from.Held(), from.Image()} { // of the image all that differs is replaced
				change, can := have.ChangeTo(to)
				if !can {
					t.Fatal("no change")
				}
				if whole := len(change.Replaced) > 0; whole != c.whole && reflect.DeepEqual(have, from.Held()) {
					t.Errorf("the set is replaced: %v", whole)
				}
				changed, loaded := nstest.New(t, "changed"), nstest.New(t, "loaded")
				apply(t, changed, from)
				apply(t, loaded, from)
				images := apply(t, changed, to, change)
				if !reflect.DeepEqual(images, []firewall.Image{to.Image()}) {
					t.Errorf("read back\n%+v", images)
				}
				path := filepath.Join(t.TempDir(), "change")
				if err := os.WriteFile(path, []byte(change.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				loaded.Exec("nft", "-f", path)
				for _, ns := range []*nstest.Namespace{changed, loaded} {
					if err := nstest.Difference(words(fresh), words(ns)); err != nil {
						t.Errorf("%s: %v", ns.Name, err)
					}
				}
			}
		}
		t.Run(name, func(t *testing.T) { test(t, false) })
		t.Run(name+", all ports", func(t *testing.T) { test(t, true) })
	}
}

// TestNames: the comment of a rule has nft's names of what the rule matches. nft lists a rule of the names as it lists
// the rule of octets, if the rule itself says what the packet is.
func TestNames(t *testing.T) {
	nstest.Need(t, "nft")
	type bytes = firewall.Bytes
	ip, ip6, arp := firewall.EtherType{Number: 0x0800}, firewall.EtherType{Number: 0x86dd}, firewall.EtherType{Number: 0x0806}
	udp, icmp := firewall.Protocol{Number: firewall.ProtocolUDP}, firewall.Protocol{Number: firewall.ProtocolICMP}
	icmp6 := firewall.Protocol{Number: firewall.ProtocolICMPv6}
	mac := []byte{2, 0, 0, 0, 0, 9}
	address := netip.MustParseAddr("fd00::7").AsSlice()
	ns := withLinks(t, "names")
	for i, c := range []struct {
		known  []firewall.Match
		octets bytes
		want   string // empty: no names
		// unlisted: nft lists the octets as they are; it knows taddr since version 1.0.8.
		unlisted bool
	}{
		{nil, bytes{Header: firewall.Ethernet, Offset: 6, Value: mac}, "ether saddr 02:00:00:00:00:09", false},
		{nil, bytes{Header: firewall.Ethernet, Value: mac[:4]}, "ether daddr 02:00:00:00:00:00/32", false},
		{nil, bytes{Header: firewall.Ethernet, Offset: 6, Value: append(slices.Clone(mac), 0x08, 0x06)}, "ether saddr 02:00:00:00:00:09 ether type arp", false},
		{nil, bytes{Header: firewall.Ethernet, Offset: 6, Value: append(slices.Clone(mac), 0x08, 0x06), Inverted: true}, "", false},
		{nil, bytes{Header: firewall.Network, Offset: 8, Value: address}, "", false},
		{[]firewall.Match{ip6}, bytes{Header: firewall.Network, Offset: 8, Value: address}, "ip6 saddr fd00::7", false},
		{[]firewall.Match{ip6}, bytes{Header: firewall.Network, Offset: 24, Value: address[:8]}, "ip6 daddr fd00::/64", false},
		{[]firewall.Match{ip6}, bytes{Header: firewall.Network, Offset: 12, Value: address[4:]}, "", false},
		{[]firewall.Match{ip6}, bytes{Header: firewall.Network, Offset: 4, Value: []byte{0, 0}, Last: []byte{0, 23}}, "ip6 length 0-23", false},
		{[]firewall.Match{ip6}, bytes{Header: firewall.Network, Offset: 6, Value: []byte{58, 255}}, "ip6 nexthdr ipv6-icmp ip6 hoplimit 255", false},
		{[]firewall.Match{ip}, bytes{Header: firewall.Network, Offset: 12, Value: []byte{10, 9, 0, 0}, Mask: []byte{255, 255, 240, 0}}, "ip saddr 10.9.0.0/20", false},
		{[]firewall.Match{ip}, bytes{Header: firewall.Network, Offset: 16, Value: []byte{127}, Inverted: true}, "ip daddr != 127.0.0.0/8", false},
		{[]firewall.Match{ip}, bytes{Header: firewall.Network, Offset: 6, Value: []byte{0, 0}, Mask: []byte{0x1f, 0xff}, Inverted: true}, "ip frag-off & 0x1fff != 0x0", false},
		{[]firewall.Match{arp}, bytes{Header: firewall.Network, Offset: 6, Value: slices.Concat([]byte{0, 2}, mac, []byte{10, 0, 0, 7})},
			"arp operation 2 arp saddr ether 02:00:00:00:00:09 arp saddr ip 10.0.0.7", false},
		{[]firewall.Match{ip, udp}, bytes{Header: firewall.Transport, Offset: 2, Value: []byte{0, 0x40}, Mask: []byte{0xff, 0xf8}, Inverted: true}, "udp dport & 0xfff8 != 0x40", false},
		{[]firewall.Match{ip, udp}, bytes{Header: firewall.Transport, Value: []byte{0, 0x40, 0, 0}, Mask: []byte{0xff, 0xf8, 0, 0}, Inverted: true}, "udp sport & 0xfff8 != 0x40", true},
		{[]firewall.Match{ip, icmp}, bytes{Header: firewall.Transport, Value: []byte{11}, Last: []byte{14}, Inverted: true}, "icmp type != 11-14", false},
		{[]firewall.Match{ip6, icmp6}, bytes{Header: firewall.Transport, Offset: 8, Value: address}, "icmpv6 taddr fd00::7", true},
		{[]firewall.Match{ip6, icmp6}, bytes{Header: firewall.Transport, Offset: 24, Value: []byte{1}}, "", false},
	} {
		first := firewall.Chain{Name: "first", Type: "filter", Hook: firewall.Input, Rules: rules{rule(firewall.Goto{Chain: "then"}, c.known...)}}
		then := firewall.Chain{Name: "then", Rules: rules{rule(firewall.Accept{}, c.octets)}}
		_, text, _ := strings.Cut(firewall.Table{Family: firewall.Bridge, Name: "names", Chains: []firewall.Chain{first, then}}.String(), "chain then {\n\t\t")
		text, _, _ = strings.Cut(text, "\n")
		_, have, _ := strings.Cut(text, " # ")
		if have != c.want {
			t.Errorf("%v: %q, want %q", c.octets, have, c.want)
		}
		if c.want == "" || c.unlisted {
			continue
		}
		table := fmt.Sprintf("rules%d", i)
		list := func(match string) string {
			known := ""
			for _, m := range c.known {
				known += m.String() + " "
			}
			path := filepath.Join(t.TempDir(), "table")
			if err := os.WriteFile(path, []byte(fmt.Sprintf("table bridge %s { chain c {\n%s%s accept\n}\n}\n", table, known, match)), 0o600); err != nil {
				t.Fatal(err)
			}
			ns.Exec("nft", "-f", path)
			defer ns.Exec("nft", "delete", "table", "bridge", table)
			return ns.Exec("nft", "list", "table", "bridge", table)
		}
		if octets, names := list(c.octets.String()), list(c.want); octets != names {
			t.Errorf("%v is listed as\n%s\nand %s as\n%s", c.octets, octets, c.want, names)
		}
	}
}

// TestIPTablesPrograms loads the table by the iptables programs. iptables -S prints each rule as IPTables does.
func TestIPTablesPrograms(t *testing.T) {
	for _, program := range []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT, firewall.IPTablesLegacy, firewall.IP6TablesLegacy} {
		t.Run(string(program), func(t *testing.T) {
			nstest.Need(t, string(program))
			ns := withLinks(t, "programs")
			table := inetTable().IPTables(program, "gw-eth0")
			path := filepath.Join(t.TempDir(), "table")
			if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			ns.Exec(string(program)+"-restore", "--noflush", path)
			for _, name := range firewall.IPTablesTables {
				listed := ns.Exec(string(program), "-t", name, "-S")
				var have, want []string
				for line := range strings.Lines(listed) {
					if strings.HasPrefix(line, "-A gw-eth0-") {
						have = append(have, strings.TrimSpace(line))
					}
				}
				for _, c := range table.Chains {
					if c.Type != name {
						continue
					}
					if c.Hook != "" && !strings.Contains(listed, "-A "+c.Hook.BuiltIn()+" -j "+c.Name+"\n") {
						t.Errorf("%s: no jump to %s:\n%s", name, c.Name, listed)
					}
					for _, r := range c.Rules {
						want = append(want, "-A "+c.Name+" "+r.IPTables())
					}
				}
				// The programs list the chains in an order of their own; the rules of a chain stay in order.
				chain := func(line string) string { return strings.Fields(line)[1] }
				byChain := func(a, b string) int { return strings.Compare(chain(a), chain(b)) }
				slices.SortStableFunc(have, byChain)
				slices.SortStableFunc(want, byChain)
				if !slices.Equal(have, want) {
					t.Errorf("%s: have\n%s\nwant\n%s", name, strings.Join(have, "\n"), strings.Join(want, "\n"))
				}
			}
		})
	}
}
