package kernel

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// nfgenmsg is struct nfgenmsg (linux/netfilter/nfnetlink.h).
type nfgenmsg struct{ family uint8 }

const sizeofNfgenmsg = 4

func (m nfgenmsg) Len() int          { return sizeofNfgenmsg }
func (m nfgenmsg) Serialize() []byte { return []byte{m.family, unix.NFNETLINK_V0, 0, 0} }

// tables reads our tables. The rules of those that are wanted are known.
func (n *Namespace) tables(s *netstate.Snapshot, name string, wanted []firewall.Table) error {
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
		if err := n.chainsOf(&image); err != nil {
			return err
		}
		if err := n.rulesOf(&image, rules); err != nil {
			return err
		}
		s.Tables = append(s.Tables, image)
	}
	return nil
}

// parseTable returns a table with all that is in it as Others.
func parseTable(m []byte) (image firewall.Image, err error) {
	err = attributes(m, sizeofNfgenmsg, func(kind uint16, v []byte) error {
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

// chainsOf reads the chains of a table. What a table counts besides them are sets, objects and the
// like, of which one of ours has none.
func (n *Namespace) chainsOf(image *firewall.Image) error {
	list := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, nfgenmsg{uint8(families[image.Family])})
	err := n.filter.dump(list, func() { image.Chains = nil }, func(m []byte) error {
		chain, table, err := parseChain(m)
		if table == image.Name {
			image.Chains = append(image.Chains, chain)
		}
		return err
	})
	image.Others -= len(image.Chains)
	slices.SortFunc(image.Chains, func(a, b firewall.ChainImage) int { return strings.Compare(a.Name, b.Name) })
	return err
}

// parseChain returns a chain without its rules.
func parseChain(m []byte) (chain firewall.ChainImage, table string, err error) {
	var base firewall.Chain
	var hook []byte
	var flags uint32
	err = attributes(m, sizeofNfgenmsg, func(attribute uint16, v []byte) error {
		switch attribute {
		case unix.NFTA_CHAIN_TABLE:
			table = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_NAME:
			chain.Name = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_TYPE:
			base.Type = unix.ByteSliceToString(v)
		case unix.NFTA_CHAIN_HOOK:
			hook = v
		case unix.NFTA_CHAIN_POLICY:
			base.Drops = be32(v) == uint32(nftables.ChainPolicyDrop)
		case chainFlags:
			flags = be32(v)
		}
		return nil
	})
	if err != nil || hook == nil {
		return chain, table, err
	}
	err = parseHook(hook, m[0] == unix.NFPROTO_NETDEV, &base)
	chain.Head = base.Head()
	if flags &^= chainBase; flags != 0 {
		chain.Head += fmt.Sprintf(" flags %#x;", flags)
	}
	return chain, table, err
}

// What unix does not name (linux/netfilter/nf_tables.h).
const (
	chainFlags = 10 // NFTA_CHAIN_FLAGS
	chainBase  = 1  // NFT_CHAIN_BASE
)

func parseHook(b []byte, ofDevice bool, base *firewall.Chain) error {
	return attributes(b, 0, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			base.Hook = hookName(be32(v), ofDevice)
		case unix.NFTA_HOOK_PRIORITY:
			base.Priority = int(int32(be32(v)))
		case unix.NFTA_HOOK_DEV:
			base.Device = unix.ByteSliceToString(v)
		}
		return nil
	})
}

// hookNames are by number (linux/netfilter.h, enum nf_inet_hooks), and the same in linux/netfilter_bridge.h.
var hookNames = []firewall.Hook{firewall.Prerouting, firewall.Input, firewall.Forward, firewall.Output, firewall.Postrouting}

func hookName(number uint32, ofDevice bool) firewall.Hook {
	switch {
	case ofDevice && number == unix.NF_NETDEV_INGRESS:
		return firewall.Ingress
	case !ofDevice && number < uint32(len(hookNames)):
		return hookNames[number]
	}
	return firewall.Hook(fmt.Sprint(number))
}

// rulesOf reads the rules into the chains of a table.
func (n *Namespace) rulesOf(image *firewall.Image, rules known) error {
	list := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP,
		nfgenmsg{uint8(families[image.Family])}, nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(image.Name)))
	none := func() {
		for i := range image.Chains {
			image.Chains[i].Rules = nil
		}
	}
	return n.filter.dump(list, none, func(m []byte) error {
		var table, chain string
		var expressions []byte
		err := attributes(m, sizeofNfgenmsg, func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = unix.ByteSliceToString(v)
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(v)
			case unix.NFTA_RULE_EXPRESSIONS:
				expressions = v
			}
			return nil
		})
		at := slices.IndexFunc(image.Chains, func(c firewall.ChainImage) bool { return c.Name == chain })
		if err != nil || table != image.Name || at < 0 {
			return err
		}
		text, err := rules.text(expressions)
		image.Chains[at].Rules = append(image.Chains[at].Rules, text)
		return err
	})
}

// known are the texts of rules by what the kernel tells of their expressions.
type known map[string]string

// knowRules encodes the tables' rules, as what is in the kernel could only be decoded if every
// expression there is were understood.
func knowRules(tables []firewall.Table) (known, error) {
	k := known{}
	for _, t := range tables {
		if t.Family.IPTables() != 0 {
			continue
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				var own []byte
				for _, e := range ruleExpressions(r) {
					b, err := expr.Marshal(byte(families[t.Family]), e)
					if err != nil {
						return nil, fmt.Errorf("encode the rule %v: %w", r, err)
					}
					own = append(own, nl.NewRtAttr(unix.NFTA_LIST_ELEM, withForwarding(b)).Serialize()...)
				}
				list, err := parseExpressions(own)
				if err != nil {
					return nil, fmt.Errorf("encode the rule %v: %w", r, err)
				}
				k[expressionsText(list)] = r.String()
			}
		}
	}
	return k, nil
}

// text is that of the rule whose expressions these are.
func (k known) text(expressions []byte) (string, error) {
	list, err := parseExpressions(expressions)
	have := expressionsText(list)
	if text, ok := k[have]; ok {
		return text, err
	}
	return firewall.Unknown + ": " + have, err
}

// expression is one of a rule, with its attributes in the order of their numbers.
type expression struct {
	name       string
	attributes []attribute
}

// attribute is numbered by the attributes around it and its own, 8 bits each, its own last.
type attribute struct {
	number uint32
	value  []byte
}

// newest are the attributes that there were when this was written. Later ones are not looked at: a
// kernel that has them tells them of our rules as well.
var newest = map[string]uint16{
	"meta": 3, "cmp": 3, "payload": 8, "immediate": 2, "masq": 3, "nat": 7, "bitwise": 5, "byteorder": 5,
	"connlimit": 2, "fwd": 3, "ct": 4, "exthdr": 7, "range": 4, "rt": 2,
}

// nested says which attributes hold others: struct nft_data of a comparison and of a register's
// value, and in that a verdict.
func (e expression) nested(number uint32) bool {
	return e.name == "cmp" && number == unix.NFTA_CMP_DATA ||
		e.name == "immediate" && (number == unix.NFTA_IMMEDIATE_DATA || number == unix.NFTA_IMMEDIATE_DATA<<8|unix.NFTA_DATA_VERDICT)
}

func parseExpressions(b []byte) (list []expression, err error) {
	err = attributes(b, 0, func(_ uint16, element []byte) error {
		var e expression
		var data []byte
		err := attributes(element, 0, func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				e.name = unix.ByteSliceToString(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
			return nil
		})
		if err == nil {
			err = e.parse(0, data)
		}
		slices.SortFunc(e.attributes, func(a, b attribute) int { return cmp.Compare(a.number, b.number) })
		e.normalise()
		list = append(list, e)
		return err
	})
	return list, err
}

func (e *expression) parse(around uint32, b []byte) error {
	return attributes(b, 0, func(kind uint16, v []byte) error {
		if last, ok := newest[e.name]; ok && around == 0 && kind > last {
			return nil
		}
		number := around<<8 | uint32(kind)
		if e.nested(number) {
			return e.parse(number, v)
		}
		e.attributes = append(e.attributes, attribute{number, v})
		return nil
	})
}

// normalise takes away what the kernel adds: to a translation to one address and port the ends of the
// ranges, and that there are ranges; to a header that is looked for or written, that there are no flags.
func (e *expression) normalise() {
	switch e.name {
	case "nat":
		const ranges = 1 | 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED, linux/netfilter/nf_nat.h
		address, port := string(e.value(unix.NFTA_NAT_REG_ADDR_MIN)), string(e.value(unix.NFTA_NAT_REG_PROTO_MIN))
		e.without(func(a attribute) bool {
			return a.number == unix.NFTA_NAT_REG_ADDR_MAX && string(a.value) == address ||
				a.number == unix.NFTA_NAT_REG_PROTO_MAX && string(a.value) == port ||
				a.number == unix.NFTA_NAT_FLAGS && be32(a.value)&^ranges == 0
		})
	case "exthdr":
		e.without(func(a attribute) bool { return a.number == unix.NFTA_EXTHDR_FLAGS && be32(a.value) == 0 })
	}
}

func (e *expression) without(f func(attribute) bool) {
	e.attributes = slices.DeleteFunc(e.attributes, f)
}

func (e *expression) value(number uint32) []byte {
	for _, a := range e.attributes {
		if a.number == number {
			return a.value
		}
	}
	return nil
}

// expressionsText is such as "[meta 1=00000001 2=00000006][cmp 1=00000001 2=00000000 301=6c6f]".
func expressionsText(list []expression) string {
	var b []byte
	for _, e := range list {
		b = append(append(b, '['), e.name...)
		for _, a := range e.attributes {
			b = append(strconv.AppendUint(append(b, ' '), uint64(a.number), 16), '=')
			b = hex.AppendEncode(b, a.value)
		}
		b = append(b, ']')
	}
	return string(b)
}

// be32 is a number as nftables tells it.
func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
