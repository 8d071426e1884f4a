package phase1_test

import (
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestAnotherLinkGone: routes led through the NIC and another link, which goes while the NIC is wired, as the NIC of a
// second network does. Teardown gives back what needs that link no more, as if the link had gone without a wiring.
func TestAnotherLinkGone(t *testing.T) {
	t.Parallel()
	routes := []string{
		"-6 route add default nexthop via fd00:244:1::1 dev eth0 nexthop via fd00:250::1 dev net1",
		"route add 203.0.113.0/24 nexthop via 10.244.1.1 dev eth0 weight 2 nexthop via 10.250.0.1 dev net1",
		"-6 route add fd00:7::/64 nexthop via fd00:244:1::1 dev eth0 nexthop via fd00:244:1::2 dev eth0 nexthop via fd00:250::1 dev net1",
		"route add 198.51.100.0/24 via 10.250.0.1 dev net1 src 10.244.1.7",
	}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		create := func() nstest.Network {
			n := nstest.NewNetwork(t)
			secondNIC(n, "10.250.0.7/24", "fd00:250::7/64")
			n.Pod.IP("-6 route del default")
			for _, r := range routes {
				n.Pod.IP(r)
			}
			settled(t, n)
			return n
		}
		plain := create()
		plain.Pod.IP("link del net1")
		want := plain.Pod.IP("route show") + plain.Pod.IP("-6 route show")

		n := create()
		c := config(n, b)
		setup(t, c)
		n.Pod.IP("link del net1")
		check(t, c)
		unwire(t, c)
		settled(t, n)
		if have := n.Pod.IP("route show") + n.Pod.IP("-6 route show"); have != want {
			t.Errorf("the routes are\n%s\nwant\n%s", have, want)
		}
	})
}
