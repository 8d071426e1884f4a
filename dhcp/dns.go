package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// resolver is the part of a DNS configuration that the guest gets.
type resolver struct {
	servers4, servers6 []netip.Addr
	search             []string // without trailing dots
	warnings           []string
}

// newResolver returns what the guest of the record can use. A server with a zone is on the link of that name,
// which the guest is on only if it is the record's NIC and the guest is not behind masquerade.
func newResolver(dns cache.DNS, rec *cache.Record) resolver {
	var res resolver
	for _, given := range dns.Servers {
		s, zone := given.WithZone("").Unmap(), given.Zone()
		switch {
		case zone != "" && (zone != rec.Name || rec.Binding == cache.BindingMasquerade):
			res.warnings = append(res.warnings, fmt.Sprintf("DNS server %v is left out: it is not on the guest's link", given))
		case !s.IsValid() || s.IsUnspecified() || s.IsLoopback() || s.IsMulticast() || s == broadcastIP:
			res.warnings = append(res.warnings, fmt.Sprintf("DNS server %v is left out: the guest could not reach it", s))
		case s.Is4() && !slices.Contains(res.servers4, s):
			res.servers4 = append(res.servers4, s)
		case s.Is6() && !slices.Contains(res.servers6, s):
			res.servers6 = append(res.servers6, s)
		}
	}
	for _, given := range rec.Options.Search(dns.Search) {
		name := strings.TrimRight(strings.TrimSpace(given), ".")
		if name == "" { // the root domain, which means that there is no search list
			continue
		}
		if reason := nameFault(name); reason != "" {
			res.warnings = append(res.warnings, fmt.Sprintf("search domain %q is left out: %s", given, reason))
			continue
		}
		same := func(other string) bool { return strings.EqualFold(other, name) }
		if !slices.ContainsFunc(res.search, same) {
			res.search = append(res.search, name)
		}
	}
	return res
}

// nameFault returns why a guest cannot get the name, which has no trailing dot; empty: it can. The limits are those of
// RFC 1035 section 2.3.4. Underscores are in use and pass.
func nameFault(name string) string {
	if len(name) > 253 {
		return "longer than 253 octets"
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" {
			return "an empty label"
		}
		if len(label) > 63 {
			return "a label longer than 63 octets"
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "letters, digits, - and _ can be encoded, nothing else"
			}
		}
	}
	return ""
}

// appendName appends the name as a sequence of labels (RFC 1035 section 3.1).
//
// With offsets the name is compressed (section 4.1.4): offsets maps the ends of names that are in the option,
// which begins at b[0], to their places, and gets those of this name. Nil: no compression, as DHCPv6 and
// router advertisements want it (RFC 9915 section 10, RFC 8106 section 5.2).
func appendName(b []byte, name string, offsets map[string]int) []byte {
	for name != "" {
		known := strings.ToLower(name)
		if at, ok := offsets[known]; ok {
			return append(b, 0xc0|byte(at>>8), byte(at))
		}
		if offsets != nil {
			offsets[known] = len(b)
		}
		label, rest, _ := strings.Cut(name, ".")
		b = append(b, byte(len(label)))
		b = append(b, label...)
		name = rest
	}
	return append(b, 0)
}

// encodeNames returns the names without compression.
func encodeNames(names []string) []byte {
	var b []byte
	for _, name := range names {
		b = appendName(b, name, nil)
	}
	return b
}

// searchList4 returns the names of option 119 (RFC 3397). Names in the first 255 octets are compressed, the others are
// not. So pointers are right for clients that join the parts of an option, and for those that read each part by itself.
func searchList4(names []string) [][]byte {
	var items [][]byte
	var b []byte
	offsets := map[string]int{}
	for _, name := range names {
		start := len(b)
		b = appendName(b, name, offsets)
		if len(b) > 255 {
			offsets = nil
			b = appendName(b[:start], name, nil)
		}
		items = append(items, slices.Clone(b[start:]))
	}
	return items
}
