package nft

import (
	"encoding/binary"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Counts are what the tables of a wiring have counted.
type Counts struct {
	Drops []DropCount // in the order of firewall.Reasons, without reasons for which the tables drop nothing
	// Opened are the connections that firewall.Allowed has counted; nil: there is no policy. Diverted are those that
	// firewall.Diverted has counted; nil: nothing diverts.
	Opened, Diverted *uint64
}

// DropCount is what the tables of a wiring have dropped for one reason.
type DropCount struct {
	Reason         firewall.Reason
	Packets, Bytes uint64
	// Logged: the rules also report packets to firewall.LogGroup.
	Logged bool
}

// Counts reads the counters of the nftables tables with the name, of all families. Without a table there are none. A
// word that is none of firewall.Reasons is left out.
func (n *Tables) Counts(table string) (c Counts, err error) {
	if n.filter == nil {
		return c, nil
	}
	counts := map[firewall.Reason]DropCount{} // and of Allowed and Diverted
	for family := range families {            // a dump of all families ends with the first table of the name
		if family.Shared() { // which drops nothing
			continue
		}
		earlier := maps.Clone(counts)
		err := n.filter.Dump(listRules(family, table), func() { counts = maps.Clone(earlier) }, func(m []byte) error {
			rule, err := parseChainRule(m)
			chain := string(rule.chain)
			reason, ok := firewall.ReasonOf(chain)
			if err != nil || string(rule.table) != table || !ok && chain != firewall.Allowed && chain != firewall.Diverted {
				return err
			}
			count := counts[reason]
			err = count.add(rule.expressions)
			counts[reason] = count
			return err
		})
		if netlink.Answers(err, unix.EINVAL) { // nfnetlink without nf_tables
			return c, nil
		}
		if err != nil {
			return c, err
		}
	}
	for _, r := range firewall.Reasons {
		if count, there := counts[r.Reason]; there {
			count.Reason = r.Reason
			c.Drops = append(c.Drops, count)
		}
	}
	if count, there := counts[firewall.Allowed]; there {
		c.Opened = &count.Packets
	}
	if count, there := counts[firewall.Diverted]; there {
		c.Diverted = &count.Packets
	}
	return c, nil
}

// Attributes of a counter (NFTA_COUNTER_*, linux/netfilter/nf_tables.h).
const (
	counterBytes   = 1
	counterPackets = 2
)

// add adds what the counters among the expressions of a rule have counted.
func (c *DropCount) add(expressions []byte) error {
	return netlink.EachAttribute(expressions, 0, func(_ uint16, element []byte) error {
		var name string
		var data []byte
		err := netlink.EachAttribute(element, 0, func(kind uint16, v []byte) error {
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
			return netlink.EachAttribute(data, 0, func(kind uint16, v []byte) error {
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
