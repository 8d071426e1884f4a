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

var families = map[firewall.Family]nftables.TableFamily{
	firewall.Inet:   nftables.TableFamilyINet,
	firewall.Bridge: nftables.TableFamilyBridge,
	firewall.NetDev: nftables.TableFamilyNetdev,
}

var errEncoded = errors.New("encoded")

// encodeTables returns the messages of one transaction, the frame around it included. The library's own Flush asks for one
// acknowledgement a message, which takes ten times as long as the commit itself; so it is used to
// encode, with a connection that keeps what it is given.
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
			encodeTable(c, o.Table)
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
		m.Data = withForwarding(m.Data)
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

// encodeTable adds the chains before the rules, as a rule can go to a later chain.
func encodeTable(c *nftables.Conn, table firewall.Table) {
	t := c.AddTable(&nftables.Table{Family: families[table.Family], Name: table.Name})
	chains := make([]*nftables.Chain, len(table.Chains))
	for i, chain := range table.Chains {
		chains[i] = c.AddChain(encodeChain(t, chain))
	}
	for i, chain := range table.Chains {
		for _, rule := range chain.Rules {
			c.AddRule(encodeRule(chains[i], rule))
		}
	}
}

// nfgenmsg is struct nfgenmsg (linux/netfilter/nfnetlink.h).
type nfgenmsg struct{ family uint8 }

const sizeofNfgenmsg = 4

func (m nfgenmsg) Len() int { return sizeofNfgenmsg }

func (m nfgenmsg) Serialize() []byte { return []byte{m.family, unix.NFNETLINK_V0, 0, 0} }

// readTables reads our tables. The rules of those that are wanted are known.
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
	if errors.Is(err, unix.EINVAL) { // nobody knows such messages (nfnetlink_rcv_msg)
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
		if err := n.readChainRules(&image, rules); err != nil {
			return err
		}
		s.Tables = append(s.Tables, image)
	}
	return nil
}

// parseTable returns a table with all that is in it as Others.
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
