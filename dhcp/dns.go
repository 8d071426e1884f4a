package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/served"
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

// encodeNames returns the names without compression.
func encodeNames(names []string) []byte {
	var b []byte
	for _, name := range names {
		b = served.AppendName(b, name, nil)
	}
	return b
}
