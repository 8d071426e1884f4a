package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// nft(8) prints octets of a header by the name of their field only if the rule itself matches the protocol. Most of
// guestwire's rules rely on the rule that goes to their chain instead. So the text of a table has the names as
// comments.

// context is what is known of the packets that reach a rule: the names of their network header and of their transport
// header; empty: not known.
type context struct{ network, transport string }

// field is a part of a header. Its kind says how its value is written.
type field struct {
	offset, length int
	name           string // nft's
	kind           fieldKind
}

type fieldKind int

const (
	isNumber fieldKind = iota
	isFlags
	isMAC
	isAddress
	isEtherType
	isProtocol
)

// headerFields are the fields that rules look at, by the header's name in context.
var headerFields = map[string][]field{
	"ether": {{0, 6, "ether daddr", isMAC}, {6, 6, "ether saddr", isMAC}, {12, 2, "ether type", isEtherType}},
	"ip": {{2, 2, "ip length", isNumber}, {6, 2, "ip frag-off", isFlags}, {9, 1, "ip protocol", isProtocol},
		{12, 4, "ip saddr", isAddress}, {16, 4, "ip daddr", isAddress}},
	"ip6": {{4, 2, "ip6 length", isNumber}, {6, 1, "ip6 nexthdr", isProtocol}, {7, 1, "ip6 hoplimit", isNumber},
		{8, 16, "ip6 saddr", isAddress}, {24, 16, "ip6 daddr", isAddress}},
	"arp": {{0, 2, "arp htype", isNumber}, {2, 2, "arp ptype", isEtherType}, {4, 1, "arp hlen", isNumber},
		{5, 1, "arp plen", isNumber}, {6, 2, "arp operation", isNumber}, {8, 6, "arp saddr ether", isMAC},
		{14, 4, "arp saddr ip", isAddress}, {18, 6, "arp daddr ether", isMAC}, {24, 4, "arp daddr ip", isAddress}},
	"icmp":             {{0, 1, "icmp type", isNumber}, {1, 1, "icmp code", isNumber}},
	"icmpv6":           {{0, 1, "icmpv6 type", isNumber}, {1, 1, "icmpv6 code", isNumber}, {8, 16, "icmpv6 taddr", isAddress}},
	routerSolicitation: {{0, 1, "icmpv6 type", isNumber}, {1, 1, "icmpv6 code", isNumber}}, // options where others have taddr
	"igmp":             {{0, 1, "igmp type", isNumber}},
	"tcp":              {{0, 2, "tcp sport", isNumber}, {2, 2, "tcp dport", isNumber}, {13, 1, "tcp flags", isFlags}},
	"udp":              {{0, 2, "udp sport", isNumber}, {2, 2, "udp dport", isNumber}},
	"sctp":             {{0, 2, "sctp sport", isNumber}, {2, 2, "sctp dport", isNumber}},
}

// routerSolicitation is the transport of ICMPv6's type 133.
const routerSolicitation = "router solicitation"

// contexts returns what is known of the packets that reach each chain, by the rules that go there.
func (t Table) contexts() map[string]context {
	contexts := map[string]context{}
	var enter func(chain string, known context)
	enter = func(chain string, known context) {
		before, entered := contexts[chain]
		if entered && before.network != known.network {
			known.network = ""
		}
		if entered && before.transport != known.transport {
			known.transport = ""
		}
		if entered && before == known {
			return
		}
		contexts[chain] = known
		i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == chain })
		if i < 0 { // a chain of a reason, which Counted adds
			return
		}
		for _, r := range t.Chains[i].Rules {
			switch v := r.Verdict.(type) {
			case Goto:
				enter(v.Chain, r.context(known))
			case Jump:
				enter(v.Chain, r.context(known))
			}
		}
	}
	for _, c := range t.Chains {
		if c.Hook != "" {
			enter(c.Name, context{})
		}
	}
	return contexts
}

// context adds what the rule's own matches say of the packet.
func (r Rule) context(known context) context {
	for _, m := range r.Matches {
		switch m := m.(type) {
		case Carries:
			known.network = ipWord(m.Version)
		case IP:
			known.network = ipWord(m.Version)
		case EtherType:
			known.network = etherTypes[m.Number]
		case Protocol:
			if !m.Inverted {
				known.transport = transportNames[m.Number]
			}
		case Bytes:
			if is := m.octets(Ethernet, 12, 2); is != nil {
				known.network = etherTypes[binary.BigEndian.Uint16(is)]
			}
		}
	}
	for _, m := range r.Matches { // the network header is known now
		if m, is := m.(Bytes); is {
			at := map[string]int{"ip": 9, "ip6": 6}[known.network]
			if is := m.octets(Network, at, 1); is != nil && at != 0 {
				known.transport = transportNames[is[0]]
			}
			if is := m.octets(Transport, 0, 1); is != nil && known.transport == "icmpv6" && is[0] == 133 {
				known.transport = routerSolicitation
			}
		}
	}
	return known
}

// octets returns the value that the match wants at the place; nil: it wants none.
func (m Bytes) octets(header Header, offset, length int) []byte {
	at := offset - m.Offset
	if m.Header != header || m.Inverted || m.Mask != nil || m.Last != nil || at < 0 || at+length > len(m.Value) {
		return nil
	}
	return m.Value[at : at+length]
}

// comment returns in nft's words what the rule's octets are, of a packet with a known context; empty: nothing has a
// name.
func (r Rule) comment(known context) string {
	known = r.context(known)
	var words []string
	for _, m := range r.Matches {
		text := ""
		switch m := m.(type) {
		case Bytes:
			text = m.name(map[Header]string{Ethernet: "ether", Network: known.network, Transport: known.transport}[m.Header])
		case InSet:
			if name, is := partNames[m.Part]; is {
				text = InSet{Part: name, Set: m.Set, Inverted: m.Inverted}.String()
			}
		case AddToSet:
			if name, is := partNames[m.Part]; is {
				text = AddToSet{Part: name, Set: m.Set, Renew: m.Renew}.String()
			}
		}
		if text != "" {
			words = append(words, text)
		}
	}
	if _, is := r.Verdict.(CompleteChecksum); is {
		words = append(words, "CHECKSUM --checksum-fill of iptables: nft lists it, and cannot load it")
	}
	return strings.Join(words, " ")
}

// partNames are those of the parts that nft knows by their place alone.
var partNames = map[Part]Part{ARPSender: "arp saddr ip", RawSource6: "ip6 saddr", DiscoveryTarget: "icmpv6 taddr"}

// name returns the match by the names of the header's fields; empty: a field has none, or the match is none of single
// fields.
func (m Bytes) name(header string) string {
	var words []string
	for at := 0; at < len(m.Value); {
		i := slices.IndexFunc(headerFields[header], func(f field) bool { return f.offset == m.Offset+at })
		if i < 0 {
			return ""
		}
		f := headerFields[header][i]
		end := min(at+f.length, len(m.Value))
		part := func(octets []byte, otherwise byte) []byte {
			out := slices.Repeat([]byte{otherwise}, f.length)
			if octets != nil {
				copy(out, octets[at:end])
			}
			return out
		}
		value, last, mask := part(m.Value, 0), part(m.Last, 0), slices.Repeat([]byte{0xff}, f.length)
		copy(mask[end-at:], make([]byte, f.length))
		if m.Mask != nil {
			mask = part(m.Mask, 0)
		}
		if m.Last == nil {
			last = value
		}
		if slices.ContainsFunc(mask, func(b byte) bool { return b != 0 }) {
			words = append(words, f.name+" "+f.comparison(value, last, mask, m.Inverted))
		}
		at = end
	}
	if m.Inverted && len(words) > 1 {
		return "" // not all of them is another thing than none of them
	}
	return strings.Join(words, " ")
}

// comparison returns the values that the field is compared with.
func (f field) comparison(value, last, mask []byte, not bool) string {
	switch bits := prefixLength(mask); {
	case bits == 8*f.length && slices.Equal(value, last):
		return negation(not) + f.format(value)
	case bits == 8*f.length:
		return negation(not) + f.format(value) + "-" + f.format(last)
	case bits > 0 && (f.kind == isAddress || f.kind == isMAC):
		return fmt.Sprintf("%s%s/%d", negation(not), f.format(value), bits)
	}
	if f.kind == isNumber {
		f.kind = isFlags
	}
	relation := "== "
	if not {
		relation = "!= "
	}
	return "& " + f.format(mask) + " " + relation + f.format(value)
}

// prefixLength returns the number of the mask's ones; 0 if a zero comes before one of them.
func prefixLength(mask []byte) int {
	digits := ""
	for _, b := range mask {
		digits += fmt.Sprintf("%08b", b)
	}
	rest := strings.TrimLeft(digits, "1")
	if strings.Contains(rest, "1") {
		return 0
	}
	return len(digits) - len(rest)
}

// format writes a value.
func (f field) format(value []byte) string {
	number := uint64(0)
	for _, b := range value {
		number = number<<8 | uint64(b)
	}
	switch f.kind {
	case isMAC:
		return strings.ReplaceAll(fmt.Sprintf("% x", value), " ", ":")
	case isAddress:
		address, _ := netip.AddrFromSlice(value)
		return address.String()
	case isEtherType:
		if name, is := etherTypes[uint16(number)]; is {
			return name
		}
		return fmt.Sprintf("%#04x", number)
	case isProtocol:
		if number != 0 {
			return protocol(uint8(number))
		}
	case isFlags:
		return fmt.Sprintf("%#x", number)
	}
	return fmt.Sprint(number)
}
