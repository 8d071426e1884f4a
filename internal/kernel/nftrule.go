package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
)

// mostForeign is how many rules are read into an image in addition to as many as the wanted tables have, to name them.
// One is enough to differ.
const mostForeign = 256

// readChainRules reads the rules of a table into the chains of the image.
func (n *Namespace) readChainRules(image *firewall.Image, wanted []firewall.Table) error {
	rules, err := knowRules(wanted)
	if err != nil {
		return err
	}
	index, most, read := map[string]int{}, mostForeign, 0
	for i, c := range image.Chains {
		index[c.Name] = i
	}
	for _, t := range wanted {
		for _, c := range t.Chains {
			most += len(c.Rules)
		}
	}
	others := image.Others
	none := func() {
		read, image.Others = 0, others
		for i := range image.Chains {
			image.Chains[i].Rules = nil
		}
	}
	return n.filter.dump(listRules(image.Family, image.Name), none, func(m []byte) error {
		rule, err := parseChainRule(m)
		at, there := index[string(rule.chain)]
		if err != nil || string(rule.table) != image.Family.TableOf(image.Name) || !there {
			return err
		}
		if read++; read > most {
			image.Others++
			return nil
		}
		text, err := rules.text(rule.expressions)
		image.Chains[at].Rules = append(image.Chains[at].Rules, text)
		return err
	})
}

// listRules is the question for the rules of a table.
func listRules(family firewall.Family, table string) *nl.NetlinkRequest {
	r := request(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP,
		nfgenmsg{families[family]}, nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(family.TableOf(table))))
	if family.Shared() {
		r.AddData(nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(table)))
	}
	return r
}

// holdsRules reports whether the chains of the table in the kernel have the rules that are wanted, in their order. The
// kernel has the chains.
func (n *Namespace) holdsRules(t firewall.Table) (bool, error) {
	w := nftWriters.Get().(*nftWriter)
	defer nftWriters.Put(w)
	passed := make([]int, len(t.Chains)) // so many rules of each chain
	differs, at := false, 0
	err := n.filter.dump(listRules(t.Family, t.Name), func() { clear(passed); differs = false }, func(m []byte) error {
		rule, err := parseChainRule(m)
		if err != nil || differs || string(rule.table) != t.Family.TableOf(t.Name) {
			return err
		}
		if len(t.Chains) == 0 { // another program has added one
			differs = true
			return nil
		}
		if t.Chains[at].Name != string(rule.chain) { // the kernel reports the rules chain by chain
			at = max(0, slices.IndexFunc(t.Chains, func(c firewall.Chain) bool { return c.Name == string(rule.chain) }))
		}
		chain := t.Chains[at]
		if chain.Name != string(rule.chain) || passed[at] == len(chain.Rules) {
			differs = true
			return nil
		}
		w.octets = w.octets[:0]
		w.writeExpressions(chain.Rules[passed[at]])
		passed[at]++
		same, err := sameExpressions(rule.expressions, w.octets)
		differs = !same
		return err
	})
	for i, c := range t.Chains {
		differs = differs || passed[i] != len(c.Rules)
	}
	return !differs, err
}

// chainRule is a rule in the kernel: the names of its table and chain, and its encoded expressions. All share memory
// with the message.
type chainRule struct{ table, chain, expressions []byte }

// parseChainRule parses struct nfgenmsg and the attributes of a rule (NFTA_RULE_*).
func parseChainRule(m []byte) (r chainRule, err error) {
	if len(m) < sizeofNfgenmsg {
		return r, errCutShort
	}
	for m = m[sizeofNfgenmsg:]; len(m) >= unix.SizeofRtAttr; {
		kind, v, rest, err := cutAttribute(m)
		if err != nil {
			return r, err
		}
		m = rest
		switch kind {
		case unix.NFTA_RULE_TABLE:
			r.table, _, _ = bytes.Cut(v, []byte{0})
		case unix.NFTA_RULE_CHAIN:
			r.chain, _, _ = bytes.Cut(v, []byte{0})
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = v
		}
	}
	return r, nil
}

// writeRule writes the attributes of a rule (NFTA_RULE_*). It has no comment: no program reads one.
func (w *nftWriter) writeRule(table, chain string, r firewall.Rule) {
	w.text(unix.NFTA_RULE_TABLE, table)
	w.text(unix.NFTA_RULE_CHAIN, chain)
	list := w.open(unix.NFTA_RULE_EXPRESSIONS)
	w.writeExpressions(r)
	w.close(list)
}

// writeExpressions writes the expressions of a rule: those of all matches, and then those of the verdict.
func (w *nftWriter) writeExpressions(r firewall.Rule) {
	for _, m := range r.Matches {
		w.writeMatch(m)
	}
	w.writeVerdict(r.Verdict)
}

// Headers in which a payload is counted.
const (
	ether     = unix.NFT_PAYLOAD_LL_HEADER
	network   = unix.NFT_PAYLOAD_NETWORK_HEADER
	transport = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

// writeMatch writes expressions that load a part of the packet into register 1 and compare the register.
func (w *nftWriter) writeMatch(m firewall.Match) {
	var room [4]byte
	switch m := m.(type) {
	case firewall.InInterface:
		w.meta(unix.NFT_META_IIFNAME)
		w.compareName(m.Inverted, m.Name)
	case firewall.OutInterface:
		w.meta(unix.NFT_META_OIFNAME)
		w.compareName(m.Inverted, m.Name)
	case firewall.OutGroup:
		w.meta(unix.NFT_META_OIFGROUP)
		w.mask(binary.NativeEndian.AppendUint32(room[:0], m.Mask))
		w.compare(false, binary.NativeEndian.AppendUint32(room[:0], m.Group))
	case firewall.EtherType:
		w.payload(ether, 12, 2)
		w.compare(false, binary.BigEndian.AppendUint16(room[:0], m.Number))
	case firewall.Multicast:
		w.meta(unix.NFT_META_PKTTYPE)
		w.compare(m.Inverted, append(room[:0], unix.PACKET_MULTICAST))
	case firewall.IP:
		w.meta(unix.NFT_META_NFPROTO)
		w.compare(false, append(room[:0], ofVersion[uint8](m.Version, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6)))
	case firewall.Carries:
		w.meta(unix.NFT_META_PROTOCOL)
		w.compare(false, binary.BigEndian.AppendUint16(room[:0], ofVersion[uint16](m.Version, unix.ETH_P_IP, unix.ETH_P_IPV6)))
	case firewall.Protocol:
		w.meta(unix.NFT_META_L4PROTO)
		w.compare(m.Inverted, append(room[:0], m.Number))
	case firewall.Source:
		w.address(m.Prefix, 12, 8)
	case firewall.Destination:
		w.address(m.Prefix, 16, 24)
	case firewall.SourcePort:
		w.port(0, m.First, m.Last, m.Inverted)
	case firewall.DestinationPort:
		w.port(2, m.First, m.Last, m.Inverted)
	case firewall.ICMP:
		value := append(room[:0], m.Type)
		if m.Code != 0 {
			value = append(value, m.Code)
		}
		w.payload(transport, 0, len(value))
		w.compare(false, value)
	case firewall.Bytes:
		w.payload(headers[m.Header], m.Offset, len(m.Value))
		if m.Mask != nil {
			w.mask(m.Mask)
		}
		if m.Last != nil {
			w.between(m.Inverted, m.Value, m.Last)
		} else {
			w.compare(m.Inverted, m.Value)
		}
	case firewall.SocketUser:
		w.meta(unix.NFT_META_SKUID)
		w.compare(m.Inverted, binary.NativeEndian.AppendUint32(room[:0], m.UID))
	case firewall.Fragment:
		element, data := w.openExpression("exthdr", field{unix.NFTA_EXTHDR_DREG, 1})
		w.writeHeaderPart(unix.IPPROTO_FRAGMENT, 2, 2, unix.NFT_EXTHDR_OP_IPV6)
		w.number32(unix.NFTA_EXTHDR_FLAGS, 0)
		w.closeExpression(element, data)
		w.mask([]byte{0xff, 0xf8})
		w.compare(true, []byte{0, 0})
	case firewall.RoutingHeader:
		element, data := w.openExpression("exthdr", field{unix.NFTA_EXTHDR_DREG, 1})
		w.writeHeaderPart(unix.IPPROTO_ROUTING, 0, 1, unix.NFT_EXTHDR_OP_IPV6)
		w.number32(unix.NFTA_EXTHDR_FLAGS, unix.NFT_EXTHDR_F_PRESENT)
		w.closeExpression(element, data)
		w.compare(false, []byte{1})
	case firewall.Longer:
		w.meta(unix.NFT_META_LEN)
		w.swap(4)
		w.compareAs(unix.NFT_CMP_GT, binary.BigEndian.AppendUint32(room[:0], m.Octets))
	case firewall.State:
		w.connection(unix.NFT_CT_STATE)
		w.bits(uint32(m.States), true)
	case firewall.Translated:
		const dstNAT = 1 << 5 // IPS_DST_NAT, linux/netfilter/nf_conntrack_common.h
		w.connection(unix.NFT_CT_STATUS)
		w.bits(dstNAT, true)
	case firewall.Unconfirmed:
		const confirmed = 1 << 3 // IPS_CONFIRMED, linux/netfilter/nf_conntrack_common.h
		w.connection(unix.NFT_CT_STATUS)
		w.bits(confirmed, false)
	case firewall.Unanswered:
		const seenReply = 1 << 1 // IPS_SEEN_REPLY, linux/netfilter/nf_conntrack_common.h
		w.connection(unix.NFT_CT_STATUS)
		w.bits(seenReply, false)
	case firewall.Assured:
		const assured = 1 << 2 // IPS_ASSURED, linux/netfilter/nf_conntrack_common.h
		w.connection(unix.NFT_CT_STATUS)
		w.bits(assured, true)
	case firewall.Lasting:
		w.connection(unix.NFT_CT_EXPIRATION) // milliseconds
		w.swap(4)
		w.compareAs(unix.NFT_CMP_GT, binary.BigEndian.AppendUint32(room[:0], 1000*m.Seconds))
	case firewall.Origin:
		w.origin(m)
	case firewall.Connections:
		const count, flags, over = 1, 2, 1 // NFTA_CONNLIMIT_COUNT, NFTA_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV
		w.expression("connlimit", field{count, m.Over}, field{flags, over})
	case firewall.Count:
		w.counter()
	case firewall.Rate:
		seconds := uint64(1)
		if m.PerMinute {
			seconds = 60
		}
		w.limit(unix.NFT_LIMIT_PKTS, uint64(m.Packets), seconds, uint32(m.Burst), m.Over)
	case firewall.Faster:
		w.limit(unix.NFT_LIMIT_PKT_BYTES, m.Octets, 1, m.Burst, true)
	case firewall.InSet:
		w.loadPart(m.Part)
		element, data := w.openExpression("lookup", field{unix.NFTA_LOOKUP_SREG, 1})
		if m.Inverted {
			w.number32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
		w.text(unix.NFTA_LOOKUP_SET, m.Set)
		w.number32(unix.NFTA_LOOKUP_SET_ID, 0)
		w.closeExpression(element, data)
	case firewall.InDestinations:
		w.destination(m)
		element, data := w.openExpression("lookup", field{unix.NFTA_LOOKUP_SREG, 1})
		w.text(unix.NFTA_LOOKUP_SET, m.Set)
		w.number32(unix.NFTA_LOOKUP_SET_ID, 0)
		w.closeExpression(element, data)
	case firewall.AddToSet:
		w.loadPart(m.Part)
		operation := uint32(unix.NFT_DYNSET_OP_ADD)
		if m.Renew {
			operation = unix.NFT_DYNSET_OP_UPDATE
		}
		element, data := w.openExpression("dynset", field{unix.NFTA_DYNSET_SREG_KEY, 1}, field{unix.NFTA_DYNSET_OP, operation})
		w.text(unix.NFTA_DYNSET_SET_NAME, m.Set)
		w.number32(unix.NFTA_DYNSET_SET_ID, 0)
		w.number32(unix.NFTA_DYNSET_FLAGS, 0)
		w.closeExpression(element, data)
	case firewall.Opening:
		w.payload(transport, 13, 1)
		w.mask([]byte{0x06})
		w.compare(m.Inverted, []byte{0x02})
	default:
		panic(fmt.Sprintf("no expression for %T", m)) // a new type of match is missing above
	}
}

// writeVerdict writes the expressions of a verdict. Those with arguments load them into registers 1 and 2.
func (w *nftWriter) writeVerdict(v firewall.Verdict) {
	var room [4]byte
	switch v := v.(type) {
	case firewall.Accept:
		w.verdict(accept, "")
	case firewall.Drop:
		w.verdict(drop, "")
	case firewall.Refuse:
		how, code := uint32(unix.NFT_REJECT_ICMPX_UNREACH), byte(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED)
		if v.Reset {
			how, code = unix.NFT_REJECT_TCP_RST, 0
		}
		element, data := w.openExpression("reject", field{unix.NFTA_REJECT_TYPE, how})
		w.bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{code})
		w.closeExpression(element, data)
	case firewall.Up:
		w.up(v.Port)
	case firewall.Log:
		element, data := w.openExpression("log")
		w.number16(unix.NFTA_LOG_GROUP, v.Group)
		w.text(unix.NFTA_LOG_PREFIX, v.Prefix)
		w.closeExpression(element, data)
	case firewall.Continue:
		w.verdict(unix.NFT_CONTINUE, "")
	case firewall.Offload:
		const name = expr.NFTNL_EXPR_FLOW_TABLE_NAME
		element, data := w.openExpression("flow_offload")
		w.text(name, v.Table)
		w.closeExpression(element, data)
	case firewall.Goto:
		w.verdict(unix.NFT_GOTO, v.Chain)
	case firewall.Jump:
		w.verdict(unix.NFT_JUMP, v.Chain)
	case firewall.Return:
		w.verdict(unix.NFT_RETURN, "")
	case firewall.DNAT:
		w.loadAddress(v.Address)
		to := []field{{unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT}, {unix.NFTA_NAT_FAMILY, uint32(addressFamily(v.Address))}, {unix.NFTA_NAT_REG_ADDR_MIN, 1}}
		if v.Port != 0 {
			w.loadPort(2, v.Port)
			to = append(to, field{unix.NFTA_NAT_REG_PROTO_MIN, 2}, field{unix.NFTA_NAT_FLAGS, specifiedPorts})
		}
		w.expression("nat", to...)
	case firewall.DNATMap:
		w.loadAddress(v.Address)
		w.payloadInto(2, transport, 2, 2) // the destination port
		element, data := w.openExpression("lookup", field{unix.NFTA_LOOKUP_SREG, 2}, field{unix.NFTA_LOOKUP_DREG, 2})
		w.text(unix.NFTA_LOOKUP_SET, v.Map)
		w.number32(unix.NFTA_LOOKUP_SET_ID, 0)
		w.closeExpression(element, data)
		w.expression("nat", field{unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT}, field{unix.NFTA_NAT_FAMILY, uint32(addressFamily(v.Address))},
			field{unix.NFTA_NAT_REG_ADDR_MIN, 1}, field{unix.NFTA_NAT_REG_PROTO_MIN, 2}, field{unix.NFTA_NAT_FLAGS, specifiedPorts})
	case firewall.SNAT:
		w.loadAddress(v.Address)
		w.expression("nat", field{unix.NFTA_NAT_TYPE, unix.NFT_NAT_SNAT}, field{unix.NFTA_NAT_FAMILY, uint32(addressFamily(v.Address))}, field{unix.NFTA_NAT_REG_ADDR_MIN, 1})
	case firewall.Masquerade:
		if v == (firewall.Masquerade{}) {
			w.expression("masq")
			return
		}
		w.loadPort(1, v.First)
		last := uint32(1) // the register
		if v.First != v.Last {
			last = 2
			w.loadPort(last, v.Last)
		}
		// Without the flags, the kernel ignores the ports.
		w.expression("masq", field{unix.NFTA_MASQ_REG_PROTO_MIN, 1}, field{unix.NFTA_MASQ_REG_PROTO_MAX, last}, field{unix.NFTA_MASQ_FLAGS, specifiedPorts})
	case firewall.Fwd:
		w.load(1, binary.NativeEndian.AppendUint32(room[:0], uint32(v.Index)))
		w.expression("fwd", field{unix.NFTA_FWD_SREG_DEV, 1})
	case firewall.ClampMSS:
		w.expression("rt", field{unix.NFTA_RT_KEY, unix.NFT_RT_TCPMSS}, field{unix.NFTA_RT_DREG, 1})
		w.swap(2)
		w.setMSS()
	case firewall.SetSource:
		w.setAddress(v.Address, 12, 8)
	case firewall.SetDestination:
		w.setAddress(v.Address, 16, 24)
	case firewall.LowerMSS:
		w.loadPort(1, v.To)
		w.setMSS()
	case firewall.CompleteChecksum:
		w.completeChecksum()
	default:
		panic(fmt.Sprintf("no expression for %T", v)) // a new type of verdict is missing above
	}
}

// headers are the headers in which firewall.Bytes are counted.
var headers = map[firewall.Header]uint32{firewall.Ethernet: ether, firewall.Network: network, firewall.Transport: transport}

// Verdicts that unix does not name (NF_DROP, NF_ACCEPT, linux/netfilter.h).
const (
	drop   = 0
	accept = 1
)

// specifiedPorts is NF_NAT_RANGE_PROTO_SPECIFIED (linux/netfilter/nf_nat.h).
const specifiedPorts = 2

// ofVersion is the number for an IP version.
func ofVersion[N uint8 | uint16](version int, v4, v6 N) N {
	switch version {
	case 4:
		return v4
	case 6:
		return v6
	}
	panic(fmt.Sprintf("no IP version %d", version))
}

// meta loads a property of the packet into register 1.
func (w *nftWriter) meta(key uint32) {
	w.expression("meta", field{unix.NFTA_META_KEY, key}, field{unix.NFTA_META_DREG, 1})
}

// payload loads octets of a header into register 1.
func (w *nftWriter) payload(header uint32, offset, size int) { w.payloadInto(1, header, offset, size) }

// payloadInto loads octets of a header into a register.
func (w *nftWriter) payloadInto(register, header uint32, offset, size int) {
	w.expression("payload", field{unix.NFTA_PAYLOAD_DREG, register}, field{unix.NFTA_PAYLOAD_BASE, header}, field{unix.NFTA_PAYLOAD_OFFSET, uint32(offset)}, field{unix.NFTA_PAYLOAD_LEN, uint32(size)})
}

// connection loads a property of the packet's connection into register 1.
func (w *nftWriter) connection(key uint32) {
	w.expression("ct", field{unix.NFTA_CT_KEY, key}, field{unix.NFTA_CT_DREG, 1})
}

// load loads a value into a register.
func (w *nftWriter) load(register uint32, value []byte) {
	element, data := w.openExpression("immediate", field{unix.NFTA_IMMEDIATE_DREG, register})
	w.data(unix.NFTA_IMMEDIATE_DATA, value)
	w.closeExpression(element, data)
}

func (w *nftWriter) loadAddress(a netip.Addr) {
	var room [16]byte
	w.load(1, appendAddress(room[:0], a))
}

// loadPort loads a number of 2 octets.
func (w *nftWriter) loadPort(register uint32, port uint16) {
	var room [2]byte
	w.load(register, binary.BigEndian.AppendUint16(room[:0], port))
}

// loadPart loads an address of the packet into register 1.
func (w *nftWriter) loadPart(p firewall.Part) {
	switch p {
	case firewall.SourceAddress4:
		w.payload(network, 12, 4)
	case firewall.ARPSender:
		w.payload(network, 14, 4)
	case firewall.SourceAddress6, firewall.RawSource6:
		w.payload(network, 8, 16)
	case firewall.DiscoveryTarget:
		w.payload(transport, 8, 16)
	case firewall.NextHop4:
		w.expression("rt", field{unix.NFTA_RT_KEY, unix.NFT_RT_NEXTHOP4}, field{unix.NFTA_RT_DREG, 1})
	case firewall.NextHop6:
		w.expression("rt", field{unix.NFTA_RT_KEY, unix.NFT_RT_NEXTHOP6}, field{unix.NFTA_RT_DREG, 1})
	default:
		panic("no expression for the part " + string(p)) // a new part is missing above
	}
}

// compareAs compares register 1 with a value by an operation (NFT_CMP_*).
func (w *nftWriter) compareAs(operation uint32, value []byte) {
	element, data := w.openExpression("cmp", field{unix.NFTA_CMP_SREG, 1}, field{unix.NFTA_CMP_OP, operation})
	w.data(unix.NFTA_CMP_DATA, value)
	w.closeExpression(element, data)
}

// compare compares register 1 with a value.
func (w *nftWriter) compare(not bool, value []byte) {
	operation := uint32(unix.NFT_CMP_EQ)
	if not {
		operation = unix.NFT_CMP_NEQ
	}
	w.compareAs(operation, value)
}

// compareName compares register 1 with a link's name, with zeros up to IFNAMSIZ: the kernel compares all octets.
func (w *nftWriter) compareName(not bool, name string) {
	var padded [unix.IFNAMSIZ]byte
	copy(padded[:], name)
	w.compare(not, padded[:])
}

// mask masks register 1.
func (w *nftWriter) mask(mask []byte) {
	var none [16]byte
	element, data := w.openExpression("bitwise", field{unix.NFTA_BITWISE_SREG, 1}, field{unix.NFTA_BITWISE_DREG, 1}, field{unix.NFTA_BITWISE_LEN, uint32(len(mask))})
	w.data(unix.NFTA_BITWISE_MASK, mask)
	w.data(unix.NFTA_BITWISE_XOR, none[:len(mask)])
	w.closeExpression(element, data)
}

// bits asks whether register 1 has at least one of the bits set, or none.
func (w *nftWriter) bits(set uint32, some bool) {
	var room [4]byte
	w.mask(binary.NativeEndian.AppendUint32(room[:0], set))
	w.compare(some, []byte{0, 0, 0, 0})
}

// swap puts the number in register 1, of 2 or 4 octets, into network order.
func (w *nftWriter) swap(size uint32) {
	w.expression("byteorder", field{unix.NFTA_BYTEORDER_SREG, 1}, field{unix.NFTA_BYTEORDER_DREG, 1},
		field{unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON}, field{unix.NFTA_BYTEORDER_LEN, size}, field{unix.NFTA_BYTEORDER_SIZE, size})
}

// address matches an address in the IP header, at the offset of the IP version.
func (w *nftWriter) address(p netip.Prefix, v4, v6 int) {
	offset, size := v4, 4
	if p.Addr().Is6() {
		offset, size = v6, 16
	}
	w.payload(network, offset, size)
	w.prefix(p)
}

// prefix asks whether the address in register 1 is of the prefix.
func (w *nftWriter) prefix(p netip.Prefix) {
	if mask := firewall.Mask(p); mask != nil {
		w.mask(mask)
	}
	var room [16]byte
	w.compare(false, appendAddress(room[:0], p.Masked().Addr()))
}

// port matches a port, or a range of ports, at an offset in the transport header.
func (w *nftWriter) port(offset int, first, last uint16, not bool) {
	var low, high [2]byte
	binary.BigEndian.PutUint16(low[:], first)
	binary.BigEndian.PutUint16(high[:], last)
	w.payload(transport, offset, 2)
	if first == last {
		w.compare(not, low[:])
		return
	}
	w.between(not, low[:], high[:])
}

// between compares register 1 with the values from first to last.
func (w *nftWriter) between(not bool, first, last []byte) {
	operation := uint32(unix.NFT_RANGE_EQ)
	if not {
		operation = unix.NFT_RANGE_NEQ
	}
	element, data := w.openExpression("range", field{unix.NFTA_RANGE_SREG, 1}, field{unix.NFTA_RANGE_OP, operation})
	w.data(unix.NFTA_RANGE_FROM_DATA, first)
	w.data(unix.NFTA_RANGE_TO_DATA, last)
	w.closeExpression(element, data)
}

// origin matches the source address of a direction of the connection. A prefix of whole octets is compared without a
// mask.
func (w *nftWriter) origin(m firewall.Origin) {
	element, data := w.openExpression("ct", field{unix.NFTA_CT_KEY, unix.NFT_CT_SRC}, field{unix.NFTA_CT_DREG, 1})
	direction := []byte{0} // IP_CT_DIR_ORIGINAL, linux/netfilter/nf_conntrack_tuple_common.h
	if m.Reply {
		direction[0] = 1 // IP_CT_DIR_REPLY
	}
	w.bytes(unix.NFTA_CT_DIRECTION, direction)
	w.closeExpression(element, data)
	if bits := m.Prefix.Bits(); bits%8 == 0 && bits > 0 {
		var room [16]byte
		w.compare(false, appendAddress(room[:0], m.Prefix.Masked().Addr())[:bits/8])
		return
	}
	w.prefix(m.Prefix)
}

// limit matches up to so many packets or octets in so many seconds, or with over those above it.
func (w *nftWriter) limit(kind uint32, rate, seconds uint64, burst uint32, over bool) {
	flags := uint32(0)
	if over {
		flags = unix.NFT_LIMIT_F_INV
	}
	element, data := w.openExpression("limit")
	w.number64(unix.NFTA_LIMIT_RATE, rate)
	w.number64(unix.NFTA_LIMIT_UNIT, seconds)
	w.number32(unix.NFTA_LIMIT_BURST, burst)
	w.number32(unix.NFTA_LIMIT_TYPE, kind)
	w.number32(unix.NFTA_LIMIT_FLAGS, flags)
	w.closeExpression(element, data)
}

// writeHeaderPart writes which part of an extension header or a TCP option an exthdr loads or sets.
func (w *nftWriter) writeHeaderPart(header byte, offset, size, operation uint32) {
	w.bytes(unix.NFTA_EXTHDR_TYPE, []byte{header})
	w.number32(unix.NFTA_EXTHDR_OFFSET, offset)
	w.number32(unix.NFTA_EXTHDR_LEN, size)
	w.number32(unix.NFTA_EXTHDR_OP, operation)
}

// setMSS writes register 1 into the MSS of a TCP segment, unless the MSS there is lower (nft_exthdr_tcp_set_eval in
// net/netfilter/nft_exthdr.c).
func (w *nftWriter) setMSS() {
	const maxSegment = 2 // TCPOPT_MAXSEG, net/tcp.h
	element, data := w.openExpression("exthdr", field{unix.NFTA_EXTHDR_SREG, 1})
	w.writeHeaderPart(maxSegment, 2, 2, unix.NFT_EXTHDR_OP_TCPOPT)
	w.closeExpression(element, data)
}

// setAddress writes an address into the IP header, at the offset of the IP version, and corrects the checksum of the
// IPv4 header and that of the transport header, which covers the addresses.
func (w *nftWriter) setAddress(a netip.Addr, v4, v6 uint32) {
	offset, size, checksum, at := v4, uint32(4), uint32(unix.NFT_PAYLOAD_CSUM_INET), uint32(10)
	if a.Is6() { // whose header has no checksum
		offset, size, checksum, at = v6, 16, unix.NFT_PAYLOAD_CSUM_NONE, 0
	}
	w.loadAddress(a)
	w.expression("payload", field{unix.NFTA_PAYLOAD_SREG, 1}, field{unix.NFTA_PAYLOAD_BASE, network}, field{unix.NFTA_PAYLOAD_OFFSET, offset},
		field{unix.NFTA_PAYLOAD_LEN, size}, field{unix.NFTA_PAYLOAD_CSUM_TYPE, checksum}, field{unix.NFTA_PAYLOAD_CSUM_OFFSET, at},
		field{unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR})
}

// up writes the expressions of firewall.Up.
func (w *nftWriter) up(port bool) {
	if port {
		w.load(1, firewall.NearestBridge)
		w.expression("payload", field{unix.NFTA_PAYLOAD_SREG, 1}, field{unix.NFTA_PAYLOAD_BASE, ether}, field{unix.NFTA_PAYLOAD_OFFSET, 0}, field{unix.NFTA_PAYLOAD_LEN, uint32(len(firewall.NearestBridge))})
	}
	w.verdict(accept, "")
}

func (w *nftWriter) counter() {
	element, data := w.openExpression("counter")
	w.number64(unix.NFTA_COUNTER_BYTES, 0)
	w.number64(unix.NFTA_COUNTER_PACKETS, 0)
	w.closeExpression(element, data)
}

// verdict writes a verdict (NF_*, NFT_*), with the chain that it names.
func (w *nftWriter) verdict(code int32, chain string) {
	element, data := w.openExpression("immediate", field{unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT})
	value := w.open(unix.NFTA_IMMEDIATE_DATA)
	verdict := w.open(unix.NFTA_DATA_VERDICT)
	w.number32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		w.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	w.close(verdict)
	w.close(value)
	w.closeExpression(element, data)
}

// appendAddress appends the 4 or 16 octets of an address.
func appendAddress(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		octets := a.As4()
		return append(b, octets[:]...)
	}
	octets := a.As16()
	return append(b, octets[:]...)
}

// known are the texts of rules, by the text of their expressions.
type known map[string]string

// knowRules returns the rules of the tables by their expressions. A rule in the kernel is recognised by
// encoding the wanted rules: decoding would need to understand every expression that a kernel has.
func knowRules(tables []firewall.Table) (known, error) {
	k := known{}
	var own nftWriter // used again for each rule
	var text []byte
	for _, t := range tables {
		if t.Family.IPTables() != 0 {
			continue
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				own.octets = own.octets[:0]
				own.writeExpressions(r)
				var err error
				if text, err = appendExpressions(text[:0], own.octets); err != nil {
					return nil, fmt.Errorf("encode the rule %v: %w", r, err)
				}
				k[string(text)] = r.String()
			}
		}
	}
	return k, nil
}

// text is the text of the known rule with these expressions; for other rules it is firewall.Unknown and the
// expressions.
func (k known) text(expressions []byte) (string, error) {
	var buffer [2048]byte // a longer rule takes one from the heap
	have, err := appendExpressions(buffer[:0], expressions)
	if text, ok := k[string(have)]; ok {
		return text, err
	}
	return firewall.Unknown + ": " + string(have), err
}
