package dhcp

import (
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/servers"
)

// resolver has the servers and names that the guest gets.
type resolver struct {
	servers4, servers6 []netip.Addr
	ntp6               []netip.Addr
	search             []string // without trailing dots
	lost               []cache.Finding
}

// newResolver returns what the guest of the record can use.
func newResolver(dns cache.DNS, rec *cache.Record) resolver {
	var res resolver
	var lost [3][]cache.Finding
	var resolvers, ntp []netip.Addr
	nic := servers.Leased(rec)
	resolvers, lost[0] = nic.Resolvers(dns.Servers)
	ntp, lost[1] = nic.Reachable(rec.Options.NTP)
	res.servers4, res.servers6 = byFamily(resolvers)
	_, res.ntp6 = byFamily(ntp)
	res.search, lost[2] = servers.Search(&rec.Options, dns.Search)
	res.lost = slices.Concat(lost[:]...)
	return res
}

func byFamily(list []netip.Addr) (v4, v6 []netip.Addr) {
	for _, a := range list {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	return v4, v6
}

// encodeNames returns the names without compression, as DHCPv6 and router advertisements want them (RFC 9915 section
// 10, RFC 8106 section 5.2). The library checks no name: one of newResolver has no trailing dot, and labels of 1 to 63
// octets.
func encodeNames(names ...string) []byte { return (&rfc1035label.Labels{Labels: names}).ToBytes() }
