package nft

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tableReport are the messages of a table without struct nlmsghdr, by type (NFT_MSG_NEWTABLE, ...).
func tableReport(t testing.TB, table firewall.Table) map[byte][][]byte {
	t.Helper()
	messages, err := Encode([]netstate.Op{netstate.TableSet{Table: table}})
	if err != nil {
		t.Fatal(err)
	}
	reported := map[byte][][]byte{}
	for _, m := range messages[1 : len(messages)-1] { // without the messages that begin and end the transaction
		reported[m[4]] = append(reported[m[4]], m[unix.NLMSG_HDRLEN:])
	}
	return reported
}

// TestTableRoundTrip: the messages of a table are parsed to the table's image.
func TestTableRoundTrip(t *testing.T) {
	for _, table := range []firewall.Table{nfttest.Table, nfttest.FlowTable, nfttest.DeviceTable} {
		rules, err := knowRules([]firewall.Table{table})
		if err != nil {
			t.Fatal(err)
		}
		reported := tableReport(t, table)
		image, err := parseTable(reported[unix.NFT_MSG_NEWTABLE][0])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reported[unix.NFT_MSG_NEWSET] {
			set, of, err := parseSet(m)
			if err != nil || of != table.Name {
				t.Fatalf("a set of %q: %v", of, err)
			}
			image.Sets = append(image.Sets, set)
		}
		for _, m := range reported[unix.NFT_MSG_NEWFLOWTABLE] {
			flows, of, err := parseFlowTable(m)
			if err != nil || of != table.Name {
				t.Fatalf("a flow table of %q: %v", of, err)
			}
			image.Flows = append(image.Flows, flows)
		}
		for _, m := range reported[unix.NFT_MSG_NEWCHAIN] {
			chain, of, err := parseChain(m)
			if err != nil || of != table.Name {
				t.Fatalf("a chain of %q: %v", of, err)
			}
			image.Chains = append(image.Chains, chain)
		}
		for _, m := range reported[unix.NFT_MSG_NEWRULE] {
			rule, err := parseChainRule(m)
			if err != nil || string(rule.table) != table.Name {
				t.Fatalf("a rule of %q: %v", rule.table, err)
			}
			at := slices.IndexFunc(image.Chains, func(c firewall.ChainImage) bool { return c.Name == string(rule.chain) })
			text, err := rules.text(rule.expressions)
			if err != nil {
				t.Fatal(err)
			}
			image.Chains[at].Rules = append(image.Chains[at].Rules, text)
		}
		for _, d := range table.Destinations {
			have := firewall.Destinations{Version: d.Version, AllPorts: d.AllPorts}
			for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
				if err := appendBoxes(&have, new(bool), m); err != nil {
					t.Fatal(err)
				}
			}
			if d.Name == "empty" {
				have.Boxes = nil // the parser does not read the set's name
			}
			at := slices.IndexFunc(image.Sets, func(s firewall.Declaration) bool { return s.Name == d.Name })
			image.Sets[at].Head += joined(have).Held()
		}
		for i, set := range image.Sets {
			if isMap := slices.ContainsFunc(table.Maps, func(m firewall.PortMap) bool { return m.Name == set.Name }); !isMap {
				continue
			}
			var ranges []firewall.PortRange
			for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
				if err := appendPorts(&ranges, new(bool), m); err != nil {
					t.Fatal(err)
				}
			}
			image.Sets[i].Head += firewall.PortMap{Ranges: ranges}.Held()
		}
		var kept []firewall.Element
		for _, m := range reported[unix.NFT_MSG_NEWSETELEM] {
			keys, err := parseElements(m)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, keys...)
		}
		for _, s := range table.Sets {
			for _, e := range s.Elements {
				if !slices.ContainsFunc(kept, func(k firewall.Element) bool { return slices.Equal(k.Key, e.Key) }) {
					t.Errorf("set %s lacks %x", s.Name, e.Key)
				}
			}
		}
		slices.SortFunc(image.Sets, func(a, b firewall.Declaration) int { return strings.Compare(a.Name, b.Name) })
		if want := table.Image(); !reflect.DeepEqual(image, want) {
			t.Errorf("have %+v\nwant %+v", image, want)
		}
	}
}

func TestMain(m *testing.M) { nstest.Main(m) }
