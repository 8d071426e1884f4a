package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
)

// readChainRules reads the rules of a table into the chains of the image.
func (n *Namespace) readChainRules(image *firewall.Image, rules known) error {
	list := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP,
		nfgenmsg{uint8(families[image.Family])}, nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(image.Name)))
	none := func() {
		for i := range image.Chains {
			image.Chains[i].Rules = nil
		}
	}
	return n.filter.dump(list, none, func(m []byte) error {
		rule, err := parseChainRule(m)
		at := slices.IndexFunc(image.Chains, func(c firewall.ChainImage) bool { return c.Name == rule.chain })
		if err != nil || rule.table != image.Name || at < 0 {
			return err
		}
		text, err := rules.text(rule.expressions)
		image.Chains[at].Rules = append(image.Chains[at].Rules, text)
		return err
	})
}

// chainRule is a rule in the kernel: the names of its table and chain, and its encoded expressions.
type chainRule struct {
	table, chain string
	expressions  []byte
}

// parseChainRule parses struct nfgenmsg and the attributes of a rule (NFTA_RULE_*).
func parseChainRule(m []byte) (r chainRule, err error) {
	err = eachAttribute(m, sizeofNfgenmsg, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			r.table = unix.ByteSliceToString(v)
		case unix.NFTA_RULE_CHAIN:
			r.chain = unix.ByteSliceToString(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = v
		}
		return nil
	})
	return r, err
}

// encodeRule returns a rule for the library, with its comment.
func encodeRule(c *nftables.Chain, r firewall.Rule) *nftables.Rule {
	return &nftables.Rule{
		Table: c.Table, Chain: c, Exprs: encodeExpressions(r),
		UserData: userdata.AppendString(nil, userdata.TypeComment, r.Comment()),
	}
}

// encodeExpressions returns the expressions of a rule: those of all matches, and then those of the verdict.
func encodeExpressions(r firewall.Rule) []expr.Any {
	var e []expr.Any
	for _, m := range r.Matches {
		e = append(e, encodeMatch(m)...)
	}
	return append(e, encodeVerdict(r.Verdict)...)
}

// encodeMatch returns expressions that load a part of the packet into register 1 and compare the register.
func encodeMatch(m firewall.Match) []expr.Any {
	meta := func(key expr.MetaKey, not bool, value []byte) []expr.Any {
		return []expr.Any{&expr.Meta{Key: key, Register: 1}, compare(not, value)}
	}
	payload := func(base expr.PayloadBase, offset int, mask []byte, not bool, value []byte) []expr.Any {
		e := []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: uint32(offset), Len: uint32(len(value))}}
		if mask != nil {
			e = append(e, masked(mask))
		}
		return append(e, compare(not, value))
	}
	const ether, network, transport = expr.PayloadBaseLLHeader, expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	switch m := m.(type) {
	case firewall.InInterface:
		return meta(expr.MetaKeyIIFNAME, m.Not, linkName(m.Name))
	case firewall.OutInterface:
		return meta(expr.MetaKeyOIFNAME, m.Not, linkName(m.Name))
	case firewall.EtherType:
		return payload(ether, 12, nil, false, be16(m.Number))
	case firewall.IP:
		return meta(expr.MetaKeyNFPROTO, false, []byte{map[int]byte{4: unix.NFPROTO_IPV4, 6: unix.NFPROTO_IPV6}[m.Version]})
	case firewall.Carries:
		return meta(expr.MetaKeyPROTOCOL, false, be16(map[int]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[m.Version]))
	case firewall.Protocol:
		return meta(expr.MetaKeyL4PROTO, m.Not, []byte{m.Number})
	case firewall.Source:
		return payload(network, addressOffset(m.Prefix, 12, 8), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.Destination:
		return payload(network, addressOffset(m.Prefix, 16, 24), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.SourcePort:
		return encodePort(0, m.First, m.Last, m.Not)
	case firewall.DestinationPort:
		return encodePort(2, m.First, m.Last, m.Not)
	case firewall.ICMP:
		if m.Code != 0 {
			return payload(transport, 0, nil, false, []byte{m.Type, m.Code})
		}
		return payload(transport, 0, nil, false, []byte{m.Type})
	case firewall.Bytes:
		base := map[firewall.Header]expr.PayloadBase{firewall.Ethernet: ether, firewall.Network: network, firewall.Transport: transport}[m.Header]
		return payload(base, m.Offset, m.Mask, m.Not, m.Value)
	case firewall.Fragment:
		return []expr.Any{
			&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6},
			masked([]byte{0xff, 0xf8}), compare(true, []byte{0, 0}),
		}
	case firewall.Longer:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, m.Octets)},
		}
	case firewall.State:
		return bits(expr.CtKeySTATE, uint32(m.States))
	case firewall.Translated:
		const dstNAT = 1 << 5 // IPS_DST_NAT, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, dstNAT)
	case firewall.Unconfirmed:
		const confirmed = 1 << 3 // IPS_CONFIRMED, linux/netfilter/nf_conntrack_common.h
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			masked(binary.NativeEndian.AppendUint32(nil, confirmed)), compare(false, make([]byte, 4)),
		}
	case firewall.Origin:
		load := &expr.Ct{Key: expr.CtKeySRC, Register: 1}
		if m.Reply {
			load.Direction = 1 // IP_CT_DIR_REPLY, linux/netfilter/nf_conntrack_tuple_common.h
		}
		address := m.Prefix.Masked().Addr().AsSlice()
		if bits := m.Prefix.Bits(); bits%8 == 0 && bits > 0 {
			return []expr.Any{load, compare(false, address[:bits/8])}
		}
		return []expr.Any{load, masked(firewall.Mask(m.Prefix)), compare(false, address)}
	case firewall.Connections:
		return []expr.Any{&expr.Connlimit{Count: m.Over, Flags: 1}} // NFT_CONNLIMIT_F_INV: over
	case firewall.Rate:
		limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(m.Packets), Unit: expr.LimitTimeSecond, Burst: uint32(m.Burst), Over: m.Over}
		if m.PerMinute {
			limit.Unit = expr.LimitTimeMinute
		}
		return []expr.Any{limit}
	case firewall.Faster:
		return []expr.Any{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: m.Octets, Unit: expr.LimitTimeSecond, Burst: m.Burst, Over: true}}
	case firewall.InSet:
		return []expr.Any{loadPart(m.Part), &expr.Lookup{SourceRegister: 1, SetName: m.Set, Invert: m.Not}}
	case firewall.AddToSet:
		add := &expr.Dynset{SrcRegKey: 1, SetName: m.Set, Operation: unix.NFT_DYNSET_OP_ADD}
		if m.Renew {
			add.Operation = unix.NFT_DYNSET_OP_UPDATE
		}
		return []expr.Any{loadPart(m.Part), add}
	case firewall.Opening:
		return payload(transport, 13, []byte{0x06}, m.Not, []byte{0x02})
	}
	panic(fmt.Sprintf("no expression for %T", m)) // a new type of match is missing above
}

// encodeVerdict returns the expressions of a verdict. Those with arguments load them into registers 1 and 2.
func encodeVerdict(v firewall.Verdict) []expr.Any {
	load := func(register uint32, value []byte) expr.Any { return &expr.Immediate{Register: register, Data: value} }
	switch v := v.(type) {
	case firewall.Accept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	case firewall.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case firewall.CountedDrop:
		return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	case firewall.Log:
		return []expr.Any{&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: v.Group, Data: []byte(v.Prefix)}}
	case firewall.Continue:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictContinue}}
	case firewall.Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: v.Chain}}
	case firewall.Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: v.Chain}}
	case firewall.DNAT:
		nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(addressFamily(v.Address)), RegAddrMin: 1}
		e := []expr.Any{load(1, v.Address.AsSlice())}
		if v.Port != 0 {
			nat.RegProtoMin, nat.Specified = 2, true
			e = append(e, load(2, be16(v.Port)))
		}
		return append(e, nat)
	case firewall.SNAT:
		return []expr.Any{load(1, v.Address.AsSlice()), &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(addressFamily(v.Address)), RegAddrMin: 1}}
	case firewall.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case firewall.Masquerade:
		switch {
		case v == (firewall.Masquerade{}):
			return []expr.Any{&expr.Masq{}}
		case v.First == v.Last:
			return []expr.Any{load(1, be16(v.First)), &expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: specifiedPorts}}
		}
		return []expr.Any{load(1, be16(v.First)), load(2, be16(v.Last)), &expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 2, Flags: specifiedPorts}}
	case firewall.Fwd:
		return []expr.Any{load(1, binary.NativeEndian.AppendUint32(nil, uint32(v.Index))), &expr.Dup{RegAddr: 1}}
	case firewall.ClampMSS:
		return []expr.Any{
			&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
			setMSS,
		}
	case firewall.LowerMSS:
		return []expr.Any{load(1, be16(v.To)), setMSS}
	}
	panic(fmt.Sprintf("no expression for %T", v)) // a new type of verdict is missing above
}

// setMSS writes register 1 into the MSS of a TCP segment, unless the MSS there is lower (nft_exthdr_tcp_set_eval in
// net/netfilter/nft_exthdr.c).
var setMSS = &expr.Exthdr{SourceRegister: 1, Type: 2 /* TCPOPT_MAXSEG */, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}

// The library cannot encode fwd. dup has the same first attribute with the same number (NFTA_DUP_SREG_ADDR,
// NFTA_FWD_SREG_DEV, linux/netfilter/nf_tables.h), and no rule of guestwire uses dup. So encodeVerdict makes
// a dup, and mend renames it to fwd. The names have the same length.
var (
	dupName = nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("dup")).Serialize()
	fwdName = nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("fwd")).Serialize()
)

// The library writes the direction of a ct expression with four octets, of which the kernel reads the first
// (nft_ct_policy in net/netfilter/nft_ct.c), and complains of the others in its log. The key before the direction
// keeps other attributes apart.
var wideReply, narrowReply = directionOf([]byte{0, 0, 0, 1}), directionOf([]byte{1})
var wideOriginal, narrowOriginal = directionOf([]byte{0, 0, 0, 0}), directionOf([]byte{0})

func directionOf(direction []byte) []byte {
	key := nl.NewRtAttr(unix.NFTA_CT_KEY, binary.BigEndian.AppendUint32(nil, unix.NFT_CT_SRC)).Serialize()
	register := nl.NewRtAttr(unix.NFTA_CT_DREG, binary.BigEndian.AppendUint32(nil, 1)).Serialize()
	return slices.Concat(key, register, nl.NewRtAttr(unix.NFTA_CT_DIRECTION, direction).Serialize())
}

// The library writes a masq with ports without its flags, and the kernel then ignores the ports. redir has the same
// attributes under other numbers, and no rule of guestwire uses redir. So encodeVerdict makes a redir, and mend makes a
// masq of it. With padding, the names have the same length.
var (
	redirName = paddedName("redir")
	masqName  = paddedName("masq")
)

// specifiedPorts is NF_NAT_RANGE_PROTO_SPECIFIED (linux/netfilter/nf_nat.h).
const specifiedPorts = 2

func paddedName(name string) []byte {
	b := nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name)).Serialize()
	return append(b, make([]byte, 12-len(b))...)
}

// mendRedir makes a masq of each redir in a message, whose attributes are the first and the last port's register, and
// the flags.
func mendRedir(message []byte) []byte {
	const data, size = 4, 8 // a header, an attribute of 32 bits
	for at := bytes.Index(message, redirName); at >= 0; at = bytes.Index(message, redirName) {
		copy(message[at:], masqName)
		attributes := message[at+len(masqName)+data:]
		for i, number := range []uint16{unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX, unix.NFTA_MASQ_FLAGS} {
			binary.NativeEndian.PutUint16(attributes[i*size+2:], number)
		}
	}
	return message
}

// mend puts into a message what the library cannot encode: fwd, the direction of ct, ports of masq. No length changes.
func mend(message []byte) []byte {
	message = bytes.ReplaceAll(message, dupName, fwdName)
	message = bytes.ReplaceAll(message, wideOriginal, narrowOriginal)
	message = bytes.ReplaceAll(message, wideReply, narrowReply)
	return mendRedir(message)
}

// loadPart loads an address of the packet into register 1.
func loadPart(p firewall.Part) expr.Any {
	switch p {
	case firewall.SourceAddress4:
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	case firewall.ARPSender:
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 14, Len: 4}
	case firewall.SourceAddress6, firewall.RawSource6:
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}
	case firewall.DiscoveryTarget:
		return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 16}
	case firewall.NextHop4:
		return &expr.Rt{Register: 1, Key: expr.RtNexthop4}
	case firewall.NextHop6:
		return &expr.Rt{Register: 1, Key: expr.RtNexthop6}
	}
	panic("no expression for the part " + string(p)) // a new part is missing above
}

// compare compares register 1 with a value.
func compare(not bool, value []byte) *expr.Cmp {
	if not {
		return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value}
	}
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}
}

// masked masks register 1.
func masked(mask []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

// bits matches a connection of which at least one of the bits is set.
func bits(key expr.CtKey, set uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		masked(binary.NativeEndian.AppendUint32(nil, set)), compare(true, make([]byte, 4)),
	}
}

// encodePort matches a port, or a range of ports, at an offset in the transport header.
func encodePort(offset uint32, first, last uint16, not bool) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	if first == last {
		return []expr.Any{load, compare(not, be16(first))}
	}
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return []expr.Any{load, &expr.Range{Op: op, Register: 1, FromData: be16(first), ToData: be16(last)}}
}

// addressOffset is the offset of an address in the IPv4 or in the IPv6 header.
func addressOffset(p netip.Prefix, v4, v6 int) int {
	if p.Addr().Is4() {
		return v4
	}
	return v6
}

// linkName is a link's name with zeros up to IFNAMSIZ: the kernel compares all octets.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// be16 is a number in network order.
func be16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// known are the texts of rules, by the text of their expressions.
type known map[string]string

// knowRules returns the rules of the tables by their expressions. A rule in the kernel is recognised by
// encoding the wanted rules: decoding would need to understand every expression that a kernel has.
func knowRules(tables []firewall.Table) (known, error) {
	k := known{}
	for _, t := range tables {
		if t.Family.IPTables() != 0 {
			continue
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				var own []byte
				for _, e := range encodeExpressions(r) {
					b, err := expr.Marshal(byte(families[t.Family]), e)
					if err != nil {
						return nil, fmt.Errorf("encode the rule %v: %w", r, err)
					}
					own = append(own, nl.NewRtAttr(unix.NFTA_LIST_ELEM, mend(b)).Serialize()...)
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

// text is the text of the known rule with these expressions; for other rules it is firewall.Unknown and the
// expressions.
func (k known) text(expressions []byte) (string, error) {
	list, err := parseExpressions(expressions)
	have := expressionsText(list)
	if text, ok := k[have]; ok {
		return text, err
	}
	return firewall.Unknown + ": " + have, err
}
