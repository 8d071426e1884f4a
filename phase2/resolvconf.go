package phase2

import (
	"net/netip"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// parseResolvConf takes name servers and search domains out of a resolv.conf (resolv.conf(5)). The
// last of several search or domain lines counts. What is no address is left out, and so are
// addresses of the loopback: they are not the guest's.
func parseResolvConf(text []byte) cache.DNS {
	var dns cache.DNS
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || strings.HasPrefix(words[0], ";") {
			continue
		}
		switch words[0] {
		case "nameserver":
			server, err := netip.ParseAddr(words[1])
			if err == nil && !server.IsLoopback() {
				dns.Servers = append(dns.Servers, server)
			}
		case "search":
			dns.Search = words[1:]
		case "domain":
			dns.Search = words[1:2]
		}
	}
	return dns
}
