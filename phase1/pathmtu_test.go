package phase1_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestPathMTU sends more than a link beyond takes: the error of the router there reaches the guest,
// which sends less from then on, be it the one who connected or not.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		for _, direction := range []exchange{
			{from: "guest", to: "far:9000", want: "far:9000 sees pod"},
			{from: "far", to: "pod:9000", want: "guest:9000 sees far"},
		} {
			t.Run(direction.String(), func(t *testing.T) {
				s := newScene(t)
				s.far(t, 1300)
				s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
				s.serve(t, []exchange{direction})
				for family := range 2 {
					q, err := s.question("tcp", family, direction)
					if err != nil {
						t.Fatal(err)
					}
					defer q.Close()
					if answer, err := q.Answer(patience); err != nil || answer != s.wanted(direction, family) {
						t.Fatalf("%q, %v, want %q", answer, err, s.wanted(direction, family))
					}
					// The guest sends it, or sends it back.
					if err := q.Echo(100_000, patience); err != nil {
						t.Errorf("IPv%d: %v", 4+2*family, err)
					}
					to := s.addresses["far"][family]
					if out := s.who["guest"].IP("route get " + to.String()); !strings.Contains(out, " mtu 1300") {
						t.Errorf("the guest has not learned that the path to %v takes 1300 octets:\n%s", to, out)
					}
				}
			})
		}
	})
}

// TestSegmentSize has a route of the namespace that takes less than the guest's link.
func TestSegmentSize(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		s.far(t, 1500)
		s.Pod.IP("route add 192.0.2.0/24 via " + nstest.Gateway4.String() + " mtu 1280")
		s.Pod.IP("route add 2001:db8:f::/64 via " + nstest.Gateway6.String() + " mtu 1280")
		s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
		for _, direction := range []exchange{
			{from: "guest", to: "far:9000", want: "far:9000 sees pod"},
			{from: "far", to: "pod:9001", want: "guest:9001 sees far"},
		} {
			s.serve(t, []exchange{direction})
			for family := range 2 {
				q, err := s.question("tcp", family, direction)
				if err != nil {
					t.Fatal(err)
				}
				if answer, err := q.Answer(patience); err != nil || answer != s.wanted(direction, family) {
					t.Errorf("%q, %v, want %q", answer, err, s.wanted(direction, family))
				}
				for _, who := range []string{"guest", "far"} {
					mss, out := segmentSize(s.who[who], netip.AddrPortFrom(s.addresses["far"][family], port(direction.to)))
					if most := 1280 - 40 - 20*family; mss == 0 || mss > most || mss < most-40 {
						t.Errorf("IPv%d, %v: %s sends segments of %d octets, want nearly %d:\n%s", 4+2*family, direction, who, mss, most, out)
					}
				}
				q.Close()
			}
		}
	})
}
