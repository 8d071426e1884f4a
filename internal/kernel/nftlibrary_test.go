package kernel

// The encoding of tables by github.com/google/nftables, which TestLibrary compares with ours.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// errEncoded ends Flush of the library once the messages are encoded. ENOBUFS ends Flush at the first message: of other
// errors Flush would join one for each message, and copy the text of all before with each.
var errEncoded = fmt.Errorf("encoded: %w", unix.ENOBUFS)

// libraryTables returns the messages of one transaction, with the messages that begin and end it
// (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END).
//
// The library only encodes here: Flush hands the messages to a function that keeps them. Sent by the
// library, each message would ask for an acknowledgement of its own, which takes ten times as long as the
// commit.
func libraryTables(ops []netstate.Op) ([][]byte, error) {
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
			if err := libraryTable(c, o.Table); err != nil {
				return nil, fmt.Errorf("encode nftables sets: %w", err)
			}
		case netstate.TableDel:
			c.DelTable(&nftables.Table{Family: nftables.TableFamily(families[o.Family]), Name: o.Name})
		default:
			return nil, fmt.Errorf("no nftables message for %T", op)
		}
	}
	if err := c.Flush(); !errors.Is(err, errEncoded) && len(encoded) == 0 {
		return nil, fmt.Errorf("encode nftables rules: %w", err)
	}
	var messages [][]byte
	for _, m := range encoded {
		repair(m.Data)
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

// libraryTable adds a table to the transaction: all sets and chains before all rules, as a rule can name each of them.
func libraryTable(c *nftables.Conn, table firewall.Table) error {
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamily(families[table.Family]), Name: table.Name})
	for i, s := range table.Sets {
		var elements []nftables.SetElement
		for _, e := range s.Elements {
			elements = append(elements, nftables.SetElement{Key: e.Key, Timeout: time.Duration(e.Milliseconds) * time.Millisecond})
		}
		if err := c.AddSet(encodeSet(t, s, uint32(i+1)), elements); err != nil {
			return err
		}
	}
	for i, m := range table.Maps {
		var elements []nftables.SetElement
		for _, r := range m.Ranges {
			for i := range r.Last - r.First + 1 {
				elements = append(elements, nftables.SetElement{Key: be16(r.First + i), Val: be16(r.To + i)})
			}
		}
		set := &nftables.Set{Table: t, ID: uint32(len(table.Sets) + i + 1), Name: m.Name, IsMap: true, KeyType: nftables.TypeInetService, DataType: nftables.TypeInetService, Size: uint32(m.Size())}
		first := elements[:min(len(elements), mostPortElements)]
		if err := c.AddSet(set, first); err != nil {
			return err
		}
		for more := range slices.Chunk(elements[len(first):], mostPortElements) {
			if err := c.SetAddElements(set, more); err != nil {
				return err
			}
		}
	}
	for i, d := range table.Destinations {
		address := nftables.TypeIPAddr
		if d.Version == 6 {
			address = nftables.TypeIP6Addr
		}
		key := func(a netip.Addr, protocol uint8, port uint16) []byte {
			return slices.Concat(a.AsSlice(), []byte{protocol, 0, 0, 0}, be16(port), []byte{0, 0})
		}
		var elements []nftables.SetElement
		for _, b := range d.Boxes {
			if d.AllPorts {
				elements = append(elements, nftables.SetElement{Key: b.First.AsSlice()})
				if after := b.Last.Next(); after.IsValid() {
					elements = append(elements, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
				}
				continue
			}
			elements = append(elements, nftables.SetElement{Key: key(b.First, b.FirstProtocol, b.FirstPort), KeyEnd: key(b.Last, b.LastProtocol, b.LastPort)})
		}
		set := &nftables.Set{Table: t, ID: uint32(len(table.Sets) + len(table.Maps) + i + 1), Name: d.Name, Interval: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService)}
		if d.AllPorts {
			set.Concatenation, set.KeyType, set.KeyByteOrder = false, address, binaryutil.BigEndian
		}
		if err := c.AddSet(set, elements); err != nil {
			return err
		}
	}
	for _, f := range table.Flows {
		c.AddFlowtable(&nftables.Flowtable{Table: t, Name: f.Name, Devices: zeroEnded(f.Devices), Priority: nftables.FlowtablePriorityRef(nftables.FlowtablePriority(f.Priority))})
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

// encodeChain returns a chain for the library, without its rules.
func encodeChain(t *nftables.Table, chain firewall.Chain) *nftables.Chain {
	c := &nftables.Chain{Table: t, Name: chain.Name}
	if chain.Hook == "" {
		return c
	}
	priority, policy := nftables.ChainPriority(int32(chain.Priority)), nftables.ChainPolicyAccept
	if chain.Drops {
		policy = nftables.ChainPolicyDrop
	}
	c.Type, c.Hooknum, c.Device = nftables.ChainType(chain.Type), nftables.ChainHookRef(nftables.ChainHook(hooks[chain.Hook])), chain.Device
	c.Priority, c.Policy = &priority, &policy
	return c
}

// encodeSet returns a set for the library, without elements. Number is the set's in the transaction: the library counts
// the sets without a number in a variable that all goroutines share.
func encodeSet(t *nftables.Table, s firewall.Set, number uint32) *nftables.Set {
	key := nftables.TypeIP6Addr
	if s.Of.Version() == 4 {
		key = nftables.TypeIPAddr
	}
	var order binaryutil.ByteOrder
	if s.Of.IsDestination() {
		key, order = nftables.MustConcatSetType(key, nftables.TypeInetProto, nftables.TypeInetService), binaryutil.BigEndian
	}
	return &nftables.Set{Table: t, ID: number, Name: s.Name, KeyType: key, KeyByteOrder: order, Dynamic: true, Size: uint32(s.Size),
		HasTimeout: s.Milliseconds != 0, Timeout: time.Duration(s.Milliseconds) * time.Millisecond}
}

// encodeRule returns a rule for the library.
func encodeRule(c *nftables.Chain, r firewall.Rule) *nftables.Rule {
	return &nftables.Rule{Table: c.Table, Chain: c, Exprs: encodeExpressions(r)}
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
	octets := func(base expr.PayloadBase, offset int, mask []byte, length int) []expr.Any {
		e := []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: uint32(offset), Len: uint32(length)}}
		if mask != nil {
			e = append(e, masked(mask))
		}
		return e
	}
	payload := func(base expr.PayloadBase, offset int, mask []byte, not bool, value []byte) []expr.Any {
		return append(octets(base, offset, mask, len(value)), compare(not, value))
	}
	const ether, network, transport = expr.PayloadBaseLLHeader, expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	switch m := m.(type) {
	case firewall.InInterface:
		return meta(expr.MetaKeyIIFNAME, m.Inverted, linkName(m.Name))
	case firewall.OutInterface:
		return meta(expr.MetaKeyOIFNAME, m.Inverted, linkName(m.Name))
	case firewall.OutGroup:
		four := binary.NativeEndian.AppendUint32
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1}, masked(four(nil, m.Mask)), compare(false, four(nil, m.Group))}
	case firewall.EtherType:
		return payload(ether, 12, nil, false, be16(m.Number))
	case firewall.Multicast:
		return meta(expr.MetaKeyPKTTYPE, m.Inverted, []byte{unix.PACKET_MULTICAST})
	case firewall.IP:
		return meta(expr.MetaKeyNFPROTO, false, []byte{map[int]byte{4: unix.NFPROTO_IPV4, 6: unix.NFPROTO_IPV6}[m.Version]})
	case firewall.Carries:
		return meta(expr.MetaKeyPROTOCOL, false, be16(map[int]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[m.Version]))
	case firewall.Protocol:
		return meta(expr.MetaKeyL4PROTO, m.Inverted, []byte{m.Number})
	case firewall.Source:
		return payload(network, addressOffset(m.Prefix, 12, 8), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.Destination:
		return payload(network, addressOffset(m.Prefix, 16, 24), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.SourcePort:
		return encodePort(0, m.First, m.Last, m.Inverted)
	case firewall.DestinationPort:
		return encodePort(2, m.First, m.Last, m.Inverted)
	case firewall.ICMP:
		if m.Code != 0 {
			return payload(transport, 0, nil, false, []byte{m.Type, m.Code})
		}
		return payload(transport, 0, nil, false, []byte{m.Type})
	case firewall.Bytes:
		base := map[firewall.Header]expr.PayloadBase{firewall.Ethernet: ether, firewall.Network: network, firewall.Transport: transport}[m.Header]
		if m.Last != nil {
			return append(octets(base, m.Offset, m.Mask, len(m.Value)), between(m.Inverted, m.Value, m.Last))
		}
		return payload(base, m.Offset, m.Mask, m.Inverted, m.Value)
	case firewall.SocketUser:
		return meta(expr.MetaKeySKUID, m.Inverted, binary.NativeEndian.AppendUint32(nil, m.UID))
	case firewall.Fragment:
		return []expr.Any{
			&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6},
			masked([]byte{0xff, 0xf8}), compare(true, []byte{0, 0}),
		}
	case firewall.RoutingHeader:
		return []expr.Any{
			&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_ROUTING, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6},
			compare(false, []byte{1}),
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
	case firewall.Unanswered:
		const seenReply = 1 << 1 // IPS_SEEN_REPLY, linux/netfilter/nf_conntrack_common.h
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			masked(binary.NativeEndian.AppendUint32(nil, seenReply)), compare(false, make([]byte, 4)),
		}
	case firewall.Assured:
		const assured = 1 << 2 // IPS_ASSURED, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, assured)
	case firewall.Lasting:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeyEXPIRATION, Register: 1}, // milliseconds
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, 1000*m.Seconds)},
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
	case firewall.Count:
		return []expr.Any{&expr.Counter{}}
	case firewall.Rate:
		limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(m.Packets), Unit: expr.LimitTimeSecond, Burst: uint32(m.Burst), Over: m.Over}
		if m.PerMinute {
			limit.Unit = expr.LimitTimeMinute
		}
		return []expr.Any{limit}
	case firewall.Faster:
		return []expr.Any{&expr.Limit{Type: expr.LimitTypePktBytes, Rate: m.Octets, Unit: expr.LimitTimeSecond, Burst: m.Burst, Over: true}}
	case firewall.InSet:
		return []expr.Any{loadPart(m.Part), &expr.Lookup{SourceRegister: 1, SetName: m.Set, Invert: m.Inverted}}
	case firewall.InDestinations:
		offset, length, protocol, port := uint32(16), uint32(4), uint32(9), uint32(10)
		if m.Version == 6 {
			offset, length, protocol, port = 24, 16, 2, 13
		}
		if m.AllPorts {
			return []expr.Any{&expr.Payload{DestRegister: 1, Base: network, Offset: offset, Len: length}, &expr.Lookup{SourceRegister: 1, SetName: m.Set}}
		}
		return []expr.Any{&expr.Payload{DestRegister: 1, Base: network, Offset: offset, Len: length}, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
			&expr.Payload{DestRegister: port, Base: transport, Offset: 2, Len: 2}, &expr.Lookup{SourceRegister: 1, SetName: m.Set}}
	case firewall.AddToSet:
		add := &expr.Dynset{SrcRegKey: 1, SetName: m.Set, Operation: unix.NFT_DYNSET_OP_ADD}
		if m.Renew {
			add.Operation = unix.NFT_DYNSET_OP_UPDATE
		}
		return []expr.Any{loadPart(m.Part), add}
	case firewall.Opening:
		return payload(transport, 13, []byte{0x06}, m.Inverted, []byte{0x02})
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
	case firewall.Refuse:
		if v.Reset {
			return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
		}
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
	case firewall.Up:
		return encodeUp(v.Port)
	case firewall.Log:
		return []expr.Any{&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: v.Group, Data: []byte(v.Prefix)}}
	case firewall.Continue:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictContinue}}
	case firewall.Offload:
		return []expr.Any{&expr.FlowOffload{Name: v.Table + "\x00"}}
	case firewall.CompleteChecksum:
		info := xt.Unknown{1, 0, 0, 0, 0, 0, 0, 0}
		return []expr.Any{&expr.Target{Name: "CHECKSUM", Info: &info}}
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
	case firewall.DNATMap:
		return []expr.Any{load(1, v.Address.AsSlice()), &expr.Payload{DestRegister: 2, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: 2, DestRegister: 2, IsDestRegSet: true, SetName: v.Map},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(addressFamily(v.Address)), RegAddrMin: 1, RegProtoMin: 2, Specified: true}}
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
	case firewall.SetSource:
		return []expr.Any{load(1, v.Address.AsSlice()), setAddress(v.Address, 12, 8)}
	case firewall.SetDestination:
		return []expr.Any{load(1, v.Address.AsSlice()), setAddress(v.Address, 16, 24)}
	case firewall.LowerMSS:
		return []expr.Any{load(1, be16(v.To)), setMSS}
	}
	panic(fmt.Sprintf("no expression for %T", v)) // a new type of verdict is missing above
}

// encodeUp returns the expressions of firewall.Up.
func encodeUp(port bool) (e []expr.Any) {
	if port {
		e = append(e, &expr.Immediate{Register: 1, Data: firewall.NearestBridge}, &expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 0, Len: uint32(len(firewall.NearestBridge)),
		})
	}
	return append(e, &expr.Verdict{Kind: expr.VerdictAccept})
}

// setMSS writes register 1 into the MSS of a TCP segment, unless the MSS there is lower (nft_exthdr_tcp_set_eval in
// net/netfilter/nft_exthdr.c).
var setMSS = &expr.Exthdr{SourceRegister: 1, Type: 2 /* TCPOPT_MAXSEG */, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}

// setAddress writes register 1 into the IP header, at the offset of the IP version, and corrects the checksum of the
// IPv4 header and that of the transport header, which covers the addresses.
func setAddress(a netip.Addr, v4, v6 uint32) expr.Any {
	const pseudoHeader = 1 // NFT_PAYLOAD_L4CSUM_PSEUDOHDR, linux/netfilter/nf_tables.h
	e := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader,
		Offset: v4, Len: 4, CsumType: expr.CsumTypeInet, CsumOffset: 10, CsumFlags: pseudoHeader}
	if a.Is6() {
		e.Offset, e.Len, e.CsumOffset = v6, 16, noChecksum
	}
	return e
}

// The library leaves out the flags of a payload whose header has no checksum of its own, such as IPv6's. So setAddress
// asks for a checksum at an offset that no header has, and repair makes none of it.
const noChecksum = 0xffff

var wantedChecksum, withoutChecksum = checksumOf(unix.NFT_PAYLOAD_CSUM_INET, noChecksum), checksumOf(unix.NFT_PAYLOAD_CSUM_NONE, 0)

func checksumOf(kind, offset uint32) []byte {
	return slices.Concat(
		nl.NewRtAttr(unix.NFTA_PAYLOAD_CSUM_TYPE, binary.BigEndian.AppendUint32(nil, kind)).Serialize(),
		nl.NewRtAttr(unix.NFTA_PAYLOAD_CSUM_OFFSET, binary.BigEndian.AppendUint32(nil, offset)).Serialize())
}

// The library cannot encode fwd. dup has the same first attribute with the same number (NFTA_DUP_SREG_ADDR,
// NFTA_FWD_SREG_DEV, linux/netfilter/nf_tables.h), and no rule of guestwire uses dup. So encodeVerdict makes
// a dup, and repair renames it to fwd. The names have the same length.
var (
	dupName = nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("dup")).Serialize()
	fwdName = nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated("fwd")).Serialize()
)

// The library writes the direction of a ct expression with four octets; the kernel reads the first
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
// attributes under other numbers, and no rule of guestwire uses redir. So encodeVerdict makes a redir, and repair makes
// a masq of it. With padding, the names have the same length.
var (
	redirName = paddedName("redir")
	masqName  = paddedName("masq")
)

func paddedName(name string) []byte {
	b := nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name)).Serialize()
	return append(b, make([]byte, 12-len(b))...)
}

// masqFromRedir makes a masq of each redir in a message, whose attributes are the first and the last port's register,
// and the flags.
func masqFromRedir(message []byte) {
	const data, size = 4, 8 // a header, an attribute of 32 bits
	for at := bytes.Index(message, redirName); at >= 0; at = bytes.Index(message, redirName) {
		copy(message[at:], masqName)
		attributes := message[at+len(masqName)+data:]
		for i, number := range []uint16{unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX, unix.NFTA_MASQ_FLAGS} {
			binary.NativeEndian.PutUint16(attributes[i*size+2:], number)
		}
	}
}

// repair puts into a message what the library cannot encode: fwd, the direction of ct, ports of masq, the write of an
// address. The message is changed in place, as no length changes.
func repair(message []byte) {
	overwrite(message, dupName, fwdName)
	overwrite(message, wideOriginal, narrowOriginal)
	overwrite(message, wideReply, narrowReply)
	overwrite(message, wantedChecksum, withoutChecksum)
	for _, length := range []byte{1, 2, 4, 16} { // nft(8) says that a part of a key's description holds attributes
		plain := nl.NewRtAttr(unix.NFTA_LIST_ELEM, nl.NewRtAttr(fieldLength, []byte{0, 0, 0, length}).Serialize()).Serialize()
		nested := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, nl.NewRtAttr(fieldLength, []byte{0, 0, 0, length}).Serialize()).Serialize()
		overwrite(message, plain, nested)
	}
	masqFromRedir(message)
}

// overwrite replaces one text by another of the same length, wherever it is in the message.
func overwrite(message, old, new []byte) {
	for rest := message; ; {
		at := bytes.Index(rest, old)
		if at < 0 {
			return
		}
		rest = rest[at+copy(rest[at:], new):]
	}
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

// bits matches a connection with at least one of the bits.
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
	return []expr.Any{load, between(not, be16(first), be16(last))}
}

// between compares register 1 with the values from first to last.
func between(not bool, first, last []byte) *expr.Range {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Range{Op: op, Register: 1, FromData: first, ToData: last}
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

// zeroEnded returns the names of links with a zero after each, which the library leaves out.
func zeroEnded(links []string) (ended []string) {
	for _, l := range links {
		ended = append(ended, l+"\x00")
	}
	return ended
}
