package phase1_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/test/wired"
)

// TestBypasses: beside a divert of TCP 443 nothing passes by which guests got round the proxies of others: QUIC, DNS
// over UDP, TCP, TLS and QUIC, each by IPv4 and IPv6. What the guest opens by IPv6, or to an IPv4 address by NAT64,
// arrives at the proxy as well.
func TestBypasses(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"divert all 443 :15443", "divert 198.51.100.9 8443 :15443", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		translated := netip.MustParseAddr("64:ff9b::198.51.100.9")
		s.World.IP(fmt.Sprintf("addr add %v dev lo nodad", translated))
		s.name("world", "translated", netip.Addr{}, translated)
		s.World.Serve("world", "tcp", netip.AddrPortFrom(translated, 853))
		s.World.Serve("world", "udp", netip.AddrPortFrom(translated, 443))
		s.serveWorld("tcp", 53, 853)
		s.serveWorld("udp", 443, 53, 853)
		s.ask(t, []exchange{
			{protocol: "tcp", from: "guest", to: "beyond:443", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "translated:443", want: "pod:15443 sees guest", only: 6},
			{protocol: "tcp", from: "guest", to: "translated:8443", want: "pod:15443 sees guest", only: 6},
		})
		for family := range 2 {
			for _, port := range []int{53, 443, 853} {
				s.refused(t, "udp", family, fmt.Sprintf("beyond:%d", port))
			}
			s.refused(t, "tcp", family, "beyond:53")
			s.refused(t, "tcp", family, "beyond:853")
		}
		s.refused(t, "udp", 1, "translated:443")
		s.refused(t, "tcp", 1, "translated:853")
	})
}
