package phase1_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// diverting are the entries of most tests: a loopback target, the gateway's ports, one at which nobody listens, and
// what passes beside them.
var diverting = []string{
	"divert 198.51.100.9 9000 127.0.0.1:8080", "divert 198.51.100.9 9000/udp 127.0.0.1:8080",
	"divert all 9001 :15443", "divert all 9001/udp :15443", "divert all 9002 :15999", "divert all 9002/udp :15999",
	"allow all 9003-9100", "allow all 9003-9100/udp", "refuse all",
}

// nameGuest gives the guest's addresses and its gateway's the names that they have behind a masquerade.
func (s *scene) nameGuest(t *testing.T, c wired.NIC) {
	r := nstest.Record(t, c.State, c.Name)
	s.name("guest", "guest", r.IPv4.Address.Addr(), r.IPv6.Address)
	s.name("pod", "guest's gateway", r.IPv4.Gateway(), lease.RoutedIPv6)
	if s.at["pod"] == "pod" {
		s.name("pod", "guest's gateway", r.IPv4.Gateway(), r.IPv6.Gateway)
	}
}

// TestDivert: what the guest opens to a destination arrives at the target, by TCP and UDP and both families, and what
// it opens elsewhere goes on as the list says. Where nobody listens the guest gets the namespace's refusal. The
// connections are counted, and Teardown leaves nothing.
func TestDivert(t *testing.T) {
	t.Parallel()
	eachRouter(t, diverting, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		check(t, c)
		s.ask(t, []exchange{
			{protocol: "tcp", from: "guest", to: "beyond:9000", want: "pod:8080 sees guest", only: 4},
			{protocol: "udp", from: "guest", to: "beyond:9000", want: "pod:8080 sees guest", only: 4},
			{protocol: "tcp", from: "guest", to: "beyond:9001", want: "pod:15443 sees guest"},
			{protocol: "udp", from: "guest", to: "beyond:9001", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "guest's gateway:9001", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "beyond:9003", want: "world:9003 sees pod"},
			{protocol: "tcp", from: "pod", to: "beyond:9001", want: "world:9001 sees pod"}, // only the guest's
		})
		for _, protocol := range []string{"tcp", "udp"} {
			s.serveWorld(protocol, 9002)
			for family := range 2 {
				s.ask(t, []exchange{{protocol: protocol, from: "guest", to: "beyond:9002", want: "refused", only: 4 + 2*family}})
			}
			s.refused(t, protocol, 1, "beyond:9000") // no IPv6 address is a target on loopback
		}
		status, err := c.Status(t.Context())
		if err != nil || status.Diverted == nil || *status.Diverted < 9 {
			t.Errorf("counted %v, %v", status.Diverted, err)
		}
	})
}
