package guests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// longRoutes is a network whose routes take 369 octets of option 121, two parts. No message of 576 octets has room.
var longRoutes = network{
	name: "bridge-long-routes", binding: infra.Bridge{}, create: createLongRoutes,
	address4: "10.244.1.7/24", address6: "fd00:244:1::7/128",
	search: []string{"pod.example"},
}

const furtherRoutes = 45

func createLongRoutes(t *testing.T) nstest.Network {
	n := nstest.NewNetwork(t)
	for i := range furtherRoutes {
		n.Pod.IP(fmt.Sprintf("route add 10.100.%d.0/24 via 10.244.1.1", i))
	}
	return n
}

// TestLongRoutes: a client that takes large messages gets each route, whether it joins the parts of an option or reads
// each by itself. A client that takes 576 octets gets the default route alone, and the launcher's log says so.
func TestLongRoutes(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/launcher")
	tried := 0
	for _, sys := range systems {
		if strings.HasPrefix(sys.name, "cloud-init") || strings.HasPrefix(sys.name, "ifupdown") || sys.name == "connman" {
			continue // clients that are tried already
		}
		tried++
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			sys.programs = sys.programs[:1] // the others are for IPv6
			s := newScene(t, sys, longRoutes)
			s.serve(t, launcher)
			s.boot(t)
			want := []string{"10.244.1.0/24", "default via 10.244.1.1"}
			if p := sys.programs[0]; !p.simple && !p.short {
				for i := range furtherRoutes {
					want = append(want, fmt.Sprintf("10.100.%d.0/24 via 10.244.1.1", i))
				}
			}
			slices.Sort(want)
			nstest.Eventually(t, func() error {
				have := slices.DeleteFunc(routes(s.guest.IP("-4 route show dev eth0")), func(r string) bool {
					return sys.hosts && (strings.HasPrefix(r, dns4) || isHost(r))
				})
				if !slices.Equal(have, want) {
					return fmt.Errorf("routes %q, want %q", have, want)
				}
				return nil
			})
			nstest.Eventually(t, func() error {
				return checkOutput(s.launcher, "lost: option DHCPv4 option 121 (routes): its 369 octets do not fit into the answer to dhclient, udhcpc, Windows")
			})
		})
	}
	if tried < 5 {
		t.Errorf("%d systems", tried)
	}
}
