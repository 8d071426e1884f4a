package nft

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

// parser is a function that parses bytes from the kernel, with seeds that
// the function accepts.
type parser struct {
	name  string
	seeds [][]byte
	parse func([]byte) error
}

// parsers are all parsers of this package. The encoders make the seeds of all messages that are also sent.
func parsers(t testing.TB) []parser {
	table, flowTable, deviceTable := tableReport(t, nfttest.Table), tableReport(t, nfttest.FlowTable), tableReport(t, nfttest.DeviceTable)
	var expressions [][]byte
	for _, m := range slices.Concat(table[unix.NFT_MSG_NEWRULE], flowTable[unix.NFT_MSG_NEWRULE], deviceTable[unix.NFT_MSG_NEWRULE]) {
		expressions = append(expressions, netlinktest.Inside(t, m, netlink.SizeofNetfilter, unix.NFTA_RULE_EXPRESSIONS))
	}
	chains := slices.Concat(table[unix.NFT_MSG_NEWCHAIN], deviceTable[unix.NFT_MSG_NEWCHAIN])
	rules, err := knowRules([]firewall.Table{nfttest.Table, nfttest.DeviceTable})
	if err != nil {
		t.Fatal(err)
	}
	return []parser{
		{"parseTable", table[unix.NFT_MSG_NEWTABLE],
			func(b []byte) error { _, err := parseTable(b); return err }},
		{"parseSet", slices.Concat(table[unix.NFT_MSG_NEWSET], deviceTable[unix.NFT_MSG_NEWSET]),
			func(b []byte) error { _, _, err := parseSet(b); return err }},
		{"parseFlowTable", flowTable[unix.NFT_MSG_NEWFLOWTABLE],
			func(b []byte) error { _, _, err := parseFlowTable(b); return err }},
		{"watches", chains,
			func(b []byte) error { _, err := watches(b); return err }},
		{"parseElements", table[unix.NFT_MSG_NEWSETELEM],
			func(b []byte) error { _, err := parseElements(b); return err }},
		{"appendBoxes", table[unix.NFT_MSG_NEWSETELEM],
			func(b []byte) error {
				for _, d := range firewall.DestinationsOf("", 4, nil) {
					if err := appendBoxes(&d, new(bool), b); err != nil {
						return err
					}
					_ = joined(d).Held()
				}
				return nil
			}},
		{"parseChain", chains,
			func(b []byte) error { _, _, err := parseChain(b); return err }},
		{"parseHook", [][]byte{netlinktest.Inside(t, chains[0], netlink.SizeofNetfilter, unix.NFTA_CHAIN_HOOK)},
			func(b []byte) error { return parseHook(b, true, &firewall.Chain{}) }},
		{"parseChainRule", table[unix.NFT_MSG_NEWRULE],
			func(b []byte) error { _, err := parseChainRule(b); return err }},
		{"known.text", expressions,
			func(b []byte) error { _, err := rules.text(b); return err }},
		{"parseDrop", [][]byte{dropReport(testDrops[0]), dropReport(testDrops[1])},
			func(b []byte) error { _, err := parseDrop(b); return err }},
		{"DropCount.add", append(expressions, counterReport(1, 2, "counter")),
			func(b []byte) error { return new(DropCount).add(b) }},
	}
}

// TestSeeds: each parser accepts the messages that its fuzzing begins with.
func TestSeeds(t *testing.T) {
	for _, p := range parsers(t) {
		if len(p.seeds) == 0 {
			t.Errorf("%s: no seeds", p.name)
		}
		for _, b := range p.seeds {
			if err := p.parse(b); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		}
	}
}

// FuzzParse: no bytes make a parser panic or hang.
func FuzzParse(f *testing.F) {
	all := parsers(f)
	for _, p := range all {
		for _, b := range p.seeds {
			f.Add(b)
		}
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, p := range all {
			p.parse(b)
		}
	})
}

// FuzzRoundTrip: a report that is parsed, encoded and parsed again is the same report. Rules with other texts are not
// the same.
func FuzzRoundTrip(f *testing.F) {
	for _, p := range parsers(f) {
		for _, b := range p.seeds {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<14 {
			return // the encoded attributes could be too long for their 16 bits of length
		}
		check := func(first, again any, err error) {
			if err != nil || !reflect.DeepEqual(first, again) {
				t.Errorf("first %+v\nagain %+v, %v", first, again, err)
			}
		}
		for _, other := range [][]byte{b, b[:len(b)/2], b[len(b)/2:]} {
			if same, equal, err := compareLists(b, other); err == nil && same && !equal {
				t.Errorf("rules with other texts are the same: %x, %x", b, other)
			}
		}
		if d, err := parseDrop(b); err == nil && canBeReported(d) {
			again, err := parseDrop(dropReport(d))
			check(d, again, err)
		}
	})
}

// canBeReported reports whether the kernel could have sent a report of a rule of guestwire.
func canBeReported(d Drop) bool {
	return d.NIC != "" && len(d.Packet) > 0 && (d.Ethernet == nil || len(d.Ethernet) > 0) &&
		(d.Time.IsZero() || d.Time.Unix() > 0 && d.Time.Equal(d.Time.Truncate(time.Microsecond)))
}
