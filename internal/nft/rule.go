package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
)

// MostForeign is how many rules are read into an image in addition to as many as the wanted tables have, to name them.
// One is enough to differ.
const MostForeign = 256

// readChainRules reads the rules of a table into the chains of the image.
func (n *Tables) readChainRules(image *firewall.Image, wanted []firewall.Table) error {
	rules, err := knowRules(wanted)
	if err != nil {
		return err
	}
	index, most, read := map[string]int{}, MostForeign, 0
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
	return n.filter.Dump(listRules(image.Family, image.Name), none, func(m []byte) error {
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
	r := netlink.NewRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP,
		netlink.Netfilter(families[family]), nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(family.TableOf(table))))
	if family.Shared() {
		r.AddData(nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(table)))
	}
	return r
}

// holdsRules reports whether the chains of the table in the kernel have the rules that are wanted, in their order. The
// kernel has the chains.
func (n *Tables) holdsRules(t firewall.Table) (bool, error) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.reset()
	passed := make([]int, len(t.Chains)) // so many rules of each chain
	differs, at := false, 0
	err := n.filter.Dump(listRules(t.Family, t.Name), func() { clear(passed); differs = false }, func(m []byte) error {
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
		if err := w.writeExpressions(chain.Rules[passed[at]]); err != nil {
			return err
		}
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
	if len(m) < netlink.SizeofNetfilter {
		return r, netlink.ErrCutShort
	}
	for m = m[netlink.SizeofNetfilter:]; len(m) >= unix.SizeofRtAttr; {
		kind, v, rest, err := netlink.CutAttribute(m)
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
func (w *writer) writeRule(table, chain string, r firewall.Rule) {
	w.text(unix.NFTA_RULE_TABLE, table)
	w.text(unix.NFTA_RULE_CHAIN, chain)
	list := w.open(unix.NFTA_RULE_EXPRESSIONS)
	w.writeExpressions(r)
	w.close(list)
}

// writeExpressions writes the expressions of a rule: those of all matches, and then those of the verdict. The error is
// the writer's first.
func (w *writer) writeExpressions(r firewall.Rule) error {
	for _, m := range r.Matches {
		w.writeMatch(m)
	}
	w.writeVerdict(r.Verdict)
	return w.failed
}

// writeMatch writes expressions that load a part of the packet into register 1 and compare the register.
func (w *writer) writeMatch(m firewall.Match) {
	var key any = m
	if b, is := m.(firewall.Bytes); is { // whose slices are no key
		key = bytesKey{b.Header, b.Offset, string(b.Value), string(b.Last), string(b.Mask), b.Inverted}
	}
	w.writeOnce(key, func() {
		switch m := m.(type) {
		case firewall.Origin:
			w.origin(m)
		case firewall.FirstInDestinations:
			w.firstDestination(m)
		default:
			w.add(encodeMatch(m)...)
		}
	})
}

// bytesKey is a firewall.Bytes as a key of a map.
type bytesKey struct {
	header            firewall.Header
	offset            int
	value, last, mask string
	inverted          bool
}

// writeVerdict writes the expressions of a verdict. Those with arguments load them into registers 1 and 2.
func (w *writer) writeVerdict(v firewall.Verdict) {
	w.writeOnce(v, func() {
		switch v := v.(type) {
		case firewall.Fwd:
			w.fwd(v)
		case firewall.Masquerade:
			w.masquerade(v)
		case firewall.SetSource:
			w.setAddress(v.Address, 12, 8)
		case firewall.SetDestination:
			w.setAddress(v.Address, 16, 24)
		default:
			w.add(encodeVerdict(v)...)
		}
	})
}

// encoded are the octets of matches and verdicts by their values. The rules of a table repeat most of them, and the
// library needs five times as long as a look here.
var encoded = struct {
	sync.Mutex
	octets map[any][]byte
}{octets: map[any][]byte{}}

// mostEncoded limits encoded: a program that wires many guests has values for each. A NIC's tables have about 150.
const mostEncoded = 4096

// writeOnce writes what write writes, which the key names. It calls write for a new key alone.
func (w *writer) writeOnce(key any, write func()) {
	encoded.Lock()
	octets, is := encoded.octets[key]
	encoded.Unlock()
	if is {
		w.octets = append(w.octets, octets...)
		return
	}
	at := len(w.octets)
	if write(); w.failed != nil {
		return
	}
	encoded.Lock()
	defer encoded.Unlock()
	if len(encoded.octets) == mostEncoded {
		clear(encoded.octets)
	}
	encoded.octets[key] = slices.Clone(w.octets[at:])
}

// add writes expressions of the library.
func (w *writer) add(expressions ...expr.Any) {
	for _, e := range expressions {
		octets, err := expr.Marshal(unix.NFPROTO_UNSPEC, e) // no expression in use depends on the family
		if err != nil && w.failed == nil {
			w.failed = fmt.Errorf("encode %T: %w", e, err)
		}
		element := w.open(unix.NFTA_LIST_ELEM)
		w.octets = append(w.octets, octets...)
		w.close(element)
	}
}

// What follows writes expressions that the library, v0.3.0, lacks.

// fwd sends the frame to another link. The library has no such expression.
func (w *writer) fwd(v firewall.Fwd) {
	w.add(immediate(1, binary.NativeEndian.AppendUint32(nil, uint32(v.Index))))
	w.expression("fwd", func() { w.number32(unix.NFTA_FWD_SREG_DEV, 1) })
}

// masquerade translates the source address. The library writes no flags beside ports, and without them the kernel
// ignores the ports.
func (w *writer) masquerade(v firewall.Masquerade) {
	if v == (firewall.Masquerade{}) {
		w.add(&expr.Masq{})
		return
	}
	w.add(immediate(1, netlink.EncodeBE16(v.First)))
	last := uint32(1) // the register
	if v.First != v.Last {
		last = 2
		w.add(immediate(last, netlink.EncodeBE16(v.Last)))
	}
	w.expression("masq", func() {
		w.number32(unix.NFTA_MASQ_REG_PROTO_MIN, 1)
		w.number32(unix.NFTA_MASQ_REG_PROTO_MAX, last)
		w.number32(unix.NFTA_MASQ_FLAGS, specifiedPorts)
	})
}

// directed loads what connection tracking knows of a direction into a register. The library writes the direction with
// four octets; the kernel reads the first, and complains of the others in its log (nft_ct_policy in
// net/netfilter/nft_ct.c). The release after v0.3.0 writes one: see TestDirected.
func (w *writer) directed(key uint32, reply bool, register uint32) {
	direction := []byte{0} // IP_CT_DIR_ORIGINAL, linux/netfilter/nf_conntrack_tuple_common.h
	if reply {
		direction[0] = 1 // IP_CT_DIR_REPLY
	}
	w.expression("ct", func() {
		w.number32(unix.NFTA_CT_KEY, key)
		w.number32(unix.NFTA_CT_DREG, register)
		w.bytes(unix.NFTA_CT_DIRECTION, direction)
	})
}

// firstDestination looks up where the connection's first packet went. The registers are those of
// firewall.InDestinations.
func (w *writer) firstDestination(m firewall.FirstInDestinations) {
	address, protocol, port := keyRegisters(m.Version)
	w.directed(ip.Pick[uint32](m.Version, ctDestination4, ctDestination6), false, address)
	w.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol})
	w.directed(unix.NFT_CT_PROTO_DST, false, port)
	w.add(&expr.Lookup{SourceRegister: 1, SetName: m.Set})
}

// Keys that unix does not name: NFT_CT_DST_IP and NFT_CT_DST_IP6, linux/netfilter/nf_tables.h.
const (
	ctDestination4 = 20
	ctDestination6 = 22
)

// origin matches the source address of a direction of the connection. A prefix of whole octets is compared without a
// mask.
func (w *writer) origin(m firewall.Origin) {
	w.directed(unix.NFT_CT_SRC, m.Reply, 1)
	address := m.Prefix.Masked().Addr().AsSlice()
	if bits := m.Prefix.Bits(); bits%8 == 0 && bits > 0 {
		w.add(compare(false, address[:bits/8]))
		return
	}
	w.add(masked(firewall.Mask(m.Prefix)), compare(false, address))
}

// setAddress writes an address into the IP header, at the offset of the IP version, and corrects the checksum of the
// IPv4 header and that of the transport header, which covers the addresses. The library writes no flags of a checksum
// without a checksum of the header's own, which an IPv6 header lacks.
func (w *writer) setAddress(a netip.Addr, v4, v6 uint32) {
	w.add(immediate(1, a.AsSlice()))
	if a.Is4() {
		w.add(&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: v4, Len: 4,
			CsumType: expr.CsumTypeInet, CsumOffset: 10, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR})
		return
	}
	w.expression("payload", func() {
		w.number32(unix.NFTA_PAYLOAD_SREG, 1)
		w.number32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		w.number32(unix.NFTA_PAYLOAD_OFFSET, v6)
		w.number32(unix.NFTA_PAYLOAD_LEN, 16)
		w.number32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE)
		w.number32(unix.NFTA_PAYLOAD_CSUM_OFFSET, 0)
		w.number32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	})
}

// Verdicts that unix does not name (NF_DROP, NF_ACCEPT, linux/netfilter.h).
const (
	drop   = 0
	accept = 1
)

// specifiedPorts is NF_NAT_RANGE_PROTO_SPECIFIED (linux/netfilter/nf_nat.h).
const specifiedPorts = 2

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
	var own writer // used again for each rule
	var text []byte
	for _, t := range tables {
		if t.Family.IPTables() != 0 {
			continue
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				own.octets = own.octets[:0]
				err := own.writeExpressions(r)
				if err != nil {
					return nil, err
				}
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
