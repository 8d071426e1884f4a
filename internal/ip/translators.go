package ip

import "net/netip"

// Translator is the prefix of a NAT64 translator, of 96, 64, 56, 48, 40 or 32 bits: the IPv6 addresses in it stand for
// IPv4 addresses (RFC 6052).
type Translator struct{ netip.Prefix }

// TranslatorsOf are that of the well-known prefix, 64:ff9b::/96, and the site's own; zero: it has none.
func TranslatorsOf(site netip.Prefix) []Translator {
	wellKnown := netip.MustParsePrefix("64:ff9b::/96")
	if !site.IsValid() || site == wellKnown {
		return []Translator{{wellKnown}}
	}
	return []Translator{{wellKnown}, {site}}
}

// reserved is the octet that no IPv4 octet takes. RFC 6052 section 2.2 wants it to be zero; translators such as Jool
// ignore it.
const reserved = 8

// place is the place of an octet of the IPv4 address (RFC 6052 section 2.2).
func (t Translator) place(octet int) int {
	at := t.Bits()/8 + octet
	if t.Bits() <= 8*reserved && at >= reserved {
		at++
	}
	return at
}

// head is the number of IPv4 bits in front of the reserved octet, or all if the octet is in the prefix.
func (t Translator) head() int {
	if t.Bits() > 8*reserved {
		return 32
	}
	return 8*reserved - t.Bits()
}

// To6 is the IPv6 address of one of IPv4.
func (t Translator) To6(a netip.Addr) netip.Addr {
	octets := t.Masked().Addr().As16()
	for i, octet := range a.As4() {
		octets[t.place(i)] = octet
	}
	return netip.AddrFrom16(octets)
}

// To4 is the IPv4 address of an IPv6 address in the prefix, whatever the octets are that have no part of it.
func (t Translator) To4(a netip.Addr) netip.Addr {
	var four [4]byte
	octets := a.As16()
	for i := range four {
		four[i] = octets[t.place(i)]
	}
	return netip.AddrFrom4(four)
}

// Malformed reports whether an IPv6 address in the prefix has a reserved octet that is not zero. Translators disagree
// about the IPv4 address of such a one.
func (t Translator) Malformed(a netip.Addr) bool {
	return t.Bits() <= 8*reserved && a.As16()[reserved] != 0
}

// Range are addresses of one version of IP, both ends included.
type Range struct{ First, Last netip.Addr }

// Ranges are the IPv6 addresses that stand for those of a range of IPv4. The octets after the IPv4 address may have any
// value. So may the reserved octet where the range has all addresses that differ in the octets after it alone.
//
// Other addresses with a reserved octet that is not zero are malformed, and a translator that ignores it leads them to
// one of several IPv4 addresses. The malformed ranges have those that may lead into the range.
func (t Translator) Ranges(of Range) (ranges, malformed []Range) {
	size := uint64(1) << (32 - t.head()) // of the addresses with the same head
	first, last := number(of.First), number(of.Last)
	for first <= last {
		begin := t.To6(address(first))
		if full := (last + 1) / size * size; first%size == 0 && first < full {
			ranges = append(ranges, Range{begin, LastOf(netip.PrefixFrom(t.To6(address(full-1)), t.Bits()+t.head()))})
			first = full
			continue
		}
		end := min(last, first|(size-1))
		ranges = append(ranges, Range{begin, LastOf(netip.PrefixFrom(t.To6(address(end)), 8*(reserved+1)+32-t.head()))})
		octets := begin.As16()
		clear(octets[reserved+1:])
		octets[reserved] = 1
		odd := netip.AddrFrom16(octets)
		malformed = append(malformed, Range{odd, LastOf(netip.PrefixFrom(odd, 8*reserved))})
		first = end + 1
	}
	return ranges, malformed
}

// number is an IPv4 address as one, and address is the address of a number.
func number(a netip.Addr) (n uint64) {
	for _, octet := range a.As4() {
		n = n<<8 | uint64(octet)
	}
	return n
}

func address(n uint64) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
