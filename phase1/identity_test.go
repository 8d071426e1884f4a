package phase1_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// movedMAC is that of a guest that had another NIC before.
var movedMAC = cache.MAC{0x02, 0, 0, 0, 0, 0x70}

// TestGuestMAC gives the guest another MAC than the NIC's. The guest has its network, and every frame that leaves the
// pod has the guest's MAC: not the NIC's, nor one of the wiring's. The NIC stays up under redirect, permanent
// neighbours stay, and Teardown gives the MAC back. Setup itself says nothing in the guest's name.
func TestGuestMAC(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{MAC: movedMAC}, infra.Redirect{MAC: movedMAC}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			nstest.KernelDecides(t, "what goes with a MAC that changes, and what the kernel then sends")
			n := nstest.NewNetwork(t)
			neighbours := []string{"10.244.1.66", "fd00:244:1::66"}
			for _, a := range neighbours {
				n.Pod.IP("neigh add " + a + " lladdr 02:00:00:00:00:66 dev eth0 nud permanent")
			}
			before := settled(t, n)
			own := linkField(t, n, "eth0", "address")
			carrier := func() string { return n.World.Exec("cat", "/sys/class/net/pod/carrier_changes") }
			changes := carrier()
			c := config(n, b)
			unmarked := n.World.Sniff(t)
			setup(t, c)
			if seen := sources(unmarked); seen[movedMAC] > 0 {
				t.Errorf("Setup has sent %d frames with the guest's MAC", seen[movedMAC])
			}
			check(t, c)
			r := record(t, n)
			if r.MAC != movedMAC || own == movedMAC.String() {
				t.Fatalf("the record has %v, and the NIC had %s", r.MAC, own)
			}
			if b.Kind() == cache.BindingRedirect {
				for _, a := range neighbours {
					if out := n.Pod.IP("neigh show " + a + " dev eth0"); !strings.Contains(out, "02:00:00:00:00:66 PERMANENT") {
						t.Errorf("the neighbour %s is %q, want it permanent", a, out)
					}
				}
				if now := carrier(); now != changes {
					t.Errorf("the NIC went down: %s changes of the carrier, and there were %s", now, changes)
				}
			}
			wired := n.Pod.Dump()
			if b.Kind() == cache.BindingRedirect {
				n.Pod.IP("link set eth0 address " + own)
				var drift *phase1.DriftError
				is := func(d cache.Finding) bool { return d.Kind == "mac" && d.Link == "eth0" }
				if err := c.Check(t.Context()); !errors.As(err, &drift) || !slices.ContainsFunc(drift.Differs, is) {
					t.Errorf("Check of a NIC with its own MAC: %v, want a difference of its MAC", err)
				}
			}
			setup(t, c)
			if err := difference(stable(wired), stable(n.Pod.Dump())); err != nil {
				t.Errorf("a second Setup changed something: %v", err)
			}

			world := n.World.Sniff(t)
			launcher := n.Serve(t, nstest.LauncherUID)
			g := boot(t, n, r)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			got, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true})
			if err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			if got.IPv4.Address.Addr() != nstest.Pod4 || got.IPv6.Address != nstest.Pod6 {
				t.Errorf("the guest has %v and %v, want the pod's addresses", got.IPv4.Address, got.IPv6.Address)
			}
			for _, address := range []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6} {
				if _, err := g.Ping(ctx, address); err != nil {
					t.Errorf("guest to %v: %v", address, err)
				}
			}
			for _, address := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
				if out := n.World.IP("neigh show " + address.String() + " dev pod"); !strings.Contains(out, movedMAC.String()) {
					t.Errorf("the world's neighbour entry is %q, want %v", out, movedMAC)
				}
			}
			seen := sources(world)
			if len(seen) != 1 || seen[movedMAC] == 0 {
				t.Errorf("frames left the pod with the MACs %v, want %v alone; the NIC had %s", seen, movedMAC, own)
			}
			check(t, c)
			launcher.Stop(t)
			other := c
			other.Binding = map[cache.Kind]infra.Binding{cache.BindingBridge: infra.Bridge{}, cache.BindingRedirect: infra.Redirect{}}[b.Kind()]
			if err := setupAlone(t.Context(), other); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "(mac 02:00:00:00:00:70)") {
				t.Errorf("another MAC under a running guest: %v, want ErrWired with the MAC", err)
			}
			end(t, g)
			teardown(t, n, c, before)
			if b.Kind() == cache.BindingRedirect {
				if now := carrier(); now != changes {
					t.Errorf("the NIC went down: %s changes of the carrier, and there were %s", now, changes)
				}
			}
		})
	}
}

// sources counts the frames that came in until now, by their MACs.
func sources(s *nstest.Sniffer) map[cache.MAC]int {
	seen := map[cache.MAC]int{}
	for {
		f, ok := s.Next()
		if !ok {
			return seen
		}
		if !f.Outgoing {
			seen[cache.MAC(f.Frame[6:12])]++
		}
	}
}

// TestMACOfKinds gives NICs of several kinds the guest's MAC under redirect, and takes it back. A kind that is not
// known to take a MAC while it is up goes down for it, and gets its addresses and routes back.
func TestMACOfKinds(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for kind, live := range map[string]bool{"bridge": false, "vxlan": false, "dummy": true, "vlan": true, "veth": true} {
		t.Run(kind, func(t *testing.T) {
			if kind == "dummy" || kind == "vlan" {
				nstest.KernelDecides(t, "not every kernel has these links")
			}
			n := nstest.NewNetwork(t)
			create := map[string]string{
				"vlan": "link add link eth0 name net1 type vlan id 5", "veth": "link add net1 type veth peer name far1",
				"vxlan": "link add net1 type vxlan id 5 remote 10.244.1.1 dstport 4789",
			}[kind]
			if create == "" {
				create = "link add net1 type " + kind
			}
			if err := try(n.Pod, create); lacksFeature(err) {
				nstest.LeaveOut(t, "this kernel has no "+kind)
			} else if err != nil {
				t.Fatal(err)
			}
			n.Pod.IP("addr add 10.250.0.7/24 dev net1")
			n.Pod.IP("addr add fd00:250::7/64 dev net1 nodad")
			n.Pod.IP("link set net1 up")
			if kind == "veth" {
				n.Pod.IP("link set far1 up")
			}
			n.Pod.IP("route add 10.251.0.0/16 via 10.250.0.1 dev net1")
			n.Pod.IP("route add fd00:251::/64 via fd00:250::1 dev net1")
			if err := try(n.Pod, "link set net1 address 02:00:00:00:00:71"); live && err != nil {
				t.Errorf("another MAC while the NIC is up: %v", err)
			}
			for _, a := range []string{"10.250.0.66", "fd00:250::66"} {
				n.Pod.IP("neigh add " + a + " lladdr 02:00:00:00:00:66 dev net1 nud permanent")
			}
			before := settled(t, n)
			c := config(n, infra.Redirect{MAC: movedMAC})
			c.Name = "net1"
			setup(t, c)
			check(t, c)
			if out := n.Pod.IP("link show dev net1"); !strings.Contains(out, movedMAC.String()) || !strings.Contains(out, ",UP") {
				t.Errorf("the NIC is not up with %v: %s", movedMAC, out)
			}
			for _, list := range []string{"addr show dev net1", "route show dev net1", "-6 route show dev net1", "neigh show dev net1"} {
				if out := n.Pod.IP(list); !strings.Contains(out, "10.25") && !strings.Contains(out, "fd00:25") {
					t.Errorf("ip %s: %q", list, out)
				}
			}
			teardown(t, n, c, before)
		})
	}
}

// try runs ip(8) in the namespace.
func try(ns *nstest.Namespace, line string) error {
	return run("ip", append([]string{"-n", ns.Name}, strings.Fields(line)...)...)
}
