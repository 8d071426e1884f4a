package nft

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/nft/nfttest"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

// parsers are all parsers of this package. The encoders make the seeds of all messages that are also sent.
func parsers(t testing.TB) netlinktest.Parsers {
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
	return netlinktest.Parsers{
		{Name: "parseTable", Seeds: table[unix.NFT_MSG_NEWTABLE],
			Parse: func(b []byte) error { _, err := parseTable(b); return err }},
		{Name: "parseSet", Seeds: slices.Concat(table[unix.NFT_MSG_NEWSET], deviceTable[unix.NFT_MSG_NEWSET]),
			Parse: func(b []byte) error { _, _, err := parseSet(b); return err }},
		{Name: "parseFlowTable", Seeds: flowTable[unix.NFT_MSG_NEWFLOWTABLE],
			Parse: func(b []byte) error { _, _, err := parseFlowTable(b); return err }},
		{Name: "watches", Seeds: chains,
			Parse: func(b []byte) error { _, err := watches(b); return err }},
		{Name: "parseElements", Seeds: table[unix.NFT_MSG_NEWSETELEM],
			Parse: func(b []byte) error { _, err := parseElements(b); return err }},
		{Name: "appendBoxes", Seeds: table[unix.NFT_MSG_NEWSETELEM],
			Parse: func(b []byte) error {
				for _, d := range firewall.DestinationsOf("", 4, nil) {
					if err := appendBoxes(&d, new(bool), b); err != nil {
						return err
					}
					_ = joined(d).Held()
				}
				return nil
			}},
		{Name: "parseChain", Seeds: chains,
			Parse: func(b []byte) error { _, _, err := parseChain(b); return err }},
		{Name: "parseHook", Seeds: [][]byte{netlinktest.Inside(t, chains[0], netlink.SizeofNetfilter, unix.NFTA_CHAIN_HOOK)},
			Parse: func(b []byte) error { return parseHook(b, true, &firewall.Chain{}) }},
		{Name: "parseChainRule", Seeds: table[unix.NFT_MSG_NEWRULE],
			Parse: func(b []byte) error { _, err := parseChainRule(b); return err }},
		{Name: "known.text", Seeds: expressions,
			Parse: func(b []byte) error { _, err := rules.text(b); return err }},
		{Name: "parseDrop", Seeds: [][]byte{dropReport(testDrops[0]), dropReport(testDrops[1])},
			Parse: func(b []byte) error { _, err := parseDrop(b); return err }},
		{Name: "DropCount.add", Seeds: append(expressions, counterReport(1, 2, "counter")),
			Parse: func(b []byte) error { return new(DropCount).add(b) }},
	}
}

// TestSeeds: each parser accepts the messages that its fuzzing begins with.
func TestSeeds(t *testing.T) { parsers(t).CheckSeeds(t) }

// FuzzParse: no bytes make a parser panic or hang.
func FuzzParse(f *testing.F) { parsers(f).Fuzz(f) }

// FuzzRoundTrip: a report that is parsed, encoded and parsed again is the same report. Rules with other texts are not
// the same.
func FuzzRoundTrip(f *testing.F) {
	parsers(f).FuzzRoundTrip(f, func(t *testing.T, b []byte, check func(first, again any, err error)) {
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
