package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
)

// encodeMatch returns the library's expressions of a match: they load a part of the packet into register 1 and compare
// the register.
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
		return payload(ether, 12, nil, false, netlink.EncodeBE16(m.Number))
	case firewall.Multicast:
		return meta(expr.MetaKeyPKTTYPE, m.Inverted, []byte{unix.PACKET_MULTICAST})
	case firewall.IP:
		return meta(expr.MetaKeyNFPROTO, false, []byte{ip.Pick[uint8](m.Version, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6)})
	case firewall.Carries:
		return meta(expr.MetaKeyPROTOCOL, false, netlink.EncodeBE16(ip.Pick[uint16](m.Version, unix.ETH_P_IP, unix.ETH_P_IPV6)))
	case firewall.Protocol:
		return meta(expr.MetaKeyL4PROTO, m.Inverted, []byte{m.Number})
	case firewall.Source:
		return payload(network, ip.Pick(ip.Of(m.Prefix.Addr()), 12, 8), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.Destination:
		return payload(network, ip.Pick(ip.Of(m.Prefix.Addr()), 16, 24), firewall.Mask(m.Prefix), false, m.Prefix.Masked().Addr().AsSlice())
	case firewall.LocalSource:
		return []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, compare(false, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))}
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
		base := payloadBases[m.Header]
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
		return above(&expr.Meta{Key: expr.MetaKeyLEN, Register: 1}, m.Octets)
	case firewall.State:
		return bits(expr.CtKeySTATE, uint32(m.States), true)
	case firewall.Translated:
		const dstNAT = 1 << 5 // IPS_DST_NAT, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, dstNAT, true)
	case firewall.Original:
		return []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, compare(false, []byte{0})} // IP_CT_DIR_ORIGINAL
	case firewall.Unconfirmed:
		const confirmed = 1 << 3 // IPS_CONFIRMED, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, confirmed, false)
	case firewall.Unanswered:
		const seenReply = 1 << 1 // IPS_SEEN_REPLY, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, seenReply, false)
	case firewall.Assured:
		const assured = 1 << 2 // IPS_ASSURED, linux/netfilter/nf_conntrack_common.h
		return bits(expr.CtKeySTATUS, assured, true)
	case firewall.Lasting:
		return above(&expr.Ct{Key: expr.CtKeyEXPIRATION, Register: 1}, 1000*m.Seconds) // milliseconds
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
		_, protocol, port := keyRegisters(m.Version)
		e := octets(network, ip.Pick(m.Version, 16, 24), nil, ip.Pick(m.Version, 4, 16))
		if !m.AllPorts {
			e = append(e, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol}, &expr.Payload{DestRegister: port, Base: transport, Offset: 2, Len: 2})
		}
		return append(e, &expr.Lookup{SourceRegister: 1, SetName: m.Set})
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

var payloadBases = map[firewall.Header]expr.PayloadBase{
	firewall.Ethernet: expr.PayloadBaseLLHeader, firewall.Network: expr.PayloadBaseNetworkHeader, firewall.Transport: expr.PayloadBaseTransportHeader,
}

// keyRegisters are those of the parts of a key of firewall.Destinations, one after the other from register 1 on. A
// register has 16 octets, or is four registers of 4 octets.
func keyRegisters(v ip.Version) (address, protocol, port uint32) {
	if v == 6 {
		return 1, unix.NFT_REG_2, unix.NFT_REG32_05
	}
	return 1, unix.NFT_REG32_01, unix.NFT_REG32_02
}

// encodeVerdict returns the library's expressions of a verdict. Those with arguments load them into registers 1 and 2.
func encodeVerdict(v firewall.Verdict) []expr.Any {
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
		const fill = 1 // XT_CHECKSUM_OP_FILL; struct xt_CHECKSUM_info, aligned to 8 octets
		return []expr.Any{&expr.Target{Name: checksum, Info: &xt.Unknown{fill, 0, 0, 0, 0, 0, 0, 0}}}
	case firewall.Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: v.Chain}}
	case firewall.Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: v.Chain}}
	case firewall.DNAT:
		nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(netlink.Family(v.Address)), RegAddrMin: 1}
		e := []expr.Any{immediate(1, v.Address.AsSlice())}
		if v.Port != 0 {
			nat.RegProtoMin, nat.Specified = 2, true
			e = append(e, immediate(2, netlink.EncodeBE16(v.Port)))
		}
		return append(e, nat)
	case firewall.DNATMap:
		return []expr.Any{immediate(1, v.Address.AsSlice()), &expr.Payload{DestRegister: 2, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: 2, DestRegister: 2, IsDestRegSet: true, SetName: v.Map},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(netlink.Family(v.Address)), RegAddrMin: 1, RegProtoMin: 2, Specified: true}}
	case firewall.SNAT:
		e := []expr.Any{immediate(1, v.Address.AsSlice())}
		nat := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(netlink.Family(v.Address)), RegAddrMin: 1}
		if v.First != 0 {
			nat.RegProtoMin, nat.Specified = 2, true
			e = append(e, immediate(2, netlink.EncodeBE16(v.First)))
		}
		if v.First != v.Last {
			nat.RegProtoMax = 3
			e = append(e, immediate(3, netlink.EncodeBE16(v.Last)))
		}
		return append(e, nat)
	case firewall.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case firewall.ClampMSS:
		return []expr.Any{
			&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
			setMSS,
		}
	case firewall.LowerMSS:
		return []expr.Any{immediate(1, netlink.EncodeBE16(v.To)), setMSS}
	}
	panic(fmt.Sprintf("no expression for %T", v)) // a new type of verdict is missing above
}

// encodeUp returns the expressions of firewall.Up.
func encodeUp(port bool) (e []expr.Any) {
	if port {
		e = append(e, immediate(1, firewall.NearestBridge), &expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 0, Len: uint32(len(firewall.NearestBridge)),
		})
	}
	return append(e, &expr.Verdict{Kind: expr.VerdictAccept})
}

// setMSS writes register 1 into the MSS of a TCP segment, unless the MSS there is lower (nft_exthdr_tcp_set_eval in
// net/netfilter/nft_exthdr.c).
var setMSS = &expr.Exthdr{SourceRegister: 1, Type: 2 /* TCPOPT_MAXSEG */, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}

// immediate loads a value into a register.
func immediate(register uint32, value []byte) expr.Any {
	return &expr.Immediate{Register: register, Data: value}
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

// bits matches a connection with some of the bits, or with none.
func bits(key expr.CtKey, set uint32, some bool) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		masked(binary.NativeEndian.AppendUint32(nil, set)), compare(some, make([]byte, 4)),
	}
}

// above matches a number, which the kernel has in its own octet order, that is above the limit.
func above(load expr.Any, limit uint32) []expr.Any {
	return []expr.Any{
		load,
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, limit)},
	}
}

// encodePort matches a port, or a range of ports, at an offset in the transport header.
func encodePort(offset uint32, first, last uint16, not bool) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	if first == last {
		return []expr.Any{load, compare(not, netlink.EncodeBE16(first))}
	}
	return []expr.Any{load, between(not, netlink.EncodeBE16(first), netlink.EncodeBE16(last))}
}

// between compares register 1 with the values from first to last.
func between(not bool, first, last []byte) *expr.Range {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Range{Op: op, Register: 1, FromData: first, ToData: last}
}

// linkName is a link's name with zeros up to IFNAMSIZ: the kernel compares all octets.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
