package kernel

import (
	"cmp"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
)

// DropCount is what the tables of a wiring have dropped for one reason.
type DropCount struct {
	Reason         firewall.Reason
	Packets, Bytes uint64
	// Logged: the rules also report packets to firewall.LogGroup.
	Logged bool
}

// Drops reads the counters of the nftables tables with the name, of all families, in the order of firewall.Reasons. A
// reason for which the tables drop nothing is left out, so without a table there are none. A word that is none of these
// reasons is left out, too.
func (n *Namespace) Drops(table string) ([]DropCount, error) {
	if n.filter == nil {
		return nil, nil
	}
	var counts []DropCount
	for family := range families { // a dump of all families ends with the first table of the name
		earlier := slices.Clone(counts)
		err := n.filter.dump(listRules(family, table), func() { counts = slices.Clone(earlier) }, func(m []byte) error {
			rule, err := parseChainRule(m)
			reason, ok := firewall.ReasonOf(string(rule.chain))
			if err != nil || string(rule.table) != table || !ok {
				return err
			}
			at := slices.IndexFunc(counts, func(c DropCount) bool { return c.Reason == reason })
			if at < 0 {
				at = len(counts)
				counts = append(counts, DropCount{Reason: reason})
			}
			return counts[at].add(rule.expressions)
		})
		if answers(err, unix.EINVAL) { // nfnetlink without nf_tables
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	order := func(c DropCount) int {
		return slices.IndexFunc(firewall.Reasons, func(r firewall.Described) bool { return r.Reason == c.Reason })
	}
	slices.SortFunc(counts, func(a, b DropCount) int { return cmp.Compare(order(a), order(b)) })
	return counts, nil
}

// Attributes of a counter (NFTA_COUNTER_*, linux/netfilter/nf_tables.h).
const (
	counterBytes   = 1
	counterPackets = 2
)

// add adds what the counters among the expressions of a rule have counted.
func (c *DropCount) add(expressions []byte) error {
	return eachAttribute(expressions, 0, func(_ uint16, element []byte) error {
		var name string
		var data []byte
		err := eachAttribute(element, 0, func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				name = unix.ByteSliceToString(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case name == "log":
			c.Logged = true
		case name == "counter":
			return eachAttribute(data, 0, func(kind uint16, v []byte) error {
				switch kind {
				case counterBytes:
					c.Bytes += be64(v)
				case counterPackets:
					c.Packets += be64(v)
				}
				return nil
			})
		}
		return nil
	})
}

// be64 is a number of 8 octets in network order; 0 if the value is shorter.
func be64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
