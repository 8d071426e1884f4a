package phase1_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestAnotherLinkJoins: while the NIC is wired a second network comes, and its default route has the metric of the
// NIC's own. The kernel shows two such IPv6 routes as one. Check passes, and Teardown leaves the routes that would be
// there without a wiring.
func TestAnotherLinkJoins(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		join := func(n nstest.Network) {
			n.World.IP("link add pod3 type veth peer name net1 netns " + n.Pod.Name)
			n.World.IP("link set pod3 up")
			n.Pod.IP("addr add fd00:250::7/64 dev net1 nodad")
			n.Pod.IP("link set net1 up")
			n.Pod.IP("-6 route append default via fd00:250::1 dev net1 metric 1024 proto 250")
			n.Pod.IP("-6 route append fd00:7::/64 metric 1024 nexthop via fd00:250::1 dev net1 weight 3")
			settled(t, n)
		}
		create := func() nstest.Network {
			n := nstest.NewNetwork(t)
			n.Pod.IP("-6 route add fd00:7::/64 metric 1024 nexthop via fd00:244:1::1 dev eth0 weight 2 nexthop via fd00:244:1::2 dev eth0")
			settled(t, n)
			return n
		}
		routes := func(n nstest.Network) string { // the order of next hops is that of their coming, and the protocol that of the first one
			lines := strings.Split(strings.ReplaceAll(n.Pod.IP("-6 route show"), "default proto 250 ", "default "), "\n")
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
		plain := create()
		join(plain)
		want := routes(plain)
		if strings.Count(want, "nexthop") != 5 {
			t.Fatal(want)
		}

		n := create()
		c := config(n, b)
		setup(t, c)
		join(n)
		if err := c.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Teardown(t.Context()); err != nil {
			t.Fatal(err)
		}
		settled(t, n)
		if have := routes(n); have != want {
			t.Errorf("the routes are\n%s\nwant\n%s", have, want)
		}
	})
}
