package kernel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// families are the nftables families in use, as numbers (NFPROTO_*, linux/netfilter.h).
var families = map[firewall.Family]nftables.TableFamily{
	firewall.Inet:   nftables.TableFamilyINet,
	firewall.Bridge: nftables.TableFamilyBridge,
	firewall.NetDev: nftables.TableFamilyNetdev,
}

// errEncoded ends Flush of the library once the messages are encoded.
var errEncoded = errors.New("encoded")

// encodeTables returns the messages of one transaction, with the messages that begin and end it
// (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END).
//
// The library only encodes here: Flush hands the messages to a function that keeps them. Sent by the
// library, each message would ask for an acknowledgement of its own, which takes ten times as long as the
// commit.
func encodeTables(ops []netstate.Op) ([][]byte, error) {
	var encoded []netlink.Message
	c, err := nftables.New(nftables.WithTestDial(func(messages []netlink.Message) ([]netlink.Message, error) {
		encoded = append(encoded, messages...)
		return nil, errEncoded
	}))
	if err != nil {
		return nil, err
	}
	for _, op := range ops {
		switch o := op.(type) {
		case netstate.TableSet:
			if err := encodeTable(c, o.Table); err != nil {
				return nil, fmt.Errorf("encode nftables sets: %w", err)
			}
		case netstate.TableDel:
			c.DelTable(&nftables.Table{Family: families[o.Family], Name: o.Name})
		default:
			return nil, fmt.Errorf("no nftables message for %T", op)
		}
	}
	if err := c.Flush(); !errors.Is(err, errEncoded) && len(encoded) == 0 {
		return nil, fmt.Errorf("encode nftables rules: %w", err)
	}
	var messages [][]byte
	for _, m := range encoded {
		m.Data = mend(m.Data)
		m.Header.Flags &^= netlink.Acknowledge | netlink.Echo
		m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
		raw, err := m.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("encode nftables rules: %w", err)
		}
		messages = append(messages, raw)
	}
	return messages, nil
}

// encodeTable adds a table to the transaction: all sets and chains before all rules, as a rule can name each of them.
func encodeTable(c *nftables.Conn, table firewall.Table) error {
	t := c.AddTable(&nftables.Table{Family: families[table.Family], Name: table.Name})
	for i, s := range table.Sets {
		var elements []nftables.SetElement
		for _, e := range s.Elements {
			elements = append(elements, nftables.SetElement{Key: e})
		}
		if err := c.AddSet(encodeSet(t, s, uint32(i+1)), elements); err != nil {
			return err
		}
	}
	chains := make([]*nftables.Chain, len(table.Chains))
	for i, chain := range table.Chains {
		chains[i] = c.AddChain(encodeChain(t, chain))
	}
	for i, chain := range table.Chains {
		for _, rule := range chain.Rules {
			c.AddRule(encodeRule(chains[i], rule))
		}
	}
	return nil
}

// nfgenmsg is struct nfgenmsg (linux/netfilter/nfnetlink.h), the header of all messages of nftables.
type nfgenmsg struct{ family uint8 }

const sizeofNfgenmsg = 4

func (m nfgenmsg) Len() int { return sizeofNfgenmsg }

func (m nfgenmsg) Serialize() []byte { return []byte{m.family, unix.NFNETLINK_V0, 0, 0} }

// readTables reads the nftables tables with the name, of all families in use. Rules that equal a rule of the
// wanted tables get that rule's text.
func (n *Namespace) readTables(s *netstate.Snapshot, name string, wanted []firewall.Table) error {
	if n.filter == nil {
		s.NoNFTables = true
		return nil
	}
	found := map[firewall.Family]firewall.Image{}
	list := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, nfgenmsg{unix.NFPROTO_UNSPEC})
	err := n.filter.dump(list, func() { clear(found) }, func(m []byte) error {
		image, err := parseTable(m)
		if image.Name == name && image.Family != "" {
			found[image.Family] = image
		}
		return err
	})
	if errors.Is(err, unix.EINVAL) { // nfnetlink without nf_tables (nfnetlink_rcv_msg in the kernel)
		s.NoNFTables = true
		return nil
	}
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	var resolved []firewall.Table
	for _, t := range wanted {
		resolved = append(resolved, t.Resolve(func(name string) int {
			l, _ := s.Named(name)
			return l.Index
		}))
	}
	rules, err := knowRules(resolved)
	if err != nil {
		return err
	}
	for _, family := range slices.Sorted(maps.Keys(found)) {
		image := found[family]
		if err := n.readChains(&image); err != nil {
			return err
		}
		if err := n.readSets(&image); err != nil {
			return err
		}
		if err := n.readChainRules(&image, rules); err != nil {
			return err
		}
		s.Tables = append(s.Tables, image)
	}
	return nil
}

// parseTable parses struct nfgenmsg and the attributes of a table (linux/netfilter/nf_tables.h,
// NFTA_TABLE_*). Others is the number of all objects in the table, its chains and sets included. Family is empty for a
// family that is not in use.
func parseTable(m []byte) (image firewall.Image, err error) {
	err = eachAttribute(m, sizeofNfgenmsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_TABLE_NAME:
			image.Name = unix.ByteSliceToString(v)
		case unix.NFTA_TABLE_FLAGS:
			image.Flags = be32(v)
		case unix.NFTA_TABLE_USE:
			image.Others = int(be32(v))
		}
		return nil
	})
	for family, number := range families {
		if err == nil && m[0] == byte(number) {
			image.Family = family
		}
	}
	return image, err
}
