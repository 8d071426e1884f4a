package phase1_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFlat: a guest that knows an address, a mask and a gateway alone has the network, under each binding.
func TestFlat(t *testing.T) {
	t.Parallel()
	for _, network := range []struct {
		name          string
		world, pod    []string
		pods, routeds string // the guest's address as a bridge has it, and routed
	}{
		{"a network",
			[]string{"addr add 10.244.1.1/24 dev pod"},
			[]string{"addr add 10.244.1.7/24 dev eth0", "route add default via 10.244.1.1"},
			"10.244.1.7/24 10.244.1.1", "10.244.1.7/31 10.244.1.6"},
		{"ptp",
			[]string{"addr add 10.244.1.1/32 dev pod", "route add 10.244.1.7 dev pod"},
			[]string{"addr add 10.244.1.7/24 dev eth0 noprefixroute", "route add 10.244.1.1 dev eth0", "route add 10.244.1.0/24 via 10.244.1.1", "route add default via 10.244.1.1"},
			"10.244.1.7/24 10.244.1.1", "10.244.1.7/31 10.244.1.6"},
		{"Calico",
			[]string{"addr add 169.254.1.1/32 dev pod", "route add 10.244.1.7 dev pod"},
			[]string{"addr add 10.244.1.7/32 dev eth0", "route add 169.254.1.1 dev eth0 scope link", "route add default via 169.254.1.1"},
			"10.244.1.7/31 10.244.1.6", "10.244.1.7/31 10.244.1.6"},
	} {
		t.Run(network.name, func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				n := nstest.NewWorld(t)
				n.NeedTaps()
				n.World.IP("link add pod mtu 1400 type veth peer name eth0 mtu 1400 netns " + n.Pod.Name)
				for _, line := range append([]string{"link set pod up"}, network.world...) {
					n.World.IP(line)
				}
				for _, line := range append([]string{"link set eth0 up"}, network.pod...) {
					n.Pod.IP(line)
				}
				setup(t, config(n, b))
				r := record(t, n)
				f, err := guestconfig.FlatIPv4(r, cache.DNS{})
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]string{"masquerade": "10.0.2.2/24 10.0.2.1", "routed": network.routeds}[string(b.Kind())]
				if want == "" {
					want = network.pods
				}
				if have := fmt.Sprint(f.Address, f.Gateway); have != want || f.MTU != 1400 {
					t.Errorf("%s, MTU %d; want %s, MTU 1400", have, f.MTU, want)
				}
				guest := n.Guest(t, r)
				n.Serve(t, nstest.LauncherUID)
				guest.IP(fmt.Sprintf("link set eth0 mtu %d up", f.MTU))
				guest.IP(fmt.Sprintf("addr add %v dev eth0", f.Address))
				guest.IP(fmt.Sprintf("route add default via %v", f.Gateway))
				n.World.Serve("world", "tcp", netip.AddrPortFrom(nstest.Beyond4, 9000))
				q, err := guest.Question("tcp", netip.Addr{}, netip.AddrPortFrom(nstest.Beyond4, 9000), 1)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				if answer, err := q.Answer(patience); err != nil || answer != "world:9000 sees 10.244.1.7" {
					t.Errorf("%q, %v", answer, err)
				}
			})
		})
	}
}
